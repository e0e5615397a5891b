# SPDX-License-Identifier: Apache-2.0
"""Loads pairs of queries and documents, split into parts."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
from typing import Any
from typing import NamedTuple

import numpy as np

from hcl_jax.pairs import items as items_lib
from hcl_jax.pairs import molecules
from hcl_jax.pairs import tables
from hcl_jax.storage import locations
from hcl_jax.storage import records
from hcl_jax.storage import sources

PARTS = tables.PARTS


class Part(NamedTuple):
  """Holds the pairs of a part.

  Attributes:
    query: row of the query of each pair, int32 ``[n]``.
    document: row of its document, int32 ``[n]``.
    negatives: rows of documents that are negatives of the pair, int32
      ``[n, k]``, -1 for none.
  """

  query: np.ndarray
  document: np.ndarray
  negatives: np.ndarray


@dataclasses.dataclass(frozen=True)
class Pairs:
  """Holds all queries and documents, and which belong together.

  Attributes:
    queries: distinct queries of all parts.
    documents: distinct documents of all parts, in the order of first appearance
      in train, validation, test.
    ids: id of each document, int32 ``[documents]``. Documents of one id answer
      the same queries.
    groups: group of each document, int32 ``[documents]``, -1 for none.
    parts: pairs by part.
  """

  queries: items_lib.Items
  documents: items_lib.Items
  ids: np.ndarray
  groups: np.ndarray
  parts: Mapping[str, Part]


def load_pairs(
    name: str, *, data_dir: str | os.PathLike | None = None
) -> Pairs:
  """Reads prepared pairs; never uses the network.

  Those that are made of an installed package, as ``'molecules'``, are prepared
  if they are not.

  Args:
    name: ``'pairs/NAME'``, or NAME alone.
    data_dir: folder of prepared data sets; None for the default of tfds
      ($TFDS_DATA_DIR or ~/tensorflow_datasets).

  Raises:
    FileNotFoundError: it is not prepared; the message says how to.
    ValueError: it is no data set of pairs.
  """
  name, root = tables.full_name(name), locations.data_dir(data_dir)
  if molecules.owns(name) and locations.find(name, root) is None:
    from hcl_jax.pairs import prepare  # slow to import, and seldom needed

    prepare.make(name, root)
  directory = locations.require(name, root, '--pairs=FILE')
  builder = records.open_builder(directory)
  missing = {'query', 'document', 'id', 'group'} - set(builder.info.features)
  if missing:
    raise ValueError(
        f'{builder.info.full_name} has no pairs, only '
        f'{", ".join(builder.info.features)}.'
    )
  return join({
      part: _read_table(records.open_split(builder, part))
      for part in PARTS
      if part in builder.info.splits
  })


def collect(data: Mapping[str, Any] | Iterable[tuple[Any, Any]]) -> Pairs:
  """Divides pairs at hand, as ``prepare`` divides files by default.

  Args:
    data: columns by name, as ``tables.divide`` takes them, or tuples of a query
      and its document.

  Raises:
    ValueError: a row is bad, or there are too few.
  """
  if not isinstance(data, Mapping):
    rows = list(data)
    if not all(isinstance(x, tuple | list) and len(x) == 2 for x in rows):
      raise ValueError(
          'data must be columns by name, or tuples (query, document); got '
          f'{rows[:1]!r:.60}.'
      )
    data = {'query': [x[0] for x in rows], 'document': [x[1] for x in rows]}
  return join(tables.divide(data))


def join(parts: Mapping[str, tables.Table]) -> Pairs:
  """Joins parts, and numbers their queries and documents."""
  queries, documents = items_lib.Distinct(), items_lib.Distinct()
  rows = {
      name: (queries.add(x.queries), documents.add(x.documents))
      for name, x in parts.items()
  }
  further = {name: documents.add(x.negatives) for name, x in parts.items()}
  all_documents = documents.items()
  # A document that is of no pair answers nothing.
  highest = max(int(x.ids.max()) for x in parts.values())
  ids = highest + 1 + np.arange(len(all_documents), dtype=np.int32)
  groups = np.full(len(all_documents), -1, np.int32)
  for name, table in parts.items():
    _, document = rows[name]
    ids[document], groups[document] = table.ids, table.groups
  return Pairs(
      queries=queries.items(),
      documents=all_documents,
      ids=ids,
      groups=groups,
      parts={
          name: Part(*rows[name], _padded(further[name], x.num_negatives))
          for name, x in parts.items()
      },
  )


def divide_anew(pairs: Pairs, division: int) -> Pairs:
  """Returns the same pairs in other parts, which have as many ids as before.

  Args:
    pairs: the data set.
    division: >= 1; determines which ids are in which part.
  """
  columns = zip(*pairs.parts.values(), strict=True)
  whole = Part(*(_stack(x) for x in columns))
  ids, of_pair = np.unique(pairs.ids[whole.document], return_inverse=True)
  counts = [
      len(np.unique(pairs.ids[x.document])) for x in pairs.parts.values()
  ]
  part = np.repeat(np.arange(len(counts)), counts)
  part = np.random.default_rng(division).permutation(part)[of_pair]
  return dataclasses.replace(
      pairs,
      parts={
          name: Part(*(x[part == number] for x in whole))
          for number, name in enumerate(pairs.parts)
      },
  )


def digest(pairs: Pairs) -> str:
  """Returns a short name of all pairs."""

  def arrays():
    for items in (pairs.queries, pairs.documents):
      if isinstance(items, np.ndarray):
        yield items
      else:
        yield np.frombuffer('\0'.join(items).encode(), np.uint8)
    yield pairs.ids
    yield pairs.groups
    for part in pairs.parts.values():
      yield from part

  return sources.digest(arrays())


def _stack(arrays: Sequence[np.ndarray]) -> np.ndarray:
  """Joins rows of parts; lists of negatives may be of several lengths."""
  if arrays[0].ndim == 1:
    return np.concatenate(arrays)
  width = max(x.shape[1] for x in arrays)
  return np.concatenate([
      np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=-1)
      for x in arrays
  ])


def _padded(flat: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """Returns rows of ``counts`` numbers each, -1 after the last."""
  found = np.full((len(counts), int(counts.max(initial=0))), -1, np.int32)
  found[np.arange(found.shape[1]) < counts[:, None]] = flat
  return found


def _read_table(source: records.Source) -> tables.Table:
  """Reads the table of a part, which is stored in pieces of many rows."""
  pieces = source.__getitems__(range(len(source)))

  def column(name):
    return np.concatenate([piece[name] for piece in pieces])

  def items(name):
    if f'{name}_length' not in pieces[0]:
      return column(name)
    texts = []
    for piece in pieces:
      text = piece[name].decode()
      ends = np.cumsum(piece[f'{name}_length']).tolist()
      texts += map(
          lambda start, end, text=text: text[start:end], [0, *ends], ends
      )
    return texts

  return tables.Table(
      queries=items('query'),
      documents=items('document'),
      ids=column('id'),
      groups=column('group'),
      negatives=items('negative'),
      num_negatives=column('num_negatives'),
  )
