# SPDX-License-Identifier: Apache-2.0
"""Reads an ordered corpus of sentences from plain text.

The text is a file, ``.txt``, ``.txt.gz`` or ``.txt.xz``, or a folder of such
files, which are taken in the order of their names. A line is a sentence, and a
blank line ends a segment, such as a chapter: sentences on its two sides are no
neighbors.

Prose is split into sentences first. There, lines that follow each other are a
paragraph, and two blank lines or more end a segment.

A document is what may be held out: a file of a folder, or a segment of a single
file.
"""

import array
import collections
from collections.abc import Iterable
from collections.abc import Iterator
import itertools
import pathlib
from typing import NamedTuple

import numpy as np

from hcl_jax.models import vocabulary
from hcl_jax.sentences import prose as prose_lib
from hcl_jax.storage import text_files

NAME = 'sentences'
# The file of the vocabulary, beside the records.
VOCABULARY = 'vocabulary.json'

_ENDINGS = '.txt', '.txt.gz', '.txt.xz'


class Corpus(NamedTuple):
  """Sentences of a text, in its order.

  Attributes:
    words: all words, in the order in which they come first.
    tokens: which word each token is, int32 ``[num_tokens]``.
    lengths: tokens of each sentence, 1 or more, int32 ``[n]``.
    segments: the segment of each sentence, from 0, ascending, int32 ``[n]``.
    documents: the document of each sentence, likewise.
  """

  words: list[str]
  tokens: np.ndarray
  lengths: np.ndarray
  segments: np.ndarray
  documents: np.ndarray


def read(
    path: pathlib.Path, *, split_sentences: bool = False, cased: bool = False
) -> Corpus:
  """Reads a file or folder.

  Args:
    path: the file or folder.
    split_sentences: whether it is prose, to be split into sentences.
    cased: whether to keep capital letters.

  Returns:
    The corpus.

  Raises:
    FileNotFoundError: there is no such path, or no text in it.
    ValueError: a file is empty, damaged, not UTF-8 or no text file.
  """
  files = _list_files(path)
  split = _segments_of_prose if split_sentences else _segments
  numbers = collections.defaultdict()
  numbers.default_factory = numbers.__len__  # A new word gets the next number.
  tokens, lengths, segments = (array.array('i') for _ in range(3))
  starts = []
  for file in files:
    starts.append(len(lengths))
    for sentences in split(text_files.read_lines(file)):
      segment = segments[-1] + 1 if segments else 0
      for sentence in sentences:
        words = vocabulary.tokenize(sentence, cased=cased)
        tokens.extend(map(numbers.__getitem__, words))
        lengths.append(len(words))
        segments.append(segment)
    if starts[-1] == len(lengths):
      raise ValueError(f'{file} holds no sentence; remove it or fill it.')
  segments = np.array(segments)
  documents = segments
  if path.is_dir():
    rows = np.arange(len(segments))
    documents = np.searchsorted(starts, rows, side='right') - 1
  return Corpus(
      words=list(numbers),
      tokens=np.array(tokens),
      lengths=np.array(lengths),
      segments=segments,
      documents=documents.astype(np.int32),
  )


def _list_files(path):
  if path.is_dir():
    files = sorted(
        file for file in path.rglob('[!.]*') if file.name.endswith(_ENDINGS)
    )
    if not files:
      raise FileNotFoundError(
          f'{path} must hold text files, which end in {", ".join(_ENDINGS)}; '
          'it holds none.'
      )
    return files
  if not path.exists():
    raise FileNotFoundError(f'there is no file or folder {path}.')
  if not path.name.endswith(_ENDINGS):
    raise ValueError(f'{path} must end in one of {", ".join(_ENDINGS)}.')
  return [path]


def _segments(lines: Iterable[str]) -> Iterator[Iterable[str]]:
  """Yields the sentences between blank lines."""
  for is_blank, group in itertools.groupby(lines, key=_is_blank):
    if not is_blank:
      yield group


def _segments_of_prose(lines: Iterable[str]) -> Iterator[Iterable[str]]:
  """Yields the sentences of paragraphs between two blank lines or more."""
  sentences = []
  for is_blank, group in itertools.groupby(lines, key=_is_blank):
    group = list(group)
    if not is_blank:
      sentences += prose_lib.split(' '.join(group))
    elif len(group) > 1 and sentences:
      yield sentences
      sentences = []
  if sentences:
    yield sentences


def _is_blank(line):
  return not line.strip()
