# SPDX-License-Identifier: Apache-2.0
"""The bench of the loss on many devices, its parts and as a user runs it."""

import json
import os
import pathlib
import tempfile

from absl.testing import parameterized
import jax
import jax.numpy as jnp

from benchmarks import scale
import hcl_jax
from tests.support import commands


class ScaleTest(parameterized.TestCase):

  @parameterized.parameters(2, 4)
  def test_what_the_notes_say(self, devices):
    b, d = 32, 16
    pairs = devices * b
    for block in (None, 16):
      found = scale.measure(
          scale.compile_loss(devices, b, d, block), devices
      )
      # Held whole, the similarities are not computed once more.
      self.assertIn(
          found['flops'], (32 * b * pairs * d, 24 * b * pairs * d)
      )
      bytes_ = dict(found['received'])
      bytes_.pop('all-reduce', None)
      if block is None:
        ids = 4 * 2 * (pairs - b)
        self.assertEqual(
            sum(bytes_.values()), 2 * 8 * (pairs - b) * d + ids
        )
      else:
        # Both passes visit the others; two devices exchange their rows once.
        visits = 2 * (devices - 1) if devices > 2 else 1
        row = 4 * d + 4  # and its number
        sent = 2 * b * (visits * row + devices * 4 * d)
        self.assertEqual(bytes_, {'collective-permute': sent})

  def test_a_ring_holds_no_more_with_more_devices(self):
    held = [
        scale.measure(scale.compile_loss(n, 32, 16, 16), n)['temporary']
        for n in (4, 8)
    ]
    self.assertLess(held[1], 1.1 * held[0])

  def test_memory_is_linear_in_the_batch(self):
    small, large = (
        scale.measure(scale.compile_lone_loss(pairs, 16), 1)
        for pairs in (2**12, 2**16)
    )
    self.assertLess(large['temporary'], 20 * small['temporary'])
    self.assertAlmostEqual(large['flops'] / (16 * 2.0**32 * 16), 1, delta=0.02)

  def test_no_list_grows_with_the_number_of_tiles(self):
    def text(pairs):
      z = jax.ShapeDtypeStruct((pairs, 16), jnp.float32)
      loss = lambda z1, z2: hcl_jax.simclr_loss(z1, z2).mean()  # noqa: E731
      return jax.jit(jax.grad(loss)).lower(z, z).as_text()

    self.assertLess(len(text(2**16)), 1.1 * len(text(2**12)))

  def test_what_does_not_fit_has_no_time(self):
    rows = [{'pairs': 9, 'temporary': 1.0, 'held': 2.0, 'flops': 1e12,
             'v5e': None, 'H100': 0.5}]  # fmt: skip
    self.assertRegex(scale.size_table(rows), r'9 .* - +0\.500')

  def test_command(self):
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, 'scale.json')
      done = commands.run(
          'benchmarks', 'scale', '--device_counts=1,2', '--global_sizes=64',
          '--scale_dim=8', '--pairs_per_device=16', f'--json={path}',
      )  # fmt: skip
      self.assertEqual(done.status, 0, done.err)
      rows = json.loads(pathlib.Path(path).read_text())
    self.assertLen(rows['devices'], 4)
    self.assertIn('2 ring', done.out)
