# SPDX-License-Identifier: Apache-2.0
"""Trains runs that share programs side by side: a thread for each device."""

import collections
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
import contextlib
import dataclasses
import functools
import os
import pathlib
import queue
import threading
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import joblib
import numpy as np

from hcl_jax import domains
from hcl_jax import models
from hcl_jax.evaluation import cross_validation
from hcl_jax.runs import interruption as interruption_lib
from hcl_jax.runs import progress as progress_lib
from hcl_jax.sweeps import grid
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import finite
from hcl_jax.training import loop
from hcl_jax.training import step as step_lib

Result = dict[str, Any]


class Job(NamedTuple):
  """Is a run to train, and the folder of it."""

  run: grid.Run
  folder: pathlib.Path


def use_cores(most: int | None = None) -> None:
  """Makes devices of the cores of a CPU, at most so many, before JAX starts."""
  flags_of_xla = os.environ.get('XLA_FLAGS', '')
  if 'xla_force_host_platform_device_count' not in flags_of_xla:
    count = joblib.cpu_count()
    jax.config.update(
        'jax_num_cpu_devices', count if most is None else min(count, most)
    )


def default_per_device(num_runs: int, num_devices: int) -> int:
  """Returns one on a CPU, where more are slower for each; otherwise a share."""
  if jax.default_backend() == 'cpu':
    return 1
  return -(-num_runs // num_devices)


def train_one(
    experiment: experiment_lib.Experiment, job: Job, **options: Any
) -> Result:
  """Trains a run by itself, with options of ``loop.train``.

  Returns:
    The ``scores``, or the ``failure`` of a run whose loss or gradient was not
    finite.
  """
  try:
    scores = loop.train(
        experiment, job.folder, label=job.run.label, header=(), **options
    )
    return {'scores': scores}
  except finite.NonFiniteError as error:
    return {'failure': str(error)}


def train(
    jobs: Sequence[Job],
    first: experiment_lib.Experiment,
    *,
    devices: Sequence[jax.Device | None],
    per_device: int,
    interruption: interruption_lib.Interruption,
    progress: progress_lib.Progress | None,
) -> Iterator[tuple[grid.Run, Result]]:
  """Trains runs that differ in hyperparameters only.

  A run by itself on a device is trained by the very program that ``train`` has;
  several by its ``vmap``. Devices are not mapped over: a program for several of
  them is compiled to other rounding.

  Args:
    jobs: the runs.
    first: an experiment of one of them.
    devices: where to train, one or more runs on each at a time; one None for
      runs that use all devices.
    per_device: how many runs a device trains at a time.
    interruption: entered by the caller; where it was requested, all runs save
      their states and leave.
    progress: counts the steps of all runs; None: each run has its own.

  Yields:
    Runs in the order in which they end, with results as of :func:`train_one`.

  Raises:
    Exception: of a run that could not go on, after the others have left.
  """
  waiting = collections.deque(
      jobs[i : i + per_device] for i in range(0, len(jobs), per_device)
  )
  shown = None if progress is None else _SharedProgress(progress)

  def work(device):
    slot = _Slot(
        first,
        device,
        per_device,
        interruption=interruption,
        shown=shown,
        wait_for_saves=len(devices) * per_device > 1,
    )
    while not interruption.requested:
      try:
        some = waiting.popleft()
      except IndexError:
        return
      yield from slot.train(some)

  if len(devices) == 1:
    yield from work(devices[0])
  else:
    yield from _in_threads(work, devices, interruption)


def _in_threads(work, devices, interruption):
  """Yields what work on each device yields, as it comes."""
  results = queue.Queue()

  def put_results(device):
    # Threads share one interpreter; scikit-learn would hold it.
    with cross_validation.shared_pool(joblib.cpu_count()):
      for result in work(device):
        results.put(result)

  with futures.ThreadPoolExecutor(len(devices)) as pool:
    slots = [pool.submit(put_results, device) for device in devices]
    try:
      while not all(slot.done() for slot in slots) or not results.empty():
        # Waking up lets Python handle signals.
        with contextlib.suppress(queue.Empty):
          yield results.get(timeout=0.1)
        if any(slot.done() and slot.exception() for slot in slots):
          interruption.requested = True
    finally:
      interruption.requested |= not all(slot.done() for slot in slots)
  errors = [slot.exception() for slot in slots if slot.exception()]
  # The error of a run says more than that others were interrupted for it.
  errors.sort(key=lambda error: isinstance(error, loop.Interrupted))
  for error in errors:
    raise error


class _Slot:
  """Trains up to so many runs at a time on a device."""

  def __init__(
      self, first, device, width, *, interruption, shown, wait_for_saves
  ):
    self._first = dataclasses.replace(first, device=device)
    self._device = device
    self._width = width
    self._shown = shown
    self._shared = {
        'interruption': interruption,
        'wait_for_saves': wait_for_saves,
    }
    self._programs = self._first.programs()
    self._stacked_step = jax.jit(
        jax.vmap(functools.partial(step_lib.single_step, self._first.build)),
        donate_argnums=1,
        compiler_options=dict(
            self._first.compiler_options or models.compiler_options()
        ),
    )

  def train(self, jobs: Sequence[Job]) -> Iterator[tuple[grid.Run, Result]]:
    """Trains runs together if they can be, or else one by one."""
    experiments = [
        dataclasses.replace(
            domains.make_experiment(job.run.config, like=self._first),
            device=self._device,
        )
        for job in jobs
    ]
    results = None
    if len(jobs) > 1 and len({*map(_shapes, experiments)}) == 1:
      results = self._train_stacked(jobs, experiments)
    if results is None:
      results = map(self._train_alone, jobs, experiments)
    yield from zip([job.run for job in jobs], results, strict=True)

  def _progress(self, job):
    if self._shown is None:
      return None
    return _RunProgress(self._shown, job.run.label)

  def _train_alone(self, job, experiment) -> Result:
    return train_one(
        experiment,
        job,
        programs=self._programs,
        progress=self._progress(job),
        **self._shared,
    )

  def _train_stacked(self, jobs, experiments) -> list[Result] | None:
    """Trains runs together; returns None if they do not begin together."""
    with contextlib.ExitStack() as stack:
      runs = [
          stack.enter_context(
              loop.open_run(
                  experiment,
                  job.folder,
                  self._programs.init,
                  label=job.run.label,
                  progress=self._progress(job),
                  **self._shared,
              )
          )
          for job, experiment in zip(jobs, experiments, strict=True)
      ]
      if len({run.first_step for run in runs}) > 1:
        return None
      failures = {}
      states = self._take_steps(runs, experiments, failures)

      def finish(i):
        if i in failures:
          return {'failure': failures[i]}
        with cross_validation.shared_pool(joblib.cpu_count()):
          return {'scores': runs[i].finish(_entry(states, i))}

      with futures.ThreadPoolExecutor(joblib.cpu_count()) as pool:
        return list(pool.map(finish, range(len(runs))))

  def _take_steps(self, runs, experiments, failures):
    """Returns the stacked states of the end; notes which runs failed."""
    # A place that is left over takes the steps of the last run once more.
    places = [min(i, len(runs) - 1) for i in range(self._width)]

    def stack(trees, library=np):
      return jax.tree.map(
          lambda *x: library.stack(x), *(trees[i] for i in places)
      )

    hyperparameters = stack([x.hyperparameters for x in experiments])
    states = stack([run.begin() for run in runs], jnp)
    left = [
        run.batches(lambda i=i: _entry(states, i)) for i, run in enumerate(runs)
    ]
    for batches in zip(*left, strict=True):
      with runs[0].taking_step():
        states, metrics = self._stacked_step(
            hyperparameters, states, stack(batches)
        )
      interrupted, not_saved = None, []
      for i, run in enumerate(runs):
        if i in failures:
          continue
        try:
          run.after_step(
              batches[i],
              {name: _Entry(x, i) for name, x in metrics.items()},
              functools.partial(_entry, states, i),
          )
          not_saved.append(i)
        except finite.NonFiniteError as error:
          failures[i] = str(error)
        except loop.Interrupted as error:
          interrupted = error
      if interrupted is not None:
        for i in not_saved:  # The signal came after their turn.
          runs[i].save(_entry(states, i))
        raise interrupted
      if len(failures) == len(runs):
        break
    return states


class _Entry(NamedTuple):
  """Is an entry of an array on a device, fetched with all others at once."""

  array: jax.Array
  index: int

  def __float__(self):
    return float(np.asarray(self.array)[self.index])


def _entry(tree, index):
  return jax.tree.map(lambda x: x[index], tree)


def _shapes(experiment):
  """Returns the shapes of the batches of an epoch."""
  epoch = experiment.batches(0, experiment.steps_per_epoch)
  return tuple(tuple(map(np.shape, jax.tree.leaves(x))) for x in epoch)


class _SharedProgress:
  """Counts the steps of several runs on one bar."""

  def __init__(self, progress: progress_lib.Progress):
    self._progress = progress
    self._lock = threading.Lock()
    self._done = 0

  def add(self, steps: int, loss: Any) -> None:
    """Adds steps of a run."""
    with self._lock:
      self._done += steps
      self._progress.update(self._done, loss=loss)

  def write(self, text: str) -> None:
    """Prints a line."""
    with self._lock:
      self._progress.write(text)


class _RunProgress:
  """Shows a run as a part of several."""

  def __init__(self, shared: _SharedProgress, label: str):
    self._shared = shared
    self._label = label
    self._done = 0

  def update(self, step: int, loss: Any = None) -> None:
    """Says that a step is done."""
    self._shared.add(step - self._done, loss)
    self._done = step

  def write(self, text: str) -> None:
    """Prints a line that names the run."""
    named = text.startswith(self._label)
    self._shared.write(text if named else f'{self._label}: {text}')
