# SPDX-License-Identifier: Apache-2.0
"""Runs on graphs that are trained together, by one compiled step."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import functools
import itertools
from typing import Any
from typing import NamedTuple
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import data as data_lib
from hcl_jax.evaluation import cross_validation
from hcl_jax.training import graph_experiment
from hcl_jax.training import graph_readout
from hcl_jax.training import grid
from hcl_jax.training import limits
from hcl_jax.training import readout
from hcl_jax.training import step as step_lib

# Of one call of a compiled function; more would delay signals and progress.
_STEPS_AT_ONCE = 16
# Calls that may be under way before the metrics of an older one are fetched.
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


class Group:
  """Members that differ in nothing but ``grid.TRACED`` fields.

  Each has parameters, statistics and an order of graphs of its own, as if it
  were trained alone; batches of all orders are padded to the same shapes, so
  that the group is compiled once. A device holds one or more members, which
  ``vmap`` trains as one.

  Args:
    members: all of the group, whether they are trained or not.
    graphs: their data set.
    devices: where to train.
    members_per_device: how many of them a device trains at a time.
  """

  def __init__(
      self,
      members: Sequence[grid.Member],
      graphs: data_lib.Graphs,
      *,
      devices: Sequence[jax.Device],
      members_per_device: int,
  ):
    self._config = members[0].config
    self._graphs = graphs
    self._paddings = data_lib.common_paddings(
        graphs,
        seeds={member.config.seed for member in members},
        batch_size=self._config.data.batch_size,
    )
    self._fields = sorted(
        {'seed'} | {x for x in grid.TRACED if x in members[0].values}
    )
    self._shape = (len(devices), members_per_device)
    self._epochs = {}
    epoch = self._epoch(self._config.seed)
    self.total_steps = graph_experiment.assemble(
        self._config, graphs, epoch
    ).total_steps
    self.steps_per_epoch = len(epoch)
    self._init = step_lib.map_members(self._create_state, devices)
    self._step = step_lib.map_members(
        self._take_step, devices, donate_argnums=1
    )
    self._epochs_at_once = _divisor(
        self.total_steps // len(epoch), _STEPS_AT_ONCE // len(epoch)
    )
    self._take_epochs = step_lib.map_members(
        self._scan_epochs, devices, donate_argnums=1
    )
    self._embed = step_lib.map_members(self._features, devices)

  @property
  def size(self) -> int:
    """How many members are trained at a time."""
    return self._shape[0] * self._shape[1]

  def train(
      self,
      members: Sequence[grid.Member],
      after_step: Callable[[int, float], None] = lambda step, loss: None,
  ) -> list[Trained]:
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
    knobs = self._knobs(places)
    batches = self._batches(places)
    state = self._init(knobs)
    known = []
    done = 0
    for steps, take in self._calls(knobs, batches):
      state, metrics = take(state)
      known.append(metrics)
      done += steps
      recent = np.asarray(known[max(len(known) - 1 - _LAG, 0)]['loss'])
      after_step(done, float(recent.mean()))
    arrays = zip(
        self._by_member([metrics['loss'] for metrics in known]),
        self._by_member([metrics['grad_norm'] for metrics in known]),
        self._all_features(knobs, state, batches),
        strict=True,
    )
    return [Trained(*of_member) for of_member in arrays][: len(members)]

  def _calls(self, knobs, batches):
    """Functions that take all steps of a run, and the steps of each.

    Whole epochs are compiled loops, because a call takes milliseconds, about as
    long as a step on small graphs; what is left over is taken step by step.
    """
    at_once = self._epochs_at_once * len(batches)
    first = 0
    if at_once:
      parts = self._parts(batches)
      take = lambda state: self._take_epochs(knobs, state, parts)  # noqa: E731
      for _ in range(self.total_steps // at_once):
        yield at_once, take
      first = self.total_steps // at_once * at_once
    for step in range(first, self.total_steps):
      batch = batches[step % len(batches)]
      yield 1, self._one_step(knobs, batch)

  def _one_step(self, knobs, batch):
    return lambda state: self._step(knobs, state, batch)

  def _epoch(self, seed):
    if seed not in self._epochs:
      self._epochs[seed] = data_lib.GraphBatches(
          self._graphs,
          seed=seed,
          batch_size=self._config.data.batch_size,
          paddings=self._paddings,
      )
    return self._epochs[seed]

  def _knobs(self, places):
    def array(field):
      dtype = np.int32 if field == 'seed' else np.float32
      values = [grid.get(place.config, field) for place in places]
      return np.array(values, dtype).reshape(self._shape)

    return {field: array(field) for field in self._fields}

  def _batches(self, places):
    """Batches of an epoch of all members, stacked."""
    seeds = [place.config.seed for place in places]
    self._epochs = {s: x for s, x in self._epochs.items() if s in seeds}
    epochs = [self._epoch(seed) for seed in seeds]

    def stacked(*arrays):
      return np.stack(arrays).reshape(*self._shape, *arrays[0].shape)

    return [
        {
            name: stacked(*(batch[k] for batch in batches))
            for k, name in enumerate(batches[0]._fields)
        }
        for batches in zip(*epochs, strict=True)
    ]

  def _experiment(self, knobs):
    """That of one member, with traced numbers."""
    config = grid.with_values(self._config, knobs)
    epoch = self._epochs[min(self._epochs)]  # asked for its length only
    return graph_experiment.assemble(config, self._graphs, epoch)

  def _create_state(self, knobs):
    rules = self._experiment(knobs).rules()
    return rules.create_state(self._graphs.batch([0])._asdict())

  def _take_step(self, knobs, state, batch):
    state, metrics = step_lib.lone_step(
        self._experiment(knobs).rules(), state, batch
    )
    return state, jax.tree.map(lambda x: x[None], metrics)

  def _scan_epochs(self, knobs, state, parts):
    rules = self._experiment(knobs).rules()

    def epoch(state, _):
      metrics = []
      for part in parts:
        state, of_part = jax.lax.scan(
            functools.partial(step_lib.lone_step, rules), state, part
        )
        metrics.append(of_part)
      return state, jax.tree.map(lambda *x: jnp.concatenate(x), *metrics)

    state, metrics = jax.lax.scan(
        epoch, state, length=self._epochs_at_once
    )
    return state, jax.tree.map(lambda x: x.reshape(-1), metrics)

  def _parts(self, batches):
    """Batches of one shape after the other as one array, in their order."""
    parts = []
    for _, alike in itertools.groupby(batches, lambda x: x['nodes'].shape):
      alike = list(alike)
      parts.append({
          name: np.stack([batch[name] for batch in alike], axis=2)
          for name in alike[0]
      })
    return parts

  def _features(self, knobs, state, batch):
    return self._experiment(knobs).task.features(
        readout.evaluated_params(state), state.task_state, batch
    )

  def _all_features(self, knobs, state, batches):
    parts = [
        self._flat(self._embed(knobs, state, batch))
        for batch in batches
    ]
    index = [self._flat(batch['index']) for batch in batches]
    features = np.concatenate(parts, axis=1)
    index = np.concatenate(index, axis=1)
    # Padding has the index -1 and comes first.
    order = np.argsort(index, axis=1, kind='stable')[:, -len(self._graphs) :]
    return np.take_along_axis(features, order[:, :, None], axis=1)

  def _flat(self, array):
    return np.asarray(array).reshape(self.size, *array.shape[2:])

  def _by_member(self, metrics):
    return np.concatenate([self._flat(x) for x in metrics], axis=1)


def _divisor(number, most):
  """The largest divisor of a number that is not above another, or 0."""
  return max((x for x in range(1, most + 1) if number % x == 0), default=0)


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
) -> dict[tuple[str, str], data_lib.Graphs]:
  """The data sets of members, by name and folder, checked for each of them."""
  loaded = {}
  for member in members:
    config = member.config
    place = config.data.name, config.data.dir
    if place not in loaded:
      loaded[place] = data_lib.load_graphs(
          config.data.name, data_dir=config.data.dir or None
      )
    limits.check_graphs(config, loaded[place].labels)
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
) -> Iterator[readout.Scores]:
  """Cross-validates the embeddings of members in parallel processes.

  Args:
    features: embeddings of the graphs, of each member.
    labels: classes of the graphs.
    config: ``config.evaluate``.
    poll: called after every cross-validation; raises to leave.

  Yields:
    The scores of each member, in their order.
  """
  import joblib

  todo = graph_readout.validations(config, config.protocols)
  jobs = [(validate, x) for x in features for validate in todo]
  workers = config.workers or cross_validation.usable_cores()
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
