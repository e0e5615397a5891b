# SPDX-License-Identifier: Apache-2.0
"""What a report shows of a run on graphs."""

from typing import Any

import numpy as np

from hcl_jax.graphs import experiment as graph_experiment
from hcl_jax.training import sample as sample_lib
from hcl_jax.training import state as state_lib

_MAX_NODES = 100
_ROUNDS = 60
# Blue, as frames around pictures are orange.
_INK, _LINE, _PAPER = (0, 114, 178), (90, 90, 90), (255, 255, 255)
_OVERSAMPLING = 3


def sample(
    experiment: graph_experiment.GraphExperiment, state: state_lib.TrainState
) -> sample_lib.Sample:
  """All graphs, and the first batch: a node of each against the others."""
  batch, graphs = experiment.epoch[0], experiment.graphs
  there = batch.member_counts > 0
  _, first = np.unique(batch.graph_ids[there], return_index=True)
  index = batch.index[batch.graph_mask]
  compared = sample_lib.compiled(experiment.task.compared, state)
  nodes, pooled = map(np.asarray, compared(batch._asdict()))
  scores = nodes[batch.members[there]] @ pooled[: len(index)].T
  others = batch.graph_ids[there][:, None] != np.arange(len(index))
  # Released weights grow as the scores fall.
  sign = -1 if experiment.config.loss.variant == 'released' else 1
  tilts = sign * sample_lib.clip_factor(scores, others) * scores
  order = np.concatenate([index, np.setdiff1d(np.arange(len(graphs)), index)])
  features = experiment.reader().features(state)
  items = np.arange(len(index))
  return sample_lib.Sample(
      embeddings=features[order],
      labels=graphs.labels[order],
      items=np.stack([_draw_graph(graphs, row) for row in index]),
      item_names=[_describe_graph(graphs, row) for row in index],
      negatives=sample_lib.Negatives(
          None, tilts[first], others[first], items, items
      ),
  )


def stress_layout(distances: Any, *, rounds: int = _ROUNDS) -> np.ndarray:
  r"""Places nodes in the plane so that they lie as far apart as a graph says.

  Lowers the stress

  .. math::
    \sum_{u < v} d_{uv}^{-2} \, (\|x_u - x_v\| - d_{uv})^2

  by majorisation, from the two leading coordinates of classical scaling.

  Args:
    distances: shortest paths between nodes, finite, ``[n, n]``.
    rounds: of majorisation.

  Returns:
    Places ``[n, 2]`` with mean 0.

  References:
    Gansner, Koren and North, Graph Drawing by Stress Majorization, 2004.
  """
  d = np.asarray(distances, np.float64)
  if d.ndim != 2 or d.shape[0] != d.shape[1] or not np.isfinite(d).all():
    raise ValueError(
        'distances must be a finite square matrix; got shape '
        f'{d.shape}. Give unconnected nodes a large distance.'
    )
  n = len(d)
  if n == 1:
    return np.zeros((1, 2))
  weights = 1 / np.where(d > 0, d, np.inf) ** 2
  laplacian = np.diag(weights.sum(axis=1)) - weights
  solve = np.linalg.pinv(laplacian)
  x = _classical_scaling(d)
  for _ in range(rounds):
    apart = x[:, None] - x[None, :]
    length = np.linalg.norm(apart, axis=-1)
    pull = weights * d / np.where(length > 0, length, 1)
    x = solve @ (pull.sum(axis=1)[:, None] * x - pull @ x)
  return x - x.mean(axis=0)


def graph_picture(
    num_nodes: int, senders: Any, receivers: Any, *, size: int = 64
) -> np.ndarray:
  """Draws a graph: lines for edges, dots for nodes.

  Args:
    num_nodes: number of nodes; of more than 100, those that are nearest to the
      one with the most neighbours are drawn.
    senders: where each edge begins, integers ``[num_edges]``.
    receivers: where it ends.
    size: height and width in pixels.

  Returns:
    uint8 ``[size, size, 3]``.
  """
  from PIL import Image
  from PIL import ImageDraw
  from scipy import sparse
  from scipy.sparse import csgraph

  ends = np.asarray(senders), np.asarray(receivers)
  matrix = sparse.csr_matrix(
      (np.ones(len(ends[0])), ends), shape=(num_nodes, num_nodes)
  )
  if num_nodes > _MAX_NODES:
    centre = np.argmax(matrix.getnnz(axis=0))
    order = csgraph.breadth_first_order(
        matrix, centre, directed=False, return_predecessors=False
    )
    matrix = matrix[order[:_MAX_NODES]][:, order[:_MAX_NODES]]
  distances = csgraph.shortest_path(matrix, directed=False, unweighted=True)
  known = distances[np.isfinite(distances)]
  distances[np.isinf(distances)] = known.max() + 1
  places = stress_layout(distances)
  wide = size * _OVERSAMPLING
  reach = np.abs(places).max() or 1
  radius = wide * float(np.clip(0.14 / np.sqrt(len(places)), 0.01, 0.05))
  places = wide / 2 + places / reach * (wide / 2 - 1.5 * radius)
  picture = Image.new('RGB', (wide, wide), _PAPER)
  pen = ImageDraw.Draw(picture)
  for u, v in zip(*matrix.nonzero(), strict=True):
    ends = (*places[u], *places[v])
    pen.line(ends, fill=_LINE, width=max(round(radius / 2), 1))
  for x, y in places:
    box = x - radius, y - radius, x + radius, y + radius
    pen.ellipse(box, fill=_INK)
  return np.asarray(picture.resize((size, size), Image.Resampling.LANCZOS))


def _draw_graph(graphs, row):
  edges = slice(*graphs.edge_starts[row : row + 2])
  return graph_picture(
      np.diff(graphs.node_starts)[row],
      graphs.senders[edges],
      graphs.receivers[edges],
  )


def _describe_graph(graphs, row):
  nodes = np.diff(graphs.node_starts)[row]
  return f'graph {row}, {nodes} nodes, class {graphs.labels[row]}'


def _classical_scaling(distances):
  n = len(distances)
  centre = np.eye(n) - 1 / n
  values, vectors = np.linalg.eigh(-0.5 * centre @ distances**2 @ centre)
  leading = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))
  # Nodes of one place would never part.
  rng = np.random.default_rng(0)
  return leading + 1e-3 * rng.standard_normal(leading.shape)
