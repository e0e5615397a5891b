# SPDX-License-Identifier: Apache-2.0
"""Reads an ordered corpus of sentences from plain text.

The text is a file, ``.txt``, ``.txt.gz`` or ``.txt.xz``, or a folder of such
files, which are taken in the order of their names. A line is a sentence, and a
blank line ends a segment, such as a chapter: sentences on its two sides are no
neighbors.

Prose is split into sentences first. There, lines that follow each other are a
paragraph, and two blank lines or more end a segment.

A document is what may be held out: a file of a folder, or a segment of a single
file. By default the last 5 % of the sentences are, in whole documents unless
these have more than a fifth of the text.
"""

import array
import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import functools
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
VOCABULARY_SIZE = 20_000  # by default

_FEWEST = 8  # sentences to hold out by default, where there are enough
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


class Part(NamedTuple):
  """Sentences of a split; tokens are ids of a vocabulary."""

  tokens: np.ndarray
  lengths: np.ndarray
  segments: np.ndarray


def read(
    path: pathlib.Path, *, split_sentences: bool = False, cased: bool = False
) -> Corpus:
  """Reads a file or folder, perhaps of prose, to be split into sentences.

  Raises:
    FileNotFoundError: there is no such path, or no text in it.
    ValueError: a file is empty, damaged, not UTF-8 or no text file.
  """
  files = map(
      functools.partial(_read_file, split_sentences=split_sentences),
      _list_files(path),
  )
  if not path.is_dir():
    segments = itertools.chain.from_iterable(files)
    files = ([segment] for segment in segments)
  corpus = _collect(files, cased)
  count = len(corpus.segments)
  if not split_sentences and count > 1 and corpus.segments[-1] + 1 == count:
    raise ValueError(
        f'{path} has a blank line between all lines, so that no sentence has a '
        'neighbor; if it is prose, give --split_sentences.'
    )
  return corpus


def collect(
    texts: Iterable[str | Iterable[str]], *, cased: bool = False
) -> Corpus:
  """Joins sentences that are at hand.

  Args:
    texts: documents, each of sentences in their order; or sentences. An empty
      sentence ends a segment.
    cased: whether to keep capital letters.

  Raises:
    TypeError: they are neither.
    ValueError: there is no sentence.
  """
  texts = _list_items('data', texts)
  if all(isinstance(text, str) for text in texts):
    documents = ([segment] for segment in _segments(texts))
  else:
    documents = (
        _segments(_list_items(f'data[{number}]', text, of=str))
        for number, text in enumerate(texts)
    )
  corpus = _collect(documents, cased)
  if not len(corpus.lengths):
    raise ValueError('data has no sentence.')
  return corpus


def divide(
    corpus: Corpus,
    *,
    validation_documents: int | None = None,
    vocabulary_size: int = VOCABULARY_SIZE,
    min_count: int = 1,
    cased: bool = False,
) -> tuple[vocabulary.Vocabulary, dict[str, Part]]:
  """Divides a corpus into splits, and numbers the words of the first.

  Args:
    corpus: all sentences.
    validation_documents: last documents that are the validation split; None:
      about 5 % of the sentences.
    vocabulary_size: commonest words to keep.
    min_count: words that are less common are left out.
    cased: whether the corpus has capital letters.

  Returns:
    The vocabulary, and the splits ``'train'`` and, unless it is empty,
    ``'validation'``.
  """
  first = _first_held_out(corpus.documents, validation_documents)
  first_token = corpus.lengths[:first].sum()
  words = vocabulary.Vocabulary.of_counts(
      corpus.words,
      np.bincount(corpus.tokens[:first_token], minlength=len(corpus.words)),
      size=vocabulary_size,
      min_count=min_count,
      cased=cased,
  )
  ids = words.ids(corpus.words)[corpus.tokens]
  # Where a segment is cut, the two parts are no neighbors.
  segments = corpus.segments + (np.arange(len(corpus.segments)) >= first)
  parts = {
      'train': Part(
          ids[:first_token], corpus.lengths[:first], segments[:first]
      ),
      'validation': Part(
          ids[first_token:], corpus.lengths[first:], segments[first:]
      ),
  }
  return words, {name: x for name, x in parts.items() if len(x.lengths)}


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


def _collect(documents, cased) -> Corpus:
  """Collects documents, each of segments, each of sentences."""
  numbers = collections.defaultdict()
  numbers.default_factory = numbers.__len__  # A new word gets the next number.
  tokens, lengths, segments, of = (array.array('i') for _ in range(4))
  for number, document in enumerate(documents):
    for sentences in document:
      segment = segments[-1] + 1 if segments else 0
      for sentence in sentences:
        words = vocabulary.tokenize(sentence, cased=cased)
        tokens.extend(map(numbers.__getitem__, words))
        lengths.append(len(words))
        segments.append(segment)
        of.append(number)
  arrays = (np.array(x, np.int32) for x in (tokens, lengths, segments, of))
  return Corpus(list(numbers), *arrays)


def _list_items(name, items, of=object):
  """Returns the items of an argument, which must be of a type."""
  is_other = isinstance(items, (str, bytes, Mapping))
  if is_other or not isinstance(items, Iterable):
    raise TypeError(
        f'{name} must be an iterable of sentences (str)'
        + ', or of documents, which are such iterables' * (of is object)
        + f'; got {type(items).__name__}.'
    )
  items = list(items)
  for number, item in enumerate(items):
    if not isinstance(item, of):
      raise TypeError(
          f'{name}[{number}] must be a str, got {type(item).__name__}.'
      )
  return items


def _first_held_out(documents, num_documents):
  """Returns the first sentence of the validation split."""
  if num_documents is None:
    size = len(documents)
    first = size - min(max(-(-size // 20), _FEWEST), size // 5)
    start = np.searchsorted(documents, documents[min(first, size - 1)])
    return int(start if size - start <= size // 5 else first)
  count = int(documents[-1]) + 1
  if not 0 <= num_documents < count:
    raise ValueError(
        f'validation_documents must be less than the documents of the text, '
        f'{count}; got {num_documents}.'
    )
  return int(np.searchsorted(documents, count - num_documents))


def _read_file(file, split_sentences):
  """Yields the segments of a file."""
  split = _segments_of_prose if split_sentences else _segments
  segments = split(text_files.read_lines(file))
  first = next(segments, None)
  if first is None:
    raise ValueError(f'{file} holds no sentence; remove it or fill it.')
  return itertools.chain([first], segments)


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
