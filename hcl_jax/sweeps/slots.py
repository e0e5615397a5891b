# SPDX-License-Identifier: Apache-2.0
"""Runs on graphs that one device trains as one."""

from collections.abc import Sequence
import functools
from typing import NamedTuple

import jax
import numpy as np

from hcl_jax.graphs import experiment as graph_experiment
from hcl_jax.models import graph_batch as graphs_lib
from hcl_jax.sweeps import grid
from hcl_jax.training import config as config_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib

# Steps that may be under way before the loss of an older one is fetched.
_LAG = 2


class Trained(NamedTuple):
  """What is left of a member at the end of its training.

  Attributes:
    losses: of every step, float32 ``[steps]``.
    grad_norms: the same.
    features: embeddings of all graphs, in the order of the set.
  """

  losses: np.ndarray
  grad_norms: np.ndarray
  features: np.ndarray

  def failed_at(self) -> int | None:
    """The first step whose loss or gradient was not finite, from 1."""
    bad = ~(np.isfinite(self.losses) & np.isfinite(self.grad_norms))
    return int(bad.argmax()) + 1 if bad.any() else None


class Lane:
  """Trains so many members at a time on a device.

  One member is trained by the very program that a run by itself has, several by
  its ``vmap``. Devices are not mapped over: a program for several of them is
  compiled to other rounding.

  Args:
    experiment: what the members have in common.
    device: where to train.
    width: how many members there are at a time.
  """

  def __init__(
      self,
      experiment: graph_experiment.GraphExperiment,
      device: jax.Device,
      width: int,
  ):
    self._experiment = experiment
    self._sharding = state_lib.replicated([device])
    self._width = width
    of_all = jax.vmap if width > 1 else lambda function: function
    self._init = jax.jit(of_all(self._create_state))
    self._take_step = step_lib.compile_lone(
        of_all(functools.partial(graph_experiment.take_step, experiment)),
        donate_argnums=1,
    )
    self._embed = step_lib.compile_lone(of_all(self._features))

  def start(
      self,
      members: Sequence[grid.Member],
      epochs: Sequence[Sequence[graphs_lib.GraphBatch]],
  ) -> None:
    """Begins with members, each with the batches of its epochs."""
    knobs = _stack(
        [config_lib.hyperparameters(member.config) for member in members]
    )
    batches = [
        jax.tree.map(
            lambda x: x[None], _stack([batch._asdict() for batch in batches])
        )
        for batches in zip(*epochs, strict=True)
    ]
    self._knobs, self._batches, self._state = jax.device_put(
        (knobs, batches, self._init(knobs)), self._sharding
    )
    self._metrics = []

  def step(self) -> float:
    """Begins the next step; the mean loss of one that ought to be done."""
    batch = self._batches[len(self._metrics) % len(self._batches)]
    self._state, metrics = self._take_step(self._knobs, self._state, batch)
    self._metrics.append(metrics)
    known = self._metrics[max(len(self._metrics) - 1 - _LAG, 0)]
    return float(np.mean(known['loss']))

  def finish(self) -> list[Trained]:
    """What came of the members."""
    arrays = zip(
        self._of_steps('loss'),
        self._of_steps('grad_norm'),
        self._all_features(),
        strict=True,
    )
    return [Trained(*of_member) for of_member in arrays]

  def _create_state(self, knobs):
    experiment = graph_experiment.with_knobs(self._experiment, knobs)
    return experiment.rules().create_state(
        experiment.graphs.batch([0])._asdict()
    )

  def _features(self, knobs, state, batch):
    experiment = graph_experiment.with_knobs(self._experiment, knobs)
    return experiment.task.features(
        state_lib.evaluated_params(state), state.task_state, batch
    )

  def _of_steps(self, name):
    """A metric ``[members, steps]``."""
    values = [np.asarray(metrics[name]) for metrics in self._metrics]
    return np.stack(values, axis=-1).reshape(self._width, -1)

  def _all_features(self):
    """``[members, graphs, dim]``, graphs in the order of the set."""
    parts, index = [], []
    for batch in self._batches:
      out = np.asarray(self._embed(self._knobs, self._state, batch))
      parts.append(out.reshape(self._width, *out.shape[-2:]))
      index.append(np.reshape(batch['index'], (self._width, -1)))
    features = np.concatenate(parts, axis=1)
    # Padding has the index -1 and comes first.
    order = np.argsort(np.concatenate(index, axis=1), axis=1, kind='stable')
    order = order[:, -len(self._experiment.graphs) :]
    return np.take_along_axis(features, order[:, :, None], axis=1)


def _stack(trees):
  """Arrays of several members as one; of one member as they are."""
  if len(trees) == 1:
    return trees[0]
  return jax.tree.map(lambda *arrays: np.stack(arrays), *trees)
