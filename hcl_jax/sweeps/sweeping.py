# SPDX-License-Identifier: Apache-2.0
"""Trains and evaluates the runs of a sweep, group after group."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import sys
from typing import Any

from flax import traverse_util
import jax
import ml_collections

from hcl_jax import domains
from hcl_jax.runs import interruption as interruption_lib
from hcl_jax.runs import progress as progress_lib
from hcl_jax.runs import reporting
from hcl_jax.runs import scores as scores_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import compilation
from hcl_jax.sweeps import grid
from hcl_jax.sweeps import pool as pool_lib
from hcl_jax.sweeps import results as results_lib
from hcl_jax.sweeps import slots
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import header
from hcl_jax.training import loop


class Sweep:
  """Is a configuration and values of some of its fields; all of it checked.

  Args:
    config: what the runs have in common.
    fields: values by the name of the field.
    runs_per_device: how many small runs a device trains at a time; None: as
      :func:`slots.default_per_device`.
    num_processes: how many runs are trained at a time, each in a process with
      a share of the cores; small runs have a core each without it.

  Raises:
    ValueError: a value cannot work; the message names its field.
    FileNotFoundError: a data set is not there.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      fields: Mapping[str, Sequence[Any]],
      *,
      runs_per_device: int | None = None,
      num_processes: int = 1,
  ):
    pool_lib.check(num_processes)
    if config.get('compare'):
      raise ValueError(
          f'config.compare must be () in a sweep, got {config.compare}; sweep '
          'loss.beta and loss.tau_plus instead.'
      )
    if jax.process_count() > 1:
      raise ValueError(
          f'a sweep runs in one process, got {jax.process_count()}.'
      )
    small = domains.small_runs(config)
    if small and num_processes > 1:
      raise ValueError(
          f'--jobs={num_processes} is for runs that use all cores; those of '
          f'config.domain={domains.domain_of(config)!r} train one on each core '
          'without it.'
      )
    if runs_per_device and not small:
      raise ValueError(
          f'--runs_per_device={runs_per_device} is for small runs; one of '
          f'config.domain={domains.domain_of(config)!r} uses a whole device.'
      )
    self._fields = {field: tuple(values) for field, values in fields.items()}
    self._config = config
    self._small = small
    self._per_device = runs_per_device
    self._num_processes = num_processes
    self.runs = grid.expand(config, self._fields)
    self._header = []
    for group in grid.groups(self.runs):
      # What cannot work is found before anything is written.
      experiment = domains.make_experiment(group[0].config)
      self._header = self._header or [
          *header.shared_lines(experiment), *header.warnings(experiment)
      ]  # fmt: skip

  def run(self, workdir: str | os.PathLike) -> results_lib.SweepResults:
    """Trains and evaluates the runs that are not finished yet.

    Everything is written to the workdir.

    Raises:
      workdir.ConfigMismatch: the directory holds another sweep, or a run.
      loop.Interrupted: SIGTERM or Ctrl-C came; finished runs are saved.
    """
    with workdir_lib.lock(workdir):
      folder = workdir_lib.open_run(
          workdir,
          self._record(),
          may_change=config_lib.SWEEP_MAY_CHANGE,
          may_appear=config_lib.MAY_APPEAR,
      )
      results = results_lib.SweepResults(folder, self.runs)
      if len(results) < len(self.runs):
        progress_lib.say(*self._header)
      with interruption_lib.Interruption() as interruption:
        try:
          for run, result in self._finished(folder, results, interruption):
            results.add(run, result)
            results.write()
        except loop.Interrupted as stop:
          raise self._interrupted(results) from stop
        if interruption.requested and len(results) < len(self.runs):
          raise self._interrupted(results)
      results.write()
      return results

  def _finished(self, workdir, results, interruption):
    """Yields runs as they end, each with its result."""
    if self._num_processes > 1:
      jobs = self._todo(self.runs, results)
      with compilation.shared(workdir):
        yield from self._train_in_processes(jobs, results, interruption)
      return
    for group in grid.groups(self.runs):
      jobs = self._todo(group, results)
      if jobs and not interruption.requested:
        yield from self._train_group(jobs, interruption, len(group))

  def _todo(self, runs, results):
    return [
        slots.Job(run, results.run_folder(run))
        for run in runs
        if run not in results
    ]

  def _train_in_processes(self, jobs, results, interruption):
    def poll():
      if interruption.requested:
        raise loop.Interrupted

    def show(line):
      print(line, file=sys.stderr, flush=True)

    finished = pool_lib.train(jobs, self._num_processes, poll, show)
    for run, result in finished:
      yield run, result
      show(
          f'{_outcome(run, result)} ({len(results)} of {len(self.runs)} runs '
          'are finished)'
      )

  def _train_group(
      self, jobs, interruption, size
  ) -> Iterator[tuple[grid.Run, slots.Result]]:
    """Trains runs that share programs and data."""
    first = domains.make_experiment(jobs[0].run.config)
    devices = jax.local_devices() if first.device else [None]
    per_device = 1
    if self._small:
      per_device = self._per_device or slots.default_per_device(
          len(jobs), len(devices)
      )
    devices = devices[: -(-len(jobs) // per_device)]
    with contextlib.ExitStack() as stack:
      progress = None  # Runs that use all devices have a bar each.
      if first.device:
        label = _group_label(jobs[0].run)
        progress = stack.enter_context(
            progress_lib.Progress(
                len(jobs) * first.total_steps,
                batch_size=first.rows_per_step,
                label=label,
                unit=first.unit,
            )
        )
        at_a_time = min(len(jobs), len(devices) * per_device)
        progress.write(
            f'{label}: {len(jobs)} of {size} runs to train, {at_a_time} at a '
            'time'
        )
      for run, result in slots.train(
          jobs,
          first,
          devices=devices,
          per_device=per_device,
          interruption=interruption,
          progress=progress,
      ):
        yield run, result
        if progress:
          progress.write(_outcome(run, result))

  def _interrupted(self, results):
    return loop.Interrupted(
        f'stopped with {len(results)} of {len(self.runs)} runs finished; '
        'everything is saved'
    )

  def _record(self):
    """Returns the configuration with the swept values, which names a sweep."""
    first = {field: values[0] for field, values in self._fields.items()}
    record = fields_lib.with_values(self._config, first).to_dict()
    record['sweep'] = traverse_util.unflatten_dict(self._fields, sep='.')
    return ml_collections.ConfigDict(record)


def _group_label(run):
  """Returns the data set, and what else the runs of a group have in common."""
  fixed = [
      str(value)
      for field, value in run.values.items()
      if field not in config_lib.TRACED and field != 'data.name'
  ]
  return ', '.join([run.config.data.name, *fixed])


def _outcome(run, result):
  """Returns a line with the main score of each protocol."""
  if 'failure' in result:
    return f'{run.label}: failed'
  main = {}
  for name, score in scores_lib.of_numbers(result['scores']).items():
    if score.kind == 'share':
      words = f'{name} {reporting.score(score)}'
      main.setdefault(name.partition('/')[0], words)
  return f'{run.label}: {", ".join(main.values()) or "no scores"}'
