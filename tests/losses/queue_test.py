# SPDX-License-Identifier: Apache-2.0
"""moco_loss."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import losses
from tests import reference
from tests.support import testing


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
