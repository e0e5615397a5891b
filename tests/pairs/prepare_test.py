# SPDX-License-Identifier: Apache-2.0
"""Files of pairs: every format, and what is wrong with bad ones."""

import csv
import gzip
import json
import pathlib
import shutil
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from hcl_jax import prepare
from hcl_jax.pairs import data as pair_data
from hcl_jax.pairs import molecules
from tests.support import testing

_COLUMNS = ['query', 'document', 'group', 'id', 'bad']


def _rows(count=300):
  return [
      [f'frage, "{i}" ä', f'text\t{i}'.replace('\t', ' '), f'g{i // 4}',
       f'i{i}', f'not {i}']
      for i in range(count)
  ]  # fmt: skip


class PrepareTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
        self.enterContext(tempfile.TemporaryDirectory())
    )

  def _write(self, name, rows=None, columns=_COLUMNS):
    path = self.folder / name
    rows = _rows() if rows is None else rows
    if '.tsv' in name or '.csv' in name:
      lines = [columns, *rows]
      opener = gzip.open if name.endswith('.gz') else open
      with opener(path, 'wt', encoding='utf-8', newline='') as file:
        if '.tsv' in name:
          file.writelines('\t'.join(line) + '\n' for line in lines)
        else:
          csv.writer(file).writerows(lines)
    else:
      path.write_text(
          '\n'.join(
              json.dumps(dict(zip(columns, row, strict=True))) for row in rows
          ),
          encoding='utf-8',
      )
    return path

  def _prepare(self, path, dataset='mine', **options):
    return prepare.prepare(
        dataset, data_dir=self.folder / 'data', pairs=str(path), **options
    )

  def _load(self, dataset='mine'):
    return pair_data.load_pairs(dataset, data_dir=self.folder / 'data')

  @parameterized.parameters('a.tsv', 'a.csv', 'a.jsonl', 'a.tsv.gz')
  def test_formats(self, name):
    directory = self._prepare(
        self._write(name),
        group_column='group',
        id_column='id',
        negative_columns='bad',
    )
    self.assertEqual(directory.parts[-3:-1], ('pairs', 'mine'))
    pairs = self._load()
    expected = {row[0]: row for row in _rows()}
    seen = 0
    for part in pairs.parts.values():
      for query, document, (negative,) in zip(*part, strict=True):
        row = expected[pairs.queries[query]]
        self.assertEqual(pairs.documents[document], row[1])
        self.assertEqual(pairs.documents[negative], row[4])
        seen += 1
    self.assertEqual(seen, 300)
    by_group = np.unique(
        pairs.groups[pairs.groups >= 0], return_counts=True
    )[1]
    self.assertEqual(set(by_group.tolist()), {4})
    # The same pairs, however they were stored.
    given = {
        'query': [x[0] for x in _rows()],
        'document': [x[1] for x in _rows()],
        'group': [x[2] for x in _rows()],
        'id': [x[3] for x in _rows()],
        'negatives': [x[4] for x in _rows()],
    }
    self.assertEqual(
        pair_data.digest(pairs), pair_data.digest(pair_data.collect(given))
    )

  def test_negatives_in_lists(self):
    rows = [[f'q{i}', f'd{i}', [f'n{i}', f'm{i}']] for i in range(300)]
    path = self._write('a.jsonl', rows, ['anchor', 'positive', 'negatives'])
    self._prepare(
        path, query_column='anchor', document_column='positive',
        negative_columns='negatives',
    )  # fmt: skip
    pairs = self._load()
    part = pairs.parts['train']
    self.assertEqual(part.negatives.shape[1], 2)
    found = {pairs.documents[row] for row in part.negatives[0]}
    number = pairs.queries[part.query[0]][1:]
    self.assertEqual(found, {f'n{number}', f'm{number}'})

  def test_parquet(self):
    try:
      import pyarrow
      from pyarrow import parquet
    except ModuleNotFoundError:
      self.skipTest('pyarrow is not installed')
    path = self.folder / 'a.parquet'
    columns = zip(*_rows(), strict=True)
    parquet.write_table(
        pyarrow.table(dict(zip(_COLUMNS, map(list, columns), strict=True))),
        path,
    )
    self._prepare(path, group_column='group')
    self.assertLen(self._load().queries, 300)

  def test_vectors(self):
    path = self.folder / 'a.npz'
    queries, documents = testing.normal(2, 400, 6)
    np.savez(
        path, query=queries, document=documents[:, :5],
        other=documents[:, None, 1:],
    )  # fmt: skip
    self._prepare(path, negative_columns='other')
    pairs = self._load()
    part = pairs.parts['train']
    row = np.flatnonzero((queries == pairs.queries[part.query[7]]).all(1))[0]
    np.testing.assert_array_equal(
        pairs.documents[part.document[7]], documents[row, :5]
    )
    np.testing.assert_array_equal(
        pairs.documents[part.negatives[7, 0]], documents[row, 1:]
    )

  @parameterized.parameters(
      ('a.tsv', {'query_column': 'qury'}, "no column 'qury', only .*--query_"),
      ('a.tsv', {'group_column': 'x'}, "no column 'x'.*--group_column=NAME"),
      ('a.jsonl', {'document_column': 'x'}, "line 1, has no column 'x'"),
      ('a.jsonl', {'id_column': 'x'}, "has no column 'x'"),
      ('a.jsonl', {'negative_columns': 'x'}, '--negative_columns=NAME'),
      ('a.txt', {}, r'must end in one of .tsv, .csv, .jsonl, .parquet, .npz'),
      ('a.csv', {'test_share': 2.0}, 'test_share must be between 0 and 1'),
  )
  def test_bad_flags(self, name, options, message):
    path = self._write(name)
    with self.assertRaisesRegex(ValueError, message):
      self._prepare(path, **options)
    self.assertEmpty(list((self.folder / 'data').glob('*/*/1.0.0')))

  @parameterized.parameters(
      ('a.tsv', [['a', 'b', 'c']], 'line 2: it must have 5 fields'),
      ('a.tsv', [['a', '', '', '', '']], 'line 2: the document must be a text'),
      ('a.csv', [[' ', 'a', '', '', '']], 'line 2: the query must be a text'),
      ('a.jsonl', [[1, 'b', '', '', '']], 'line 1: the query must be a text'),
      ('a.jsonl', [], 'has no pairs'),
      ('a.tsv', [['a', 'b', '', '', '']], 'all 1 rows share'),
      ('a.tsv', [[f'{i}', 'b', '', '', ''] for i in range(9)], 'all 9 rows'),
  )
  def test_bad_rows(self, name, rows, message):
    with self.assertRaisesRegex(ValueError, message):
      self._prepare(self._write(name, rows))

  @parameterized.parameters(
      ('a.tsv', b'query\tdocument\n\xff\tb\n', 'UTF-8, but line 2 is not'),
      ('a.tsv', b'', "no column 'query', only none"),
      ('a.csv', b'query,document\n"a,b\n', 'cannot be read'),
      ('a.jsonl', b'{"query": 1\n', 'line 1, is no JSON'),
      ('a.jsonl', b'[1]\n', 'line 1, must be an object'),
      ('a.npz', b'nothing', 'cannot be read as arrays'),
  )
  def test_damaged_files(self, name, content, message):
    path = self.folder / name
    path.write_bytes(content)
    with self.assertRaisesRegex(ValueError, message):
      self._prepare(path)

  def test_no_file(self):
    with self.assertRaisesRegex(FileNotFoundError, 'there is no file'):
      self._prepare('nothing.tsv')

  def test_another_source_of_the_same_name(self):
    path = self._write('a.tsv')
    self._prepare(path)
    self._prepare(path)
    with self.assertRaisesRegex(ValueError, 'from another source'):
      self._prepare(path, group_column='group')

  def test_commands_that_train(self):
    directory = self._prepare(self._write('a.tsv'))
    line = prepare.train_command('pairs/mine', directory)
    self.assertIn('--config=pairs:hard --config.data.name=pairs/mine', line)
    self.assertIn('--config.data.batch_size=256', line)
    text = prepare.describe('pairs/mine', directory)
    self.assertRegex(text, r'train 2\d\d, .*load_pairs')

  def test_pairs_that_are_not_prepared(self):
    with self.assertRaisesRegex(FileNotFoundError, '--pairs=FILE'):
      self._load()


