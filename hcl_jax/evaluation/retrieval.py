# SPDX-License-Identifier: Apache-2.0
"""Ranks all documents for each query, in tiles, and measures the ranks."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import _checks
from hcl_jax import _vectors

# The least that two cosines in float32 must differ by to be told apart.
_TIE = 1e-6
_QUERIES = 256
_BLOCK_SIZE = 4096
_FILLER = np.iinfo(np.int32).min  # id of no document


class Ranks(NamedTuple):
  """Holds where each query finds its relevant documents, from 1.

  Attributes:
    of_relevant: ranks of the relevant documents of a query, ascending, int32
      ``[n, p]``; 0 where a query has fewer than p.
    in_group: rank of the first relevant document among those of its group,
      int32 ``[n]``; 0 if no other document is in the group.
  """

  of_relevant: np.ndarray
  in_group: np.ndarray


def retrieval_ranks(
    queries: Any,
    documents: Any,
    query_ids: Any,
    document_ids: Any,
    *,
    document_groups: Any = None,
    block_size: int = _BLOCK_SIZE,
    progress: Callable[[int], None] = lambda done: None,
) -> Ranks:
  """Finds the ranks of relevant documents, by cosine among all, exactly.

  A document is relevant to the queries whose id it has. Cosines that differ by
  1e-6 or less are equal, and of equal documents the irrelevant ones come
  first, so that an encoder gains nothing by making all alike.

  The memory holds embeddings, and one tile of cosines for each device; the
  local devices take turns.

  Args:
    queries: embeddings ``[n, dim]``; need not be unit vectors.
    documents: embeddings ``[m, dim]``; likewise.
    query_ids: integers ``[n]``; each must be the id of a document.
    document_ids: integers ``[m]``.
    document_groups: integers ``[m]``, -1 for none. The group of a query is that
      of its relevant documents.
    block_size: documents in a tile, which has up to 256 queries.
    progress: called with the number of queries that are ranked so far.

  Raises:
    ValueError: shapes do not match, or a query has no relevant document.

  Example:
    >>> import numpy as np
    >>> documents = np.float32([[1, 0], [0.8, 0.6], [0, 1]])
    >>> ranks = retrieval_ranks(documents[:1], documents, [7], [5, 7, 9])
    >>> ranks.of_relevant
    array([[2]], dtype=int32)
  """
  _checks.positive_int('block_size', block_size)
  queries = _checks.features('queries', queries)
  documents = _checks.features('documents', documents, queries.shape[1])
  wanted = _Wanted.read(
      query_ids, document_ids, document_groups, len(queries), len(documents)
  )
  above, above_in_group = _count_above(
      _Tables(queries, wanted.query_ids, wanted.query_groups, wanted.relevant),
      _Bank(documents, wanted.document_ids, wanted.document_groups),
      min(block_size, len(documents)),
      progress,
  )
  return wanted.ranks(above, above_in_group)


def ranks_of_scores(
    blocks: Iterable[np.ndarray],
    query_ids: Any,
    document_ids: Any,
    *,
    document_groups: Any = None,
) -> Ranks:
  """Finds the ranks of relevant documents by scores of another search.

  Of documents with equal scores the irrelevant ones come first.

  Args:
    blocks: scores of some queries after the other, each ``[b, m]``.
    query_ids: as in :func:`retrieval_ranks`; so are the others.
    document_ids: likewise.
    document_groups: likewise.

  Raises:
    ValueError: shapes do not match, or a query has no relevant document.
  """
  count, size = len(query_ids), len(document_ids)
  wanted = _Wanted.read(query_ids, document_ids, document_groups, count, size)
  above = np.zeros(wanted.relevant.shape, np.int32)
  in_group = np.zeros(count, np.int32)
  row = 0
  for block in blocks:
    for scores in block:
      relevant = wanted.relevant[row]
      own = scores[relevant[relevant >= 0]]
      others = wanted.document_ids != wanted.query_ids[row]
      near = others & (wanted.document_groups == wanted.query_groups[row])
      above[row, : len(own)] = [np.sum(scores[others] >= x) for x in own]
      in_group[row] = np.sum(scores[near] >= own.max())
      row += 1
  if row != count:
    raise ValueError(f'blocks must have {count} queries in all, got {row}.')
  return wanted.ranks(above, in_group)


def retrieval_values(
    ranks: Ranks, measures: Sequence[str]
) -> dict[str, np.ndarray]:
  """Returns what each query scores by each measure, float64 ``[n]``.

  Args:
    ranks: as :func:`retrieval_ranks` returns them.
    measures: ``'R@K'``, whether a relevant document is among the first K;
      ``'MRR'``, one by the rank of the first relevant document; ``'nDCG@K'``,
      the discounted gain of the relevant ones among the first K, as a share of
      the greatest; ``'group R@K'``, as R@K, but among documents of the same
      group, NaN for a query whose group has no other document.

  Raises:
    ValueError: there is no such measure.

  Example:
    >>> import numpy as np
    >>> ranks = Ranks(np.array([[1], [4]]), np.array([1, 2]))
    >>> retrieval_values(ranks, ['R@1', 'MRR'])
    {'R@1': array([1., 0.]), 'MRR': array([1.  , 0.25])}
  """
  return {name: _measure(ranks, name) for name in measures}


def rows_of_ids(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
  """Returns the rows of ``ids`` that have each wanted id, -1 after the last.

  Int32 ``[len(wanted), most rows of one id]``.
  """
  order = np.argsort(ids, kind='stable')
  start, stop = (
      np.searchsorted(ids[order], wanted, side=side)
      for side in ('left', 'right')
  )
  places = start[:, None] + np.arange(max(int((stop - start).max()), 1))
  rows = order[np.minimum(places, len(ids) - 1)]
  return np.where(places < stop[:, None], rows, -1).astype(np.int32)


class Difference(NamedTuple):
  """Holds a mean difference over queries and its standard error."""

  mean: float
  error: float
  queries: int


def paired_difference(first: Any, second: Any) -> Difference:
  """Returns by how much the first values exceed the second, query by query.

  The standard error is due to the choice of queries alone: both are of the same
  queries, and what another seed of the training would change is not in it.

  Args:
    first: values ``[n]``; queries with a NaN are left out.
    second: values of the same queries.

  Raises:
    ValueError: they are not of the same queries, or of fewer than two.
  """
  first, second = (np.asarray(x, np.float64) for x in (first, second))
  if first.shape != second.shape or first.ndim != 1:
    raise ValueError(
        'first and second must have a value for each of the same queries; got '
        f'{list(first.shape)} and {list(second.shape)}.'
    )
  differences = first - second
  differences = differences[~np.isnan(differences)]
  count = len(differences)
  if count < 2:
    raise ValueError(f'a standard error needs two queries, got {count}.')
  error = np.std(differences, ddof=1) / np.sqrt(count)
  return Difference(float(np.mean(differences)), float(error), count)


class _Wanted(NamedTuple):
  """Says which documents each query should find.

  Attributes:
    query_ids: id of each query.
    document_ids: id of each document.
    query_groups: group of each query's documents.
    document_groups: group of each document, -1 for none.
    relevant: rows of the documents of each query, ``[n, p]``, -1 for none.
  """

  query_ids: np.ndarray
  document_ids: np.ndarray
  query_groups: np.ndarray
  document_groups: np.ndarray
  relevant: np.ndarray

  @classmethod
  def read(cls, query_ids, document_ids, document_groups, count, size):
    query_ids = _ids('query_ids', query_ids, count)
    document_ids = _ids('document_ids', document_ids, size)
    if document_groups is None:
      document_groups = np.full(size, -1, np.int32)
    groups = _ids('document_groups', document_groups, size)
    relevant = rows_of_ids(document_ids, query_ids)
    if not (relevant[:, 0] >= 0).all():
      row = int(np.argmin(relevant[:, 0] >= 0))
      raise ValueError(
          f'query_ids must be ids of documents, but no document has that of '
          f'query {row}, {query_ids[row]}.'
      )
    return cls(
        query_ids, document_ids, groups[relevant[:, 0]], groups, relevant
    )

  def ranks(self, above: np.ndarray, in_group: np.ndarray) -> Ranks:
    """Returns ranks, by how many irrelevant documents come before."""
    missing = self.relevant < 0
    places = np.sort(np.where(missing, np.iinfo(np.int32).max // 2, above), 1)
    ranks = places + 1 + np.arange(missing.shape[1], dtype=np.int32)
    return Ranks(
        np.where(np.sort(missing, axis=1), 0, ranks).astype(np.int32),
        np.where(self._has_others(), in_group + 1, 0).astype(np.int32),
    )

  def _has_others(self):
    """Returns whether a query's group has a document that is irrelevant."""
    groups = self.document_groups
    in_group = np.bincount(groups + 1)[self.query_groups + 1]
    there = self.relevant >= 0
    own = groups[self.relevant] == self.query_groups[:, None]
    return (self.query_groups >= 0) & (in_group > (own & there).sum(axis=1))


