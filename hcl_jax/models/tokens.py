# SPDX-License-Identifier: Apache-2.0
"""Turns texts into rows of tokens: hashed n-grams, words or characters."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import ClassVar
from typing import Protocol

import numpy as np

from hcl_jax.models import vocabulary as vocabulary_lib

PADDING = -1

# Texts at a time, so that what is in between stays small.
_CHUNK = 4096
# Of a multiplicative hash of code points; odd numbers below 2**32.
_FACTOR = np.uint32(0x9E3779B1)
_MIX = np.uint32(0x85EBCA6B)


class Tokenizer(Protocol):
  """Turns texts into int32 ``[n, length]``, padded with -1 at the end.

  Attributes:
    num_tokens: tokens are below this.
    length: of a row.
  """

  @property
  def num_tokens(self) -> int: ...

  @property
  def length(self) -> int: ...

  def __call__(self, texts: Sequence[str]) -> np.ndarray: ...

  def to_json(self) -> dict[str, Any]:
    """Returns what :func:`from_json` makes the same of."""
    ...


@dataclasses.dataclass(frozen=True)
class HashedNgrams:
  """Finds the n-grams of characters of a text, hashed; case matters.

  A row has the n-grams of a text by their hash, each as often as it occurs. Of
  a text with more than ``length`` of them it has those of the lowest hashes,
  which is a fair sample, and the same one of what two texts share. There is
  nothing to learn.

  Attributes:
    least: characters of the shortest n-grams.
    most: characters of the longest.
    buckets: number of hashes.
    length: most n-grams of a text.
  """

  kind: ClassVar[str] = 'ngrams'

  least: int = 1
  most: int = 4
  buckets: int = 32768
  length: int = 128

  @property
  def num_tokens(self) -> int:
    """Returns the number of hashes."""
    return self.buckets

  def __call__(self, texts: Sequence[str]) -> np.ndarray:
    """Returns the n-grams of texts, int32 ``[n, length]``, -1 for none."""
    found = np.full((len(texts), self.length), PADDING, np.int32)
    for start in range(0, len(texts), _CHUNK):
      self._fill(texts[start : start + _CHUNK], found[start : start + _CHUNK])
    return found

  def to_json(self) -> dict[str, Any]:
    """Returns all numbers by name."""
    return {'kind': self.kind, **dataclasses.asdict(self)}

  def _fill(self, texts, out):
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    joined = ''.join(texts).encode('utf-32-le', 'surrogatepass')
    codes = np.frombuffer(joined, np.uint32)
    rows = np.repeat(np.arange(len(texts)), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(codes))
    keys = []
    hashed = np.zeros(len(codes), np.uint32)
    for size in range(1, self.most + 1):
      # Of n-grams that begin at each character, and end in the same text.
      shifted = np.zeros_like(hashed)
      shifted[: max(len(codes) - size + 1, 0)] = codes[size - 1 :]
      hashed = (hashed ^ shifted) * _FACTOR
      hashed ^= hashed >> np.uint32(15)
      if size >= self.least:
        bucket = (hashed * _MIX) >> np.uint32(8)
        fits = left >= size
        keys.append(
            rows[fits] * np.int64(self.buckets)
            + (bucket % np.uint32(self.buckets))[fits]
        )
    keys = np.sort(np.concatenate(keys))
    row = keys // self.buckets
    place = np.arange(len(keys)) - np.searchsorted(row, row)
    fits = place < self.length
    out[row[fits], place[fits]] = (keys % self.buckets)[fits]


@dataclasses.dataclass(frozen=True)
class Words:
  """Finds the words of a text, in their order.

  Attributes:
    vocabulary: the known words.
    length: most words of a text; further ones are cut off.
  """

  kind: ClassVar[str] = 'words'

  vocabulary: vocabulary_lib.Vocabulary
  length: int = 128

  @classmethod
  def of_texts(cls, texts: Iterable[str], *, size: int, length: int):
    """Creates one of the commonest tokens of texts, with their case."""
    counts: dict[str, int] = {}
    for text in texts:
      for token in cls.split(text):
        counts[token] = counts.get(token, 0) + 1
    vocabulary = vocabulary_lib.Vocabulary.of_counts(
        list(counts), list(counts.values()), size=size, cased=True
    )
    return cls(vocabulary, length)

  @staticmethod
  def split(text: str) -> Sequence[str]:
    """Returns the tokens of a text."""
    return vocabulary_lib.tokenize(text, cased=True)

  @property
  def num_tokens(self) -> int:
    """Returns the number of known tokens, one of them for all others."""
    return len(self.vocabulary)

  def __call__(self, texts: Sequence[str]) -> np.ndarray:
    """Returns the tokens of texts, int32 ``[n, length]``, -1 after the last."""
    found = np.full((len(texts), self.length), PADDING, np.int32)
    for row, text in zip(found, texts, strict=True):
      tokens = self.split(text)[: self.length]
      row[: len(tokens)] = self.vocabulary.ids(tokens)
    return found

  def to_json(self) -> dict[str, Any]:
    """Returns the tokens and the length."""
    words = self.vocabulary.words
    return {'kind': self.kind, 'words': words, 'length': self.length}


class Characters(Words):
  """Finds the characters of a text, in their order."""

  kind: ClassVar[str] = 'characters'

  @staticmethod
  def split(text: str) -> Sequence[str]:
    """Returns the characters of a text."""
    return list(text)


_KINDS: dict[str, Callable[..., Tokenizer]] = {
    HashedNgrams.kind: HashedNgrams,
    Words.kind: Words,
    Characters.kind: Characters,
}


def from_json(content: Mapping[str, Any]) -> Tokenizer:
  """Makes the tokenizer that ``to_json`` describes."""
  options = dict(content)
  make = _KINDS[options.pop('kind')]
  if 'words' in options:
    words = options.pop('words')
    make = functools.partial(
        make, vocabulary_lib.Vocabulary(words, cased=True)
    )
  return make(**options)
