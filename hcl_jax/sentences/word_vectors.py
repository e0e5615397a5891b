# SPDX-License-Identifier: Apache-2.0
"""Reads vectors of words, and adds words to a model that never saw them."""

from collections.abc import Container
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
import os
import pathlib

import numpy as np

from hcl_jax.models import vocabulary
from hcl_jax.storage import text_files

WordVectors = Mapping[str, np.ndarray] | tuple[Sequence[str], np.ndarray]


def read_word_vectors(
    path: str | os.PathLike,
    *,
    words: Container[str] | None = None,
    max_lines: int | None = None,
) -> tuple[list[str], np.ndarray]:
  """Reads a text of vectors, of word2vec (with a first line of sizes) or GloVe.

  Args:
    path: the file, UTF-8; compressed if it ends in ``.gz`` or ``.xz``.
    words: what to keep, such as a set; None for all words.
    max_lines: how many lines to read, where common words mostly come first;
      None for all.

  Returns:
    Words, and their vectors, float32 ``[n, dim]``; of a word that comes twice,
    the first.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is damaged, or a line is not a word and its numbers.
  """
  path = pathlib.Path(path)
  dim, vectors = None, {}
  lines = itertools.islice(text_files.read_lines(path), max_lines)
  for number, line in enumerate(lines, 1):
    line = line.rstrip(' ')
    if number == 1 and _is_header(line):
      continue
    if dim is None:
      dim = len(line.split(' ')) - 1
    # From the right: a few words of GloVe have spaces.
    word, *values = line.rsplit(' ', dim)
    if word in vectors or (words is not None and word not in words):
      continue
    try:
      vector = np.array([float(value) for value in values], np.float32)
    except ValueError:
      vector = np.zeros(0)
    if not dim or vector.shape != (dim,):
      raise ValueError(
          f'line {number} of {path} must be a word and {dim or "some"} '
          f'numbers, with spaces between; got {line[:60]!r}.'
      )
    vectors[word] = vector
  if not vectors:
    raise ValueError(f'{path} holds no vector, or of none of the words.')
  return list(vectors), np.stack(list(vectors.values()))


def expand_vocabulary(
    table: np.ndarray, words: Sequence[str], vectors: WordVectors
) -> tuple[list[str], np.ndarray]:
  """Adds words to a table of word embeddings by a linear map.

  The map, with an intercept, is that which brings the vectors of the words
  that both have nearest to their embeddings, by least squares. Words of the
  table keep theirs.

  Args:
    table: embeddings ``[V, d]``.
    words: those of its rows, ``'<unk>'`` first, as of a vocabulary.
    vectors: of any words: a dict, or words and a matrix ``[n, e]``.

  Returns:
    Words, first those of the table, and a table ``[V + new, d]``.

  References:
    Kiros et al., Skip-Thought Vectors, 2015, section 2.2.
  """
  table = np.asarray(table)
  if table.ndim != 2 or len(table) != len(words):
    raise ValueError(
        f'table must have a row for each of {len(words)} words, got shape '
        f'{table.shape}.'
    )
  others, matrix = _read(vectors)
  row_of = {word: row for row, word in enumerate(words)}
  rows = np.array([row_of.get(word, -1) for word in others])
  shared = (rows >= 0) & (np.array(others) != vocabulary.UNKNOWN)
  if shared.sum() <= matrix.shape[1]:
    raise ValueError(
        f'vectors must share more than {matrix.shape[1]} words with the table, '
        f'their dimension, to fit a map; they share {shared.sum()}.'
    )
  inputs = np.concatenate([matrix, np.ones((len(matrix), 1))], axis=1)
  weights, *_ = np.linalg.lstsq(
      inputs[shared], table[rows[shared]].astype(np.float64)
  )
  added = (inputs[rows < 0] @ weights).astype(table.dtype)
  new = [word for word, row in zip(others, rows, strict=True) if row < 0]
  return [*words, *new], np.concatenate([table, added])


def _is_header(line):
  fields = line.split(' ')
  return len(fields) == 2 and all(field.isdecimal() for field in fields)


def _read(vectors):
  if isinstance(vectors, Mapping):
    vectors = list(vectors), np.stack(list(vectors.values()))
  words, matrix = list(vectors[0]), np.asarray(vectors[1], np.float64)
  if matrix.ndim != 2 or len(matrix) != len(words):
    raise ValueError(
        f'vectors must have a row for each of {len(words)} words, got shape '
        f'{matrix.shape}.'
    )
  return words, matrix