class MoleculesTest(parameterized.TestCase):

  def test_molecules(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    pairs = pair_data.load_pairs('molecules', data_dir=folder)
    self.assertLen(pairs.documents, 68_790)
    counts = {name: len(x.query) for name, x in pairs.parts.items()}
    self.assertEqual(
        counts, {'train': 59_869, 'validation': 2_064, 'test': 6_857}
    )
    _, place, sizes = np.unique(
        pairs.groups, return_inverse=True, return_counts=True
    )
    self.assertAlmostEqual(np.mean(sizes[place] > 1), 0.62, places=2)
    row = pairs.queries.index('2,3-bis(oxidanyl)benzoic acid')
    for part in pairs.parts.values():
      for document in part.document[part.query == row]:
        found = pairs.documents[document]
    self.assertEqual(found, 'C1=CC(=C(C(=C1)O)O)C(=O)O')

  def test_further_names(self):
    columns = molecules.columns('molecules_names')
    names = [
        query
        for query, document in zip(
            columns['query'], columns['document'], strict=True
        )
        if document == 'C1=CC(=C(C(=C1)O)O)C(=O)O'
    ]
    self.assertIn('2,3-dihydroxybenzoic acid', names)
    self.assertLen(names, 4)

  def test_another_table(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    package = folder / 'chemicals'
    shutil.copytree(molecules.find().parent, package / 'Identifiers')
    (package / '__init__.py').touch()
    with (package / molecules._FILE).open('a') as file:
      file.write('1\n')
    known = {k: x for k, x in sys.modules.items() if k != 'chemicals'}
    with (
        mock.patch.object(sys, 'path', [str(folder), *sys.path]),
        mock.patch.dict(sys.modules, known, clear=True),
        self.assertRaisesRegex(ValueError, 'is not the table .*SHA-256'),
    ):
      molecules.find()


if __name__ == '__main__':
  absltest.main()
