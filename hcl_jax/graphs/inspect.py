# SPDX-License-Identifier: Apache-2.0
"""Shows a run on graphs: embeddings, negatives and drawings."""

import numpy as np

from hcl_jax import analysis
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import sample as sample_lib
from hcl_jax.training import state as state_lib


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
  sign = -1 if experiment.config.loss.variant == 'released' else 1
  tilts = sign * sample_lib.clip_factor(scores, others) * scores
  order = np.concatenate([index, np.setdiff1d(np.arange(len(graphs)), index)])
  items = np.arange(len(index))
  return sample_lib.Sample(
      embeddings=features(state, epoch)[order],
      labels=graphs.labels[order],
      items=np.stack([_draw_graph(graphs, row) for row in index]),
      item_names=[_describe_graph(graphs, row) for row in index],
      negatives=sample_lib.Negatives(
          None, tilts[first], others[first], items, items
      ),
  )


def _draw_graph(graphs, row):
  edges = slice(*graphs.edge_starts[row : row + 2])
  return analysis.graph_picture(
      np.diff(graphs.node_starts)[row],
      graphs.senders[edges],
      graphs.receivers[edges],
  )


def _describe_graph(graphs, row):
  nodes = np.diff(graphs.node_starts)[row]
  return f'graph {row}, {nodes} nodes, class {graphs.labels[row]}'
