# SPDX-License-Identifier: Apache-2.0
"""Weighted kNN against loops in float64."""

import doctest
import math
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import evaluation
from hcl_jax.evaluation import accuracy
from hcl_jax.evaluation import knn
from tests.support import testing

_CLASSES = 7


def _unit(row):
  row = [float(x) for x in row]
  norm = math.sqrt(sum(x * x for x in row))
  return [x / norm if norm else 0.0 for x in row]


def _oracle_neighbors(bank, queries, k):
  """(similarity, row) of the k nearest, ties to the lower row."""
  bank = [_unit(row) for row in bank]
  found = []
  for query in queries:
    query = _unit(query)
    pairs = [
        (sum(a * b for a, b in zip(query, row, strict=True)), index)
        for index, row in enumerate(bank)
    ]
    found.append(sorted(pairs, key=lambda p: (-p[0], p[1]))[:k])
  return found


def _oracle_scores(bank, bank_labels, queries, k, temperature):
  """Log votes; math.fsum of exp around the peak of each class."""
  scores = np.full((len(queries), _CLASSES), -np.inf)
  for i, pairs in enumerate(_oracle_neighbors(bank, queries, k)):
    for c in range(_CLASSES):
      votes = [s / temperature for s, j in pairs if bank_labels[j] == c]
      if votes:
        peak = max(votes)
        scores[i, c] = peak + math.log(
            math.fsum(math.exp(vote - peak) for vote in votes)
        )
  return scores


def _task(bank=43, queries=11, dim=5):
  rng = np.random.default_rng(3)
  return (
      testing.normal(bank, dim, seed=1),
      rng.integers(0, _CLASSES, bank),
      testing.normal(queries, dim, seed=2),
      rng.integers(0, _CLASSES, queries),
  )


class NeighborsTest(parameterized.TestCase):

  @parameterized.parameters(1, 4, 10, 43, 10**6)
  def test_every_block_size_finds_the_neighbours(self, block_size):
    bank, _, queries, _ = _task()
    similarities, rows = evaluation.nearest_neighbors(
        bank, queries, k=6, block_size=block_size
    )
    expected = np.array(_oracle_neighbors(bank, queries, 6))
    np.testing.assert_array_equal(rows, expected[..., 1])
    np.testing.assert_allclose(similarities, expected[..., 0], atol=1e-6)

  @parameterized.parameters(3, 8, 100)
  def test_ties_go_to_the_lower_row(self, block_size):
    # Powers of two and single axes: similarities are exact in float32.
    bank = np.zeros((24, 4), np.float32)
    bank[np.arange(24), np.arange(24) % 4] = 2.0 ** (np.arange(24) % 3)
    queries = np.eye(4, dtype=np.float32)
    _, rows = evaluation.nearest_neighbors(
        bank, queries, k=9, block_size=block_size
    )
    expected = np.array(_oracle_neighbors(bank, queries, 9))[..., 1]
    np.testing.assert_array_equal(rows, expected)

  def test_k_beyond_the_bank_takes_all_of_it(self):
    bank, _, queries, _ = _task(bank=7)
    for block_size in (3, 100):
      similarities, rows = evaluation.nearest_neighbors(
          bank, queries, k=200, block_size=block_size
      )
      self.assertEqual(rows.shape, (11, 7))
      np.testing.assert_array_equal(
          np.sort(rows), np.tile(np.arange(7), (11, 1))
      )
      self.assertTrue(np.all(np.isfinite(similarities)))

  def test_rows_of_zeros_and_of_any_scale(self):
    bank, _, queries, _ = _task()
    scale = 10.0 ** np.linspace(-18, 18, len(bank))
    scaled = np.float32(bank * scale[:, None])
    scaled[5] = 0
    bank = bank.copy()
    bank[5] = 0
    _, rows = evaluation.nearest_neighbors(scaled, queries, k=20)
    expected = np.array(_oracle_neighbors(bank, queries, 20))[..., 1]
    np.testing.assert_array_equal(rows, expected)

  def test_the_similarities_are_never_held_whole(self):
    tile = jnp.zeros((4, 5)), jnp.zeros((8, 5))
    best = jnp.zeros((4, 3)), jnp.zeros((4, 3), jnp.int32)
    bank, _, queries, _ = _task()
    with mock.patch.object(knn, '_merge', wraps=knn._merge) as merge:
      evaluation.nearest_neighbors(bank, queries, k=3, block_size=4)
    shapes = {
        tuple(map(jax.typeof, jax.tree.leaves((call.args, call.kwargs))))
        for call in merge.call_args_list
    }
    self.assertGreater(merge.call_count, 1)
    self.assertLen(shapes, 1)  # to compile
    text = str(jax.make_jaxpr(knn._merge)(best, *tile, np.int32([0, 43])))
    self.assertIn('f32[4,8]', text)
    self.assertNotIn('43]', text)


