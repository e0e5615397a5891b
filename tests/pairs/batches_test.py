# SPDX-License-Identifier: Apache-2.0
"""Batches of pairs: epochs, groups, negatives, processes."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from hcl_jax.pairs import batches
from hcl_jax.pairs import task
from tests.support import toy_pairs


def _made(pairs=None, **options):
  pairs = pairs or toy_pairs.pairs()
  arrays = batches.Arrays(
      np.arange(len(pairs.queries)), np.arange(len(pairs.documents))
  )
  options = {'seed': 0, 'batch_size': 16, **options}
  return pairs, batches.PairBatches(pairs, 'train', arrays, **options)


def _negatives(count=300):
  """As many of row i as i % 4."""
  rows = [[f'not {i} {k}' for k in range(i % 4)] for i in range(count)]
  return {'negatives': rows}


class BatchesTest(parameterized.TestCase):

  @parameterized.parameters(*('random', 'grouped'))
  def test_an_epoch_has_each_pair_once(self, order):
    pairs, made = _made(order=order)
    seen = [[made.batch(e * len(made) + i) for i in range(len(made))]
            for e in (0, 1)]  # fmt: skip
    for epoch in seen:
      rows = np.concatenate([x['index'] for x in epoch])
      self.assertLen(np.unique(rows), 16 * len(made))
    self.assertFalse(np.array_equal(seen[0][0]['index'], seen[1][0]['index']))
    part = pairs.parts['train']
    for batch in seen[0]:
      rows = batch['index']
      np.testing.assert_array_equal(batch['query'], part.query[rows])
      np.testing.assert_array_equal(batch['document'], part.document[rows])
      np.testing.assert_array_equal(
          batch['id'], pairs.ids[part.document[rows]]
      )
      self.assertEqual(batch['where'].shape, (16, 0))

  def test_grouped_batches_have_whole_groups(self):
    pairs, made = _made(order='grouped')
    groups = pairs.groups[pairs.parts['train'].document]
    counts = []
    for step in range(len(made)):
      found = groups[made.batch(step)['index']]
      # All but the first and last group of a batch are whole.
      inside = found[(found != found[0]) & (found != found[-1])]
      for group in np.unique(inside):
        self.assertEqual(np.sum(inside == group), np.sum(groups == group))
      counts.append(len(np.unique(found)))
    self.assertLess(max(counts), 9)
    _, other = _made()
    self.assertGreater(len(np.unique(groups[other.batch(0)['index']])), 9)

  def test_pairs_without_group_are_alone(self):
    groups = [None] * 300
    pairs, made = _made(toy_pairs.pairs(group=groups), order='grouped')
    self.assertEqual(set(pairs.groups.tolist()), {-1})
    rows = np.concatenate([made.batch(i)['index'] for i in range(len(made))])
    self.assertGreater(np.mean(np.abs(np.diff(rows)) > 1), 0.9)

  def test_a_batch_is_a_function_of_seed_and_step(self):
    _, made = _made()
    _, again = _made()
    _, other = _made(seed=1)
    expected = [made.batch(i) for i in range(20)]
    for step, found in enumerate(again(0, 20)):
      np.testing.assert_array_equal(found['index'], expected[step]['index'])
    for step, found in zip((7, 8), again(7, 2), strict=True):
      np.testing.assert_array_equal(found['index'], expected[step]['index'])
    self.assertFalse(
        np.array_equal(other.batch(0)['index'], expected[0]['index'])
    )

  @parameterized.parameters(1, 2, 5)
  def test_given_negatives(self, num):
    pairs, made = _made(toy_pairs.pairs(**_negatives()), num_negatives=num)
    drawn = set()
    for step in range(3 * len(made)):
      batch = made.batch(step)
      self.assertEqual(batch['negative'].shape, (16, min(num, 3)))
      for query, rows, where in zip(
          batch['query'], batch['negative'], batch['where'], strict=True
      ):
        number = int(pairs.queries[query][-3:])
        rows = rows[where]
        self.assertLen(set(rows.tolist()), min(num, number % 4))
        for row in rows:
          drawn.add(row)
          self.assertStartsWith(pairs.documents[row], f'not {number} ')
    given = pairs.parts['train'].negatives
    self.assertGreater(len(drawn), 0.7 * np.sum(given >= 0))

  def test_mined_negatives(self):
    pairs, made = _made(num_negatives=2)
    count = len(pairs.parts['train'].query)
    mined = np.arange(3 * count, dtype=np.int32).reshape(count, 3) % 50
    mined[5] = -1
    for step, batch in enumerate(made(0, len(made), {batches.MINED: mined})):
      self.assertEqual(batch['negative'].shape, (16, 2), step)
      for row, found, where in zip(
          batch['index'], batch['negative'], batch['where'], strict=True
      ):
        self.assertEqual(where.all(), row != 5)
        if row != 5:
          self.assertContainsSubset(found, mined[row])

  def test_processes_share_a_batch(self):
    _, whole = _made(num_negatives=2, pairs=toy_pairs.pairs(**_negatives()))
    parts = [
        _made(
            toy_pairs.pairs(**_negatives()), num_negatives=2,
            process_index=i, process_count=4,
        )[1].batch(3)
        for i in range(4)
    ]  # fmt: skip
    for name, expected in whole.batch(3).items():
      found = np.concatenate([x[name] for x in parts])
      np.testing.assert_array_equal(found, expected, name)

  def test_lists_of_tokens(self):
    pairs = toy_pairs.pairs(**_negatives())
    shapes = set()
    for size in (10_000, 400, 20):
      table = task.Table('document', size, ('document', 'negative'))
      tokens = np.random.default_rng(0).integers(
          -1, size, (len(pairs.documents), 6)
      )
      arrays = batches.Arrays(np.zeros(len(pairs.queries)), tokens)
      made = batches.PairBatches(
          pairs, 'train', arrays, seed=0, batch_size=16, num_negatives=2,
          tables=[table],
      )  # fmt: skip
      for batch in made(0, len(made)):
        found = batch['document_tokens']
        there = np.unique([*batch['document'].flat, *batch['negative'].flat])
        there = there[there >= 0]
        np.testing.assert_array_equal(found[: len(there)], there)
        self.assertTrue(np.all(found[len(there) :] == size))
        self.assertEqual(len(found) % 16, 0)
        self.assertLess(len(found), max(2 * len(there), size) + 16)
        shapes.add((size, len(found)))
    self.assertLess(len(shapes), 7)

  def test_lists_of_processes_have_one_length(self):
    pairs = toy_pairs.pairs()
    table = task.Table('query', 5000, ('query',))
    arrays = batches.Arrays(
        np.arange(len(pairs.queries))[:, None], np.zeros(len(pairs.documents))
    )
    lengths = {
        len(
            batches.PairBatches(
                pairs, 'train', arrays, seed=0, batch_size=16, tables=[table],
                process_index=i, process_count=4,
            ).batch(step)['query_tokens']
        )
        for i in range(4)
        for step in range(3)
    }  # fmt: skip
    self.assertLen(lengths, 1)

  def test_repeats(self):
    self.assertFalse(_made()[1].has_repeats)
    ids = [i // 2 for i in range(300)]
    self.assertTrue(_made(toy_pairs.pairs(id=ids))[1].has_repeats)

  @parameterized.parameters(
      ({'batch_size': 1}, r'batch_size must be 2 to \d+'),
      ({'batch_size': 5000}, 'pairs of the part .*; got 5000'),
      ({'process_count': 3}, 'multiple of the number of processes, 3'),
  )
  def test_bad_sizes(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _made(**options)


if __name__ == '__main__':
  absltest.main()
