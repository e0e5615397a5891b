# SPDX-License-Identifier: Apache-2.0
"""Ranks of documents against a full sort in float64."""

import doctest

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from hcl_jax import evaluation
from hcl_jax.evaluation import retrieval
from tests.support import testing

_MEASURES = 'R@1', 'R@5', 'MRR', 'nDCG@3', 'group R@1'


def _problem(num_queries=37, num_documents=200, num_ids=120):
  """Queries near documents; ids with several documents, and groups of ids."""
  rng = np.random.default_rng(0)
  documents = testing.normal(num_documents, 8)
  ids = rng.integers(0, num_ids, num_documents)
  groups = rng.integers(-1, 15, num_ids)[ids]
  rows = rng.integers(0, num_documents, num_queries)
  queries = documents[rows] + testing.normal(num_queries, 8, seed=1)
  return queries, documents, ids[rows], ids, groups


def _expected(queries, documents, query_ids, ids, groups):
  """Ranks by loops: irrelevant documents first where scores are equal."""
  unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
  queries, documents = (unit(np.float64(x)) for x in (queries, documents))
  of_relevant, in_group = [], []
  for query, wanted in zip(queries, query_ids, strict=True):
    scores = documents @ query
    others = np.flatnonzero(ids != wanted)
    own = sorted(scores[ids == wanted], reverse=True)
    above = [sum(scores[others] >= x - 1e-6) for x in own]
    of_relevant.append([n + 1 + k for k, n in enumerate(above)])
    group = groups[np.flatnonzero(ids == wanted)[0]]
    near = others[(groups[others] == group) & (group >= 0)]
    above = sum(scores[near] >= own[0] - 1e-6)
    in_group.append(1 + above if len(near) else 0)
  return of_relevant, in_group


class RetrievalTest(parameterized.TestCase):

  @parameterized.parameters(7, 64, 4096)
  def test_ranks_are_those_of_a_full_sort(self, block_size):
    *given, groups = _problem()
    ranks = evaluation.retrieval_ranks(
        *given, document_groups=groups, block_size=block_size
    )
    of_relevant, in_group = _expected(*given, groups)
    self.assertGreater(max(map(len, of_relevant)), 2)
    for found, expected in zip(ranks.of_relevant, of_relevant, strict=True):
      self.assertEqual(found[found > 0].tolist(), expected)
    self.assertEqual(ranks.in_group.tolist(), in_group)

  def test_many_blocks_of_queries(self):
    *given, groups = _problem(num_queries=600)
    done = []
    ranks = evaluation.retrieval_ranks(
        *given, document_groups=groups, progress=done.append
    )
    of_relevant, in_group = _expected(*given, groups)
    first = [x[0] for x in of_relevant]
    self.assertEqual(ranks.of_relevant[:, 0].tolist(), first)
    self.assertEqual(ranks.in_group.tolist(), in_group)
    self.assertEqual(done[-1], 600)

  def test_scores_of_another_search(self):
    queries, documents, query_ids, ids, groups = _problem()
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
    scores = unit(queries) @ unit(documents).T
    found = evaluation.ranks_of_scores(
        [scores[:20], scores[20:]], query_ids, ids, document_groups=groups
    )
    expected = evaluation.retrieval_ranks(
        queries, documents, query_ids, ids, document_groups=groups
    )
    np.testing.assert_array_equal(found.of_relevant, expected.of_relevant)
    np.testing.assert_array_equal(found.in_group, expected.in_group)

  def test_equal_documents_count_against_the_encoder(self):
    documents = np.ones((10, 4), np.float32)
    ranks = evaluation.retrieval_ranks(
        documents[:3], documents, np.arange(3), np.arange(10)
    )
    self.assertEqual(ranks.of_relevant.ravel().tolist(), [10, 10, 10])

  def test_documents_that_fill_up_a_block_are_found_by_nobody(self):
    queries = -np.eye(3, dtype=np.float32)  # zeros are nearer than documents
    ranks = evaluation.retrieval_ranks(
        queries, np.eye(3, dtype=np.float32), [0, 1, 2], [0, 1, 2],
        document_groups=[0, 0, 0], block_size=2,
    )  # fmt: skip
    self.assertEqual(ranks.of_relevant.ravel().tolist(), [3, 3, 3])
    self.assertEqual(ranks.in_group.tolist(), [3, 3, 3])

  def test_measures(self):
    ranks = evaluation.Ranks(
        np.array([[1, 2], [2, 0], [4, 6]]), np.array([1, 2, 0])
    )
    values = evaluation.retrieval_values(ranks, _MEASURES)
    self.assertEqual(values['R@1'].tolist(), [1, 0, 0])
    self.assertEqual(values['R@5'].tolist(), [1, 1, 1])
    self.assertEqual(values['MRR'].tolist(), [1, 0.5, 0.25])
    np.testing.assert_allclose(values['nDCG@3'], [1, 1 / np.log2(3), 0])
    np.testing.assert_array_equal(values['group R@1'], [1, 0, np.nan])

  def test_paired_difference(self):
    first, second = testing.normal(2, 50)
    second[3] = np.nan
    mean, error, count = evaluation.paired_difference(first, second)
    expected = np.delete(np.float64(first) - second, 3)
    self.assertAlmostEqual(mean, expected.mean(), places=12)
    self.assertAlmostEqual(error, expected.std(ddof=1) / 7, places=12)
    self.assertEqual(count, 49)
    for others, message in (
        (first[:4], r'same queries; got \[50\] and \[4\]'),
        (np.full(50, np.nan), 'needs two queries, got 0'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        evaluation.paired_difference(first, others)

  @parameterized.parameters(
      ({'query_ids': [0, 1]}, r'query_ids must be integers \[3\]'),
      ({'query_ids': [0, 1, 9]}, 'no document has that of query 2, 9'),
      ({'document_ids': [0.0, 1.0, 2.0]}, 'document_ids must be integers'),
      ({'queries': np.full((3, 3), np.nan)}, 'queries must be finite'),
      ({'block_size': 0}, 'block_size'),
  )
  def test_bad_arguments(self, changed, message):
    eye = np.eye(3, dtype=np.float32)
    given = {
        'queries': eye, 'documents': eye, 'query_ids': [0, 1, 2],
        'document_ids': [0, 1, 2], **changed,
    }  # fmt: skip
    with self.assertRaisesRegex(ValueError, message):
      evaluation.retrieval_ranks(**given)

  def test_an_unknown_measure(self):
    ranks = evaluation.Ranks(np.ones((1, 1), int), np.ones(1, int))
    for name in ('recall', 'R@', 'R@0', 'nDCG@x'):
      with self.assertRaisesRegex(ValueError, "'R@K', 'MRR', 'nDCG@K'"):
        evaluation.retrieval_values(ranks, [name])

  def test_blocks_with_too_few_queries(self):
    with self.assertRaisesRegex(ValueError, '2 queries in all, got 1'):
      evaluation.ranks_of_scores([np.eye(2)[:1]], [0, 1], [0, 1])

  def test_examples(self):
    self.assertEqual(doctest.testmod(retrieval).failed, 0)


if __name__ == '__main__':
  absltest.main()
