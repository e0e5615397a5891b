# SPDX-License-Identifier: Apache-2.0
"""Weighted nearest-neighbour classification of frozen features."""

from collections.abc import Iterator
import functools
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from hcl_jax import _checks
from hcl_jax import _vectors
from hcl_jax.evaluation import accuracy

# The product of a tile of 512 x 8192 is long enough to hide what surrounds it,
# and the tile (16 MiB) is small beside any bank worth blocking.
_BLOCK_SIZE = 8192
_QUERIES = 512


def knn_accuracy(
    bank: Any,
    bank_labels: Any,
    queries: Any,
    labels: Any,
    *,
    num_classes: int,
    k: int = 200,
    temperature: float = 0.5,
    block_size: int = _BLOCK_SIZE,
) -> dict[str, float]:
  """Accuracy of the weighted vote of the k nearest neighbours.

  See :func:`knn_scores` for the vote. Of classes with equal scores, those
  without a vote among them, the lower number ranks first; with five classes or
  fewer, top-5 is 1 by definition.

  Args:
    bank: features of the training set, ``[m, F]``.
    bank_labels: their classes, ``[m]``. Unlabelled rows must be left out.
    queries: features of the test set, ``[n, F]``.
    labels: their classes, ``[n]``.
    num_classes: number of classes.
    k: neighbours that vote; all m if there are fewer.
    temperature: t > 0; the released protocol takes the training temperature.
    block_size: see :func:`nearest_neighbors`.

  Returns:
    ``{'top1': share, 'top5': share}``, between 0 and 1.

  Example:
    >>> import numpy as np
    >>> bank = np.float32([[1, 0], [1, 1], [0, 1]])
    >>> queries = np.float32([[2, 0.1], [0.1, 3]])
    >>> knn_accuracy(bank, [0, 0, 1], queries, [0, 1], num_classes=2, k=1)
    {'top1': 1.0, 'top5': 1.0}
  """
  _checks.positive_int('num_classes', num_classes)
  queries = _checks.features('queries', queries)
  labels = _checks.classes('labels', labels, len(queries), num_classes)
  scores = knn_scores(
      bank,
      bank_labels,
      queries,
      num_classes=num_classes,
      k=k,
      temperature=temperature,
      block_size=block_size,
  )
  return accuracy.top_accuracies(scores, labels)


def knn_scores(
    bank: Any,
    bank_labels: Any,
    queries: Any,
    *,
    num_classes: int,
    k: int = 200,
    temperature: float = 0.5,
    block_size: int = _BLOCK_SIZE,
) -> np.ndarray:
  r"""Logarithms of the votes of the k nearest neighbours for each class.

  .. math::
    \log \sum_{j \in N_k(i),\ y_j = c} e^{\cos(q_i, b_j) / t}

  The logarithm keeps classes apart that would all underflow at a small
  temperature.

  Args:
    bank: features ``[m, F]``.
    bank_labels: their classes, ``[m]``.
    queries: features ``[n, F]``.
    num_classes: number of classes.
    k: neighbours that vote; all m if there are fewer.
    temperature: t > 0.
    block_size: see :func:`nearest_neighbors`.

  Returns:
    ``[n, num_classes]`` in float64; -inf for a class without a vote.
  """
  _checks.positive_int('num_classes', num_classes)
  _checks.temperature(temperature)
  bank, queries = _read(bank, queries, k, block_size)
  bank_labels = _checks.classes(
      'bank_labels', bank_labels, len(bank), num_classes
  )
  similarities, rows = _search(bank, queries, k, block_size)
  logits = similarities.astype(np.float64) / temperature
  return _log_votes(logits, bank_labels[rows], num_classes)


def nearest_neighbors(
    bank: Any, queries: Any, *, k: int, block_size: int = _BLOCK_SIZE
) -> tuple[np.ndarray, np.ndarray]:
  """The k rows of the bank of largest cosine similarity to each query, exactly.

  Of equally similar rows (as computed in float32) the lower one comes first.
  A row of zeros has similarity 0 to everything. The device holds the queries,
  their neighbours so far, one block of the bank and one tile of similarities;
  the bank itself stays on the host.

  Args:
    bank: features ``[m, F]``; need not be unit.
    queries: features ``[n, F]``; need not be unit.
    k: neighbours to find; all m if there are fewer.
    block_size: rows of the bank in a tile of similarities; the tile has at
      most as many queries, and never more than 512.

  Returns:
    Similarities, falling, and rows of the bank, both ``[n, min(k, m)]``.
  """
  bank, queries = _read(bank, queries, k, block_size)
  return _search(bank, queries, k, block_size)


def _read(bank, queries, k, block_size):
  _checks.positive_int('k', k)
  _checks.positive_int('block_size', block_size)
  bank = _checks.features('bank', bank)
  return bank, _checks.features('queries', queries, bank.shape[1])


def _search(bank, queries, k, block_size):
  size = min(block_size, _QUERIES)
  tiles = [_unit(block) for _, block in _blocks(queries, size)]
  shape = tiles[0].shape[0], min(k, len(bank))
  found = [
      (jnp.full(shape, -jnp.inf, jnp.float32), jnp.zeros(shape, jnp.int32))
      for _ in tiles
  ]
  for start, block in _blocks(bank, block_size):
    block = _unit(block)
    bounds = np.int32([start, len(bank)])
    found = [
        _merge(best, tile, block, bounds)
        for best, tile in zip(found, tiles, strict=True)
    ]
  return tuple(
      np.concatenate(parts)[: len(queries)]
      for parts in zip(*found, strict=True)
  )


def _blocks(
    array: np.ndarray, size: int
) -> Iterator[tuple[int, np.ndarray]]:
  """First row and rows of blocks of one size; the last one ends in zeros."""
  size = -(-len(array) // -(-len(array) // size))
  for start in range(0, len(array), size):
    block = array[start : start + size]
    missing = size - len(block)
    yield start, np.pad(block, ((0, missing), (0, 0))) if missing else block


_unit = jax.jit(_vectors.normalize)


@functools.partial(jax.jit, donate_argnums=0)
def _merge(best, queries, block, bounds):
  """The best of the neighbours so far and those of one block of the bank.

  One selection over both: what was found before stands first, so it wins ties
  and leaves the selection little to do in the later blocks.
  """
  similarities, rows = best
  start, end = bounds
  new_rows = start + jnp.arange(block.shape[0], dtype=jnp.int32)
  new = _vectors.inner_products(queries, block)
  new = jnp.where((new_rows < end)[None, :], new, -jnp.inf)
  count = similarities.shape[1]
  similarities, places = lax.top_k(
      jnp.concatenate([similarities, new], axis=1), count
  )
  old = jnp.take_along_axis(rows, jnp.minimum(places, count - 1), axis=1)
  return similarities, jnp.where(places < count, old, start + places - count)


def _log_votes(
    logits: np.ndarray, classes: np.ndarray, num_classes: int
) -> np.ndarray:
  """Sums exp(logits) ``[n, k]`` per class in log space, ``[n, num_classes]``.

  On the host: sums by index have no fixed order on some accelerators.
  """
  n = len(logits)
  cells = (num_classes * np.arange(n)[:, None] + classes).ravel()
  logits = logits.ravel()
  peaks = np.full(n * num_classes, -np.inf)
  np.maximum.at(peaks, cells, logits)
  sums = np.bincount(cells, np.exp(logits - peaks[cells]), len(peaks))
  with np.errstate(divide='ignore'):
    scores = np.log(sums)
  np.add(scores, peaks, out=scores, where=sums > 0)
  return scores.reshape(n, num_classes)
