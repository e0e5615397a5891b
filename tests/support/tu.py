# SPDX-License-Identifier: Apache-2.0
"""Small collections of graphs as TU text files, for tests."""

import pathlib
import zipfile

import numpy as np

from hcl_jax.graphs import data as graph_data


def write(folder: pathlib.Path, name: str = 'TOY', **files: str) -> None:
  """Two graphs: a path of three nodes and a triangle beside a lone node.

  Args:
    folder: where to write.
    name: of the collection.
    **files: contents that replace those of files, or None to leave one out.
  """
  contents = {
      'A': '1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n5, 4\n5, 6\n6, 5\n4, 6\n6, 4\n',
      'graph_indicator': '1\n1\n1\n2\n2\n2\n2\n',
      'graph_labels': '1\n-1\n',
      'node_labels': '3\n5\n3\n3\n3\n4\n5\n',
  } | files
  folder.mkdir(parents=True, exist_ok=True)
  for kind, content in contents.items():
    if content is not None:
      (folder / f'{name}_{kind}.txt').write_text(content)


def write_graphs(
    folder: pathlib.Path, graphs: graph_data.Graphs, name: str = 'TOY'
) -> None:
  """Graphs whose nodes have one-hot features, as files."""
  sizes = np.diff(graphs.node_starts)
  first = np.repeat(graphs.node_starts[:-1], np.diff(graphs.edge_starts)) + 1
  edges = zip(graphs.senders + first, graphs.receivers + first, strict=True)
  lines = lambda values: ''.join(f'{value}\n' for value in values)  # noqa: E731
  write(
      folder,
      name,
      A=lines(f'{u}, {v}' for u, v in edges),
      graph_indicator=lines(np.repeat(np.arange(len(graphs)) + 1, sizes)),
      graph_labels=lines(graphs.labels),
      node_labels=lines(graphs.nodes.argmax(axis=1)),
  )


def zip_folder(folder: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
  """The files of a folder in an archive, below the folder's name."""
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
    for file in sorted(folder.iterdir()):
      archive.write(file, f'{folder.name}/{file.name}')
  return path


def random_graphs(
    num_graphs: int = 20, *, num_features: int = 4, seed: int = 0
) -> graph_data.Graphs:
  """Graphs of 4 to 9 nodes: trees, and complete ones of class 1."""
  rng = np.random.default_rng(seed)
  labels = np.arange(num_graphs) % 2
  num_nodes = rng.integers(4, 10, num_graphs)
  edges = []
  for count, label in zip(num_nodes, labels, strict=True):
    pairs = {(rng.integers(v), v) for v in range(1, count)}
    if label:
      pairs |= {(u, v) for u in range(count) for v in range(u + 1, count)}
    both = pairs | {(v, u) for u, v in pairs}
    edges.append(sorted(both, key=lambda pair: (pair[1], pair[0])))
  senders, receivers = np.concatenate(edges).T
  kinds = rng.integers(0, num_features, num_nodes.sum())
  return graph_data.Graphs(
      nodes=np.eye(num_features)[kinds],
      num_nodes=num_nodes,
      senders=senders,
      receivers=receivers,
      num_edges=np.array([len(pairs) for pairs in edges]),
      labels=labels,
  )


def paths(num_nodes: np.ndarray) -> graph_data.Graphs:
  """Graphs that are paths of so many nodes."""
  forth = [np.stack([np.arange(n - 1), np.arange(1, n)]) for n in num_nodes]
  edges = [np.concatenate([x, x[::-1]], axis=1) for x in forth]
  edges = [x[:, np.argsort(x[1], kind='stable')] for x in edges]
  senders, receivers = np.concatenate(edges, axis=1)
  return graph_data.Graphs(
      nodes=np.ones((sum(num_nodes), 1)),
      num_nodes=num_nodes,
      senders=senders,
      receivers=receivers,
      num_edges=2 * (num_nodes - 1),
      labels=np.arange(len(num_nodes)) % 2,
  )
