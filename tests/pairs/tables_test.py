# SPDX-License-Identifier: Apache-2.0
"""Tables of pairs: what belongs together, parts, bad rows."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from hcl_jax.pairs import data as pair_data
from hcl_jax.pairs import tables
from tests.support import testing


def _texts(count=400):
  return {
      'query': [f'query {i}' for i in range(count)],
      'document': [f'document {i}' for i in range(count)],
  }


def _rows(parts):
  return {
      (q, d): name
      for name, x in parts.items()
      for q, d in zip(x.queries, x.documents, strict=True)
  }


def _texts_of(pairs, part):
  """Queries of a part, and the numbers in both texts, which agree."""
  queries = [pairs.queries[row] for row in part.query]
  numbers = [int(x.split()[1]) for x in queries]
  documents = [pairs.documents[row] for row in part.document]
  assert numbers == [int(x.split()[1]) for x in documents]
  return queries, numbers


def _numbers(pairs):
  return {
      name: sorted(_texts_of(pairs, x)[1]) for name, x in pairs.parts.items()
  }


class TablesTest(parameterized.TestCase):

  def test_parts_have_their_shares(self):
    parts = tables.divide(
        _texts(4000), validation_share=0.1, test_share=0.2
    )
    counts = {name: len(x.ids) for name, x in parts.items()}
    self.assertEqual(list(counts), ['train', 'validation', 'test'])
    self.assertAlmostEqual(counts['validation'], 400, delta=60)
    self.assertAlmostEqual(counts['test'], 800, delta=80)
    self.assertEqual(sum(counts.values()), 4000)

  def test_rows_stay_in_their_part_when_others_are_added(self):
    before, after = (_rows(tables.divide(_texts(n))) for n in (400, 700))
    self.assertLen(before, 400)
    for row, part in before.items():
      self.assertEqual(after[row], part)

  def test_rows_that_share_something_stand_together(self):
    given = _texts(900)
    number = np.arange(900)
    for name in given:
      with self.subTest(name):
        shared = {**given}
        shared[name] = [f'{name} {i}' for i in number // 3]
        parts = tables.divide(shared)
        for table in parts.values():
          counts = np.unique(table.ids, return_counts=True)[1]
          self.assertEqual(set(counts.tolist()), {3})
    with self.subTest('id'):
      parts = tables.divide({**given, 'id': number // 3})
      for table in parts.values():
        counts = np.unique(table.ids, return_counts=True)[1]
        self.assertEqual(set(counts.tolist()), {3})

  def test_sharing_goes_on_from_row_to_row(self):
    given = _texts(300)
    given['query'][1] = given['query'][0]
    given['document'][2] = given['document'][1]
    ids = [None] * 300
    ids[2] = ids[3] = 'same'
    parts = tables.divide({**given, 'id': ids})
    pairs = pair_data.join(parts)
    found = {
        text: pairs.ids[row] for row, text in enumerate(pairs.documents)
    }
    first = found[given['document'][0]]
    self.assertEqual(found[given['document'][1]], first)
    self.assertEqual(found[given['document'][3]], first)
    self.assertNotEqual(found[given['document'][4]], first)

  def test_names_of_numbers_and_none(self):
    parts = tables.divide({
        **_texts(),
        'id': np.r_[[1.0, 1.0], np.full(398, np.nan)],
        'group': [1, 1.0, '1', ' 1 ', None, ''] + ['x'] * 394,
    })
    groups = {
        q: group
        for x in parts.values()
        for q, group in zip(x.queries, x.groups.tolist(), strict=True)
    }
    first = {groups[f'query {i}'] for i in range(4)}
    self.assertLen(first, 1)
    self.assertEqual({groups['query 4'], groups['query 5']}, {-1})
    self.assertNotIn(-1, first)
    total = sum(len(np.unique(x.ids)) for x in parts.values())
    self.assertEqual(total, 399)

  def test_negatives_stay_with_their_row(self):
    negatives = [[f'not {i} {k}' for k in range(i % 3)] for i in range(400)]
    pairs = pair_data.join(tables.divide({**_texts(), 'negatives': negatives}))
    for part in pairs.parts.values():
      for query, rows in zip(part.query, part.negatives, strict=True):
        number = int(pairs.queries[query].split()[1])
        found = [pairs.documents[row] for row in rows if row >= 0]
        self.assertEqual(found, negatives[number])

  def test_other_divisions(self):
    negatives = [[f'not {i} {k}' for k in range(i % 3)] for i in range(400)]
    pairs = pair_data.collect({
        **_texts(), 'id': np.arange(400) // 2, 'negatives': negatives,
    })  # fmt: skip
    divisions = [pair_data.divide_anew(pairs, n) for n in (1, 2, 1)]
    first, second, again = (_numbers(x) for x in divisions)
    self.assertEqual(first, again)
    self.assertNotEqual(first, second)
    self.assertNotEqual(first, _numbers(pairs))
    for found in divisions:
      self.assertIs(found.documents, pairs.documents)
      self.assertEqual(
          {name: len(x) for name, x in _numbers(found).items()},
          {name: len(x) for name, x in _numbers(pairs).items()},
      )
      every = sorted(sum(_numbers(found).values(), []))
      self.assertEqual(every, list(range(400)))
      ids = [set(pairs.ids[x.document]) for x in found.parts.values()]
      self.assertEqual(sum(map(len, ids)), 200)
      for part in found.parts.values():
        _, number = _texts_of(pairs, part)
        for row, given in zip(part.negatives, number, strict=True):
          self.assertEqual(
              [pairs.documents[x] for x in row if x >= 0], negatives[given]
          )

  def test_documents_that_are_only_negatives_answer_nothing(self):
    pairs = pair_data.join(tables.divide({
        **_texts(), 'negatives': ['document 3', 'other'] * 200,
    }))  # fmt: skip
    self.assertLen(pairs.documents, 401)
    self.assertLen(np.unique(pairs.ids), 401)

  def test_vectors_and_images(self):
    images = np.random.default_rng(0).integers(
        0, 256, (300, 4, 4, 3), np.uint8
    )
    vectors = np.float64(testing.normal(300, 5))
    pairs = pair_data.collect({
        'query': vectors, 'document': images, 'negatives': images[:, None],
    })  # fmt: skip
    self.assertEqual(pairs.queries.dtype, np.float32)
    self.assertEqual(pairs.documents.shape, (300, 4, 4, 3))
    part = pairs.parts['train']
    found = pairs.documents[part.document]
    np.testing.assert_array_equal(
        pairs.documents[part.negatives[:, 0]], found
    )
    order = [
        np.flatnonzero((vectors.astype(np.float32) == x).all(axis=1))[0]
        for x in pairs.queries[part.query]
    ]
    np.testing.assert_array_equal(images[order], found)

  @parameterized.parameters(
      ({'document': None}, 'must have the columns query and document'),
      ({'rank': [1] * 400}, 'columns query and document, .*; got .*rank'),
      ({'query': ['x'] * 400}, 'all 400 rows share an id, a query or a doc'),
      ({'id': [5] * 400}, 'all 400 rows share'),
      ({'query': ['a'] * 399}, 'got 399 queries and 400 documents'),
      ({'query': ['a', ' '] * 200}, 'query of row 1 is empty'),
      ({'query': ['a', None] * 200}, 'query must be texts.*row 1 is None'),
      ({'group': [1]}, 'group must have an entry for each of the 400 rows'),
      ({'negatives': [['']] * 400}, 'negatives of row 0 must be texts'),
      ({'negatives': np.ones((400, 1, 3))}, 'must be such as documents'),
      ({'query': np.ones((400, 2, 2))}, r'texts, vectors, float \[n, d\]'),
      ({'query': np.full((400, 2), np.nan)}, 'query must be finite; row 0'),
  )
  def test_bad_columns(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      tables.divide({**_texts(), **changed})

  @parameterized.parameters(
      ({'validation_share': 0}, 'validation_share must be between'),
      ({'test_share': 1}, 'test_share must be between 0 and 1, got 1'),
      ({'test_share': 0.6, 'validation_share': 0.5}, 'leave pairs to train'),
  )
  def test_bad_shares(self, shares, message):
    with self.assertRaisesRegex(ValueError, message):
      tables.divide(_texts(), **shares)

  def test_too_few(self):
    with self.assertRaisesRegex(ValueError, 'too few pairs.*: train 3'):
      tables.divide(_texts(3))
    with self.assertRaisesRegex(ValueError, 'all 1 rows'):
      tables.divide(_texts(1))

  def test_without_a_test_part(self):
    parts = tables.divide(_texts(), test_share=0)
    self.assertEqual(list(parts), ['train', 'validation'])

  def test_tuples(self):
    given = _texts()
    rows = list(zip(given['query'], given['document'], strict=True))
    first, second = pair_data.collect(rows), pair_data.collect(given)
    self.assertEqual(pair_data.digest(first), pair_data.digest(second))
    with self.assertRaisesRegex(ValueError, r'tuples \(query, document\)'):
      pair_data.collect(['ab', 'cd'])
    other = pair_data.collect([*rows[:-1], ('query 399', 'another')])
    self.assertNotEqual(pair_data.digest(first), pair_data.digest(other))


if __name__ == '__main__':
  absltest.main()
