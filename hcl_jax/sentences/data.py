# SPDX-License-Identifier: Apache-2.0
"""Sentences of a prepared corpus, in its order, in memory."""

import os

import numpy as np

from hcl_jax.models import vocabulary as vocabulary_lib
from hcl_jax.sentences import corpus
from hcl_jax.storage import locations
from hcl_jax.storage import records


class Sentences:
  """Sentences in the order of their text, one behind the other.

  Attributes:
    tokens: ids of words, int32 ``[num_tokens]``.
    starts: sentence i has the tokens ``starts[i]`` up to ``starts[i + 1]``,
      int64 ``[n + 1]``.
    segments: the chapter or book of each sentence, ascending, int32 ``[n]``.
      Sentences are neighbours only within one.
    vocabulary: the words that the ids stand for.
  """

  def __init__(
      self,
      *,
      tokens: np.ndarray,
      lengths: np.ndarray,
      segments: np.ndarray,
      vocabulary: vocabulary_lib.Vocabulary,
  ):
    """Takes all tokens, and the length and segment of each sentence."""
    self.tokens = np.asarray(tokens, np.int32)
    self.starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    self.segments = np.asarray(segments, np.int32)
    self.vocabulary = vocabulary
    self._check()

  def __len__(self) -> int:
    return len(self.segments)

  @property
  def lengths(self) -> np.ndarray:
    """Tokens of each sentence, int64 ``[n]``."""
    return np.diff(self.starts)

  def text(self, row: int) -> str:
    """The words of a sentence, as the vocabulary has them."""
    tokens = self.tokens[self.starts[row] : self.starts[row + 1]]
    return ' '.join(self.vocabulary.words[token] for token in tokens)

  def _check(self):
    lengths = self.lengths
    if self.segments.shape != lengths.shape or not len(lengths):
      raise ValueError(
          'lengths and segments must have an entry for each sentence, got '
          f'{lengths.shape} and {self.segments.shape}.'
      )
    if lengths.min() < 1:
      raise ValueError(
          f'lengths must be 1 or more, but sentence {lengths.argmin()} has '
          f'{lengths.min()} tokens.'
      )
    if self.tokens.shape != (self.starts[-1],):
      raise ValueError(
          f'tokens must have shape ({self.starts[-1]},), the sum of lengths; '
          f'got {self.tokens.shape}.'
      )
    if self.tokens.min() < 0 or self.tokens.max() >= len(self.vocabulary):
      raise ValueError(
          f'tokens must be ids of the vocabulary, 0 to '
          f'{len(self.vocabulary) - 1}; got {self.tokens.min()} to '
          f'{self.tokens.max()}.'
      )
    if np.any(np.diff(self.segments) < 0):
      raise ValueError('segments must be in ascending order.')


def load_sentences(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    split: str = 'train',
) -> Sentences:
  """Reads a prepared corpus; never uses the network.

  Args:
    name: ``'sentences/NAME'``, or NAME alone.
    data_dir: folder of prepared data sets; None for the default of tfds
      ($TFDS_DATA_DIR or ~/tensorflow_datasets).
    split: ``'train'``, or ``'validation'`` where documents were held out.

  Returns:
    The sentences, in the order of the text, segments numbered from 0.

  Raises:
    FileNotFoundError: the corpus is not prepared; the message says how to.
    ValueError: it is not one of sentences, or has no such split.
  """
  if '/' not in name:
    name = f'{corpus.NAME}/{name}'
  directory = locations.require(
      name, locations.data_dir(data_dir), '--text=FILE'
  )
  builder = records.open_builder(directory)
  if not {'token', 'length', 'segment'} <= set(builder.info.features):
    raise ValueError(
        f'{builder.info.full_name} has no sentences, only '
        f'{", ".join(builder.info.features)}.'
    )
  source = records.open_split(builder, split)
  chunks = source.__getitems__(range(len(source)))

  def joined(key):
    return np.concatenate([chunk[key] for chunk in chunks])

  segments = joined('segment')
  return Sentences(
      tokens=joined('token'),
      lengths=joined('length'),
      segments=np.cumsum(np.diff(segments, prepend=segments[0]) != 0),
      vocabulary=vocabulary_lib.Vocabulary.load(directory / corpus.VOCABULARY),
  )
