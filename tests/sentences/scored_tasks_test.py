# SPDX-License-Identifier: Apache-2.0
"""The six tasks of sentences, as their files come."""

import gzip
import os
import pathlib
import tempfile
from unittest import mock
import warnings

from absl.testing import parameterized
import numpy as np

from hcl_jax.sentences import scored_tasks

_HEADER = 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n'


class TasksTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

  def write(self, name, content, encoding='utf-8'):
    path = self.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
      content = content.encode(encoding)
    path.write_bytes(content)

  def load(self, name):
    """Reads a small task, which is not of the published size."""
    with self.assertWarnsRegex(UserWarning, f'{name}.* were published'):
      return scored_tasks.load_sentence_task(name, self.root)

  @parameterized.parameters(
      ('MR', 'rt-polarity.pos', 'rt-polarity.neg'),
      ('CR', 'custrev.pos', 'custrev.neg'),
      ('SUBJ', 'subj.objective', 'subj.subjective'),
      ('MPQA', 'mpqa.pos', 'mpqa.neg'),
  )
  def test_two_classes(self, name, positive, negative):
    # Only \n ends a line: \x85 is an ellipsis of Windows, or a line end.
    self.write(f'{name}/{positive}', 'fine \x85 good\n\nbest\n')
    self.write(f'{name}/{negative}', 'bad\r\nworse\r\n')
    task = self.load(name)
    self.assertEqual(
        task.sentences, ['fine \x85 good', '', 'best', 'bad', 'worse']
    )
    np.testing.assert_array_equal(task.labels, [1, 1, 1, 0, 0])
    self.assertEqual(task.labels.dtype, np.int32)
    self.assertEqual(
        (task.name, task.num_train, task.is_pairs), (name, None, False)
    )

  def test_encodings(self):
    self.write('MR/rt-polarity.pos', 'café\n', 'latin-1')
    self.write('MR/rt-polarity.neg', '\ufeffcafé\n', 'utf-8')
    self.assertEqual(self.load('MR').sentences, ['café', 'café'])

  def test_folders_of_senteval_and_compressed_files(self):
    self.write('downstream/MR/rt-polarity.pos', gzip.compress(b'x'))
    (self.root / 'downstream/MR/rt-polarity.pos').rename(
        self.root / 'downstream/MR/rt-polarity.pos.gz'
    )
    self.write('downstream/MR/rt-polarity.neg', 'y\n')
    self.assertEqual(self.load('MR').sentences, ['x', 'y'])

  def test_questions(self):
    self.write('TREC/train_5500.label', 'NUM:date When : now ?\nABBR:exp X ?\n')
    self.write('TREC/TREC_10.label', 'HUM:ind Who ?')
    task = self.load('TREC')
    self.assertEqual(task.sentences, ['When : now ?', 'X ?', 'Who ?'])
    np.testing.assert_array_equal(task.labels, [5, 0, 3])
    self.assertEqual((task.num_train, task.is_pairs), (2, False))

  def test_pairs(self):
    train = _HEADER + '1\t10\t11\t"A b\tA c"\r\n0\t12\t13\td\te\r\n'
    self.write('MRPC/msr_paraphrase_train.txt', train)
    self.write('MRPC/msr_paraphrase_test.txt', _HEADER + '1\t1\t2\tf\tg\n')
    task = self.load('MRPC')
    self.assertEqual(task.sentences, ['"A b', 'd', 'f', 'A c"', 'e', 'g'])
    np.testing.assert_array_equal(task.labels, [1, 0, 1])
    self.assertEqual((task.num_train, task.is_pairs), (2, True))
    with self.assertWarns(UserWarning):
      other = scored_tasks.load_sentence_task('MSRP', self.root)
    self.assertEqual(other.sentences, task.sentences)

  def test_published_sizes_pass(self):
    self.write('CR/custrev.pos', 'good\n' * 2407)
    self.write('CR/custrev.neg', 'bad\n' * 1368)
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      self.assertLen(
        scored_tasks.load_sentence_task('CR', self.root).labels, 3775
      )
    self.write('CR/custrev.neg', 'bad\n' * 1367)
    with self.assertWarnsRegex(UserWarning, 'has 3774 .* 3775 were published'):
      scored_tasks.load_sentence_task('CR', self.root)

  @parameterized.parameters(
      ('TREC', 'train_5500.label', 'NUM:x Y ?\nWhat ?\n', 'line 2.*What'),
      ('TREC', 'train_5500.label', 'ODD:x Y ?\n', 'line 1 .*six classes'),
      ('MRPC', 'msr_paraphrase_train.txt', _HEADER + '1\t1\t2\tx\n', 'line 2'),
      ('MRPC', 'msr_paraphrase_train.txt', _HEADER, 'holds no sentence'),
      ('MR', 'rt-polarity.pos', '', 'rt-polarity.pos holds no sentence'),
      ('MR', 'rt-polarity.pos.gz', 'x', 'rt-polarity.pos.gz is damaged'),
  )
  def test_malformed_files(self, name, file, content, message):
    self.write(f'{name}/{file}', content)
    with self.assertRaisesRegex(ValueError, message):
      scored_tasks.load_sentence_task(name, self.root)

  def test_files_that_expand_without_end(self):
    self.write('MR/rt-polarity.pos.gz', gzip.compress(10_000 * b'good '))
    self.write('MR/rt-polarity.neg', 'bad\n')
    with mock.patch.dict(os.environ, HCL_JAX_MAX_FILE_GIB='1e-5'):
      with self.assertRaisesRegex(ValueError, 'pos.gz has more than 1e-05 GiB'):
        scored_tasks.load_sentence_task('MR', self.root)

  def test_what_is_not_there(self):
    self.write('MR/rt-polarity.pos', 'x')
    with self.assertRaisesRegex(
        FileNotFoundError,
        f'{self.root} must hold MR/rt-polarity.neg or downstream/MR/rt-pol',
    ):
      scored_tasks.load_sentence_task('MR', self.root)
    with self.assertRaisesRegex(ValueError, "one of MR, CR.*; got 'SST'"):
      scored_tasks.load_sentence_task('SST', self.root)
    self.assertLen(scored_tasks.TASKS, 6)
