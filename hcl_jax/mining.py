# SPDX-License-Identifier: Apache-2.0
"""Mining: finds hard negatives of queries among documents, exactly."""

import functools
import math
from typing import Any
from typing import NamedTuple

import jax
from jax import core
from jax import lax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from hcl_jax import _blocks
from hcl_jax import _checks
from hcl_jax import _devices
from hcl_jax import _vectors

__all__ = ('mine_hard_negatives',)


def mine_hard_negatives(
    queries: jax.Array,
    documents: jax.Array,
    *,
    k: int,
    skip: int = 0,
    margin: ArrayLike | None = None,
    positives: jax.Array | None = None,
    axis_name: str | None = None,
    block_size: int | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Finds the k hardest negatives of each query: its most similar documents.

  Documents are ranked by their cosine with the query, in this order:

  1. the query's own documents, ``positives``, are left out;
  2. with a ``margin``, so are documents that may be positives nobody labeled:
     those whose cosine exceeds that of an own document minus the margin;
  3. of the others, the ``skip`` most similar ones are left out too;
  4. the next k are returned.

  The search is exact. It holds the documents found so far and one tile of
  cosines, never a matrix of all. Of documents with equal cosines, the lower
  index comes first, for any block size and number of devices, which change no
  more than the last digit of a cosine. A row of zeros has cosine 0 with every
  other; a row with a NaN is never found and finds nothing.

  Args:
    queries: embeddings ``[n, dim]``; need not be unit vectors.
    documents: embeddings ``[m, dim]``, of the same dtype.
    k: number of negatives per query. It may exceed the number that remain.
    skip: number of most similar documents to leave out, against false
      negatives.
    margin: number that may be traced; needs ``positives``. A negative margin
      leaves out only documents that are more similar than an own one by as
      much.
    positives: indices of each query's own documents, integers ``[n]``, or
      ``[n, p]`` for up to p of them; -1 stands for none. Of several, the least
      similar one limits the cosines.
    axis_name: mapped axis over which both queries and documents are split. The
      documents of all devices go around its ring; indices are global, those of
      ``positives`` too: document j of device i has index ``i * m + j``. If only
      the queries are split, leave it out.
    block_size: number of documents in a tile, which has as many queries or
      fewer. None: chosen by backend.

  Returns:
    Indices of documents, int32 ``[n, k]``, and their cosines, float32
    ``[n, k]`` (float64 for float64), hardest first. Where fewer than k
    documents remain, indices are -1 and cosines -inf.

  Example:
    >>> import jax.numpy as jnp
    >>> documents = jnp.array([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [-1.0, 0.0]])
    >>> queries = jnp.array([[2.0, 0.0]])
    >>> indices, cosines = mine_hard_negatives(
    ...     queries, documents, k=2, positives=jnp.array([0])
    ... )
    >>> print(indices, cosines)
    [[1 2]] [[0.8 0.6]]
  """
  queries = _checks.matrix('queries', queries)
  documents = _checks.matrix('documents', documents)
  _checks.same_width('queries', queries, 'documents', documents)
  _checks.same_dtype('queries', queries, 'documents', documents)
  _checks.positive_int('k', k)
  _checks.positive_int('skip', skip, least=0)
  if block_size is not None:
    _checks.positive_int('block_size', block_size)
  number = documents.shape[0] * _devices.axis_size(axis_name)
  own = _read_positives(positives, queries.shape[0], number)
  if margin is not None:
    _checks.number('margin', margin)
    if positives is None:
      raise ValueError(
          'margin is relative to the cosine of the own document and needs '
          f'positives; got margin={margin} without. Pass positives, or skip '
          'instead of margin.'
      )
    margin = jnp.asarray(margin, _vectors.compute_dtype(queries.dtype))
  return _mine(
      queries,
      documents,
      own,
      margin,
      k=int(k),
      skip=int(skip),
      axis_name=axis_name,
      block_size=None if block_size is None else int(block_size),
  )


def _read_positives(positives: Any, rows: int, documents: int) -> jax.Array:
  """Returns indices of own documents as int32 ``[rows, p]``, p >= 0."""
  if positives is None:
    return jnp.zeros((rows, 0), jnp.int32)
  array = _checks.integers('positives', positives)
  if array.ndim not in (1, 2) or array.shape[0] != rows:
    raise ValueError(
        f'positives must have shape [{rows}] or [{rows}, p], a row for each '
        f'query; got {array.shape}.'
    )
  known = not isinstance(array, core.Tracer) and array.is_fully_addressable
  if known and array.size:
    values = np.asarray(array)
    wrong = np.argwhere((values < -1) | (values >= documents))
    if len(wrong):
      place = tuple(wrong[0].tolist())
      raise ValueError(
          f'positives must be indices of documents, 0 to {documents - 1}, or '
          f'-1 for none; got {values[place]} in row {place[0]}, and '
          f'{len(wrong)} such entries in all.'
      )
  return array.astype(jnp.int32).reshape(rows, -1)


class _Best(NamedTuple):
  """Documents found so far, hardest first; of equal ones the lower index."""

  scores: jax.Array
  indices: jax.Array

  @classmethod
  def none(cls, shape, dtype):
    return cls(jnp.full(shape, -jnp.inf, dtype), jnp.full(shape, -1, jnp.int32))


class _Tile(NamedTuple):
  """Static sizes of a tile.

  Attributes:
    queries: its rows.
    documents: its columns, a multiple of ``group``.
    group: adjacent columns of which the maximum is taken first; 1 for none.
  """

  queries: int
  documents: int
  group: int


def _choose_tile(
    queries: int, documents: int, count: int, block_size: int | None
) -> _Tile:
  """Returns the sizes of tiles in which to find ``count`` documents."""
  on_cpu = jax.default_backend() == 'cpu'
  block = block_size or (4096 if on_cpu else 8192)
  rows = min(256 if on_cpu else 2048, block)
  rows = _blocks.even_block(queries, rows)
  block = _blocks.even_block(documents, block)
  # Maxima of groups and the members of `count` groups are sorted. Both are few
  # if a group has sqrt(block / count) members. A TPU pads the last axis to 128.
  group = 2 ** round(math.log2(max(block / count, 1)) / 2) if on_cpu else 128
  if 2 * (count * group + block // group) > block:
    group = 1
  return _Tile(rows, block - block % group, group)


@functools.partial(
    jax.jit, static_argnames=('k', 'skip', 'axis_name', 'block_size')
)
def _mine(queries, documents, own, margin, *, k, skip, axis_name, block_size):
  queries, documents, own, margin = _devices.same_varying(
      (queries, documents, own, margin)
  )
  n, m = queries.shape[0], documents.shape[0]
  count = k + skip + own.shape[1]  # if the own ones are the most similar ones
  count = min(count, m * _devices.axis_size(axis_name))
  tile = _choose_tile(n, m, count, block_size)
  rows = _blocks.split(_vectors.normalize(queries), tile.queries)
  own = _blocks.split(own, tile.queries, -1)
  first = jnp.zeros((), jnp.int32)
  if axis_name is not None:
    first = lax.axis_index(axis_name).astype(jnp.int32) * m
  limits = jnp.full(rows.shape[:2], jnp.inf, rows.dtype)
  limits = _devices.varying_as(limits, rows)
  if margin is not None:
    limits = _own_cosines(rows, own, limits, (documents, first), axis_name)
    limits -= margin
  best = _Best.none((*rows.shape[:2], count), rows.dtype)
  best = _devices.varying_as(best, rows)

  def visit(best, visiting):
    found = _search(rows, limits, *visiting, tile=tile, count=count)
    return _merge(best, found)

  best = _devices.visit_ring(visit, best, (documents, first), axis_name)
  best = _drop(best, own, k + skip)
  scores, indices = (_blocks.join(x, n)[:, skip:] for x in best)
  return indices, scores


def _own_cosines(rows, own, limits, visiting, axis_name):
  """Returns the least cosine of own documents, infinite without any."""

  def block(documents, first, x):
    rows, own, limits = x
    place = own - first
    there = (own >= 0) & (place >= 0) & (place < documents.shape[0])
    place = jnp.clip(place, 0, documents.shape[0] - 1)
    cosines = jnp.sum(
        rows[:, None, :] * _vectors.normalize(documents[place]), axis=-1
    )
    cosines = jnp.where(there, cosines, jnp.inf)
    return jnp.minimum(limits, jnp.min(cosines, axis=1, initial=jnp.inf))

  def visit(limits, visiting):
    return lax.map(functools.partial(block, *visiting), (rows, own, limits))

  return _devices.visit_ring(visit, limits, visiting, axis_name)


def _search(rows, limits, documents, first, *, tile, count):
  """Returns the best ``count`` documents of a device for blocks of queries."""
  m = documents.shape[0]

  def columns(best, j):
    # The last block ends with the last document and overlaps the one before.
    start = jnp.minimum(j * tile.documents, m - tile.documents)
    block = lax.dynamic_slice_in_dim(documents, start, tile.documents)
    block = _vectors.normalize(block)
    places = start + jnp.arange(tile.documents, dtype=jnp.int32)
    is_new = places >= j * tile.documents

    def update(_, x):
      rows, limits, best = x
      scores = _vectors.inner_products(rows, block)
      keep = (scores <= limits[:, None]) & is_new[None, :]
      scores = jnp.where(keep, scores, -jnp.inf)
      return None, _update(best, scores, first + start, tile.group)

    _, best = lax.scan(update, None, (rows, limits, best))
    return best, None

  best = _Best.none((*rows.shape[:2], count), rows.dtype)
  best = _devices.varying_as(best, rows)
  steps = -(-m // tile.documents)
  best, _ = lax.scan(columns, best, jnp.arange(steps, dtype=jnp.int32))
  return best


def _update(best, scores, first, group):
  """Merges the best with a tile of documents, whose indices are higher.

  The best c documents are in c groups of adjacent documents: those with the
  largest maxima, of equal ones the first. For each document of another group
  those c maxima come before it.
  """
  rows, count = best.scores.shape
  chosen = None
  if group > 1:
    groups = scores.reshape(rows, -1, group)
    peaks = jnp.max(groups, axis=2)
    _, chosen = lax.top_k(peaks, min(count, peaks.shape[1]))
    chosen = jnp.sort(chosen, axis=1)
    scores = jnp.take_along_axis(groups, chosen[:, :, None], axis=1)
    scores = scores.reshape(rows, -1)
  # Equal scores stay in order, those of the lower index first.
  scores, places = lax.top_k(
      jnp.concatenate([best.scores, scores], axis=1), count
  )
  old = jnp.take_along_axis(
      best.indices, jnp.minimum(places, count - 1), axis=1
  )
  new = jnp.maximum(places - count, 0)
  if chosen is not None:
    chosen = jnp.take_along_axis(chosen, new // group, axis=1)
    new = chosen * group + new % group
  return _Best(scores, jnp.where(places < count, old, first + new))


def _merge(best, found):
  """Returns the best of two, whose indices are in any order."""
  scores, indices = (
      jnp.concatenate(x, axis=-1) for x in zip(best, found, strict=True)
  )
  count = best.scores.shape[-1]
  scores, indices = lax.sort((-scores, indices), num_keys=2)
  return _Best(-scores[..., :count], indices[..., :count])


def _drop(best, own, count):
  """Returns the best ``count`` without own documents, padded with -1."""
  scores, indices = best
  for j in range(own.shape[-1]):
    scores = jnp.where(indices == own[..., j, None], -jnp.inf, scores)
  scores, places = lax.top_k(scores, min(count, scores.shape[-1]))
  indices = jnp.take_along_axis(indices, places, axis=-1)
  indices = jnp.where(scores == -jnp.inf, -1, indices)
  missing = [(0, 0), (0, 0), (0, count - scores.shape[-1])]
  return _Best(
      jnp.pad(scores, missing, constant_values=-jnp.inf),
      jnp.pad(indices, missing, constant_values=-1),
  )
