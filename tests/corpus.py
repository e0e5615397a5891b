# SPDX-License-Identifier: Apache-2.0
"""A toy corpus: the sentences of a chapter share words that others have not."""

from unittest import mock

import numpy as np

from hcl_jax import data

_WORDS = 4  # of a chapter


class Vocabulary:
  """Words 'w1', 'w2', ...; what else there is is unknown, id 0."""

  def __init__(self, size):
    self.words = ['<unk>', *(f'w{i}' for i in range(1, size))]

  def __len__(self):
    return len(self.words)

  def encode(self, text):
    return np.array([
        self.words.index(word) if word in self.words else 0
        for word in text.split()
    ], np.int32)  # fmt: skip


class Sentences:
  """What data.Sentences has."""

  def __init__(self, chapters=12, per_chapter=6, seed=0):
    rng = np.random.default_rng(seed)
    self.segments = np.repeat(np.arange(chapters, dtype=np.int32), per_chapter)
    # The same in every chapter, so that batches have one shape.
    self.lengths = 3 + np.arange(len(self.segments)) % 6
    self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
    own = 1 + _WORDS * np.repeat(self.segments, self.lengths)
    drawn = rng.integers(0, _WORDS, len(own))
    self.tokens = np.int32(np.where(rng.random(len(own)) < 0.1, 0, own + drawn))
    self.vocabulary = Vocabulary(1 + _WORDS * chapters)

  def __len__(self):
    return len(self.segments)

  def text(self, row):
    tokens = self.tokens[self.starts[row] : self.starts[row + 1]]
    return ' '.join(self.vocabulary.words[token] for token in tokens)


class SentenceBatches:
  """What data.SentenceBatches has, in the order of the text."""

  def __init__(
      self, sentences, *, seed, batch_size, order='consecutive', block_size=50,
      max_length=50, lengths=(8, 16, 24, 32, 50),
  ):  # fmt: skip
    del seed, order, block_size
    self._sentences, self._batch_size = sentences, batch_size
    self._max_length, self._lengths = max_length, lengths

  def __len__(self):
    return len(self._sentences) // self._batch_size

  def batch(self, step):
    first = step % len(self) * self._batch_size
    index = np.arange(first, first + self._batch_size, dtype=np.int32)
    starts = self._sentences.starts
    rows = [self._sentences.tokens[starts[i] : starts[i + 1]] for i in index]
    batch = pad_sentences(
        rows, max_length=self._max_length, lengths=self._lengths
    )
    return {**batch, 'segment': self._sentences.segments[index], 'index': index}


def pad_sentences(sentences, *, max_length=50, lengths=(50,), num_rows=None):
  """As data.pad_sentences."""
  sizes = [min(max(len(row), 1), max_length) for row in sentences]
  width = next(x for x in lengths if x >= max(sizes))
  tokens = np.zeros((num_rows or len(sentences), width), np.int32)
  length = np.zeros(len(tokens), np.int32)
  for i, (row, size) in enumerate(zip(sentences, sizes, strict=True)):
    tokens[i, : len(row[:size])] = row[:size]
    length[i] = size
  return {'tokens': tokens, 'length': length}


def patch(test):
  """Puts the toy in the place of prepared data for the length of a test."""
  for name, value in (
      ('load_sentences', lambda *_, split, **__: Sentences(
          seed=int(split == 'validation'))),
      ('SentenceBatches', SentenceBatches),
      ('pad_sentences', pad_sentences),
  ):  # fmt: skip
    test.enter_context(mock.patch.object(data, name, value, create=True))
