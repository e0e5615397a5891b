# SPDX-License-Identifier: Apache-2.0
"""Checks tables of pairs, and divides them into parts."""

from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Mapping
import hashlib
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from hcl_jax.pairs import items as items_lib

NAME = 'pairs'  # of all prepared data sets
PARTS = ('train', 'validation', 'test')
# Share of the validation and of the test part.
SHARE = 0.05
COLUMNS = ('query', 'document', 'id', 'group', 'negatives')

_FEWEST = 2  # pairs to train on


class Table(NamedTuple):
  """Holds pairs, a row for each, in the order of their source.

  Attributes:
    queries: query of each row.
    documents: its document.
    ids: number of what the pair is of, int32 ``[n]``; rows of one number answer
      each other.
    groups: number of its group, int32 ``[n]``, -1 for none.
    negatives: further documents, those of the first row first.
    num_negatives: how many of these each row has, int32 ``[n]``.
  """

  queries: items_lib.Items
  documents: items_lib.Items
  ids: np.ndarray
  groups: np.ndarray
  negatives: items_lib.Items
  num_negatives: np.ndarray


def full_name(dataset: str) -> str:
  """Returns ``'pairs/NAME'``, also for NAME alone."""
  return dataset if dataset.startswith(f'{NAME}/') else f'{NAME}/{dataset}'


def divide(
    columns: Mapping[str, Any],
    *,
    where: str = 'data',
    validation_share: float = SHARE,
    test_share: float = SHARE,
) -> dict[str, Table]:
  """Checks columns of a table, and divides its rows into parts.

  Rows that share an id, a query or a document answer each other and are in the
  same part. Which it is depends on a hash of their least id (or document, if
  there are no ids), so that a row stays where it is when others are added.

  Args:
    columns: ``'query'`` and ``'document'``, texts, vectors float ``[n, d]`` or
      images uint8 ``[n, height, width, 3]``; if any, ``'id'`` and ``'group'``,
      a name for each row or None, and ``'negatives'``, further documents of
      each row: a sequence for each, or an array ``[n, k, ...]``.
    where: what the table is, for messages.
    validation_share: share of the ids that are validated on.
    test_share: share of the ids that are tested on; 0: there is no such part.

  Raises:
    ValueError: a row is bad, or a part gets too few.
  """
  _check_shares(validation_share, test_share)
  given = {name: x for name, x in columns.items() if x is not None}
  unknown = [name for name in given if name not in COLUMNS]
  missing = [name for name in COLUMNS[:2] if name not in given]
  if unknown or missing:
    raise ValueError(
        f'{where} must have the columns query and document, and may have id, '
        f'group and negatives; got {", ".join(given) or "none"}.'
    )
  queries, documents = (
      _items(given[name], f'{where}: {name}') for name in COLUMNS[:2]
  )
  if len(queries) != len(documents):
    raise ValueError(
        f'{where} must have a document for each query; got {len(queries)} '
        f'queries and {len(documents)} documents.'
    )
  ids, groups = (
      _names(given.get(name), f'{where}: {name}', len(queries))
      for name in COLUMNS[2:4]
  )
  negatives, counts = _negatives(
      given.get('negatives'), f'{where}: negatives', documents
  )
  numbers = _join(queries, documents, ids)
  table = Table(queries, documents, numbers, groups[0], negatives, counts)
  names = ids[1] if ids[1] is not None else _keys(documents)
  parts = _parts(numbers, names, validation_share, test_share)
  found = {
      name: take(table, rows) for name, rows in parts.items() if len(rows)
  }
  _check_parts(found, where, test_share)
  return found


def take(table: Table, rows: np.ndarray) -> Table:
  """Returns some rows of a table."""
  ends = np.cumsum(table.num_negatives)
  counts = table.num_negatives[rows]
  starts = (ends - table.num_negatives)[rows]
  places = np.repeat(starts - np.cumsum(counts) + counts, counts)
  places = places + np.arange(len(places))
  return Table(
      queries=items_lib.take(table.queries, rows),
      documents=items_lib.take(table.documents, rows),
      ids=table.ids[rows],
      groups=table.groups[rows],
      negatives=items_lib.take(table.negatives, places),
      num_negatives=counts,
  )


def _check_shares(validation_share, test_share):
  shares = {'validation_share': validation_share, 'test_share': test_share}
  for name, share in shares.items():
    least = 0 if name == 'test_share' else 1e-9
    if not least <= share < 1:
      raise ValueError(f'{name} must be between 0 and 1, got {share:g}.')
  if sum(shares.values()) >= 1:
    raise ValueError(
        'validation_share and test_share must leave pairs to train on; got '
        f'{validation_share:g} and {test_share:g}.'
    )


def _items(given: Any, where: str) -> items_lib.Items:
  """Checks queries or documents, each of them."""
  if isinstance(given, np.ndarray) and given.dtype.kind not in 'OU':
    return _array(given, where)
  items = list(given)
  for row, text in enumerate(items):
    if not isinstance(text, str):
      raise ValueError(
          f'{where} must be texts, or one array of vectors or images; row '
          f'{row} is {text!r:.60}.'
      )
    if not text.strip():
      raise ValueError(
          f'{where} of row {row} is empty; give it a text, or leave the row '
          'out.'
      )
  return items


