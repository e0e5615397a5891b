# SPDX-License-Identifier: Apache-2.0
"""MoCo's queue and moving average, against numpy."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import momentum
from tests import testing


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


if __name__ == '__main__':
  absltest.main()
