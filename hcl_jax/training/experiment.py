# SPDX-License-Identifier: Apache-2.0
"""Describes an experiment: all that a run needs, whatever its domain."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import NamedTuple
from typing import Protocol

import jax
import numpy as np
import optax

from hcl_jax.runs import scores as scores_lib
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import optimizer as optimizer_lib
from hcl_jax.training import sample as sample_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import tables
from hcl_jax.training import task as task_lib


class Poll(Protocol):
  """Interface of what a long evaluation calls often."""

  def __call__(self, done: int = 0, total: int = 0, unit: str = '', /) -> None:
    """Takes how much is done, if that is counted; raises to leave."""


# Yields names, as protocol/measure, and scores of a state, the main one first.
# Some add details that are no scores, such as a list of folds.
Evaluator = Callable[[state_lib.TrainState, Poll], Iterable[tuple[str, Any]]]


class Begin(Protocol):
  """Gives a fresh state what another run has learned."""

  def check(self, state: state_lib.TrainState) -> None:
    """Raises what a call would, for a state that may have shapes only."""

  def __call__(
      self, state: state_lib.TrainState
  ) -> tuple[state_lib.TrainState, str]:
    """Returns the state, and a line that says what it was given."""
    ...


class Refresh(NamedTuple):
  """Says what batches take from the state every so many steps.

  What is computed is saved with the run, so that a resumed one goes on with it.

  Attributes:
    every: steps between computations; the first is after so many.
    compute: ``(state, poll) -> arrays by name``, the same in every process.
    doing: what it does, such as 'mining', for progress.
  """

  every: int
  compute: Callable[[state_lib.TrainState, Poll], Mapping[str, np.ndarray]]
  doing: str


class Programs(NamedTuple):
  """Functions that compile when they are called.

  Attributes:
    init: ``hyperparameters -> state`` before the first step.
    step: ``(hyperparameters, state, batch) -> (state, metrics)``; uses the
      state up.
  """

  init: Callable[[step_lib.Hyperparameters], state_lib.TrainState]
  step: step_lib.Step


@dataclasses.dataclass(frozen=True)
class Experiment:
  """All that a run needs; making one has checked all that can be checked.

  Attributes:
    config: the whole configuration.
    make_task: makes the task of a configuration whose hyperparameters may be
      traced.
    example: some rows, for their shapes.
    batches: yields the batches ``first_step``, ``first_step + 1``, ... of this
      process, given that step and their number; with ``refresh`` also what was
      computed last, None before the first time.
    evaluators: by protocol.
    protocols: those of the end of a run.
    score: the score that is measured during training and chooses the best step.
    steps_per_epoch: batches of an epoch.
    rows_per_step: rows of a batch of all processes, on average.
    unit: what a row is, in the plural.
    summary: one line on what is trained and how it is scored.
    sample: takes a sample of what a state makes of the data, to look at; a
      function of the experiment and the state.
    data: what the room itself keeps of its data.
    device: the device that trains; None: all devices of all processes share
      every batch.
    num_scored: rows that shares are of, if all are of the same.
    inputs: what must be known of the data to embed new rows, as JSON can keep
      it; None: the room cannot embed any.
    begin: gives the state before the first step what another run has learned;
      None: the run begins afresh.
    refresh: what batches take from the state, if anything.
    compiler_options: XLA's, if others than those of image encoders.
    model_fields: fields of ``config.model`` that the model has; None: all.
  """

  config: fields_lib.Config
  make_task: Callable[[fields_lib.Config], task_lib.Task]
  example: task_lib.Batch
  batches: Callable[..., Iterator[task_lib.Batch]]
  evaluators: Mapping[str, Evaluator]
  protocols: Sequence[str]
  score: str
  steps_per_epoch: int
  rows_per_step: float
  unit: str
  summary: str
  sample: Callable[['Experiment', state_lib.TrainState], sample_lib.Sample]
  data: Any = None
  device: state_lib.Device | None = None
  num_scored: int | None = None
  inputs: Mapping[str, Any] | None = None
  begin: Begin | None = None
  refresh: Refresh | None = None
  compiler_options: Mapping[str, Any] | None = None
  model_fields: Sequence[str] | None = None

  def __post_init__(self):
    if self.device is not None and jax.process_count() > 1:
      raise ValueError(
          f'config.task={self.config.task!r} trains in one process, got '
          f'{jax.process_count()}; give each of them a run of its own.'
      )

  @functools.cached_property
  def total_steps(self) -> int:
    """Returns the length of the run."""
    return config_lib.total_steps(self.config, self.steps_per_epoch)

  @property
  def evaluation(self) -> dict[str, Any]:
    """Returns what the scores of the end of a given run depend on."""
    return {'step': self.total_steps, **self.config.evaluate.to_dict()}

  @functools.cached_property
  def learning_rate(self) -> optax.Schedule:
    """Returns the learning rate by step."""
    return self._learning_rate(self.config)

  @functools.cached_property
  def task(self) -> task_lib.Task:
    """Returns the task of the configuration."""
    return self.make_task(self.config)

  @functools.cached_property
  def hyperparameters(self) -> step_lib.Hyperparameters:
    """Returns the numbers that compiled programs take as arguments."""
    return config_lib.hyperparameters(self.config)

  def build(self, hyperparameters: step_lib.Hyperparameters) -> step_lib.Rules:
    """Builds task and optimizer; hyperparameters may be traced."""
    config = fields_lib.with_values(self.config, hyperparameters)
    optimizer = optimizer_lib.create(
        config.optimizer, self._learning_rate(config)
    )
    return step_lib.Rules(
        self.make_task(config),
        optimizer,
        config.seed,
        config.optimizer.ema_decay,
    )

  def programs(self) -> Programs:
    """Returns programs for this run and those that share its programs.

    Runs share programs if they differ in ``training.config.TRACED`` fields
    only, which are arguments. They are so in a run by itself too: constants
    would be compiled to other rounding, and small differences grow.
    """
    create = jax.jit(lambda h: self.build(h).create_state(self.example))
    devices = [self.device] if self.device else state_lib.all_devices()
    # A task whose rows meet across devices needs their axis, if of length 1.
    has_axis = getattr(self.task, 'axis_name', None) is not None
    step = step_lib.make_step(
        self.build,
        devices=None if self.device and not has_axis else devices,
        microbatch_size=self.config.train.get('microbatch_size') or None,
        read_by_loss=getattr(self.task, 'read_by_loss', step_lib.READ_BY_LOSS),
        has_tables=tables.has_tables(self.task),
        compiler_options=self.compiler_options,
    )
    return Programs(lambda h: state_lib.replicate(create(h), devices), step)

  def create_state(self) -> state_lib.TrainState:
    """Creates the state before the first step."""
    return self.programs().init(self.hyperparameters)

  def check_begin(self) -> None:
    """Raises what ``begin`` would, without making a state."""
    if self.begin is not None:
      rules = self.build(self.hyperparameters)
      self.begin.check(jax.eval_shape(rules.create_state, self.example))

  def inspect(self, state: state_lib.TrainState) -> sample_lib.Sample:
    """Takes a sample of what a state makes of the data, to look at."""
    return self.sample(self, state)

  def evaluate(
      self,
      state: state_lib.TrainState,
      protocols: Sequence[str] | None = None,
      poll: Poll = lambda *_: None,
  ) -> scores_lib.Scores:
    """Scores a state by protocols; None: those of the end of a run.

    ``poll`` is called often, with what is done; it raises to leave.
    """
    scores = {}
    for protocol in self.protocols if protocols is None else protocols:
      scores |= dict(self.evaluators[protocol](state, poll))
    return scores

  def _learning_rate(self, config):
    return optimizer_lib.learning_rate(
        config.optimizer, self.total_steps, self.steps_per_epoch
    )
