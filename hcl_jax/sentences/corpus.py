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
import re
from typing import NamedTuple

import numpy as np

from hcl_jax.models import vocabulary
from hcl_jax.storage import text_files

NAME = 'sentences'
# The file of the vocabulary, beside the records.
VOCABULARY = 'vocabulary.json'

_ENDINGS = '.txt', '.txt.gz', '.txt.xz'
_OPENING, _CLOSING = r'["\'\u201c\u2018(\[]*', r'["\'\u201d\u2019)\]]*'
# The group is the first letter of what follows.
_END = re.compile(rf'(?<=[.!?\u2026]){_CLOSING}\s(?={_OPENING}([^\W_]))')
_LAST_WORD = re.compile(rf'\b([\w.\'\u2019]+)\.{_CLOSING}$')
_INITIALS = re.compile(r'(?:[^\W\d_]\.)*[^\W\d_]')
# After these a sentence goes on.
_TITLES = frozenset(
    'mr mrs ms dr st prof rev hon messrs mme mlle capt col gen lt sgt maj gov '
    'sen rep pres supt vs viz cf e.g i.e'.split()
)
# After these it goes on if a number follows.
_BEFORE_NUMBERS = frozenset(
    'no nos vol vols ch chap p pp fig sec art jan feb mar apr jun jul aug sep '
    'sept oct nov dec'.split()
)


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
  """Reads a file or folder, perhaps of prose, to be split into sentences.

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


def split_prose(text: str) -> list[str]:
  """Returns the sentences of a paragraph.

  A sentence ends at ``.``, ``!``, ``?`` or an ellipsis, with the quotes and
  brackets that close there, if what follows may begin one: a capital letter
  or a number, perhaps behind an opening quote. A full stop after a title
  (Mr.), an initial (J. or U.S.) or an abbreviation before a number (No. 5) is
  no end. Line ends count as spaces, and spaces between words become single.

  Example:
    >>> split_prose('"Is he in?" asked Mr. J. Smith. He was not.')
    ['"Is he in?" asked Mr. J. Smith.', 'He was not.']
  """
  text = ' '.join(text.split())
  sentences, start = [], 0
  for end in _END.finditer(text):
    sentence = text[start : end.end()].rstrip()
    if not _goes_on(sentence, following=end[1]):
      sentences.append(sentence)
      start = end.end()
  if start < len(text):
    sentences.append(text[start:])
  return sentences


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
      sentences += split_prose(' '.join(group))
    elif len(group) > 1 and sentences:
      yield sentences
      sentences = []
  if sentences:
    yield sentences


def _is_blank(line):
  return not line.strip()


def _goes_on(sentence, following):
  """Returns whether a sentence goes on after what ends the text."""
  if following.islower():
    return True
  last = _LAST_WORD.search(sentence)
  if not last:
    return False
  word = last[1]
  if _INITIALS.fullmatch(word) and word.isupper():
    return word != 'I'  # "So am I." is common, a name with I. is not.
  word = word.lower()
  return word in _TITLES or (word in _BEFORE_NUMBERS and following.isdigit())
