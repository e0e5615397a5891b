# SPDX-License-Identifier: Apache-2.0
"""Counting what compiled programs compute and send."""

import functools

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import program

_SCHEDULED = """
%body (p: (f32[4])) -> (f32[4]) {
  %p = (f32[4]) parameter(0)
  %x = f32[4] get-tuple-element(%p), index=0
  %y = f32[4] convolution(%x, %x), dim_labels=bf_io->bf
  ROOT %t = (f32[4]) tuple(%y)
}
ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4] parameter(0)
  %early = (f32[4], f32[4]) collective-permute-start(%a)
  %empty = (f32[4], f32[4]) collective-permute-start(%a)
  %came = f32[4] collective-permute-done(%empty)
  %begin = (f32[4]) tuple(%a)
  %loop = (f32[4]) while(%begin), condition=%cond, body=%body
  ROOT %end = f32[4] collective-permute-done(%early)
}
"""


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

  def test_transfers_that_a_loop_hides(self):
    found = program.transfers(_SCHEDULED)
    self.assertEqual(found, [('main', True), ('main', False)])

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
