# SPDX-License-Identifier: Apache-2.0
"""MoCo's queue and moving average, against numpy."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import momentum
from tests.support import testing


class MixingTest(parameterized.TestCase):

  def _mix(self, queries, queue, seed=0, **knobs):
    keys = jax.random.split(jax.random.key(seed), len(queries))
    return np.asarray(
        testing.jitted(momentum.mix_hardest, keys, queries, queue, **knobs)
    )

  def _unit(self, x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)

  def test_mixtures_of_two_of_the_hardest(self):
    queries = testing.normal(3, 4)
    queue = self._unit(testing.normal(20, 4, seed=1))
    mixed = self._mix(
        queries, queue, num_hardest=2, num_mixed=50, num_with_query=0
    )
    np.testing.assert_allclose(
        np.linalg.norm(mixed, axis=-1), 1, rtol=1e-5
    )
    for query, of_query in zip(queries, mixed, strict=True):
      near, nearer = queue[np.argsort(queue @ query)[-2:]]
      # In the plane of both, and between them.
      shares, *_ = np.linalg.lstsq(
          np.stack([near, nearer], axis=1), of_query.T, rcond=None
      )
      np.testing.assert_allclose(
          shares.T @ np.stack([near, nearer]), of_query, atol=1e-5
      )
      self.assertGreater(shares.min(), -1e-5)
      alone = np.isclose(shares.min(axis=0), 0, atol=1e-5)
      # A key is drawn twice in half of the cases, and mixed with itself.
      self.assertBetween(np.mean(alone), 0.25, 0.75)

  def test_the_query_never_has_the_larger_share(self):
    queries = testing.normal(3, 4)
    queue = self._unit(testing.normal(20, 4, seed=1))
    mixed = self._mix(
        queries, queue, num_hardest=1, num_mixed=0, num_with_query=200
    )
    for query, of_query in zip(self._unit(queries), mixed, strict=True):
      hardest = queue[np.argmax(queue @ query)]
      shares, *_ = np.linalg.lstsq(
          np.stack([query, hardest], axis=1), of_query.T, rcond=None
      )
      gamma = shares[0] / shares.sum(axis=0)
      self.assertBetween(gamma.min(), -1e-5, 0.05)
      self.assertBetween(gamma.max(), 0.45, 0.5 + 1e-5)

  def test_masked_keys_are_not_mixed(self):
    queries = testing.normal(2, 4)
    queue = self._unit(testing.normal(20, 4, seed=1))
    where = np.ones((2, 20), bool)
    where[0, np.argmax(queue @ queries[0])] = False
    knobs = {'num_hardest': 1, 'num_mixed': 1, 'num_with_query': 0}
    mixed = self._mix(queries, queue, where=where, **knobs)
    second = queue[np.argsort(queue @ queries[0])[-2]]
    np.testing.assert_allclose(mixed[0, 0], second, rtol=1e-5)
    first = queue[np.argmax(queue @ queries[1])]
    np.testing.assert_allclose(mixed[1, 0], first, rtol=1e-5)

  def test_no_gradient_flows_into_them(self):
    queries, queue = testing.normal(2, 4), testing.normal(20, 4, seed=1)
    keys = jax.random.split(jax.random.key(0), 2)

    def total(queries, queue):
      return momentum.mix_hardest(
          keys, queries, queue, num_hardest=3, num_mixed=2, num_with_query=2
      ).sum()

    for grad in jax.grad(total, argnums=(0, 1))(queries, queue):
      np.testing.assert_array_equal(grad, 0)

  @parameterized.parameters(
      ((0, 1, 1), 'num_hardest must be from 1 to 20'),
      ((21, 1, 1), 'num_hardest must be from 1 to 20'),
      ((2, 0, 0), 'not both 0'),
      ((2, -1, 3), 'must not be negative'),
  )
  def test_impossible_numbers(self, numbers, message):
    names = 'num_hardest', 'num_mixed', 'num_with_query'
    with self.assertRaisesRegex(ValueError, message):
      self._mix(
          testing.normal(2, 4),
          testing.normal(20, 4),
          **dict(zip(names, numbers, strict=True)),
      )


class QueueTest(parameterized.TestCase):

  def test_starts_with_random_unit_vectors_of_no_image(self):
    queue = momentum.init_queue(jax.random.key(0), 64, 8)
    np.testing.assert_allclose(
        np.linalg.norm(queue.keys, axis=1), 1.0, rtol=1e-6
    )
    self.assertLess(np.abs(np.mean(queue.keys)), 0.1)
    self.assertTrue(np.all(queue.index == momentum.NO_IMAGE))

  @parameterized.parameters(4, 3, 10)
  def test_push_replaces_the_oldest(self, batch):
    size = 10
    queue = momentum.init_queue(jax.random.key(0), size, 2)
    push = jax.jit(momentum.push)
    expected = list(
        zip(np.asarray(queue.index), np.asarray(queue.keys), strict=True)
    )
    for i in range(5):
      keys = testing.normal(batch, 2, seed=i)
      index = np.arange(i * batch, (i + 1) * batch, dtype=np.int32)
      queue = push(queue, keys, index)
      unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
      expected = expected[batch:] + list(zip(index, unit, strict=True))
    order = (int(queue.head) + np.arange(size)) % size
    np.testing.assert_array_equal(
        np.asarray(queue.index)[order], [index for index, _ in expected]
    )
    np.testing.assert_allclose(
        np.asarray(queue.keys)[order],
        np.stack([key for _, key in expected]),
        rtol=1e-5,
    )

  def test_too_many_keys(self):
    queue = momentum.init_queue(jax.random.key(0), 4, 2)
    with self.assertRaisesRegex(ValueError, '5 keys for a queue of 4'):
      momentum.push(queue, jnp.ones((5, 2)), jnp.arange(5))

  def test_older_keys_of_the_own_image_are_no_negatives(self):
    queue = momentum.init_queue(jax.random.key(0), 4, 2)
    queue = momentum.push(queue, testing.normal(3, 2), np.int32([7, 8, 7]))
    keep = momentum.of_other_images(queue, np.int32([7, 9]))
    np.testing.assert_array_equal(
        keep, [[False, True, False, True], [True, True, True, True]]
    )


class AverageTest(absltest.TestCase):

  def test_is_the_weighted_mean(self):
    old, new = {'a': jnp.float32([1.0, 2.0])}, {'a': jnp.float32([3.0, 6.0])}
    np.testing.assert_allclose(
        momentum.average(old, new, 0.75)['a'], [1.5, 3.0]
    )

  def test_keeps_float32(self):
    old, new = jnp.ones(2), jnp.ones(2, jnp.bfloat16)
    self.assertEqual(momentum.average(old, new, 0.9).dtype, jnp.float32)
