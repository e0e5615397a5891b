# SPDX-License-Identifier: Apache-2.0
"""Texts of word vectors, and the map from them to a table."""

import gzip
import pathlib
import tempfile

from absl.testing import parameterized
import numpy as np

from hcl_jax.models import vocabulary as vocabulary_lib
from hcl_jax.sentences import word_vectors

_GLOVE = 'the 1 2.5 -3\n. . . 4 5e-1 6\nété 7 8 9\nthe 0 0 0\n'


class ReadTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

  def write(self, text, name='vectors.txt'):
    path, content = self.root / name, text.encode()
    if path.suffix == '.gz':
      content = gzip.compress(content)
    path.write_bytes(content)
    return path

  @parameterized.product(
      header=('', '4 3\n'), name=('v.txt', 'v.vec.gz'), end=('\n', ' \n')
  )
  def test_formats(self, header, name, end):
    text = header + _GLOVE.replace('\n', end)
    words, matrix = word_vectors.read_word_vectors(self.write(text, name))
    self.assertEqual(words, ['the', '. . .', 'été'])
    np.testing.assert_array_equal(
        matrix, np.float32([[1, 2.5, -3], [4, 0.5, 6], [7, 8, 9]])
    )
    self.assertEqual(matrix.dtype, np.float32)

  def test_some_words(self):
    words, matrix = word_vectors.read_word_vectors(
        self.write(_GLOVE), words={'été', 'none'}
    )
    self.assertEqual(words, ['été'])
    np.testing.assert_array_equal(matrix, [[7, 8, 9]])

  def test_the_first_lines(self):
    path = self.write('the 1 2\na 3 4\nof x\n')
    words, _ = word_vectors.read_word_vectors(path, max_lines=2)
    self.assertEqual(words, ['the', 'a'])

  @parameterized.parameters(
      ('the 1 2\na 1\n', 'line 2 .* a word and 2 numbers'),
      ('the 1 2\na 1 x\n', "line 2 .*got 'a 1 x'"),
      ('the\n', 'line 1 .* a word and some numbers'),
      ('', 'holds no vector'),
      ('7 3\n', 'holds no vector'),
  )
  def test_malformed_files(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      word_vectors.read_word_vectors(self.write(text))

  def test_what_is_not_there(self):
    with self.assertRaisesRegex(FileNotFoundError, 'there is no file'):
      word_vectors.read_word_vectors(self.root / 'nothing.txt')


def _problem(seed=0):
  """A table of 12 words and vectors of 15, ten of which are the table's."""
  rng = np.random.default_rng(seed)
  table = rng.standard_normal((12, 4)).astype(np.float32)
  words = ['<unk>', *(f'w{i}' for i in range(11))]
  others = ['new', '<unk>', *words[2:12], 'newer', 'newest', 'last']
  return table, words, others, rng.standard_normal((15, 3))


class ExpandTest(parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_equals_the_normal_equations(self, as_dict):
    table, words, others, matrix = _problem()
    vectors = (others, matrix)
    if as_dict:
      vectors = dict(zip(*vectors, strict=True))
    new_words, new_table = word_vectors.expand_vocabulary(table, words, vectors)
    self.assertEqual(new_words, words + ['new', 'newer', 'newest', 'last'])
    np.testing.assert_array_equal(new_table[:12], table)
    x = np.array([[*matrix[others.index(w)], 1.0] for w in words[2:]])
    y = np.float64([table[words.index(w)] for w in words[2:]])
    weights = np.linalg.inv(x.T @ x) @ x.T @ y
    for word in ('new', 'newer', 'newest', 'last'):
      np.testing.assert_allclose(
          new_table[new_words.index(word)],
          np.array([*matrix[others.index(word)], 1.0]) @ weights,
          rtol=1e-5,
      )
    self.assertEqual(new_table.dtype, np.float32)
    self.assertLen(vocabulary_lib.Vocabulary(new_words), len(new_table))

  def test_an_exact_map_is_found(self):
    _, words, others, matrix = _problem()
    matrix_of = dict(zip(others, matrix, strict=True))
    true = np.random.default_rng(1).standard_normal((3, 4))
    table = np.zeros((12, 4))
    for row, word in enumerate(words):
      if word in matrix_of:
        table[row] = matrix_of[word] @ true + 5
    table[0] = 100  # The unknown word is none that is shared.
    _, new_table = word_vectors.expand_vocabulary(
      table, words, (others, matrix)
    )
    np.testing.assert_allclose(new_table[12], matrix[0] @ true + 5)

  def test_mistakes(self):
    table, words, others, matrix = _problem()
    with self.assertRaisesRegex(ValueError, 'a row for each of 11 words'):
      word_vectors.expand_vocabulary(table, words[:-1], (others, matrix))
    with self.assertRaisesRegex(ValueError, 'a row for each of 15 words'):
      word_vectors.expand_vocabulary(table, words, (others, matrix[:-1]))
    with self.assertRaisesRegex(ValueError, 'more than 3 words.*share 3'):
      word_vectors.expand_vocabulary(table, words, (others[:5], matrix[:5]))
