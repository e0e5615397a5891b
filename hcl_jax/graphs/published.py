# SPDX-License-Identifier: Apache-2.0
"""The published statistics of eight collections, and whether one has them."""

import pathlib
from typing import NamedTuple

from hcl_jax.graphs import tu_text as text

NAME = 'tu_graphs'
URL = 'https://www.chrsmrrs.com/graphkerneldatasets/{}.zip'


class Statistics(NamedTuple):
  """Counts; nodes and undirected edges are means over graphs."""

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


def full_name(name: str) -> str:
  """``'tu_graphs/MUTAG'`` for ``'MUTAG'``; other names as they are."""
  return f'{NAME}/{name}' if name in STATISTICS else name


def measure(graphs: text.TuGraphs) -> Statistics:
  """The statistics of a collection."""
  count = len(graphs.labels)
  return Statistics(
      graphs=count,
      classes=int(graphs.labels.max()) + 1,
      nodes=len(graphs.graph_ids) / count,
      edges=len(graphs.senders) / 2 / count,
  )


def check(path: pathlib.Path, name: str, graphs: text.TuGraphs) -> None:
  """Raises a ValueError if a known collection is not what was published."""
  expected, found = STATISTICS.get(name), measure(graphs)
  if expected is not None and str(found) != str(expected):
    raise ValueError(
        f'{path} is not {name} as published: it has {found}, but {name} has '
        f'{expected}.'
    )
