# SPDX-License-Identifier: Apache-2.0
"""Sentences as encoders read them: end to end in lanes, each word once.

A batch padded to its longest sentence is mostly padding, and mostly made of
words that it has already. So sentences are laid one after the other into lanes
of one length, and what is done to a word by itself is done once.
"""

from typing import NamedTuple

import jax
import numpy as np


class SentenceBatch(NamedTuple):
  """B sentences in R lanes of T places, with U different words.

  A sentence is in one lane, its words in order, and the next one follows at
  once. An index that points nowhere marks padding: a place of padding has the
  sentence B, and a sentence without words begins and ends at place T R.

  Attributes:
    words: the different words, int32 ``[U]``; the padding repeats word 0.
    places: which of them is at a place of a lane, int32 ``[T, R]``.
    rows: which sentence is there, int32 ``[T, R]``.
    firsts: the place t R + r of the first word of a sentence, int32 ``[B]``.
    lasts: that of its last word, int32 ``[B]``.
    segment: the piece of text that a sentence is from, int32 ``[B]``.
    index: row of the sentence in its data set, int32 ``[B]``, -1 in padding.
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
    min_lanes: int = 1,
    min_words: int = 1,
) -> SentenceBatch:
  """Lays padded sentences into lanes.

  Args:
    tokens: words of each sentence, integers ``[B, L]``, with L the length of
      the lanes.
    length: how many words it has, integers ``[B]``, 0 to L. What follows them
      is not read.
    segment: see :class:`SentenceBatch`; None: 0 for all.
    index: the same; None: 0, 1, 2, ...
    min_lanes: the least that R may be.
    min_words: the least that U may be.

  Returns:
    The batch, of numpy arrays.

  Raises:
    ValueError: shapes or lengths do not fit.
  """
  tokens, length = np.asarray(tokens), np.asarray(length)
  _check(tokens, length)
  places = tokens.shape[1]
  return pack_flat(
      tokens[np.arange(places) < length[:, None]], length, segment, index,
      places=places, min_lanes=min_lanes, min_words=min_words,
  )  # fmt: skip


def pack_flat(
    tokens: np.ndarray,
    length: np.ndarray,
    segment: np.ndarray | None = None,
    index: np.ndarray | None = None,
    *,
    places: int,
    min_lanes: int = 1,
    min_words: int = 1,
) -> SentenceBatch:
  """Lays sentences that follow each other without padding into lanes.

  U and R are rounded up to one of four sizes for every power of two, so that
  the batches of a run have few shapes; to have but one, give the least of both.

  Args:
    tokens: words of all sentences, integers ``[N]``.
    length: how many of them each sentence has, integers ``[B]``, 0 to
      ``places``, with the sum N.
    segment: see :class:`SentenceBatch`; None: 0 for all.
    index: the same; None: 0, 1, 2, ...
    places: the length of the lanes, T.
    min_lanes: the least that R may be.
    min_words: the least that U may be.

  Returns:
    The batch, of numpy arrays.

  Raises:
    ValueError: tokens or lengths do not fit.
  """
  tokens, length = np.asarray(tokens), np.asarray(length)
  _check_length(length, places)
  if tokens.shape != (length.sum(),):
    raise ValueError(
        f'tokens must have shape ({length.sum()},), the sum of length; got '
        f'{tokens.shape}.'
    )
  count = len(length)
  lane, start, lanes = _first_fit(length, places)
  num_lanes = max(_rounded(lanes), min_lanes)
  sentence = np.repeat(np.arange(count), length)
  begin = start - (np.cumsum(length) - length)
  where = np.arange(len(tokens)) + begin[sentence], lane[sentence]

  words, which = np.unique(tokens, return_inverse=True)
  num_words = max(_rounded(len(words)), min_words)
  padded_words = np.zeros(num_words, np.int32)
  padded_words[: len(words)] = words
  word_places = np.zeros((places, num_lanes), np.int32)
  word_places[where] = which
  rows = np.full((places, num_lanes), count, np.int32)
  rows[where] = sentence
  first = start * num_lanes + lane
  nowhere = places * num_lanes
  return SentenceBatch(
      words=padded_words,
      places=word_places,
      rows=rows,
      firsts=np.where(length > 0, first, nowhere).astype(np.int32),
      lasts=np.where(
          length > 0, first + (length - 1) * num_lanes, nowhere
      ).astype(np.int32),
      segment=_integers(segment, np.zeros(count)),
      index=_integers(index, np.arange(count)),
  )


def _check(tokens, length):
  if tokens.ndim != 2 or not np.issubdtype(tokens.dtype, np.integer):
    raise ValueError(
        'tokens must be integers of shape [sentences, length]; got '
        f'{tokens.dtype} of shape {tokens.shape}.'
    )
  if length.shape != tokens.shape[:1]:
    raise ValueError(
        f'length must have shape {tokens.shape[:1]}, one for each sentence; '
        f'got {length.shape}.'
    )
  _check_length(length, tokens.shape[1])


def _check_length(length, places):
  if np.any((length < 0) | (length > places)):
    raise ValueError(
        f'length must be 0 to {places}, the places of a lane; got '
        f'{length.min()} to {length.max()}.'
    )


def _first_fit(length, places):
  """Lays longest sentences first, each into the lane that it fills best."""
  lane, start = np.zeros((2, len(length)), np.int64)
  with_space = [[] for _ in range(places + 1)]
  lanes = 0
  for sentence in np.argsort(-length, kind='stable').tolist():
    need = int(length[sentence])
    if not need:
      break
    space = need
    while space < places and not with_space[space]:
      space += 1
    if with_space[space]:
      chosen = with_space[space].pop()
    else:
      chosen, lanes = lanes, lanes + 1
    lane[sentence], start[sentence] = chosen, places - space
    with_space[space - need].append(chosen)
  return lane, start, lanes


def _rounded(size: int) -> int:
  """Returns the next of 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ..."""
  step = 1 << max(max(size, 1).bit_length() - 3, 0)
  return max(-(-size // step) * step, 1)


def _integers(values, default):
  return np.asarray(default if values is None else values, np.int32)
