# SPDX-License-Identifier: Apache-2.0
"""Counting what compiled programs do, and the bench that reports it."""

import functools
import json
import os
import pathlib
import tempfile

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import program
from benchmarks import scale
import hcl_jax
from tests.support import commands


def _count(function, *shapes):
  arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  return program.count(jax.jit(function).lower(*arguments).compile().as_text())


def _on_devices(function, devices):
  spec = jax.sharding.PartitionSpec('i')
  return jax.shard_map(
      function,
      mesh=jax.sharding.Mesh(np.array(jax.devices()[:devices]), ('i',)),
      in_specs=spec,
      out_specs=spec,
      check_vma=False,
  )


class ProgramTest(parameterized.TestCase):

  def test_products(self):
    work = _count(lambda x, y: x @ y, (3, 50), (50, 7))
    self.assertEqual(work, program.Work(2 * 3 * 50 * 7, {}, {}))

  def test_loops_count_as_often_as_they_run(self):
    def nested(x):
      def outer(x, _):
        inner = lambda x, _: (jnp.tanh(x @ x), None)  # noqa: E731
        return jax.lax.scan(inner, x, length=3)[0] + 1, None

      return jax.lax.scan(outer, x, length=5)[0]

    self.assertEqual(_count(nested, (40, 40)).flops, 5 * 3 * 2 * 40**3)

  def test_loops_of_unknown_length_are_refused(self):
    def until(x):
      return jax.lax.while_loop(
          lambda x: jnp.sum(x) < 9, lambda x: jnp.tanh(x @ x), x
      )

    with self.assertRaisesRegex(ValueError, 'no known trip count'):
      _count(until, (40, 40))

  def test_the_larger_branch_counts(self):
    def either(x, y):
      twice = lambda x: x @ x @ x  # noqa: E731
      return jax.lax.cond(y[0] > 0, twice, lambda x: x @ x, x)

    self.assertEqual(_count(either, (40, 40), (1,)).flops, 2 * 2 * 40**3)

  def test_collectives_of_a_ring(self):
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0)]

    def ring(x):
      hop = lambda x, _: (jnp.tanh(jax.lax.ppermute(x, 'i', pairs)), None)  # noqa: E731
      return jax.lax.scan(hop, x, length=6)[0]

    work = _count(_on_devices(ring, 4), (8, 5))
    self.assertEqual(work.calls, {'collective-permute': 6})
    self.assertEqual(work.sent, {'collective-permute': 6 * 2 * 5 * 4})

  def test_gathering(self):
    gather = functools.partial(
        jax.lax.all_gather, axis_name='i', axis=1, tiled=True
    )
    work = _count(_on_devices(gather, 4), (8, 5))
    self.assertEqual(work.sent, {'all-gather': 2 * 20 * 4})

  def test_no_module(self):
    with self.assertRaisesRegex(ValueError, 'an HLO module with an ENTRY'):
      program.count('nothing')


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
        ids = 2 * 4 * 2 * pairs
        self.assertEqual(bytes_, {'collective-permute': 24 * pairs * d + ids})

  def test_a_ring_holds_no_more_with_more_devices(self):
    held = [
        scale.measure(scale.compile_loss(n, 32, 16, 16), n)['temporary']
        for n in (2, 8)
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
