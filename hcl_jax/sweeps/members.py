# SPDX-License-Identifier: Apache-2.0
"""Runs on graphs that are trained together, by one compiled step."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
import contextlib
import functools
from typing import Any
import warnings

import jax
import joblib
import numpy as np

from hcl_jax.graphs import config as graph_config
from hcl_jax.graphs import data as graph_data
from hcl_jax.graphs import evaluate as graph_readout
from hcl_jax.graphs import experiment as graph_experiment
from hcl_jax.sweeps import grid
from hcl_jax.sweeps import slots as lanes
from hcl_jax.training import experiment as experiment_lib


class Group:
  """Members that differ in nothing but ``training.config.TRACED`` fields.

  Each has parameters, statistics and an order of graphs of its own, as if it
  were trained alone; batches of all orders are padded to the same few shapes,
  for which each device compiles once. A device holds one or more members.

  Args:
    members: all of the group, whether they are trained or not.
    graphs: their data set.
    devices: where to train.
    members_per_device: how many of them a device trains at a time.
  """

  def __init__(
      self,
      members: Sequence[grid.Member],
      graphs: graph_data.Graphs,
      *,
      devices: Sequence[jax.Device],
      members_per_device: int,
  ):
    config = members[0].config
    graphs = graphs.colored(config.model.num_layers)
    paddings = graph_data.common_paddings(
        graphs,
        seeds={member.config.seed for member in members},
        batch_size=config.data.batch_size,
    )
    if members_per_device > 1:  # What is stacked has the largest shape.
      paddings = {size: shapes[-1:] for size, shapes in paddings.items()}
    self._make_epoch = functools.partial(
        graph_data.GraphBatches,
        graphs,
        batch_size=config.data.batch_size,
        paddings=paddings,
    )
    # Its values and its order are those of no member in particular.
    self._experiment = graph_experiment.assemble(
        config, graphs, self._make_epoch(seed=config.seed)
    )
    self._lanes = [
        lanes.Lane(self._experiment, device, members_per_device)
        for device in devices
    ]
    self._members_per_device = members_per_device

  @property
  def total_steps(self) -> int:
    """Length of the run of a member."""
    return self._experiment.total_steps

  @property
  def steps_per_epoch(self) -> int:
    return self._experiment.steps_per_epoch

  @property
  def size(self) -> int:
    """How many members are trained at a time."""
    return len(self._lanes) * self._members_per_device

  def train(
      self,
      members: Sequence[grid.Member],
      after_step: Callable[[int, float], None] = lambda step, loss: None,
  ) -> list[lanes.Trained]:
    """Trains up to ``size`` members from beginning to end.

    Args:
      members: some of the group.
      after_step: called with the number of steps done and the mean loss of a
        recent one; raises to leave.

    Returns:
      What came of each.
    """
    # A place that is left over trains the last member once more.
    places = [*members, *[members[-1]] * (self.size - len(members))]
    seeds = {place.config.seed for place in places}
    epochs = {seed: self._make_epoch(seed=seed) for seed in seeds}
    width = self._members_per_device
    held = [places[i : i + width] for i in range(0, self.size, width)]

    def start(lane, members):
      lane.start(members, [epochs[member.config.seed] for member in members])

    # Threads, because a lane compiles its steps when it takes them.
    with futures.ThreadPoolExecutor(len(self._lanes)) as pool:
      list(pool.map(start, self._lanes, held))
      for step in range(self.total_steps):
        losses = list(pool.map(lanes.Lane.step, self._lanes))
        after_step(step + 1, float(np.mean(losses)))
    trained = [x for lane in self._lanes for x in lane.finish()]
    return trained[: len(members)]


def default_members_per_device(members: int, devices: int) -> int:
  """One on a CPU, where more are slower for each; otherwise all of them.

  Args:
    members: how many there are.
    devices: how many devices share them.

  Returns:
    Members of a device.
  """
  if jax.default_backend() == 'cpu':
    return 1
  return -(-members // devices)


def load_graphs(
    members: Sequence[grid.Member],
) -> dict[tuple[str, str], graph_data.Graphs]:
  """The data sets of members, by name and folder, checked for each of them."""
  loaded = {}
  for member in members:
    config = member.config
    place = config.data.name, config.data.dir
    if place not in loaded:
      loaded[place] = graph_data.load_graphs(
          config.data.name, data_dir=config.data.dir or None
      )
    graph_config.check_graphs(config, loaded[place].labels)
    if config.evaluate.svm_every_epochs:
      raise ValueError(
          'config.evaluate.svm_every_epochs must be 0 in a sweep, which scores '
          f'the end of training; got {config.evaluate.svm_every_epochs}.'
      )
  return loaded


def evaluate(
    features: Sequence[np.ndarray],
    labels: np.ndarray,
    config: Any,
    poll: Callable[[], None] = lambda: None,
) -> Iterator[experiment_lib.Scores]:
  """Cross-validates the embeddings of members in parallel processes.

  Args:
    features: embeddings of the graphs, of each member.
    labels: classes of the graphs.
    config: ``config.evaluate``.
    poll: called after every cross-validation; raises to leave.

  Yields:
    The scores of each member, in their order.
  """

  todo = graph_readout.validations(config, config.protocols)
  jobs = [(validate, x) for x in features for validate in todo]
  workers = config.workers or joblib.cpu_count()
  results = joblib.Parallel(
      n_jobs=max(min(workers, len(jobs)), 1), return_as='generator'
  )(joblib.delayed(validate)(x, labels, workers=1) for validate, x in jobs)
  with warnings.catch_warnings(), contextlib.closing(results):
    # Of what is given up where poll raises.
    warnings.filterwarnings('ignore', '.*cancelled', UserWarning)
    for _ in features:
      of_member = []
      for _ in todo:
        of_member.append(next(results))
        poll()
      yield graph_readout.summarize(config, config.protocols, of_member)
