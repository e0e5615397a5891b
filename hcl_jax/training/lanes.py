# SPDX-License-Identifier: Apache-2.0
"""Runs on graphs that one device trains as one."""

from collections.abc import Sequence
import functools
from typing import NamedTuple

import jax
import numpy as np

from hcl_jax import graphs as graphs_lib
from hcl_jax.training import graph_experiment
from hcl_jax.training import grid
from hcl_jax.training import readout
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
  """Trains some members at a time on a device, by ``vmap``.

  Devices are not mapped over: a program for several of them is compiled to
  other rounding than the program of a run by itself.

  Args:
    experiment: what the members have in common.
    device: where to train.
  """

  def __init__(
      self, experiment: graph_experiment.GraphExperiment, device: jax.Device
  ):
    self._experiment = experiment
    self._init = step_lib.map_members(self._create_state, device)
    self._take_step = step_lib.map_members(
        functools.partial(graph_experiment.take_step, experiment),
        device,
        donate_argnums=1,
    )
    self._embed = step_lib.map_members(self._features, device)

  def start(
      self,
      members: Sequence[grid.Member],
      epochs: Sequence[Sequence[graphs_lib.GraphBatch]],
  ) -> None:
    """Begins with members, each with the batches of its epochs."""
    knobs = [grid.knobs(member.config) for member in members]
    self._knobs = {
        field: _stack(*(x[field] for x in knobs)) for field in knobs[0]
    }
    self._batches = [
        {
            name: _stack(*(batch[k] for batch in batches))
            for k, name in enumerate(batches[0]._fields)
        }
        for batches in zip(*epochs, strict=True)
    ]
    self._state = self._init(self._knobs)
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
        readout.evaluated_params(state), state.task_state, batch
    )

  def _of_steps(self, name):
    """A metric ``[members, steps]``."""
    return np.stack([np.asarray(x[name])[0] for x in self._metrics], axis=1)

  def _all_features(self):
    """``[members, graphs, dim]``, graphs in the order of the set."""
    parts = [
        np.asarray(self._embed(self._knobs, self._state, batch))[0]
        for batch in self._batches
    ]
    features = np.concatenate(parts, axis=1)
    index = np.concatenate([x['index'][0] for x in self._batches], axis=1)
    # Padding has the index -1 and comes first.
    num_graphs = len(self._experiment.graphs)
    order = np.argsort(index, axis=1, kind='stable')[:, -num_graphs:]
    return np.take_along_axis(features, order[:, :, None], axis=1)


def _stack(*arrays):
  """Arrays of members as one of a device."""
  return np.stack(arrays)[None]