class _Tables(NamedTuple):
  """Holds queries, with the id and group of each, and relevant documents."""

  embeddings: np.ndarray
  ids: np.ndarray
  groups: np.ndarray
  relevant: np.ndarray


class _Bank(NamedTuple):
  """Holds documents, with the id and group of each."""

  embeddings: Any
  ids: Any
  groups: Any


def _ids(name, values, count):
  values = np.asarray(values)
  if values.shape != (count,) or values.dtype.kind not in 'iu':
    raise ValueError(
        f'{name} must be integers [{count}]; got {values.dtype} '
        f'{list(values.shape)}.'
    )
  return values.astype(np.int32)


def _count_above(tables, bank, block_size, progress):
  """Returns how many irrelevant documents come before each relevant one."""
  devices = jax.local_devices()
  padded = _pad_rows(bank, block_size)
  banks = [jax.device_put(padded, device) for device in devices]
  waiting, parts = [], []
  count = len(tables.ids)
  size = min(_QUERIES, count)
  for number, start in enumerate(range(0, count, size)):
    rows = np.minimum(np.arange(start, start + size), count - 1)
    place = number % len(devices)
    block = _Tables(*(x[rows] for x in tables))
    block = jax.device_put(block, devices[place])
    waiting.append(_count_block(block, banks[place], block_size=block_size))
    if len(waiting) > len(devices):
      parts.append(jax.device_get(waiting.pop(0)))
      progress(len(parts) * size)
  parts += map(jax.device_get, waiting)
  progress(count)
  above, in_group = map(np.concatenate, zip(*parts, strict=True))
  return above[:count], in_group[:count]


