# SPDX-License-Identifier: Apache-2.0
"""Reads TU Dortmund's collections of graphs, and knows eight by their counts.

Of a collection NAME these files are read, in a zip archive or a folder::

  NAME_A.txt                 an edge in each line: two nodes, counted from 1
  NAME_graph_indicator.txt   the graph of each node, counted from 1
  NAME_graph_labels.txt      the class of each graph, any integer
  NAME_node_labels.txt       the label of each node, any integer; optional

Labels of edges and real-valued attributes are not read. Nothing is unpacked to
disk, so names inside an archive lead nowhere.
"""

from collections.abc import Callable
import functools
import io
import json
import pathlib
from typing import NamedTuple
import warnings
import zipfile
import zlib

import numpy as np

from hcl_jax.storage import text_files

NAME = 'tu_graphs'
URL = 'https://www.chrsmrrs.com/graphkerneldatasets/{}.zip'
_NODE_LABELS = 'node_labels.json'  # beside the records
_FIRST = 'first'

# All that a damaged, encrypted or unreadable file may raise.
_FILE_ERRORS = (
    ValueError, OSError, EOFError, NotImplementedError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class Statistics(NamedTuple):
  """Counts of a collection; nodes and edges are means over graphs."""

  graphs: int
  classes: int
  nodes: float
  edges: float

  def __str__(self):
    return (
        f'{self.graphs} graphs of {self.classes} classes with {self.nodes:.2f} '
        f'nodes and {self.edges:.2f} edges on average'
    )


STATISTICS = {
    'MUTAG': Statistics(188, 2, 17.93, 19.79),
    'PTC_MR': Statistics(344, 2, 14.29, 14.69),
    'ENZYMES': Statistics(600, 6, 32.63, 62.14),
    'PROTEINS': Statistics(1113, 2, 39.06, 72.82),
    'IMDB-BINARY': Statistics(1000, 2, 19.77, 96.53),
    'IMDB-MULTI': Statistics(1500, 3, 13.00, 65.94),
    'DD': Statistics(1178, 2, 284.32, 715.66),
    'REDDIT-BINARY': Statistics(2000, 2, 429.63, 497.75),
}


class Collection(NamedTuple):
  """Graphs of a collection, their nodes numbered through.

  Attributes:
    graph_ids: the graph of each node, int64 ``[N]``, ascending.
    senders: where each edge begins, int64 ``[E]``. Edges are unique, without
      loops, and in the order of receivers.
    receivers: where it ends, int64 ``[E]``.
    node_labels: int64 ``[N]``, from 0; empty where nodes have none.
    first_node_label: the label in the files that is 0 here.
    labels: classes of the graphs, int64 ``[G]``, numbered from 0 in the order
      of their names.
  """

  graph_ids: np.ndarray
  senders: np.ndarray
  receivers: np.ndarray
  node_labels: np.ndarray
  labels: np.ndarray
  first_node_label: int = 0


def read(path: pathlib.Path, name: str) -> Collection:
  """Reads a collection and checks that it is whole, and as published.

  Raises:
    FileNotFoundError: there is no such path.
    ValueError: the files are damaged, or those of something else.
  """
  files = _list_files(path)
  if f'{name}_A.txt' not in files:
    others = [file for file in files if file.endswith('_A.txt')]
    found = f'it holds {others[0]}' if others else 'it holds no _A.txt at all'
    raise ValueError(f'{path} must hold {name}_A.txt, but {found}.')
  try:
    graphs = _assemble(name, files)
  except _FILE_ERRORS as error:
    raise ValueError(f'{path} cannot be read: {error}') from error
  expected, found = STATISTICS.get(name), measure(graphs)
  if expected is not None and str(found) != str(expected):
    raise ValueError(
        f'{path} is not {name} as published: it has {found}, but {name} has '
        f'{expected}.'
    )
  return graphs


def read_any(path: pathlib.Path) -> Collection:
  """Reads the one collection that an archive or folder holds, whatever it is.

  Raises:
    FileNotFoundError: there is no such path.
    ValueError: it holds none or several, or they are damaged.
  """
  files = _list_files(path)
  names = [x.removesuffix('_A.txt') for x in files if x.endswith('_A.txt')]
  if len(names) != 1:
    raise ValueError(
        f'{path} must hold one collection, NAME_A.txt and its other files; it '
        f'holds {", ".join(names) or "none"}.'
    )
  try:
    return _assemble(names[0], files)
  except _FILE_ERRORS as error:
    raise ValueError(f'{path} cannot be read: {error}') from error


def write_first_node_label(folder: pathlib.Path, graphs: Collection) -> None:
  """Records which label in the files is 0 in the data set."""
  text = json.dumps({_FIRST: graphs.first_node_label})
  (folder / _NODE_LABELS).write_text(text, encoding='utf-8')


def read_first_node_label(folder: pathlib.Path) -> int | None:
  """Reads it; None of data sets that were prepared by earlier versions."""
  path = folder / _NODE_LABELS
  if not path.is_file():
    return None
  return int(json.loads(path.read_text(encoding='utf-8'))[_FIRST])


def full_name(name: str) -> str:
  """Returns ``'tu_graphs/MUTAG'`` for ``'MUTAG'``, other names as they are."""
  return f'{NAME}/{name}' if name in STATISTICS else name


def measure(graphs: Collection) -> Statistics:
  """Returns the statistics of a collection."""
  count = len(graphs.labels)
  return Statistics(
      graphs=count,
      classes=int(graphs.labels.max()) + 1,
      nodes=len(graphs.graph_ids) / count,
      edges=len(graphs.senders) / 2 / count,
  )


def _list_files(path) -> dict[str, Callable[[], bytes]]:
  """Returns functions that read the text files of a path, by name."""
  if path.is_dir():
    found = sorted([*path.glob('*.txt'), *path.glob('*/*.txt')])
    return {file.name: functools.partial(_read_file, file) for file in found}
  if not path.exists():
    raise FileNotFoundError(f'there is no file or folder {path}.')
  try:
    with zipfile.ZipFile(path) as archive:
      names = archive.namelist()
  except zipfile.BadZipFile as error:
    raise ValueError(
        f'{path} is no zip archive, or a damaged one: {error}.'
    ) from error
  return {
      pathlib.PurePosixPath(name).name: functools.partial(_unzip, path, name)
      for name in names
      if not name.startswith('__MACOSX')
  }


def _read_file(path):
  with path.open('rb') as file:
    return text_files.read_all(file, path.name)


def _unzip(path, name):
  with zipfile.ZipFile(path) as archive, archive.open(name) as file:
    declared = archive.getinfo(name).file_size
    return text_files.read_all(file, name, declared=declared)


def _assemble(name, files):
  graph_ids = _read_numbers(name, 'graph_indicator', files)[:, 0] - 1
  steps = np.diff(graph_ids, prepend=-1)
  if steps[0] != 1 or np.any((steps != 0) & (steps != 1)):
    row = np.flatnonzero((steps != 0) & (steps != 1))
    raise ValueError(
        f'{name}_graph_indicator.txt must count graphs from 1 upwards; line '
        f'{row[0] + 1 if row.size else 1} does not.'
    )
  labels = _read_numbers(name, 'graph_labels', files)[:, 0]
  _check_count(name, 'graph_labels', labels, graph_ids[-1] + 1, 'graphs')
  node_labels, first = np.zeros(0, np.int64), 0
  if f'{name}_node_labels.txt' in files:
    node_labels = _read_numbers(name, 'node_labels', files)[:, 0]
    _check_count(name, 'node_labels', node_labels, len(graph_ids), 'nodes')
    first = int(node_labels.min())
    node_labels = node_labels - first
  edges = _read_numbers(name, 'A', files, columns=2) - 1
  senders, receivers = _clean_edges(name, edges, graph_ids)
  return Collection(
      graph_ids=graph_ids,
      senders=senders,
      receivers=receivers,
      node_labels=node_labels,
      labels=np.unique(labels, return_inverse=True)[1],
      first_node_label=first,
  )


def _read_numbers(name, kind, files, columns=1) -> np.ndarray:
  """Returns the integers of a file, ``[lines, columns]``."""
  file = f'{name}_{kind}.txt'
  if file not in files:
    raise ValueError(f'{file} is missing.')
  content = files[file]()
  if not content.strip():
    raise ValueError(f'{file} is empty.')
  try:
    with warnings.catch_warnings():
      # Old numpy (2.0) takes a float for an integer with no more than that.
      warnings.simplefilter('error', DeprecationWarning)
      numbers = np.loadtxt(
          io.BytesIO(content), np.int64, comments=None, delimiter=',', ndmin=2
      )
  except (ValueError, OverflowError, DeprecationWarning) as error:
    raise ValueError(f'{file} must hold integers: {error}') from error
  if numbers.shape[1] != columns:
    raise ValueError(
        f'{file} must hold {columns} numbers in a line, got {numbers.shape[1]}.'
    )
  return numbers


def _check_count(name, kind, values, count, of):
  if len(values) != count:
    raise ValueError(
        f'{name}_{kind}.txt has {len(values)} lines, but '
        f'{name}_graph_indicator.txt has {count} {of}.'
    )


def _clean_edges(name, edges, graph_ids):
  """Returns edges without loops, each once, by receiver, then by sender."""
  outside = np.any((edges < 0) | (edges >= len(graph_ids)), axis=1)
  if outside.any():
    line = int(outside.argmax())
    raise ValueError(
        f'line {line + 1} of {name}_A.txt names node {edges[line].max() + 1}; '
        f'there are nodes 1 to {len(graph_ids)}.'
    )
  across = graph_ids[edges[:, 0]] != graph_ids[edges[:, 1]]
  if across.any():
    raise ValueError(
        f'line {across.argmax() + 1} of {name}_A.txt joins two graphs.'
    )
  edges = edges[edges[:, 0] != edges[:, 1]]
  # Some archives list every edge twice.
  order = np.unique(edges[:, 1] * len(graph_ids) + edges[:, 0])
  return order % len(graph_ids), order // len(graph_ids)
