# SPDX-License-Identifier: Apache-2.0
"""Mined negatives of training pairs against a full sort."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from hcl_jax.pairs import mining
from tests.support import testing
from tests.support import toy_pairs


def _vectors(pairs):
  return {
      'query': testing.normal(len(pairs.queries), 6),
      'document': testing.normal(len(pairs.documents), 6, seed=1),
  }


def _embed(vectors):
  return lambda side, rows, poll: vectors[side][rows]


class MiningTest(parameterized.TestCase):

  @parameterized.product(skip=(0, 2), margin=(None, -0.1), repeats=(1, 3))
  def test_finds_the_hardest_documents_of_training(
      self, skip, margin, repeats
  ):
    pairs = toy_pairs.pairs(
        id=[i // repeats for i in range(300)],
        negatives=[[f'other {i}'] for i in range(300)],
    )
    vectors = _vectors(pairs)
    unit = {k: x / np.linalg.norm(x, axis=1)[:, None]
            for k, x in vectors.items()}  # fmt: skip
    found = mining.mine(
        pairs, _embed(vectors), depth=4, skip=skip, margin=margin
    )
    part = pairs.parts['train']
    self.assertEqual(found.shape, (len(part.query), 4))
    known = np.union1d(part.document, part.negatives.ravel())
    for query, document, rows in zip(
        part.query[:40], part.document[:40], found[:40], strict=True
    ):
      cosines = unit['document'][known] @ unit['query'][query]
      own = pairs.ids[known] == pairs.ids[document]
      keep = ~own
      if margin is not None:
        keep &= cosines <= cosines[own].min() - margin
      order = known[keep][np.argsort(-cosines[keep])][skip : skip + 4]
      expected = np.pad(order, (0, 4 - len(order)), constant_values=-1)
      np.testing.assert_array_equal(rows, expected)

  def test_polls_and_leaves(self):
    pairs = toy_pairs.pairs()

    def poll(*unused):
      raise KeyboardInterrupt

    with self.assertRaises(KeyboardInterrupt):
      mining.mine(pairs, _embed(_vectors(pairs)), depth=1, poll=poll)

  def test_fewer_documents_than_asked_for(self):
    pairs = toy_pairs.pairs(id=[i // 10 for i in range(300)])
    found = mining.mine(pairs, _embed(_vectors(pairs)), depth=300)
    count = np.sum(found >= 0, axis=1)
    ids = pairs.ids[pairs.parts['train'].document]
    expected = [np.sum(ids != x) for x in ids]
    np.testing.assert_array_equal(count, expected)


if __name__ == '__main__':
  absltest.main()
