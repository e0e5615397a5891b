# SPDX-License-Identifier: Apache-2.0
"""Batch order, resuming, processes and true-label positives."""

import threading
import time

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from hcl_jax.images import data as image_data
from hcl_jax.storage import records


def _images(n=50, num_classes=3):
  """Images whose pixels tell their row."""
  pixels = np.zeros((n, 2, 2, 3), np.uint8)
  pixels[:] = np.arange(n)[:, None, None, None]
  labels = np.random.default_rng(0).integers(num_classes, size=n)
  return image_data.Images(pixels, labels)


class _Streamed(image_data.Images):
  """The same, but to be read through grain."""

  in_memory = False


def _batches(images, first_step=0, num_steps=7, **kwargs):
  kwargs = {'seed': 5, 'batch_size': 12, **kwargs}
  return list(
      image_data.batches(
          images, first_step=first_step, num_steps=num_steps, **kwargs
      )
  )


class BatchesTest(parameterized.TestCase):

  def assert_same(self, first, second):
    self.assertLen(first, len(second))
    for a, b in zip(first, second, strict=True):
      self.assertEqual(a.keys(), b.keys())
      for key in a:
        self.assertEqual(a[key].dtype, b[key].dtype)
        np.testing.assert_array_equal(a[key], b[key])

  def test_rows_of_a_batch_belong_together(self):
    images = _images()
    for batch in _batches(images):
      index = batch['index']
      self.assertEqual(index.dtype, np.int32)
      self.assertEqual(batch['label'].dtype, np.int32)
      np.testing.assert_array_equal(batch['image'][:, 0, 0, 0], index)
      np.testing.assert_array_equal(batch['label'], images.labels[index])

  def test_an_epoch_is_a_permutation_without_its_rest(self):
    self.assertEqual(image_data.steps_per_epoch(50, 12), 4)
    index = [batch['index'] for batch in _batches(_images(), num_steps=8)]
    first, second = np.concatenate(index[:4]), np.concatenate(index[4:])
    self.assertLen(set(first.tolist()), 48)
    self.assertLen(set(second.tolist()), 48)
    self.assertTrue(np.any(first != second))

  def test_order_follows_the_seed(self):
    images = _images()
    self.assert_same(_batches(images), _batches(images))
    one, other = _batches(images)[0], _batches(images, seed=6)[0]
    self.assertTrue(np.any(one['index'] != other['index']))

  @parameterized.parameters(False, True)
  def test_resuming_at_any_step(self, true_label_positives):
    images = _images()
    whole = _batches(
        images, num_steps=11, true_label_positives=true_label_positives
    )
    for first in (1, 4, 10):
      rest = _batches(
          images, first, 11 - first, true_label_positives=true_label_positives
      )
      self.assert_same(rest, whole[first:])

  @parameterized.parameters(2, 3)
  def test_processes_share_the_batch(self, process_count):
    images = _images()
    whole = _batches(images, true_label_positives=True)
    shares = [
        _batches(
            images, true_label_positives=True, process_index=i,
            process_count=process_count,
        )
        for i in range(process_count)
    ]  # fmt: skip
    joined = [
        {key: np.concatenate([b[key] for b in parts]) for key in parts[0]}
        for parts in zip(*shares, strict=True)
    ]
    self.assert_same(joined, whole)

  def test_grain_gives_the_same_batches(self):
    images = _images()
    streamed = _Streamed(images.array, images.labels)
    for first in (0, 3):
      self.assert_same(
          _batches(streamed, first, true_label_positives=True),
          _batches(images, first, true_label_positives=True),
      )

  def test_true_label_positives_are_uniform_in_the_class(self):
    images = _images(n=20)
    counts = np.zeros((20, 20))
    for batch in _batches(
        images, batch_size=20, num_steps=1500, true_label_positives=True
    ):
      counts[batch['index'], batch['positive'][:, 0, 0, 0]] += 1
    same = images.labels[:, None] == images.labels
    np.testing.assert_array_equal(counts[~same], 0)
    expected = 1500 * same / same.sum(axis=1, keepdims=True)
    deviation = (counts - expected)[same] / np.sqrt(expected[same])
    self.assertLess(np.abs(deviation).max(), 5)

  def test_no_steps_no_batches(self):
    self.assertEmpty(_batches(_images(), num_steps=0))

  @parameterized.parameters(
      ({'batch_size': 51}, 'at most the number of images, 50, got 51'),
      ({'batch_size': 0}, 'batch_size must be at least 1'),
      ({'seed': -1}, 'seed must be 0 or more'),
      ({'first_step': -1}, 'first_step must be 0 or more'),
      ({'process_count': 5}, 'multiple of the number of processes, 5'),
      ({'process_index': 2, 'process_count': 2}, 'process_index'),
  )
  def test_bad_arguments_fail_at_the_call(self, kwargs, message):
    arguments = {
        'seed': 0, 'batch_size': 12, 'first_step': 0, 'num_steps': 1, **kwargs
    }  # fmt: skip
    with self.assertRaisesRegex(ValueError, message):
      image_data.batches(_images(), **arguments)

  def test_true_label_positives_need_labels(self):
    labels = np.where(np.arange(50) < 2, -1, 0)
    images = image_data.Images(_images().array, labels)
    with self.assertRaisesRegex(ValueError, '2 of 50 have none'):
      _batches(images, true_label_positives=True)


class MapAheadTest(absltest.TestCase):

  def test_an_error_comes_at_its_turn(self):
    results = records.map_ahead(lambda i: 1 // (2 - i), range(4))
    self.assertEqual([next(results), next(results)], [0, 1])
    with self.assertRaises(ZeroDivisionError):
      next(results)

  def test_closing_ends_the_thread(self):
    before = threading.active_count()
    done = []
    results = records.map_ahead(done.append, range(10**9), num_ahead=2)
    next(results)
    results.close()
    time.sleep(0.05)
    self.assertLessEqual(len(done), 4)
    self.assertEqual(threading.active_count(), before)

  def test_results_are_made_ahead_and_in_order(self):
    made = []
    results = records.map_ahead(
        lambda i: made.append(i) or i, range(20), num_threads=4, num_ahead=6
    )
    self.assertEqual(next(results), 0)
    deadline = time.time() + 10
    while len(made) < 7 and time.time() < deadline:
      time.sleep(0.01)
    self.assertLen(made, 7)
    self.assertEqual(list(results), list(range(1, 20)))
