# SPDX-License-Identifier: Apache-2.0
"""moco_loss."""

import functools

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import losses
from tests import reference
from tests.support import testing

P = jax.sharding.PartitionSpec


class MocoLossTest(testing.LossTest):

  def _value_and_grad(self, queries, keys, queue, **knobs):
    def mean(queries):
      values = losses.moco_loss(queries, keys, queue, **knobs)
      return values.mean(), values

    grad, values = jax.grad(mean, has_aux=True)(queries)
    return values, grad

  @parameterized.product(
      mask=(None, 'queue', 'pairs'),
      block_size=(None, 4),
      floor=('sphere', 'soft'),
  )
  def test_matches_the_oracle(self, mask, block_size, floor):
    queries, keys = testing.views(5, 3)
    queue = testing.normal(11, 3, seed=7)
    rng = np.random.default_rng(0)
    where = None
    if mask is not None:
      where = rng.random((11,) if mask == 'queue' else (5, 11)) < 0.7
    for temperature, beta, tau_plus in (
        (0.2, 0.2, 0.0), (0.2, 1.0, 0.3), (0.01, 5.0, 0.1)
    ):  # fmt: skip
      knobs = {
          'temperature': temperature, 'beta': beta, 'tau_plus': tau_plus,
          'floor': floor, 'where': where,
      }  # fmt: skip
      with self.subTest(temperature=temperature, beta=beta):
        values, grad = self._value_and_grad(
            queries, keys, queue, block_size=block_size, **knobs
        )
        expected, expected_grad = reference.moco(queries, keys, queue, **knobs)
        self.assert_close(values, expected, 2e-5)
        self.assert_same_gradient(
            grad, np.array(expected_grad), 2e-5, unit=1e-6
        )

  @parameterized.product(masked=(False, True), block_size=(None, 4))
  def test_extra_negatives_of_each_query(self, masked, block_size):
    queries, keys = testing.views(5, 3)
    queue = testing.normal(11, 3, seed=7)
    extra = np.stack([testing.normal(4, 3, seed=20 + i) for i in range(5)])
    knobs = {'temperature': 0.2, 'beta': 1.0, 'tau_plus': 0.1, 'extra': extra}
    if masked:
      knobs['where'] = np.random.default_rng(0).random((5, 11)) < 0.7
    values, grad = self._value_and_grad(
        queries, keys, queue, block_size=block_size, **knobs
    )
    expected, expected_grad = reference.moco(queries, keys, queue, **knobs)
    self.assert_close(values, expected, 2e-5)
    self.assert_same_gradient(grad, np.array(expected_grad), 2e-5, unit=1e-6)

  @parameterized.parameters(((4, 2, 3),), ((5, 2, 2),), ((5, 0, 3),), ((5, 3),))
  def test_extra_negatives_must_fit(self, shape):
    queries, keys = testing.views(5, 3)
    with self.assertRaisesRegex(ValueError, r'extra must have .*\[5, n, 3\]'):
      losses.moco_loss(
          queries, keys, testing.normal(11, 3), extra=np.ones(shape, np.float32)
      )

  @parameterized.parameters(None, 2)
  def test_golden_values(self, block_size):
    cosines = np.float32([0.5, 0.0, -0.5, 0.1])
    queue = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)
    q, k = np.float32([[1.0, 0.0]]), np.float32([[0.8, 0.6]])
    for beta, expected in ((0.0, 0.241491), (0.2, 0.326223), (1.0, 0.558122)):
      values = losses.moco_loss(q, k, queue, beta=beta, block_size=block_size)
      self.assertAlmostEqual(float(values[0]), expected, delta=1e-6)

  @parameterized.product(block_size=(None, 4), filler=(np.nan, np.inf))
  def test_an_unfilled_queue_may_hold_anything(self, block_size, filler):
    queries, keys = testing.views(5, 3)
    queue = testing.normal(11, 3, seed=7)
    where = np.arange(11) < 6
    padded = np.where(where[:, None], queue, np.float32(filler))
    values, grad = self._value_and_grad(
        queries, keys, padded, where=where, block_size=block_size
    )
    expected, expected_grad = self._value_and_grad(queries, keys, queue[:6])
    self.assert_close(values, expected, 1e-6)
    self.assert_same_gradient(grad, expected_grad, 1e-5)

  @parameterized.parameters(None, 4)
  def test_a_query_without_keys_has_loss_zero(self, block_size):
    queries, keys = testing.views(5, 3)
    where = np.ones((5, 11), bool)
    where[2] = False
    values, grad = self._value_and_grad(
        queries, keys, testing.normal(11, 3), where=where,
        block_size=block_size, tau_plus=0.3, temperature=0.01,
    )  # fmt: skip
    self.assertEqual(values[2], 0)
    np.testing.assert_array_equal(grad[2], 0)
    self.assert_finite((values, grad))

  @parameterized.product(masked=(False, True), block_size=(None, 2))
  def test_a_split_queue_is_one_queue(self, masked, block_size):
    queries, keys = testing.views(16, 3)
    queue, where = testing.normal(24, 3, seed=7), None
    knobs = {
        'temperature': 0.2, 'beta': 1.0, 'tau_plus': 0.1,
        'positive_weight': 0.7,
    }  # fmt: skip
    if masked:  # all of the first device's keys, and some of the others'
      where = (np.arange(24) > 2) & (np.arange(24) % 5 > 0)
      queue[~where] = np.nan
    expected, _ = reference.moco(
        queries, keys, np.nan_to_num(queue), where=where, **knobs
    )

    def total(arrays, knobs, where, **split):
      values = losses.moco_loss(*arrays, where=where, **knobs, **split)
      return values.sum(), values

    whole, by_parts = (
        jax.grad(functools.partial(total, **split), (0, 1), has_aux=True)
        for split in ({}, {'axis_name': 'batch', 'block_size': block_size})
    )
    arrays = queries, keys, queue
    knobs = jax.tree.map(np.float32, knobs)
    (to_arrays, to_knobs), values = jax.jit(whole)(arrays, knobs, where)
    self.assert_close(values, expected, 2e-5)
    shards = jax.tree.map(
        lambda x: x.reshape(8, -1, *x.shape[1:]), (arrays, where)
    )
    (to_shards, to_knobs_here), values = jax.pmap(
        by_parts, axis_name='batch', in_axes=(0, None, 0)
    )(shards[0], knobs, shards[1])
    self.assert_close(values.reshape(16), expected, 2e-5)
    joined = [x.reshape(-1, 3) for x in to_shards]
    self.assert_same_gradient(tuple(joined), to_arrays, 1e-5)
    summed = jax.tree.map(lambda x: x.sum(axis=0), to_knobs_here)
    self.assert_same_gradient(summed, to_knobs, 1e-5)

  @parameterized.parameters(None, 2)
  def test_a_mask_may_be_the_same_on_all_devices(self, block_size):
    arrays = *testing.views(16, 3), testing.normal(24, 3, seed=7)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ('batch',))
    where = np.arange(3) < 2
    split = jax.shard_map(
        lambda *arrays: losses.moco_loss(
            *arrays, where=where, axis_name='batch', block_size=block_size,
            effective_negatives=0.7,
        ),
        mesh=mesh, in_specs=P('batch'), out_specs=P('batch'),
    )  # fmt: skip
    expected = losses.moco_loss(
        *arrays, where=np.tile(where, 8), effective_negatives=0.7
    )
    self.assert_close(jax.jit(split)(*arrays), expected, 1e-4)

  def test_a_mask_of_pairs_needs_the_whole_queue(self):
    arrays = *testing.views(16, 3), testing.normal(24, 3)
    shards = jax.tree.map(lambda x: x.reshape(8, -1, 3), arrays)
    with self.assertRaisesRegex(
        ValueError, r"shape \(3,\).* axis_name='batch'; got \(2, 3\)"
    ):
      jax.pmap(
          lambda *x: losses.moco_loss(
              *x, where=np.ones((2, 3), bool), axis_name='batch'
          ),
          axis_name='batch',
      )(*shards)

  def test_blocks_change_nothing_for_keys_and_queue(self):
    queries, keys = testing.views(9, 3)
    queue = testing.normal(30, 3, seed=7)

    def mean(arrays, block_size):
      return losses.moco_loss(*arrays, block_size=block_size).mean()

    grad = jax.grad(mean)
    arrays = queries, keys, queue
    self.assert_same_gradient(grad(arrays, 4), grad(arrays, 10**6), 1e-5)

  def test_a_long_queue_is_not_held_against_the_batch(self):
    queries, keys = testing.views(16, 4)
    queue = testing.normal(2**15, 4, seed=7)
    text = str(jax.make_jaxpr(losses.moco_loss)(queries, keys, queue))
    self.assertNotIn(f'f32[16,{2**15}]', text)
    values, grad = self._value_and_grad(queries, keys, queue)
    expected, expected_grad = self._value_and_grad(
        queries, keys, queue, block_size=2**15
    )
    self.assert_close(values, expected)
    self.assert_same_gradient(grad, expected_grad, 1e-5)

  def test_half_precision_is_upcast(self):
    arrays = (*testing.views(5, 3), testing.normal(11, 3))
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in arrays]
    values = losses.moco_loss(*arrays)
    self.assertEqual(values.dtype, jnp.float32)
    wide = [np.asarray(x, np.float64) for x in arrays]
    expected, _ = reference.moco(
        *wide, temperature=0.2, beta=0.4, tau_plus=0.0
    )
    self.assert_close(values, expected)
