# SPDX-License-Identifier: Apache-2.0
"""Splits sentences into words and maps words to ids."""

from collections.abc import Sequence
import json
import os
import pathlib
import re

import numpy as np

UNKNOWN = '<unk>'

_TOKEN = re.compile(r'\w+|[^\w\s]')


def tokenize(text: str, *, cased: bool = False) -> list[str]:
  """Returns words and punctuation marks, in lower case unless ``cased``.

  Example:
    >>> tokenize('"What?" he cried.')
    ['"', 'what', '?', '"', 'he', 'cried', '.']
  """
  return _TOKEN.findall(text if cased else text.lower())


class Vocabulary:
  """Words with ids from 0; id 0 means every unknown word.

  Attributes:
    words: ``words[i]`` has id i; the first is ``'<unk>'``.
    cased: whether case is significant.
  """

  def __init__(self, words: Sequence[str], *, cased: bool = False):
    """Stores distinct words, ``'<unk>'`` first."""
    self.words = list(words)
    self.cased = cased
    self._ids = {word: i for i, word in enumerate(self.words)}
    if self.words[:1] != [UNKNOWN] or len(self._ids) < len(self.words):
      raise ValueError(
          f'words must start with {UNKNOWN!r} and be distinct; got '
          f'{len(self.words)} words, {len(self._ids)} of them distinct, that '
          f'start with {self.words[:1]}.'
      )

  @classmethod
  def of_counts(
      cls,
      words: Sequence[str],
      counts: Sequence[int] | np.ndarray,
      *,
      size: int,
      min_count: int = 1,
      cased: bool = False,
  ) -> 'Vocabulary':
    """Creates a vocabulary of the ``size`` most common words, ties by spelling.

    Words with a count below ``min_count`` are left out; ``'<unk>'`` comes on
    top of ``size``.
    """
    for name, value in (('vocabulary_size', size), ('min_count', min_count)):
      if value < 1:
        raise ValueError(f'{name} must be at least 1, got {value}.')
    pairs = zip(counts, words, strict=True)
    common = sorted((-n, word) for n, word in pairs if n >= min_count)
    return cls([UNKNOWN, *(word for _, word in common[:size])], cased=cased)

  def __len__(self) -> int:
    return len(self.words)

  def __eq__(self, other) -> bool:
    if not isinstance(other, Vocabulary):
      return NotImplemented
    return (self.words, self.cased) == (other.words, other.cased)

  def ids(self, tokens: Sequence[str]) -> np.ndarray:
    """Returns the id of each token, int32 ``[len(tokens)]``."""
    find = self._ids.get
    return np.fromiter((find(t, 0) for t in tokens), np.int32, len(tokens))

  def encode(self, text: str) -> np.ndarray:
    """Returns the ids of the tokens of a sentence, int32 ``[n]``."""
    return self.ids(tokenize(text, cased=self.cased))

  def save(self, path: str | os.PathLike) -> None:
    """Writes a JSON file, one word per line."""
    content = {'cased': self.cased, 'words': self.words}
    text = json.dumps(content, ensure_ascii=False, indent=0)
    pathlib.Path(path).write_text(text, encoding='utf-8')

  @classmethod
  def load(cls, path: str | os.PathLike) -> 'Vocabulary':
    """Loads a file that :meth:`save` wrote."""
    try:
      content = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
      return cls(content['words'], cased=content['cased'])
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(f'{path} is no vocabulary: {error}') from error
