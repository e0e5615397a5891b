# SPDX-License-Identifier: Apache-2.0
"""Makes the experiment that a configuration of graphs describes."""

from collections.abc import Iterable
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
import ml_collections

from hcl_jax.graphs import config as graph_config
from hcl_jax.graphs import data as graph_data
from hcl_jax.graphs import encode
from hcl_jax.graphs import evaluate
from hcl_jax.graphs import inspect
from hcl_jax.graphs import task as infograph
from hcl_jax.storage import sources
from hcl_jax.training import config as config_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import own_code


class Data(NamedTuple):
  """Holds the graphs of an experiment.

  Attributes:
    graphs: to train on and to cross-validate on.
    epoch: the batches of an epoch, which every epoch repeats.
    features: embeds all graphs.
  """

  graphs: graph_data.Graphs
  epoch: graph_data.GraphBatches
  features: evaluate.Features


def prepare(
    config: ml_collections.ConfigDict,
    *,
    to_train: bool = True,
    like: experiment_lib.Experiment | None = None,
    data: graph_data.Graphs | Iterable[Any] | None = None,
) -> experiment_lib.Experiment:
  """Opens the data of a checked configuration, or those of ``like``.

  Args:
    config: the whole configuration.
    to_train: as in ``domains.make_experiment``.
    like: likewise; compiled programs are shared too.
    data: graphs at hand, as ``graphs.data.collect`` takes them.
  """
  del to_train  # there always is a device
  if like:
    graph_config.check_graphs(config, like.data.graphs.labels)
    experiment = _assemble(config, like.data.graphs, like.data.features)
    return dataclasses.replace(experiment, inputs=like.inputs)
  if data is None:
    graphs = graph_data.load_graphs(
        config.data.name, data_dir=config.data.dir or None
    )
    return from_graphs(config, graphs)
  graphs = graph_data.collect(data)
  experiment = from_graphs(config, graphs)
  digest = sources.digest([
      graphs.nodes, graphs.node_starts, graphs.senders, graphs.receivers,
      graphs.edge_starts, graphs.labels,
  ])  # fmt: skip
  return dataclasses.replace(
      experiment, inputs={**experiment.inputs, 'data_digest': digest}
  )


def from_graphs(
    config: ml_collections.ConfigDict, graphs: graph_data.Graphs
) -> experiment_lib.Experiment:
  """Makes the experiment of a configuration on graphs that are at hand.

  Its ``data.name`` is only a name.

  Raises:
    ValueError: a value cannot work; the message names its field.
  """
  graph_config.check(config)
  graph_config.check_graphs(config, graphs.labels)
  if own_code.named(config):
    own_code.check(infograph.create_encoder(config), (graphs.batch([0]),))
  return _assemble(config, encode.with_shared_rows(config, graphs))


def _assemble(config, graphs, features=None):
  epoch = graph_data.GraphBatches(
      graphs, seed=config.seed, batch_size=config.data.batch_size
  )
  total = config_lib.total_steps(config, len(epoch))
  make_task = functools.partial(
      infograph.create, total_steps=total, steps_per_epoch=len(epoch)
  )
  features = features or evaluate.Features(make_task(config))
  return experiment_lib.Experiment(
      config=config,
      make_task=make_task,
      example=graphs.batch([0]),
      batches=functools.partial(_batches, epoch),
      evaluators=evaluate.make(config, graphs.labels, epoch, features),
      protocols=tuple(config.evaluate.protocols),
      score=graph_config.SCORE,
      steps_per_epoch=len(epoch),
      rows_per_step=len(graphs) / len(epoch),
      unit='graphs',
      summary=(
          f'{config.data.name}: {len(graphs)} graphs, {total} steps of up to '
          f'{config.data.batch_size}, seed {config.seed}; '
          f'{config.evaluate.folds}-fold cross-validation'
      ),
      sample=inspect.sample,
      data=Data(graphs, epoch, features),
      num_scored=len(graphs),
      inputs=encode.inputs(graphs),
      # Batches are small: other devices may train other runs.
      device=jax.local_devices()[0],
  )


def _batches(epoch, first_step, num_steps):
  """Yields batches, the same in every epoch."""
  for step in range(first_step, first_step + num_steps):
    yield epoch[step % len(epoch)]
