# SPDX-License-Identifier: Apache-2.0
"""Mines hard negatives of the training pairs by the encoders of a state."""

from collections.abc import Callable
import functools

import jax
import ml_collections
import numpy as np

import hcl_jax
from hcl_jax.evaluation import retrieval
from hcl_jax.pairs import batches
from hcl_jax.pairs import data as pair_data
from hcl_jax.training import experiment as experiment_lib

_QUERIES = 1024  # of a block, after which a signal is looked for


def make(
    config: ml_collections.ConfigDict,
    pairs: pair_data.Pairs,
    embed: Callable[..., np.ndarray],
    steps_per_epoch: int,
) -> experiment_lib.Refresh | None:
  """Makes what mines every so many epochs; None if nothing does.

  ``embed`` is ``(state, side, rows, poll) -> [n, dim]`` and embeds rows of
  queries or documents.
  """
  mining = config.mining
  if not mining.every_epochs:
    return None

  def compute(state, poll):
    mined = mine(
        pairs,
        functools.partial(embed, state),
        depth=mining.depth,
        skip=mining.skip,
        margin=mining.margin,
        poll=poll,
    )
    return {batches.MINED: mined}

  return experiment_lib.Refresh(
      every=max(round(mining.every_epochs * steps_per_epoch), 1),
      compute=compute,
      doing='mined negatives',
  )


def mine(
    pairs: pair_data.Pairs,
    embed: Callable[..., np.ndarray],
    *,
    depth: int,
    skip: int = 0,
    margin: float | None = None,
    poll: experiment_lib.Poll = lambda *_: None,
) -> np.ndarray:
  """Finds the hardest documents of each training pair, but for its own.

  Looks at documents of the training part only, and leaves out those that share
  the id of the pair.

  Args:
    pairs: the data set.
    embed: ``(side, rows, poll) -> [n, dim]``.
    depth: documents to find.
    skip: the most similar ones that are left out.
    margin: leaves out documents whose cosine exceeds that of the pair's own
      minus this; None: none.
    poll: called often; raises to leave.

  Returns:
    Rows of documents, int32 ``[pairs, depth]``, hardest first; -1 where fewer
    remain.
  """
  part = pairs.parts['train']
  documents = np.unique(part.document)
  given = part.negatives[part.negatives >= 0]
  documents = np.union1d(documents, given).astype(np.int32)
  queries, first, inverse = np.unique(
      part.query, return_index=True, return_inverse=True
  )
  own = retrieval.rows_of_ids(
      pairs.ids[documents], pairs.ids[part.document[first]]
  )
  device_blocks = _Blocks(
      embed('document', documents, poll), depth=depth, skip=skip, margin=margin
  )
  found = device_blocks(embed('query', queries, poll), own, poll)
  return np.where(found < 0, -1, documents[found])[inverse].astype(np.int32)


class _Blocks:
  """Searches all documents for blocks of queries, in turn on each device."""

  def __init__(self, documents, **options):
    self._devices = jax.local_devices()
    self._documents = [jax.device_put(documents, x) for x in self._devices]
    self._options = options

  def __call__(self, queries, own, poll) -> np.ndarray:
    size, found, parts = len(queries), [], []
    for number, start in enumerate(range(0, size, _QUERIES)):
      poll(start, size, 'queries')
      which = number % len(self._devices)
      block, of_own = (
          jax.device_put(
              _padded(x[start : start + _QUERIES], value), self._devices[which]
          )
          for x, value in ((queries, 0), (own, -1))
      )
      indices, _ = hcl_jax.mine_hard_negatives(
          block,
          self._documents[which],
          k=self._options['depth'],
          skip=self._options['skip'],
          margin=self._options['margin'],
          positives=of_own,
      )
      found.append(indices)
      if len(found) == len(self._devices):
        parts += map(np.asarray, found)
        found = []
    parts += map(np.asarray, found)
    poll(size, size, 'queries')
    return np.concatenate(parts)[:size]


def _padded(rows, value):
  missing = _QUERIES - len(rows)
  return np.pad(rows, ((0, missing), (0, 0)), constant_values=value)
