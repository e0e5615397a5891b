# SPDX-License-Identifier: Apache-2.0
"""What the training loop asks of an experiment."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import Protocol

import jax
import ml_collections
import optax

from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib

# Numbers by ``protocol/measure``; some protocols add what these come from.
Scores = dict[str, Any]


class Reader(Protocol):
  """Evaluates states."""

  def evaluate(
      self, state: state_lib.TrainState, protocols: tuple[str, ...]
  ) -> Scores:
    """Returns scores by ``protocol/measure``."""


class Experiment(Protocol):
  """All that a run needs; making one has checked all that can be.

  Attributes:
    config: the configuration.
    learning_rate: by step.
    unit: what a batch has rows of.
    score: what is measured during training and chooses the best step.
  """

  config: ml_collections.ConfigDict
  learning_rate: optax.Schedule
  unit: str
  score: str

  @property
  def total_steps(self) -> int:
    """Returns the length of the run."""

  @property
  def steps_per_epoch(self) -> int:
    """Returns the batches of an epoch."""

  @property
  def rows_per_step(self) -> float:
    """Returns the rows of a batch, on average."""

  @property
  def devices(self) -> list[jax.Device]:
    """Returns the devices that rows of this process go to."""

  @property
  def protocols(self) -> tuple[str, ...]:
    """Returns what the run is scored by at its end."""

  def create_state(self) -> state_lib.TrainState:
    """Returns the state before the first step."""

  def make_step(self) -> step_lib.Step:
    """Returns the function that trains on one batch."""

  def batches(
      self, first_step: int, num_steps: int
  ) -> Iterator[dict[str, Any]]:
    """Yields batches first_step, first_step + 1, ..."""

  def reader(self, poll: Callable[[], None] = lambda: None) -> Reader:
    """Returns what evaluates; ``poll`` is called meanwhile and may raise."""

  def summary(self) -> str:
    """Returns one line on what was trained and how it is scored."""


def numbers(scores: Scores) -> dict[str, float]:
  """Returns the scores that are numbers."""
  return {name: x for name, x in scores.items() if isinstance(x, float)}
