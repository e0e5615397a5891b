# SPDX-License-Identifier: Apache-2.0
"""Loads graphs of a prepared data set, and packs them into padded batches."""

import collections
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import copy
import os
import pathlib
from typing import NamedTuple

import numpy as np

from hcl_jax.graphs import tu_collections
from hcl_jax.models import graph_batch as graphs_lib
from hcl_jax.storage import locations
from hcl_jax.storage import records

# Above, a one-hot of the degree would be wider than it is worth.
_MAX_DEGREE = 1000
_MAX_NODE_LABELS = 10_000
# With fewer, a step takes milliseconds and a compilation hundreds of them.
_MANY_NODES = 4096
# Of a graph at hand.
_PARTS = 'num_nodes', 'edges', 'nodes', 'label'


class NodeFeatures(NamedTuple):
  """Says how features of nodes are made of their labels or degrees.

  Attributes:
    kind: ``'labels'`` or ``'degrees'``, both as one-hot, or
      ``'scaled_degrees'``.
    width: number of features.
    first_label: the label in the files that is 0 here, or None where that was
      not recorded.
    mean: of the degrees, to be subtracted from them.
    deviation: of the degrees, to divide by.
  """

  kind: str
  width: int
  first_label: int | None = 0
  mean: float = 0.0
  deviation: float = 1.0

  @classmethod
  def of(
      cls,
      node_labels: np.ndarray,
      degrees: np.ndarray,
      first_label: int | None = 0,
  ) -> 'NodeFeatures':
    """Returns what suits some nodes, as :func:`load_graphs` says.

    Labels are from 0, or empty for none.
    """
    if len(node_labels):
      if node_labels.max() >= _MAX_NODE_LABELS:
        raise ValueError(
            f'labels of nodes must span less than {_MAX_NODE_LABELS} values, '
            f'got {node_labels.max() + 1}; number them through.'
        )
      return cls('labels', int(node_labels.max()) + 1, first_label)
    if degrees.max() < _MAX_DEGREE:
      return cls('degrees', int(degrees.max()) + 1)
    mean, deviation = float(degrees.mean()), float(degrees.std(ddof=1))
    return cls('scaled_degrees', 1, mean=mean, deviation=deviation)

  def apply(self, node_labels: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Returns features, float32 ``[num_nodes, width]``.

    Raises:
      ValueError: a label or degree is not among those that features are for.
    """
    if self.kind == 'scaled_degrees':
      scaled = (degrees - self.mean) / self.deviation
      return scaled[:, None].astype(np.float32)
    values = node_labels if self.kind == 'labels' else degrees
    if len(values) != len(degrees):
      raise ValueError('nodes must have labels, as those trained on have.')
    unknown = (values < 0) | (values >= self.width)
    if unknown.any():
      one = values[unknown][0] + (self.first_label or 0)
      raise ValueError(
          f'{self.kind} of nodes must be among the {self.width} of the graphs '
          f'trained on, got {one}.'
      )
    features = np.zeros((len(values), self.width), np.float32)
    features[np.arange(len(values)), values] = 1
    return features


class Graphs:
  """Graphs with features of their nodes and a class.

  Nodes and edges of all graphs lie one after the other.

  Attributes:
    nodes: features of the nodes, float32 ``[num_nodes, F]``.
    node_starts: graph i has the nodes ``node_starts[i]`` up to
      ``node_starts[i + 1]``, int64 ``[num_graphs + 1]``.
    senders: where each edge begins, a node counted within its graph, int32
      ``[num_edges]``.
    receivers: where it ends; ascending within a graph.
    edge_starts: as node_starts, of edges.
    labels: int32 ``[num_graphs]``.
    colors: nodes with one color share a row of a batch, int64
      ``[num_nodes]``; all differ unless :meth:`colored` says otherwise.
    features: how features were made, or None where that is not known.
  """

  def __init__(
      self,
      *,
      nodes: np.ndarray,
      num_nodes: np.ndarray,
      senders: np.ndarray,
      receivers: np.ndarray,
      num_edges: np.ndarray,
      labels: np.ndarray,
      features: NodeFeatures | None = None,
  ):
    """Takes all arrays, and the numbers of nodes and edges of each graph."""
    self.features = features
    self.nodes = np.asarray(nodes, np.float32)
    self.node_starts = _starts(num_nodes)
    self.senders = np.asarray(senders, np.int32)
    self.receivers = np.asarray(receivers, np.int32)
    self.edge_starts = _starts(num_edges)
    self.labels = np.asarray(labels, np.int32)
    self._check()
    self.colors = np.arange(len(self.nodes))
    first_nodes = np.repeat(self.node_starts[:-1], np.diff(self.edge_starts))
    # As senders and receivers, counted over all graphs.
    self._from = self.senders + first_nodes
    self._to = self.receivers + first_nodes
    self._in_starts = _starts(np.bincount(self._to, minlength=len(self.nodes)))

  def __len__(self) -> int:
    return len(self.labels)

  @property
  def num_classes(self) -> int:
    return int(self.labels.max(initial=-1)) + 1

  @property
  def num_features(self) -> int:
    return self.nodes.shape[1]

  def colored(self, num_layers: int) -> 'Graphs':
    """Returns the graphs with one color for nodes that are embedded alike.

    Each layer of the network sums over neighbors once. Batches of the result
    have a row for each color.
    """
    colors = colors_of_features(self.nodes)
    for _ in range(num_layers):
      colors = refine(colors, self._from, self._to)
    graphs = copy.copy(self)
    graphs.colors = colors
    return graphs

  def padding(self, rows: Sequence[int] | np.ndarray) -> graphs_lib.Padding:
    """Returns a shape that holds these graphs, one of few.

    Counts are rounded up to four binary digits, so by less than an eighth, or
    to a multiple of 64 nodes, edges and members and 8 graphs.
    """
    return _rounded(_shape(self._pack(rows)))

  def batch(
      self,
      rows: Sequence[int] | np.ndarray,
      *paddings: graphs_lib.Padding,
  ) -> graphs_lib.GraphBatch:
    """Packs graphs, in the order of rows, into a batch of numpy arrays.

    It has the first of ``paddings`` that holds it; without any, the shape of
    :meth:`padding`.
    """
    batch = self._pack(rows)
    needed = _shape(batch)
    shape = _first_that_fits(needed, paddings or [_rounded(needed)])
    return _padded(batch, shape)

  def _pack(self, rows):
    """Returns a batch without padding."""
    rows = self._read_rows(rows)
    nodes, num_nodes = _ranges(self.node_starts, rows)
    graph_ids = np.repeat(np.arange(len(rows)), num_nodes)
    first, of_node = _first_of_each(self.colors[nodes])
    edges, num_edges = _ranges(self._in_starts, nodes[first])
    row_of = np.zeros(len(self.nodes), np.int64)
    row_of[nodes] = of_node
    pairs, member_counts = np.unique(
        graph_ids * len(first) + of_node, return_counts=True
    )
    return graphs_lib.GraphBatch(
        nodes=self.nodes[nodes[first]],
        node_counts=np.bincount(of_node),
        senders=row_of[self._from[edges]],
        receivers=np.repeat(np.arange(len(first)), num_edges),
        members=pairs % len(first),
        graph_ids=pairs // len(first),
        member_counts=member_counts,
        graph_mask=np.ones(len(rows), bool),
        label=self.labels[rows],
        index=rows,
    )

  def _read_rows(self, rows):
    rows = np.asarray(rows)
    whole = rows.ndim == 1 and rows.size and rows.dtype.kind in 'iu'
    if not whole or rows.min() < 0 or rows.max() >= len(self):
      raise ValueError(
          f'rows must be one or more integers in [0, {len(self)}), got '
          f'{rows}.'
      )
    return rows

  def _check(self):
    nodes, edges = np.diff(self.node_starts), np.diff(self.edge_starts)
    if not len(nodes) == len(edges) == len(self.labels) or not len(nodes):
      raise ValueError(
          'num_nodes, num_edges and labels must have an entry for each graph, '
          f'got {len(nodes)}, {len(edges)} and {len(self.labels)}.'
      )
    if self.nodes.ndim != 2 or len(self.nodes) != self.node_starts[-1]:
      raise ValueError(
          f'nodes must have shape [{self.node_starts[-1]}, features], a row '
          f'for each of num_nodes; got {self.nodes.shape}.'
      )
    if np.any(nodes < 1):
      raise ValueError(
          f'num_nodes must be 1 or more, but graph {nodes.argmin()} has '
          f'{nodes.min()}.'
      )
    size = np.repeat(nodes, edges)
    for name in ('senders', 'receivers'):
      ends = getattr(self, name)
      if ends.shape != size.shape or np.any((ends < 0) | (ends >= size)):
        raise ValueError(
            f'{name} must be {len(size)} nodes, counted within each graph; got '
            f'shape {ends.shape} or nodes that are not there.'
        )
    graph = np.repeat(np.arange(len(self)), edges)
    if np.any((np.diff(self.receivers) < 0) & (np.diff(graph) == 0)):
      raise ValueError('receivers must be in ascending order in each graph.')


class GraphBatches(Sequence):
  """Batches of an epoch, which every epoch repeats, as released.

  The graphs are shuffled once; the last batch has what is left. There are few
  shapes, so a step is compiled few times.

  Attributes:
    rows: numbers of the graphs of each batch.
  """

  def __init__(
      self,
      graphs: Graphs,
      *,
      seed: int,
      batch_size: int,
      paddings: Mapping[int, Sequence[graphs_lib.Padding]] | None = None,
  ):
    """Packs all graphs in the order of the seed, ``batch_size`` at a time.

    ``paddings`` has shapes, smallest first, by the number of graphs of a batch;
    None: those of :func:`common_paddings` of the seed. A batch has the first
    that holds it.
    """
    self.rows = _order(graphs, seed, batch_size)
    if paddings is None:
      paddings = common_paddings(graphs, seeds=[seed], batch_size=batch_size)
    self._batches = [
        graphs.batch(rows, *paddings[len(rows)]) for rows in self.rows
    ]

  def __len__(self) -> int:
    return len(self._batches)

  def __getitem__(self, number: int) -> graphs_lib.GraphBatch:
    return self._batches[number]


def common_paddings(
    graphs: Graphs, *, seeds: Iterable[int], batch_size: int
) -> dict[int, list[graphs_lib.Padding]]:
  """Returns shapes that hold the batches of an epoch in several orders.

  They hold the orders of the seeds 0 to 9 too, so that repeats of a run mostly
  have the same shapes, and with them the same rounding, alone or together.
  Batches of a number of graphs have one shape, or three where they are large
  and three spare a sixteenth of all rows: each is a compilation more.

  Returns:
    The shapes, smallest first, by the number of graphs of a batch:
    ``batch_size``, and what is left for the last one.
  """
  needed = collections.defaultdict(list)
  for seed in {*seeds, *range(10)}:
    for rows in _order(graphs, seed, batch_size):
      needed[len(rows)].append(_shape(graphs._pack(rows)))
  one = {size: _shapes(x, 1) for size, x in needed.items()}
  three = {size: _shapes(x, 3) for size, x in needed.items()}
  computed = {size: _num_rows(needed[size], one[size]) for size in needed}
  in_all = sum(computed.values())

  def choose(size):
    spared = computed[size] - _num_rows(needed[size], three[size])
    large = one[size][0].nodes >= _MANY_NODES
    return three[size] if large and spared > in_all / 16 else one[size]

  return {size: choose(size) for size in needed}


def load_graphs(
    name: str, *, data_dir: str | os.PathLike | None = None
) -> Graphs:
  """Reads a prepared data set of graphs; never uses the network.

  The features of a node are the one-hot of its label. Where nodes have none,
  they are the one-hot of its degree, or, with a degree of 1000 or more among
  them, the degree moved and scaled to mean 0 and (unbiased) deviation 1 over
  all nodes.

  Args:
    name: ``'MUTAG'`` or another of the eight known ones, or
      ``'tu_graphs/NAME'``.
    data_dir: folder of prepared data sets; None for the default of tfds
      ($TFDS_DATA_DIR or ~/tensorflow_datasets).

  Returns:
    The graphs, in the order of the collection.

  Raises:
    FileNotFoundError: the data set is not prepared; the message says how to.
    ValueError: it is not one of graphs.
  """
  builder = records.open_builder(
      locations.require(
          tu_collections.full_name(name), locations.data_dir(data_dir)
      )
  )
  if 'sender' not in builder.info.features:
    raise ValueError(
        f'{builder.info.full_name} has no graphs, only '
        f'{", ".join(builder.info.features)}.'
    )
  source = records.open_split(builder, 'train')
  examples = source.__getitems__(range(len(source)))

  def joined(key):
    return np.concatenate([example[key] for example in examples])

  num_nodes = np.array([example['num_nodes'] for example in examples])
  num_edges = np.array([len(example['sender']) for example in examples])
  receivers, node_labels = joined('receiver'), joined('node_label')
  first_nodes = np.repeat(np.cumsum(num_nodes) - num_nodes, num_edges)
  degrees = np.bincount(receivers + first_nodes, minlength=num_nodes.sum())
  features = NodeFeatures.of(
      node_labels,
      degrees,
      tu_collections.read_first_node_label(pathlib.Path(builder.data_dir)),
  )
  return Graphs(
      nodes=features.apply(node_labels, degrees),
      num_nodes=num_nodes,
      senders=joined('sender'),
      receivers=receivers,
      num_edges=num_edges,
      labels=np.array([example['label'] for example in examples]),
      features=features,
  )


def collect(graphs: Graphs | Iterable[Mapping | Sequence]) -> Graphs:
  """Joins graphs that are at hand.

  Args:
    graphs: ``Graphs``, which stay as they are; or an iterable of graphs, each a
      dict with ``num_nodes``, an int; ``edges``, pairs of nodes, counted from 0
      within the graph, that are joined both ways; ``nodes``, an integer label
      of each node or its features ``[num_nodes, F]``, or None; and ``label``,
      the class of the graph, an int from 0; or the four in this order. Nodes of
      all graphs must have the same of the three; without any, their degrees are
      their features, as :func:`load_graphs` says.

  Raises:
    TypeError: they are none of these.
    ValueError: there is no graph, or a value of one does not fit.
  """
  if isinstance(graphs, Graphs):
    return graphs
  is_other = isinstance(graphs, (str, bytes, Mapping))
  if is_other or not isinstance(graphs, Iterable):
    raise TypeError(
        'data must be Graphs or an iterable of graphs, got '
        f'{type(graphs).__name__}.'
    )
  parts = [_read_graph(f'data[{i}]', x) for i, x in enumerate(graphs)]
  if not parts:
    raise ValueError('data has no graph.')
  num_nodes, edges, nodes, labels = zip(*parts, strict=True)
  forms = {x.shape[1:] for x in nodes}
  if len(forms) > 1 or len({len(x) > 0 for x in nodes}) > 1:
    raise ValueError(
        'data must have labels of nodes in all graphs, or as many features in '
        'all, or neither in any.'
    )
  num_edges = np.array([len(x) for x in edges])
  edges, values = np.concatenate(edges), np.concatenate(nodes)
  features = None
  if values.ndim == 1:
    first_nodes = np.cumsum(num_nodes) - num_nodes
    receivers = edges[:, 1] + np.repeat(first_nodes, num_edges)
    degrees = np.bincount(receivers, minlength=sum(num_nodes))
    features = NodeFeatures.of(values, degrees)
    values = features.apply(values, degrees)
  return Graphs(
      nodes=values,
      num_nodes=np.array(num_nodes),
      senders=edges[:, 0],
      receivers=edges[:, 1],
      num_edges=num_edges,
      labels=np.array(labels),
      features=features,
  )


def _read_graph(name, graph):
  """Returns nodes, edges both ways by receiver, values of nodes, and class."""
  if isinstance(graph, Mapping):
    unknown = sorted(set(graph) - set(_PARTS))
    missing = sorted(set(_PARTS) - {'nodes'} - set(graph))
    if unknown or missing:
      raise ValueError(
          f'{name} must have {", ".join(_PARTS)}; got {", ".join(graph)}.'
      )
    graph = [graph.get(part) for part in _PARTS]
  if not isinstance(graph, Sequence) or len(graph) != len(_PARTS):
    raise TypeError(
        f'{name} must be a dict with {", ".join(_PARTS)}, or these four in '
        f'order; got {type(graph).__name__}.'
    )
  num_nodes, edges, nodes, label = graph
  for part, value, least in (
      ('num_nodes', num_nodes, 1), ('label', label, 0)
  ):  # fmt: skip
    if not isinstance(value, (int, np.integer)) or value < least:
      raise ValueError(
          f'{part} of {name} must be an int >= {least}, got {value!r}.'
      )
  edges = np.asarray(edges)
  if not edges.size:
    edges = np.zeros((0, 2), np.int64)
  good = edges.ndim == 2 and edges.shape[1] == 2 and edges.dtype.kind in 'iu'
  if not good or np.any((edges < 0) | (edges >= num_nodes)):
    raise ValueError(
        f'edges of {name} must be pairs of nodes, integers [n, 2] in '
        f'[0, {num_nodes}); got {edges.dtype} {list(edges.shape)}.'
    )
  # Both ways, each once, without loops, and by receiver.
  edges = edges[edges[:, 0] != edges[:, 1]].astype(np.int64)
  codes = np.unique(np.concatenate([edges, edges[:, ::-1]]) @ [1, num_nodes])
  edges = np.stack([codes % num_nodes, codes // num_nodes], axis=1)
  nodes = np.zeros(0, np.int64) if nodes is None else np.asarray(nodes)
  is_label = nodes.ndim == 1 and (not len(nodes) or nodes.dtype.kind in 'iu')
  is_number = nodes.ndim == 2 and nodes.dtype.kind in 'fiu'
  if not (is_label or is_number) or len(nodes) not in (0, num_nodes):
    raise ValueError(
        f'nodes of {name} must be None, integer labels [{num_nodes}] or '
        f'features [{num_nodes}, F]; got {nodes.dtype} {list(nodes.shape)}.'
    )
  if is_label and np.any(nodes < 0):
    raise ValueError(f'labels of nodes of {name} must be >= 0.')
  return int(num_nodes), edges, nodes, int(label)


def read_graphs(path: pathlib.Path, features: NodeFeatures) -> Graphs:
  """Reads the graphs of a TU archive or folder, to be embedded.

  Args:
    path: zip archive or folder.
    features: how those of the graphs trained on were made.

  Raises:
    ValueError: the files are damaged, or nodes are unlike those trained on.
    OSError: they cannot be found or read.
  """
  found = tu_collections.read_any(path)
  labels = found.node_labels
  if features.kind == 'labels' and len(labels):
    if features.first_label is None:
      raise ValueError(
          'which labels nodes had in the files trained on is not known, as the '
          'data set was prepared by an earlier version; prepare it anew and '
          'train again.'
      )
    labels = labels + found.first_node_label - features.first_label
  count = len(found.graph_ids)
  of_edges = found.graph_ids[found.receivers]
  num_nodes = np.bincount(found.graph_ids)
  first_nodes = (np.cumsum(num_nodes) - num_nodes)[of_edges]
  return Graphs(
      nodes=features.apply(
          labels, np.bincount(found.receivers, minlength=count)
      ),
      num_nodes=num_nodes,
      senders=found.senders - first_nodes,
      receivers=found.receivers - first_nodes,
      num_edges=np.bincount(of_edges, minlength=len(num_nodes)),
      labels=found.labels,
      features=features,
  )


def colors_of_features(nodes: np.ndarray) -> np.ndarray:
  """Returns colors, int64 from 0, equal where rows of nodes ``[n, F]`` are."""
  owners, columns = np.nonzero(nodes)
  _, values = np.unique(nodes[owners, columns], return_inverse=True)
  return _split_colors(
      np.zeros(len(nodes), np.int64), owners, values * nodes.shape[1] + columns
  )


def refine(
    colors: np.ndarray, senders: np.ndarray, receivers: np.ndarray
) -> np.ndarray:
  """Refines colors by one round of Weisfeiler and Lehman's algorithm.

  The new ones, int64 from 0, are equal where the colors were and where the
  neighbors have the same colors, each as often.
  """
  return _split_colors(colors, receivers, colors[senders])


def _order(graphs, seed, batch_size):
  """Returns the numbers of the graphs of each batch of an epoch."""
  if batch_size < 1:
    raise ValueError(f'batch_size must be at least 1, got {batch_size}.')
  order = np.random.default_rng(seed).permutation(len(graphs))
  return [
      order[start : start + batch_size]
      for start in range(0, len(graphs), batch_size)
  ]


def _starts(counts):
  return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _ranges(starts, rows):
  """Returns indices from starts[i] to starts[i + 1] for i in rows; counts."""
  counts = starts[rows + 1] - starts[rows]
  shifts = np.repeat(starts[rows] - (np.cumsum(counts) - counts), counts)
  return np.arange(len(shifts)) + shifts, counts


def _first_of_each(colors):
  """Returns where each color comes first, ascending; the number of each."""
  _, first, number = np.unique(colors, return_index=True, return_inverse=True)
  order = np.argsort(first)
  rank = np.empty_like(order)
  rank[order] = np.arange(len(order))
  return first[order], rank[number]


def _split_colors(colors, owners, items):
  """Returns colors, equal where the old ones and multisets of items are.

  Exact, without hashes: the items of all owners are taken in, in ascending
  order, the first of each, then the second, and so on.
  """
  items = items[np.lexsort((items, owners))]
  counts = np.bincount(owners, minlength=len(colors))
  starts = np.cumsum(counts) - counts
  most_first = np.argsort(-counts, kind='stable')
  longer = np.searchsorted(-counts[most_first], -np.arange(counts.max()))
  colors = colors.astype(np.int64)
  base = items.max(initial=0) + 1
  unused = colors.max() + 1
  for place, number in enumerate(longer):
    nodes = most_first[:number]
    keys = colors[nodes] * base + items[starts[nodes] + place]
    found, numbers = np.unique(keys, return_inverse=True)
    # New ones, apart from all that nodes with fewer items keep.
    colors[nodes] = unused + numbers
    unused += len(found)
  return np.unique(colors, return_inverse=True)[1]


def _shape(batch):
  return graphs_lib.Padding(
      nodes=len(batch.nodes),
      edges=len(batch.senders),
      members=len(batch.members),
      graphs=len(batch.index),
  )


def _rounded(shape, digits=4):
  least = graphs_lib.Padding(nodes=64, edges=64, members=64, graphs=8)
  return graphs_lib.Padding(
      *(_round_up(*sizes, digits) for sizes in zip(shape, least, strict=True))
  )


def _shapes(needed, number):
  """Returns shapes, smallest first, for equal shares of what is needed."""
  shares = np.array_split(sorted(needed), number)
  largest = [share.max(axis=0) for share in shares if len(share)]
  return [_rounded(x, 6) for x in np.maximum.accumulate(largest).tolist()]


def _num_rows(needed, shapes):
  """Counts rows of nodes that are computed, padding included."""
  return sum(_first_that_fits(shape, shapes).nodes for shape in needed)


def _first_that_fits(shape, paddings):
  fitting = (x for x in paddings if not any(np.less(x, shape)))
  try:
    return next(fitting)
  except StopIteration:
    raise ValueError(
        f'padding must hold the graphs of rows, {shape}; got {paddings[-1]}.'
    ) from None


def _padded(batch, padding):
  nodes, edges, members, num_graphs = padding
  return graphs_lib.GraphBatch(
      nodes=_pad(batch.nodes, nodes, 0),
      node_counts=_pad(batch.node_counts, nodes, 0),
      senders=_pad(batch.senders, edges, nodes),
      receivers=_pad(batch.receivers, edges, nodes),
      members=_pad(batch.members, members, nodes),
      graph_ids=_pad(batch.graph_ids, members, num_graphs),
      member_counts=_pad(batch.member_counts, members, 0),
      graph_mask=np.arange(num_graphs) < len(batch.index),
      label=_pad(batch.label, num_graphs, -1),
      index=_pad(batch.index, num_graphs, -1),
  )


def _round_up(count, least, digits):
  """Rounds to a whole multiple of ``least`` with so many binary digits."""
  unit = max(1 << max(int(count).bit_length() - digits, 0), least)
  return max(-(-int(count) // unit), 1) * unit


def _pad(values, length, filler):
  dtype = np.float32 if values.dtype.kind == 'f' else np.int32
  padded = np.full((length, *values.shape[1:]), filler, dtype)
  padded[: len(values)] = values
  return padded
