# SPDX-License-Identifier: Apache-2.0
"""Packs sentences end to end into rows, and stores each distinct word once.

A batch padded to its longest sentence is mostly padding, and most of its words
occur more than once. So sentences follow one another in packed rows of one
length, and computations on single words are done once per distinct word.
"""

from typing import NamedTuple

import jax
import numpy as np


class SentenceBatch(NamedTuple):
  """B sentences in R packed rows of T places, with U distinct words.

  A sentence is in one packed row, with its words in order, and the next one
  follows immediately. Indices out of range mark padding: a place of padding has
  sentence B, and a sentence without words starts and ends at place T R.

  Attributes:
    words: distinct words, int32 ``[U]``; padding repeats word 0.
    places: index into ``words`` of each place of a packed row, int32
      ``[T, R]``.
    rows: sentence of each place, int32 ``[T, R]``.
    firsts: place t R + r of the first word of each sentence, int32 ``[B]``.
    lasts: place of the last word of each sentence, int32 ``[B]``.
    segment: piece of text of each sentence, int32 ``[B]``.
    index: row of each sentence in its data set, int32 ``[B]``, -1 in padding.
  """

  words: jax.Array
  places: jax.Array
  rows: jax.Array
  firsts: jax.Array
  lasts: jax.Array
  segment: jax.Array
  index: jax.Array


def pack(
    tokens: np.ndarray,
    length: np.ndarray,
    segment: np.ndarray | None = None,
    index: np.ndarray | None = None,
    *,
    min_packed_rows: int = 1,
    min_words: int = 1,
) -> SentenceBatch:
  """Packs padded sentences into rows, as :func:`pack_flat` does.

  Words of each sentence are integers ``[B, T]``, with T the length of the
  packed rows; of these the first ``length [B]`` are read. All else is as in
  :func:`pack_flat`.

  Raises:
    ValueError: shapes do not match, or lengths are out of range.
  """
  tokens, length = np.asarray(tokens), np.asarray(length)
  if tokens.ndim != 2 or not np.issubdtype(tokens.dtype, np.integer):
    raise ValueError(
        'tokens must be integers of shape [sentences, length]; got '
        f'{tokens.dtype} of shape {tokens.shape}.'
    )
  if length.shape != tokens.shape[:1]:
    raise ValueError(
        f'length must have shape {tokens.shape[:1]}, one per sentence; '
        f'got {length.shape}.'
    )
  places = tokens.shape[1]
  return pack_flat(
      tokens[np.arange(places) < length[:, None]],
      length,
      segment,
      index,
      places=places,
      min_packed_rows=min_packed_rows,
      min_words=min_words,
  )


def pack_flat(
    tokens: np.ndarray,
    length: np.ndarray,
    segment: np.ndarray | None = None,
    index: np.ndarray | None = None,
    *,
    places: int,
    min_packed_rows: int = 1,
    min_words: int = 1,
) -> SentenceBatch:
  """Packs sentences that follow each other without padding into rows.

  U and R are rounded up to one of four sizes per power of two, so that the
  batches of a run have few shapes. Set both minimums to have one shape.

  Args:
    tokens: words of all sentences, integers ``[N]``.
    length: number of words of each sentence, integers ``[B]``, 0 to
      ``places``, with the sum N.
    segment: see :class:`SentenceBatch`; None: 0 for all.
    index: see :class:`SentenceBatch`; None: 0, 1, 2, ...
    places: length of the packed rows, T.
    min_packed_rows: minimum of R.
    min_words: minimum of U.

  Returns:
    The batch, of numpy arrays.

  Raises:
    ValueError: shapes do not match, or lengths are out of range.
  """
  tokens, length = np.asarray(tokens), np.asarray(length)
  if np.any((length < 0) | (length > places)):
    raise ValueError(
        f'length must be 0 to {places}, the places of a packed row; got '
        f'{length.min()} to {length.max()}.'
    )
  if tokens.shape != (length.sum(),):
    raise ValueError(
        f'tokens must have shape ({length.sum()},), the sum of length; got '
        f'{tokens.shape}.'
    )
  count = len(length)
  packed_row, start, used = _first_fit(length, places)
  num_packed_rows = max(_rounded(used), min_packed_rows)
  sentence = np.repeat(np.arange(count), length)
  begin = start - (np.cumsum(length) - length)
  where = np.arange(len(tokens)) + begin[sentence], packed_row[sentence]

  words, which = np.unique(tokens, return_inverse=True)
  padded_words = np.zeros(max(_rounded(len(words)), min_words), np.int32)
  padded_words[: len(words)] = words
  word_places = np.zeros((places, num_packed_rows), np.int32)
  word_places[where] = which
  rows = np.full((places, num_packed_rows), count, np.int32)
  rows[where] = sentence
  first = start * num_packed_rows + packed_row
  last = first + (length - 1) * num_packed_rows
  nowhere = places * num_packed_rows
  return SentenceBatch(
      words=padded_words,
      places=word_places,
      rows=rows,
      firsts=np.where(length > 0, first, nowhere).astype(np.int32),
      lasts=np.where(length > 0, last, nowhere).astype(np.int32),
      segment=_integers(segment, np.zeros(count)),
      index=_integers(index, np.arange(count)),
  )


def _first_fit(length, places):
  """Places longest sentences first, each in the row that it fills best."""
  # Lists and ints, because numpy's scalars are slow.
  lengths, places = length.tolist(), int(places)
  packed_row, start = [0] * len(lengths), [0] * len(lengths)
  with_space = [[] for _ in range(places + 1)]
  used = 0
  for sentence in np.argsort(-length, kind='stable').tolist():
    need = lengths[sentence]
    if not need:
      break
    space = need
    while space < places and not with_space[space]:
      space += 1
    if with_space[space]:
      chosen = with_space[space].pop()
    else:
      chosen, used = used, used + 1
    packed_row[sentence], start[sentence] = chosen, places - space
    with_space[space - need].append(chosen)
  return np.array(packed_row, np.int64), np.array(start, np.int64), used


def _rounded(size: int) -> int:
  """Rounds up to one of 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, etc."""
  step = 1 << max(max(size, 1).bit_length() - 3, 0)
  return max(-(-size // step) * step, 1)


def _integers(values, default):
  return np.asarray(default if values is None else values, np.int32)
