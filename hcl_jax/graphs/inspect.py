# SPDX-License-Identifier: Apache-2.0
"""Shows a run on graphs: embeddings, negatives and drawings."""

from typing import Any

import numpy as np

from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import sample as sample_lib
from hcl_jax.training import state as state_lib

_MAX_NODES = 100  # of a picture
# Nodes are blue, because frames around pictures are orange.
_NODE, _EDGE, _PAPER = (0, 114, 178), (90, 90, 90), (255, 255, 255)
_OVERSAMPLING = 3


def sample(
    experiment: experiment_lib.Experiment, state: state_lib.TrainState
) -> sample_lib.Sample:
  """Takes all graphs, and the first batch: a node of each and the others."""
  graphs, epoch, features = experiment.data
  batch = epoch[0]
  there = batch.member_counts > 0
  _, first = np.unique(batch.graph_ids[there], return_index=True)
  index = batch.index[batch.graph_mask]
  compared = sample_lib.compiled(experiment.task.compared, state)
  nodes, pooled = map(np.asarray, compared(batch))
  scores = nodes[batch.members[there]] @ pooled[: len(index)].T
  others = batch.graph_ids[there][:, None] != np.arange(len(index))
  # Released weights grow as the scores fall.
  loss = experiment.config.loss
  sign = -1 if loss.variant == 'released' else 1
  tilts = sign * sample_lib.clip_factor(scores, others) * scores
  order = np.concatenate([index, np.setdiff1d(np.arange(len(graphs)), index)])
  items = np.arange(len(index))
  return sample_lib.Sample(
      embeddings=features(state, epoch)[order],
      labels=graphs.labels[order],
      items=np.stack([_draw_graph(graphs, row) for row in index]),
      item_names=[_describe_graph(graphs, row) for row in index],
      negatives=sample_lib.Negatives(
          None, tilts[first], others[first], items, items, _tau_plus(loss)
      ),
  )


def stress_layout(distances: Any, *, num_steps: int = 60) -> np.ndarray:
  r"""Places nodes in the plane at about the given distances.

  Minimizes the stress

  .. math::
    \sum_{u < v} d_{uv}^{-2} \, (\|x_u - x_v\| - d_{uv})^2

  by majorization, from the two leading coordinates of classical scaling.

  Args:
    distances: shortest paths between nodes, finite, ``[n, n]``.
    num_steps: steps of majorization.

  Returns:
    Positions ``[n, 2]`` with mean 0.

  References:
    Gansner, Koren and North, Graph Drawing by Stress Majorization, 2004.
  """
  d = np.asarray(distances, np.float64)
  if d.ndim != 2 or d.shape[0] != d.shape[1] or not np.isfinite(d).all():
    raise ValueError(
        'distances must be a finite square matrix; got shape '
        f'{d.shape}. Give disconnected nodes a large distance.'
    )
  n = len(d)
  if n == 1:
    return np.zeros((1, 2))
  weights = 1 / np.where(d > 0, d, np.inf) ** 2
  laplacian = np.diag(weights.sum(axis=1)) - weights
  solve = np.linalg.pinv(laplacian)
  x = _classical_scaling(d)
  for _ in range(num_steps):
    lengths = np.linalg.norm(x[:, None] - x[None, :], axis=-1)
    ratios = weights * d / np.where(lengths > 0, lengths, 1)
    x = solve @ (ratios.sum(axis=1)[:, None] * x - ratios @ x)
  return x - x.mean(axis=0)


def graph_picture(
    num_nodes: int, senders: Any, receivers: Any, *, size: int = 64
) -> np.ndarray:
  """Draws a small picture of a graph.

  Args:
    num_nodes: number of nodes; beyond 100, only those nearest to the node with
      the most neighbors are drawn.
    senders: first node of each edge, integers ``[num_edges]``.
    receivers: second node of each edge.
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
    center = np.argmax(matrix.getnnz(axis=0))
    order = csgraph.breadth_first_order(
        matrix, center, directed=False, return_predecessors=False
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
    pen.line(ends, fill=_EDGE, width=max(round(radius / 2), 1))
  for x, y in places:
    box = x - radius, y - radius, x + radius, y + radius
    pen.ellipse(box, fill=_NODE)
  return np.asarray(picture.resize((size, size), Image.Resampling.LANCZOS))


def _tau_plus(loss):
  """Returns tau_plus, or the default of the variant."""
  if loss.tau_plus is not None:
    return loss.tau_plus
  return 0.5 if loss.variant == 'released' else 0.0


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
  centering = np.eye(n) - 1 / n
  gram = -0.5 * centering @ distances**2 @ centering
  values, vectors = np.linalg.eigh(gram)
  leading = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))
  # Noise, because nodes at one position would never separate.
  rng = np.random.default_rng(0)
  return leading + 1e-3 * rng.standard_normal(leading.shape)