def _array(given, where):
  if given.ndim == 2 and given.dtype.kind == 'f' and given.shape[1]:
    bad = ~np.isfinite(given).all(axis=1)
    if bad.any():
      raise ValueError(
          f'{where} must be finite; row {np.argmax(bad)} has NaN or infinity.'
      )
    return np.asarray(given, np.float32)
  if given.dtype == np.uint8 and given.ndim == 4 and given.shape[-1] == 3:
    return given
  raise ValueError(
      f'{where} must be texts, vectors, float [n, d], or images, uint8 [n, '
      f'height, width, 3]; got {given.dtype} {list(given.shape)}.'
  )


def _names(given, where, count):
  """Returns numbers of names, int32, -1 for none, and the names as texts."""
  if given is None:
    return np.full(count, -1, np.int32), None
  texts = [_name(x) for x in given]
  if len(texts) != count:
    raise ValueError(
        f'{where} must have an entry for each of the {count} rows, got '
        f'{len(texts)}.'
    )
  known: dict[str, int] = {}
  numbers = [known.setdefault(x, len(known)) if x else -1 for x in texts]
  return np.array(numbers, np.int32), texts


def _name(x: Any) -> str:
  """Returns an id or group as a text, '' for none."""
  if x is None or x != x:  # NaN stands for none in tables.
    return ''
  if isinstance(x, float | np.floating) and float(x).is_integer():
    x = int(x)
  return str(x).strip()


def _negatives(given, where, documents):
  """Returns all further documents, and how many each row has."""
  count = len(documents)
  if given is None:
    return items_lib.take(documents, np.zeros(0, int)), np.zeros(
        count, np.int32
    )
  if len(given) != count:
    raise ValueError(
        f'{where} must have an entry for each of the {count} rows, got '
        f'{len(given)}.'
    )
  if isinstance(given, np.ndarray) and given.dtype.kind not in 'OU':
    shape = getattr(documents, 'shape', None)
    if shape is None or given.shape[2:] != shape[1:]:
      raise ValueError(
          f'{where} must be such as documents are, [{count}, k, ...]; got '
          f'{given.dtype} {list(given.shape)}.'
      )
    flat = _array(given.reshape(-1, *given.shape[2:]), where)
    return flat, np.full(count, given.shape[1], np.int32)
  if isinstance(documents, np.ndarray):
    raise ValueError(f'{where} must be an array such as documents are.')
  rows = [[x] if isinstance(x, str) else list(x or ()) for x in given]
  for number, row in enumerate(rows):
    if not all(isinstance(x, str) and x.strip() for x in row):
      raise ValueError(
          f'{where} of row {number} must be texts that are not empty; got '
          f'{row!r:.60}.'
      )
  flat = [x for row in rows for x in row]
  return flat, np.array([len(row) for row in rows], np.int32)


def _join(queries, documents, ids) -> np.ndarray:
  """Numbers rows, equally if they share an id, a query or a document."""
  rows = np.arange(len(queries))
  edges = []
  for keys in (_keys(queries), _keys(documents)):
    first: dict[Hashable, int] = {}
    edges.append([first.setdefault(x, i) for i, x in enumerate(keys)])
  number, _ = ids
  _, first_row, place = np.unique(
      number, return_index=True, return_inverse=True
  )
  edges.append(np.where(number < 0, rows, first_row[place]))
  columns = np.concatenate(edges)
  graph = sparse.coo_matrix(
      (np.ones(len(columns), np.int8), (np.tile(rows, 3), columns)),
      shape=(len(rows), len(rows)),
  )
  return csgraph.connected_components(graph, directed=False)[1].astype(np.int32)


def _keys(items: items_lib.Items) -> Iterable[Hashable]:
  """Returns what tells items apart."""
  if isinstance(items, np.ndarray):
    return [x.tobytes() for x in items]
  return items


def _parts(
    numbers: np.ndarray,
    names: Iterable[Hashable],
    validation_share: float,
    test_share: float,
) -> dict[str, np.ndarray]:
  """Returns the rows of each part."""
  # Names of rows without one are '', which must not decide.
  least: dict[int, Any] = {}
  for number, name in zip(numbers.tolist(), names, strict=True):
    known = least.get(number)
    if name and (known is None or name < known):
      least[number] = name
  draw = np.array(
      [_draw(least.get(x, str(x))) for x in range(int(numbers.max()) + 1)]
  )[numbers]
  is_test = draw < test_share
  is_validation = ~is_test & (draw < test_share + validation_share)
  return {
      'train': np.flatnonzero(~is_test & ~is_validation),
      'validation': np.flatnonzero(is_validation),
      'test': np.flatnonzero(is_test),
  }


def _draw(name: str | bytes) -> float:
  """Returns a number in [0, 1) that depends on a name alone."""
  encoded = name.encode() if isinstance(name, str) else name
  digest = hashlib.blake2b(encoded, digest_size=8).digest()
  return int.from_bytes(digest, 'big') / 2**64


def _check_parts(parts: Mapping[str, Table], where: str, test_share: float):
  counts = {
      name: len(parts[name].queries) if name in parts else 0
      for name in PARTS
  }
  distinct = sum(len(np.unique(x.ids)) for x in parts.values())
  if distinct < 2:
    raise ValueError(
        f'{where}: all {sum(counts.values())} rows share an id, a query or a '
        'document, directly or by way of others, so none is a negative of '
        'another; check the columns.'
    )
  few = [
      name
      for name, count in counts.items()
      if count < (_FEWEST if name == 'train' else 1)
      and (name != 'test' or test_share > 0)
  ]
  if few or len(np.unique(parts['train'].ids)) < _FEWEST:
    counted = ', '.join(f'{name} {count}' for name, count in counts.items())
    raise ValueError(
        f'{where} has too few pairs for its parts, by hash of the id: '
        f'{counted}. Give more pairs, or other shares.'
    )