class KnnTest(parameterized.TestCase):

  @parameterized.parameters(0.5, 0.05, 1e-3)
  def test_matches_the_oracle(self, temperature):
    bank, bank_labels, queries, labels = _task()
    knobs = {'num_classes': _CLASSES, 'temperature': temperature}
    for k in (1, 6, 20, 200):
      expected = _oracle_scores(bank, bank_labels, queries, k, temperature)
      scores = evaluation.knn_scores(
          bank, bank_labels, queries, k=k, block_size=10, **knobs
      )
      voted = np.isfinite(expected)
      np.testing.assert_array_equal(np.isfinite(scores), voted)
      np.testing.assert_allclose(
          scores[voted], expected[voted], atol=1e-6 / temperature
      )
      order = [np.argsort(-row, kind='stable').tolist() for row in expected]
      ranks = np.array(
          [row.index(y) for row, y in zip(order, labels, strict=True)]
      )
      result = evaluation.knn_accuracy(
          bank, bank_labels, queries, labels, k=k, block_size=10, **knobs
      )
      self.assertEqual(result['top1'], np.mean(ranks < 1))
      self.assertEqual(result['top5'], np.mean(ranks < 5))

  def test_distant_classes_do_not_underflow(self):
    angles = np.array([0.0, 1.0, 1.5])
    bank = np.float32(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    scores = evaluation.knn_scores(
        bank, [2, 0, 1], bank[:1], num_classes=3, temperature=1e-4
    )
    np.testing.assert_array_equal(np.argsort(-scores[0]), [2, 0, 1])

  def test_a_class_without_votes_has_minus_infinity(self):
    bank, _, queries, _ = _task()
    scores = evaluation.knn_scores(
        bank, np.full(43, 2), queries, num_classes=4
    )
    np.testing.assert_array_equal(
        np.isfinite(scores), np.tile(np.arange(4) == 2, (11, 1))
    )

  def test_half_precision_and_device_arrays(self):
    bank, bank_labels, queries, labels = _task()
    halves = [jnp.asarray(x, jnp.bfloat16) for x in (bank, queries)]
    wide = [np.asarray(x, np.float64) for x in halves]
    results = [
        evaluation.knn_accuracy(
            b, jnp.asarray(bank_labels), q, labels, num_classes=_CLASSES, k=9
        )
        for b, q in (halves, wide)
    ]
    self.assertEqual(*results)

  def test_example(self):
    result = doctest.testmod(knn)
    self.assertGreater(result.attempted, 0)
    self.assertEqual(result.failed, 0)

  def test_bad_arguments(self):
    bank, bank_labels, queries, labels = _task()
    unlabelled = np.where(np.arange(43) == 4, -1, bank_labels)
    nan = np.where(np.arange(43)[:, None] == 40, np.float32(np.nan), bank)
    good = {
        'bank': bank, 'bank_labels': bank_labels, 'queries': queries,
        'labels': labels, 'num_classes': _CLASSES,
    }  # fmt: skip
    for change, message in (
        ({'bank_labels': unlabelled}, 'bank_labels.*-1 in row 4.*1 such rows'),
        ({'bank_labels': bank_labels[1:]}, r'bank_labels.*43.*\(42,\)'),
        ({'labels': labels + _CLASSES}, '^labels must lie between 0 and.*6'),
        ({'labels': labels * 0.5}, 'labels must be 11 integers.*float64'),
        ({'bank': nan}, 'bank must be finite.*row 40'),
        ({'queries': queries[0]}, r'queries.*\[rows, features\].*\(5,\)'),
        ({'queries': queries[:, :3]}, r'queries must have 5 features.*3\)'),
        ({'queries': queries.astype(int)}, 'queries.*int64.*Cast'),
        ({'bank': bank[:0], 'bank_labels': bank_labels[:0]}, 'bank.*non-emp'),
        ({'k': 0}, 'k must be >= 1, got 0'),
        ({'block_size': 0}, 'block_size must be >= 1, got 0'),
        ({'temperature': 0.0}, 'temperature must be > 0'),
        ({'num_classes': 2.5}, 'num_classes must be an int'),
    ):
      arguments = good | change
      arrays = [
          arguments.pop(name)
          for name in ('bank', 'bank_labels', 'queries', 'labels')
      ]
      with self.assertRaisesRegex(ValueError, message):
        evaluation.knn_accuracy(*arrays, **arguments)


class AccuracyTest(absltest.TestCase):

  def test_equal_scores_rank_by_class(self):
    scores = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    result = accuracy.top_accuracies(scores, np.array([0, 1]))
    self.assertEqual(result, {'top1': 0.5})  # Five classes have no top-5.

  def test_top5_of_six_classes(self):
    scores = np.tile(np.arange(6.0), (3, 1))
    result = accuracy.top_accuracies(scores, np.array([0, 1, 5]))
    self.assertEqual(result, {'top1': 1 / 3, 'top5': 2 / 3})
