# SPDX-License-Identifier: Apache-2.0
"""Draws batches of pairs: at random or by groups, with further negatives."""

from collections.abc import Iterator
from collections.abc import Sequence
import functools
from typing import NamedTuple

import numpy as np

from hcl_jax.pairs import data as pair_data
from hcl_jax.pairs import task as two_towers
from hcl_jax.storage import records

Batch = dict[str, np.ndarray]

# What batches take from a state: mined documents of every pair, [n, depth].
MINED = 'mined'


class Arrays(NamedTuple):
  """Holds what encoders read of all queries and documents, a row for each."""

  query: np.ndarray
  document: np.ndarray


class PairBatches:
  """Makes the batches of a part of the pairs, by seed and step.

  Every epoch goes through all pairs in a new order and drops its incomplete
  last batch. In the order ``'grouped'`` the pairs of a group stand together,
  and groups follow each other at random; a pair whose document has no group is
  a group of its own.

  A batch has ``query`` and ``document``, what encoders read of them; ``id``,
  which pairs of one id share; ``index``, the row in the part; ``negative [b, k,
  ...]``, what encoders read of further negatives; and ``where [b, k]``, which
  of these there are. k is 0 without further negatives. ``tables`` add lists of
  tokens: those that their entries have, each once and sorted, and past the
  table after the last. Places of a list are a multiple of the rows, so that
  they divide over devices as rows do, and of few sizes, so that few programs
  are compiled.

  Args:
    pairs: the data set.
    part: name of the part.
    arrays: what encoders read.
    seed: >= 0; with the step it determines the batch.
    batch_size: pairs over all processes.
    order: ``'random'`` or ``'grouped'``.
    num_negatives: further negatives of a pair, drawn for every batch from those
      that were mined, or else from those of the data set.
    tables: those whose tokens batches list.
    process_index: number of this process.
    process_count: number of processes; their rows in order are the batch that a
      single process would get.

  Raises:
    ValueError: there is no full batch, or the rows do not divide.
  """

  def __init__(
      self,
      pairs: pair_data.Pairs,
      part: str,
      arrays: Arrays,
      *,
      seed: int,
      batch_size: int,
      order: str = 'random',
      num_negatives: int = 0,
      tables: Sequence[two_towers.Table] = (),
      process_index: int = 0,
      process_count: int = 1,
  ):
    self._part = pairs.parts[part]
    self._arrays = arrays
    self._ids = pairs.ids[self._part.document]
    self._groups = _own_groups(pairs.groups[self._part.document])
    self._seed, self._batch_size = seed, batch_size
    self._order, self._num_negatives = order, num_negatives
    self._tables, self._process_count = tables, process_count
    count = len(self._part.query)
    if not 2 <= batch_size <= count:
      raise ValueError(
          f'config.data.batch_size must be 2 to {count}, the pairs of the part '
          f'{part!r}; got {batch_size}.'
      )
    if batch_size % process_count:
      raise ValueError(
          'config.data.batch_size must be a multiple of the number of '
          f'processes, {process_count}; got {batch_size}.'
      )
    local = batch_size // process_count
    self._local = slice(process_index * local, (process_index + 1) * local)
    self._permutation = functools.lru_cache(maxsize=2)(self._permute)

  def __len__(self) -> int:
    """Returns the batches of an epoch."""
    return len(self._part.query) // self._batch_size

  @property
  def has_repeats(self) -> bool:
    """Returns whether an id has several pairs, positives of each other."""
    return len(np.unique(self._ids)) < len(self._ids)

  def batch(self, step: int, mined: np.ndarray | None = None) -> Batch:
    """Returns the rows that this process has of a batch."""
    epoch, number = divmod(step, len(self))
    start = number * self._batch_size
    rows = self._permutation(epoch)[start : start + self._batch_size]
    negatives = self._negatives(step, rows, mined)[self._local]
    rows = rows[self._local]
    query, document = self._arrays
    found = {
        'query': query[self._part.query[rows]],
        'document': document[self._part.document[rows]],
        'negative': document[negatives],
        'where': negatives >= 0,
        'id': self._ids[rows],
        'index': rows,
    }
    return found | self._tokens(found)

  def __call__(
      self,
      first_step: int,
      num_steps: int,
      found: dict[str, np.ndarray] | None = None,
  ) -> Iterator[Batch]:
    """Yields batches first_step, first_step + 1, ..., made ahead in a thread.

    ``found`` has what was mined last; None: nothing yet.
    """
    mined = None if found is None else found[MINED]
    steps = range(first_step, first_step + num_steps)
    return records.map_ahead(lambda step: self.batch(step, mined), steps)

  def _permute(self, epoch) -> np.ndarray:
    rng = np.random.default_rng([self._seed, epoch])
    count = len(self._part.query)
    if self._order == 'random':
      return rng.permutation(count).astype(np.int32)
    places = rng.permutation(int(self._groups.max()) + 1)[self._groups]
    return np.lexsort((rng.random(count), places)).astype(np.int32)

  def _tokens(self, batch) -> Batch:
    """Lists the tokens of each table that are in a batch."""
    found = {}
    for table in self._tables:
      there = np.zeros(table.size + 1, bool)  # the last one for padding, -1
      for entry in table.entries:
        there[batch[entry]] = True
      tokens = np.flatnonzero(there[:-1])
      places = self._places(len(tokens), table.size, len(batch['index']))
      found[table.list] = np.full(places, table.size, np.int32)
      found[table.list][: len(tokens)] = tokens
    return found

  def _places(self, listed, size, rows) -> int:
    """Returns places for a list of some tokens of a table."""
    if self._process_count > 1:  # which do not know the lists of each other
      listed = size
    most = -(-size // rows)
    return rows * min(most, 2 ** max(-(-listed // rows) - 1, 0).bit_length())

  def _negatives(self, step, rows, mined) -> np.ndarray:
    """Draws documents for each row without replacement, -1 for none."""
    known = self._part.negatives if mined is None else mined
    count = min(self._num_negatives, known.shape[1])
    known = known[rows]
    if count == known.shape[1]:
      return known
    rng = np.random.default_rng([self._seed, step, 1])
    draw = np.where(known < 0, 2, rng.random(known.shape))
    places = np.argsort(draw, axis=1, kind='stable')[:, :count]
    return np.take_along_axis(known, places, axis=1)


def _own_groups(groups: np.ndarray) -> np.ndarray:
  """Numbers groups from 0; each row without one has a group of its own."""
  alone = -1 - np.arange(len(groups))
  return np.unique(np.where(groups < 0, alone, groups), return_inverse=True)[1]
