# SPDX-License-Identifier: Apache-2.0
"""Embeds new graphs by the encoder of a run."""

from collections.abc import Mapping
from typing import Any

import ml_collections
import numpy as np

from hcl_jax.graphs import data as graph_data
from hcl_jax.graphs import evaluate
from hcl_jax.graphs import task as infograph
from hcl_jax.training import encoder as encoder_lib
from hcl_jax.training import own_code
from hcl_jax.training import state as state_lib

# What encoders of two runs must have in common, of ``inputs``.
MUST_AGREE = ('node_features',)


def inputs(graphs: graph_data.Graphs) -> dict[str, Any]:
  """Returns what must be known of graphs to embed others."""
  features = graphs.features
  return {
      'num_features': graphs.num_features,
      'node_features': features and features._asdict(),
  }


def with_shared_rows(
    config: ml_collections.ConfigDict, graphs: graph_data.Graphs
) -> graph_data.Graphs:
  """Merges rows of nodes that the GIN cannot tell apart.

  An encoder of one's own may tell them apart, so it gets a row for each node.
  """
  if own_code.named(config):
    return graphs
  return graphs.colored(config.model.num_layers)


def make(
    config: ml_collections.ConfigDict, inputs: Mapping[str, Any]
) -> encoder_lib.Parts:
  """Makes the encoder of a configuration, without its parameters.

  It takes :class:`hcl_jax.graphs.Graphs` whose nodes have the features of those
  trained on.
  """
  task = infograph.create(config, total_steps=1, steps_per_epoch=1)
  width = inputs['num_features']
  features = evaluate.Features(task)

  def embed(
      state: state_lib.TrainState,
      rows: Any,
      progress: encoder_lib.ShowProgress,
  ) -> np.ndarray:
    if not isinstance(rows, graph_data.Graphs) or rows.num_features != width:
      raise ValueError(
          f'rows must be hcl_jax.graphs.Graphs with {width} features of a '
          f'node, as the run was trained on; got {_describe(rows)}.'
      )
    batches = graph_data.GraphBatches(
        with_shared_rows(config, rows),
        seed=config.seed,
        batch_size=config.data.batch_size,
    )
    done = 0

    def poll():
      nonlocal done
      progress(min(done, len(rows)))
      done += config.data.batch_size

    found = features.spread(state, batches, poll)
    progress(len(rows))
    return found

  def read(path):
    recorded = inputs['node_features']
    if recorded is None:
      raise ValueError(
          'the graphs of the run were not read from files, so how features of '
          'nodes are made is not known; embed hcl_jax.graphs.Graphs in Python.'
      )
    graphs = graph_data.read_graphs(path, graph_data.NodeFeatures(**recorded))
    return graphs, [str(i) for i in range(len(graphs))]

  return encoder_lib.Parts(
      task=task,
      module=task.module,
      example=example(width),
      inputs=inputs,
      embed=embed,
      read=read,
      unit='graphs',
  )


def example(num_features: int) -> Any:
  """Returns a batch of one graph of two nodes, for its shapes."""
  return graph_data.Graphs(
      nodes=np.zeros((2, num_features)),
      num_nodes=[2],
      senders=[1, 0],
      receivers=[0, 1],
      num_edges=[2],
      labels=[0],
  ).batch([0])


def _describe(rows):
  if isinstance(rows, graph_data.Graphs):
    return f'{rows.num_features} features'
  return type(rows).__name__