def _pad_rows(bank, block_size):
  """Pads with documents that are no one's, to a multiple of the block."""
  missing = -len(bank.ids) % block_size
  return _Bank(
      np.pad(bank.embeddings, ((0, missing), (0, 0))),
      np.pad(bank.ids, (0, missing), constant_values=_FILLER),
      np.pad(bank.groups, (0, missing), constant_values=-1),
  )


@functools.partial(jax.jit, static_argnames='block_size')
def _count_block(tables, bank, *, block_size):
  queries = _vectors.normalize(tables.embeddings)
  relevant = jnp.maximum(tables.relevant, 0)
  own = _vectors.normalize(bank.embeddings[relevant])
  limits = jnp.einsum(
      'nd,npd->np', queries, own, precision=jax.lax.Precision.HIGHEST
  )
  limits = limits - _TIE
  best = jnp.max(
      limits, axis=1, where=tables.relevant >= 0, initial=-jnp.inf
  )
  blocks = jax.tree.map(
      lambda x: x.reshape(-1, block_size, *x.shape[1:]), bank
  )
  def visit(counts, block):
    above, in_group = counts
    cosines = _vectors.inner_products(
        queries, _vectors.normalize(block.embeddings)
    )
    others = block.ids[None, :] != tables.ids[:, None]
    others &= (block.ids != _FILLER)[None, :]
    cosines = jnp.where(others, cosines, -jnp.inf)
    above += jnp.stack([
        jnp.sum(cosines >= limits[:, j, None], axis=1, dtype=jnp.int32)
        for j in range(limits.shape[1])
    ], axis=1)
    near = block.groups[None, :] == tables.groups[:, None]
    in_group += jnp.sum(
        near & (cosines >= best[:, None]), axis=1, dtype=jnp.int32
    )
    return (above, in_group), None

  start = (
      jnp.zeros(limits.shape, jnp.int32), jnp.zeros(len(best), jnp.int32)
  )
  counts, _ = jax.lax.scan(visit, start, blocks)
  return counts


def _measure(ranks: Ranks, name: str) -> np.ndarray:
  kind, _, depth = name.partition('@')
  first = ranks.of_relevant[:, 0]
  if name == 'MRR':
    return 1 / first
  if depth.isdecimal() and int(depth) > 0:
    if kind == 'R':
      return (first <= int(depth)).astype(np.float64)
    if kind == 'nDCG':
      return _ndcg(ranks.of_relevant, int(depth))
    if kind == 'group R':
      hits = (ranks.in_group <= int(depth)).astype(np.float64)
      return np.where(ranks.in_group > 0, hits, np.nan)
  raise ValueError(
      "a measure must be 'R@K', 'MRR', 'nDCG@K' or 'group R@K', with a number "
      f'for K; got {name!r}.'
  )


def _ndcg(of_relevant, depth):
  """Returns the gain of relevant documents, each of gain 1, by the greatest."""
  known = of_relevant > 0
  counts = known & (of_relevant <= depth)
  gains = np.where(counts, 1 / np.log2(np.maximum(of_relevant, 1) + 1), 0)
  best = np.cumsum(1 / np.log2(np.arange(1, depth + 1) + 1))
  return gains.sum(axis=1) / best[np.minimum(known.sum(axis=1), depth) - 1]
