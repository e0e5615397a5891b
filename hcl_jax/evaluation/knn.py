# SPDX-License-Identifier: Apache-2.0
"""Classifies frozen features by a weighted vote of nearest neighbors."""

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

# The product of a 512 x 8192 tile takes long enough to hide the overhead, and
# the tile (16 MiB) is small compared with any bank worth blocking.
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
  """Computes the accuracy of the weighted vote of the k nearest neighbors.

  See :func:`knn_scores` for the vote. Among classes with equal scores, such as
  those without a vote, the lower number ranks first. With five classes or
  fewer there is no top-5, which would be 1.

  Args:
    bank: features of the training set, ``[m, F]``.
    bank_labels: classes of the training set, ``[m]``, without unlabeled rows.
    queries: features of the test set, ``[n, F]``.
    labels: classes of the test set, ``[n]``.
    num_classes: number of classes.
    k: number of neighbors that vote, at most m.
    temperature: t > 0; the released protocol uses the training temperature.
    block_size: see :func:`nearest_neighbors`.

  Returns:
    ``{'top1': share, 'top5': share}``, from 0 to 1.

  Example:
    >>> import numpy as np
    >>> bank = np.float32([[1, 0], [1, 1], [0, 1]])
    >>> queries = np.float32([[2, 0.1], [0.1, 3]])
    >>> knn_accuracy(bank, [0, 0, 1], queries, [0, 1], num_classes=2, k=1)
    {'top1': 1.0}
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
  r"""Computes logarithms of the votes of the k nearest neighbors per class.

  .. math::
    \log \sum_{j \in N_k(i),\ y_j = c} e^{\cos(q_i, b_j) / t}

  Without the logarithm, votes would underflow at a small temperature. Arguments
  are those of :func:`knn_accuracy`.

  Returns:
    Scores ``[n, num_classes]`` in float64; -inf for a class without a vote.
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
  """Finds the k rows of the bank with the largest cosine similarity, exactly.

  Among equally similar rows (as computed in float32) the lower one comes first.
  A row of zeros has similarity 0 to every other. The bank stays on the host;
  the device memory has the queries, their neighbors so far, one block of the
  bank and one tile of similarities.

  Args:
    bank: features ``[m, F]``; need not be unit vectors.
    queries: features ``[n, F]``; need not be unit vectors.
    k: number of neighbors to find, at most m.
    block_size: rows of the bank in a tile of similarities; a tile has at most
      as many queries, and at most 512.

  Returns:
    Similarities in descending order, and rows of the bank, both
    ``[n, min(k, m)]``.
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
    bounds = np.array([start, len(bank)], np.int32)
    found = [
        _merge(best, tile, block, bounds)
        for best, tile in zip(found, tiles, strict=True)
    ]
  similarities, rows = (
      np.concatenate(parts)[: len(queries)]
      for parts in zip(*found, strict=True)
  )
  return similarities, rows


def _blocks(array: np.ndarray, size: int) -> Iterator[tuple[int, np.ndarray]]:
  """Yields first row and rows of blocks, the last one padded with zeros."""
  size = -(-len(array) // -(-len(array) // size))
  for start in range(0, len(array), size):
    block = array[start : start + size]
    missing = size - len(block)
    yield start, np.pad(block, ((0, missing), (0, 0))) if missing else block


_unit = jax.jit(_vectors.normalize)


@functools.partial(jax.jit, donate_argnums=0)
def _merge(best, queries, block, bounds):
  """Merges the neighbors so far with those in one block of the bank.

  One selection over both. Earlier neighbors come first, so they win ties and
  leave little work in later blocks.
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

  Runs on the host: sums by index have no fixed order on some accelerators.
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
