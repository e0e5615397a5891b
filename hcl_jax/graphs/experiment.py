# SPDX-License-Identifier: Apache-2.0
"""What a configuration of graphs stands for."""

from collections.abc import Callable
from collections.abc import Iterator
import functools
from typing import NamedTuple

import jax
import ml_collections
import numpy as np
import optax

from hcl_jax.graphs import config as graph_config
from hcl_jax.graphs import data as graph_data
from hcl_jax.graphs import evaluate as graph_readout
from hcl_jax.graphs import task as infograph
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import optimizer as optimizer_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib


class GraphExperiment(NamedTuple):
  """All that a run on graphs needs; to the loop, an ``Experiment``.

  Batches are small, so one device trains; others may train other runs.

  Attributes:
    config: the configuration.
    graphs: to train on and to cross-validate on.
    epoch: the batches of an epoch.
    total_steps: length of the run.
    task: model and loss.
    learning_rate: by step.
    optimizer: with that learning rate.
  """

  config: ml_collections.ConfigDict
  graphs: graph_data.Graphs
  epoch: graph_data.GraphBatches
  total_steps: int
  task: task_lib.Task
  learning_rate: optax.Schedule
  optimizer: optax.GradientTransformation

  unit = 'graphs'
  score = graph_config.SCORE

  @property
  def steps_per_epoch(self) -> int:
    return len(self.epoch)

  @property
  def rows_per_step(self) -> float:
    return len(self.graphs) / len(self.epoch)

  @property
  def protocols(self) -> tuple[str, ...]:
    return tuple(self.config.evaluate.protocols)

  @property
  def devices(self) -> list[jax.Device]:
    return jax.local_devices()[:1]

  def create_state(self) -> state_lib.TrainState:
    """The state before the first step."""
    state = self.rules().create_state(self.graphs.batch([0])._asdict())
    return jax.device_put(state, state_lib.replicated(self.devices))

  def rules(self) -> step_lib.Rules:
    return step_lib.configured_rules(self.task, self.optimizer, self.config)

  def make_step(self) -> step_lib.Step:
    """The function that trains on one batch."""
    step = step_lib.compile_lone(
        functools.partial(take_step, self), donate_argnums=1
    )
    return functools.partial(step, config_lib.hyperparameters(self.config))

  def batches(
      self, first_step: int, num_steps: int
  ) -> Iterator[dict[str, np.ndarray]]:
    """Batches first_step, first_step + 1, ..., the same in every epoch."""
    for step in range(first_step, first_step + num_steps):
      yield self.epoch[step % len(self.epoch)]._asdict()

  def reader(
      self, poll: Callable[[], None] = lambda: None
  ) -> graph_readout.GraphReader:
    """What evaluates; ``poll`` is called on the way and may raise."""
    return graph_readout.GraphReader(
        self.config,
        self.task,
        self.epoch,
        labels=self.graphs.labels,
        device=self.devices[0],
        poll=poll,
    )

  def summary(self) -> str:
    """One line on what was trained and how it is scored."""
    config = self.config
    return (
        f'{config.data.name}: {len(self.graphs)} graphs, {self.total_steps} '
        f'steps of up to {config.data.batch_size}, seed {config.seed}; '
        f'{config.evaluate.folds}-fold cross-validation'
    )


def take_step(
    experiment: GraphExperiment,
    knobs: dict[str, jax.Array],
    state: state_lib.TrainState,
    batch: dict[str, jax.Array],
) -> tuple[state_lib.TrainState, step_lib.Metrics]:
  """A step of a run whose knobs are arguments.

  They are so in a run by itself too: a constant would be compiled to other
  rounding, and small differences grow, so no run of a sweep would be the run
  that its values describe.

  Args:
    experiment: all else.
    knobs: as of :func:`config_lib.hyperparameters`.
    state: before the step.
    batch: fields of a batch.

  Returns:
    The state after the step, and metrics.
  """
  traced = with_knobs(experiment, knobs)
  # optax raises traced decays to whole powers, which may be forbidden.
  with jax.numpy_dtype_promotion('standard'):
    return step_lib.lone_step(traced.rules(), state, batch)


def with_knobs(
    experiment: GraphExperiment, knobs: dict[str, jax.Array]
) -> GraphExperiment:
  """The experiment with other, perhaps traced, values of some fields."""
  config = fields_lib.with_values(experiment.config, knobs)
  return assemble(config, experiment.graphs, experiment.epoch)


def prepare(
    config: ml_collections.ConfigDict, *, to_train: bool = True
) -> GraphExperiment:
  """Opens the data of a checked configuration; writes nothing of a run."""
  del to_train  # one device is always there
  if jax.process_count() > 1:
    raise ValueError(
        f"config.task='infograph' trains in one process, got "
        f'{jax.process_count()}; give each of them a run of its own.'
    )
  graphs = graph_data.load_graphs(
      config.data.name, data_dir=config.data.dir or None
  )
  return from_graphs(config, graphs)


def from_graphs(
    config: ml_collections.ConfigDict, graphs: graph_data.Graphs
) -> GraphExperiment:
  """The experiment of a configuration on graphs that are at hand.

  Args:
    config: its ``data.name`` is only a name.
    graphs: to train on and to cross-validate on.

  Returns:
    The experiment.

  Raises:
    ValueError: a value cannot work; the message names its field.
  """
  graph_config.check(config)
  graph_config.check_graphs(config, graphs.labels)
  graphs = graphs.colored(config.model.num_layers)
  epoch = graph_data.GraphBatches(
      graphs, seed=config.seed, batch_size=config.data.batch_size
  )
  return assemble(config, graphs, epoch)


def assemble(
    config: ml_collections.ConfigDict,
    graphs: graph_data.Graphs,
    epoch: graph_data.GraphBatches,
) -> GraphExperiment:
  """The experiment of a configuration, whose numbers may be traced.

  Args:
    config: checked before, unless traced.
    graphs: its data set.
    epoch: the batches of an epoch.

  Returns:
    The experiment.
  """
  total = config.train.steps or config.train.epochs * len(epoch)
  schedule = optimizer_lib.learning_rate(config.optimizer, total, len(epoch))
  return GraphExperiment(
      config=config,
      graphs=graphs,
      epoch=epoch,
      total_steps=total,
      task=infograph.create(
          config, total_steps=total, steps_per_epoch=len(epoch)
      ),
      learning_rate=schedule,
      optimizer=optimizer_lib.create(config.optimizer, schedule),
  )
