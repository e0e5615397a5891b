# SPDX-License-Identifier: Apache-2.0
"""Loads sentences of a prepared corpus, and cuts them into batches."""

from collections.abc import Iterable
from collections.abc import Sequence
import functools
import os

import numpy as np

from hcl_jax.models import packed_text
from hcl_jax.models import vocabulary as vocabulary_lib
from hcl_jax.sentences import corpus
from hcl_jax.storage import locations
from hcl_jax.storage import records

LENGTHS = (8, 16, 24, 32, 50)
MAX_LENGTH = 50
ORDERS = ('consecutive', 'blocks')


class Sentences:
  """Sentences in the order of their text, one behind the other.

  Attributes:
    tokens: ids of words, int32 ``[num_tokens]``.
    starts: sentence i has the tokens ``starts[i]`` up to ``starts[i + 1]``,
      int64 ``[n + 1]``.
    segments: the chapter or book of each sentence, ascending, int32 ``[n]``.
      Sentences are neighbors only within one.
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
    """Returns the words of a sentence, as the vocabulary has them."""
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


def collect(texts: Iterable[str | Iterable[str]]) -> dict[str, Sentences]:
  """Divides a text at hand, as ``prepare`` divides files by default.

  Arguments and errors are those of ``corpus.collect``; the splits are those of
  ``corpus.divide``.
  """
  vocabulary, parts = corpus.divide(corpus.collect(texts))
  return {
      split: Sentences(**part._asdict(), vocabulary=vocabulary)
      for split, part in parts.items()
  }


class SentenceBatches(Sequence):
  """Batches of an epoch, and of those that follow.

  In the order ``'consecutive'`` a batch is sentences that follow each other,
  the same in every epoch, as released. In the order ``'blocks'`` the segments
  are cut into blocks of up to ``block_size`` sentences, as equal as can be,
  and every epoch goes through the blocks in a new order, so that a batch has
  parts of several texts. The incomplete last batch of an epoch is dropped.

  A batch is a :class:`SentenceBatch` whose packed rows have the least of
  ``lengths`` that holds all its sentences. ``index`` has rows of the corpus.
  Rows that follow each other with the same ``segment`` do so in the corpus; it
  is the segment of the corpus or, in the order ``'blocks'``, the block.
  """

  def __init__(
      self,
      sentences: Sentences,
      *,
      seed: int,
      batch_size: int,
      order: str = 'consecutive',
      block_size: int = 50,
      max_length: int = MAX_LENGTH,
      lengths: Sequence[int] = LENGTHS,
  ):
    """Divides sentences into batches.

    Args:
      sentences: the corpus.
      seed: of the order of blocks, >= 0.
      batch_size: sentences of a batch.
      order: ``'consecutive'`` or ``'blocks'``.
      block_size: most sentences of a block.
      max_length: longer sentences are cut off.
      lengths: of packed rows, ascending, up to ``max_length`` or more.
    """
    _check(seed, batch_size, order, block_size, len(sentences))
    self._sentences = sentences
    self._batch_size = batch_size
    self._lengths = _read_lengths(lengths, max_length)
    self._num_tokens = np.minimum(sentences.lengths, max_length)
    if order == 'consecutive':
      self._segments = sentences.segments
      rows = np.arange(len(sentences), dtype=np.int32)
      self._rows = lambda epoch: rows
    else:
      self._segments = blocks = _blocks(sentences.segments, block_size)
      self._rows = functools.lru_cache(maxsize=2)(
          lambda epoch: _shuffled(blocks, seed, epoch)
      )

  def __len__(self) -> int:
    return len(self._sentences) // self._batch_size

  def __getitem__(self, number: int) -> packed_text.SentenceBatch:
    """Returns a batch of the first epoch."""
    return self.batch(range(len(self))[number])

  def batch(self, step: int) -> packed_text.SentenceBatch:
    """Returns the batch of a step; steps are counted over all epochs."""
    if step < 0:
      raise ValueError(f'step must be 0 or more, got {step}.')
    epoch, number = divmod(step, len(self))
    first = number * self._batch_size
    rows = self._rows(epoch)[first : first + self._batch_size]
    length = self._num_tokens[rows]
    return packed_text.pack_flat(
        _take(self._sentences.tokens, self._sentences.starts[rows], length),
        length,
        self._segments[rows],
        rows.copy(),
        places=self._lengths[np.searchsorted(self._lengths, length.max())],
    )


def pack_sentences(
    sentences: Sequence[np.ndarray],
    *,
    max_length: int = MAX_LENGTH,
    num_rows: int | None = None,
    **kwargs,
) -> packed_text.SentenceBatch:
  """Packs given sentences into rows of ``max_length`` places.

  A sentence without tokens counts as one unknown word, so that only padding
  has no words.

  Args:
    sentences: ids of the tokens of each sentence.
    max_length: longer sentences are cut off.
    num_rows: rows of the batch; None for one for each sentence.
    **kwargs: further arguments of ``packed_text.pack_flat``.

  Returns:
    The batch, of numpy arrays.

  Example:
    >>> batch = pack_sentences([np.array([3, 1, 2]), np.array([4])])
    >>> batch.words[batch.places[:4, 0]]
    array([3, 1, 2, 4], dtype=int32)
  """
  num_rows = len(sentences) if num_rows is None else num_rows
  if not 0 < len(sentences) <= num_rows:
    raise ValueError(
        f'sentences must be one or more, and at most num_rows={num_rows}; got '
        f'{len(sentences)}.'
    )
  cut = [s[:max_length] if len(s) else np.zeros(1, np.int32) for s in sentences]
  length = np.zeros(num_rows, np.int64)
  length[: len(cut)] = [len(s) for s in cut]
  return packed_text.pack_flat(
      np.concatenate(cut), length, places=max_length, **kwargs
  )


def lengths_up_to(max_length: int) -> tuple[int, ...]:
  """Returns lengths of packed rows for sentences of up to ``max_length``."""
  return (*(x for x in LENGTHS if x < max_length), max_length)


def _take(tokens, starts, counts):
  """Returns some tokens from each start, one after the other."""
  shifts = starts - (np.cumsum(counts) - counts)
  return tokens[np.arange(counts.sum()) + np.repeat(shifts, counts)]


def _blocks(segments, block_size):
  """Numbers the blocks that segments are cut into, ``[n]``, ascending."""
  _, starts, sizes = np.unique(segments, return_index=True, return_counts=True)
  per_segment = -(-sizes // block_size)
  place = np.arange(len(segments)) - np.repeat(starts, sizes)
  in_segment = place * np.repeat(per_segment, sizes) // np.repeat(sizes, sizes)
  first = np.repeat(np.cumsum(per_segment) - per_segment, sizes)
  return (first + in_segment).astype(np.int32)


def _shuffled(blocks, seed, epoch):
  """Returns all rows, block by block, in the order of an epoch."""
  rng = np.random.default_rng([seed, epoch])
  place = rng.permutation(blocks[-1] + 1)
  return np.argsort(place[blocks], kind='stable').astype(np.int32)


def _check(seed, batch_size, order, block_size, num_sentences):
  if seed < 0:
    raise ValueError(f'seed must be 0 or more, got {seed}.')
  if not 1 <= batch_size <= num_sentences:
    raise ValueError(
        f'batch_size must be at least 1 and at most the number of sentences, '
        f'{num_sentences}; got {batch_size}.'
    )
  if order not in ORDERS:
    raise ValueError(f'order must be one of {ORDERS}, got {order!r}.')
  if block_size < 2:
    raise ValueError(
        f'block_size must be at least 2, or no sentence has a neighbor; got '
        f'{block_size}.'
    )


def _read_lengths(lengths, max_length):
  lengths = np.asarray(lengths)
  ascends = lengths.ndim == 1 and lengths.size and np.all(np.diff(lengths) > 0)
  if not ascends or lengths[0] < 1 or not 1 <= max_length <= lengths[-1]:
    raise ValueError(
        'lengths must ascend from 1 or more to max_length or more; got '
        f'lengths={tuple(lengths.tolist())} and max_length={max_length}.'
    )
  return lengths
