# SPDX-License-Identifier: Apache-2.0
"""Words of sentences, and their numbers."""

from collections.abc import Sequence
import json
import os
import pathlib
import re

import numpy as np

UNKNOWN = '<unk>'

_TOKEN = re.compile(r'\w+|[^\w\s]')


def tokenize(text: str, *, cased: bool = False) -> list[str]:
  """Words and single punctuation marks, in lower case unless ``cased``.

  Example:
    >>> tokenize('"What?" he cried.')
    ['"', 'what', '?', '"', 'he', 'cried', '.']
  """
  return _TOKEN.findall(text if cased else text.lower())


class Vocabulary:
  """Words with ids from 0; id 0 stands for every word that is not there.

  Attributes:
    words: ``words[i]`` has the id i; the first is ``'<unk>'``.
    cased: whether capital letters count.
  """

  def __init__(self, words: Sequence[str], *, cased: bool = False):
    """Takes words that all differ, ``'<unk>'`` first."""
    self.words = list(words)
    self.cased = cased
    self._ids = {word: i for i, word in enumerate(self.words)}
    if self.words[:1] != [UNKNOWN] or len(self._ids) < len(self.words):
      raise ValueError(
          f'words must begin with {UNKNOWN!r} and all differ; got '
          f'{len(self.words)} words, {len(self._ids)} of them different, that '
          f'begin with {self.words[:1]}.'
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
    """The commonest words, by count, and where that is equal by spelling.

    Args:
      words: all words.
      counts: how often each occurs.
      size: number of words to take at the most, beside the unknown one.
      min_count: words that are less common are left out.
      cased: whether capital letters count.

    Returns:
      A vocabulary of up to ``size + 1`` ids.
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
    """The id of each token, int32 ``[len(tokens)]``."""
    find = self._ids.get
    return np.fromiter((find(t, 0) for t in tokens), np.int32, len(tokens))

  def encode(self, text: str) -> np.ndarray:
    """The ids of the tokens of a sentence, int32 ``[n]``."""
    return self.ids(tokenize(text, cased=self.cased))

  def save(self, path: str | os.PathLike) -> None:
    """Writes a JSON file, a word a line."""
    content = {'cased': self.cased, 'words': self.words}
    text = json.dumps(content, ensure_ascii=False, indent=0)
    pathlib.Path(path).write_text(text, encoding='utf-8')

  @classmethod
  def load(cls, path: str | os.PathLike) -> 'Vocabulary':
    """Reads what :meth:`save` wrote."""
    try:
      content = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
      return cls(content['words'], cased=content['cased'])
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(f'{path} holds no vocabulary: {error}') from error
