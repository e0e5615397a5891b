# SPDX-License-Identifier: Apache-2.0
"""Runs the members of a sweep, group after group."""

from collections.abc import Mapping
from collections.abc import Sequence
import os
import pathlib
import sys
from typing import Any

import jax
import ml_collections
import numpy as np

from hcl_jax import domains
from hcl_jax.runs import interruption as interruption_lib
from hcl_jax.runs import progress as progress_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import compilation
from hcl_jax.sweeps import grid
from hcl_jax.sweeps import members as members_lib
from hcl_jax.sweeps import pool as jobs_lib
from hcl_jax.sweeps import tally as tally_lib
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import loop


class Sweep:
  """A configuration and values of some of its fields; all of it checked.

  Args:
    config: what the members have in common.
    fields: values by the name of the field.
    members_per_device: how many members of a group a device trains at a time;
      None: as :func:`members.default_members_per_device`.
    num_jobs: how many runs on images or sentences are trained at a time, each
      in a process with a share of the cores.

  Raises:
    ValueError: a value cannot work; the message names its field.
    FileNotFoundError: a data set is not there.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      fields: Mapping[str, Sequence[Any]],
      *,
      members_per_device: int | None = None,
      num_jobs: int = 1,
  ):
    jobs_lib.check(num_jobs)
    if config.get('compare'):
      raise ValueError(
          f'config.compare must be () in a sweep, got {config.compare}; sweep '
          'loss.beta and loss.tau_plus instead.'
      )
    if jax.process_count() > 1:
      raise ValueError(
          f'a sweep runs in one process, got {jax.process_count()}.'
      )
    self._fields = {field: tuple(values) for field, values in fields.items()}
    self._config = config
    self._per_device = members_per_device
    self._num_jobs = num_jobs
    self.members = grid.expand(config, self._fields)
    graphs = [x for x in self.members if x.config.task == 'infograph']
    if graphs and num_jobs > 1:
      raise ValueError(
          f'--jobs={num_jobs} is for runs on images and sentences; those on '
          'graphs use every core without it.'
      )
    self._graphs = members_lib.load_graphs(graphs)
    # Of the others, what cannot work is found before anything is written.
    seen = set()
    for member in self.members:
      fixed = grid.not_traced(member)
      if member.config.task != 'infograph' and fixed not in seen:
        domains.make_experiment(member.config)
        seen.add(fixed)

  def run(self, workdir: str | os.PathLike) -> tally_lib.Tally:
    """Trains and evaluates the members that are not finished yet.

    Args:
      workdir: directory of the sweep; everything is written there.

    Returns:
      The results of all members.

    Raises:
      workdir.ConfigMismatch: the directory holds another sweep, or a run.
      loop.Interrupted: SIGTERM or Ctrl-C came; finished members are saved.
    """
    with workdir_lib.lock(workdir):
      return self._run(
          workdir_lib.open_run(
              workdir,
              self._record(),
              may_change=config_lib.SWEEP_MAY_CHANGE,
              may_appear=config_lib.MAY_APPEAR,
          )
      )

  def _run(self, workdir):
    tally = tally_lib.Tally(pathlib.Path(workdir), self.members)
    with interruption_lib.Interruption() as interruption:

      def leave_if_asked():
        if interruption.requested:
          raise loop.Interrupted(
              f'stopped with {len(tally)} of {len(self.members)} members '
              'finished, which are saved'
          )

      alone = []
      for group in grid.groups(self.members):
        leave_if_asked()
        if all(member in tally for member in group):
          continue
        if group[0].config.task == 'infograph':
          self._run_group(group, tally, leave_if_asked)
        else:
          alone += group
      if alone:
        with compilation.shared(pathlib.Path(workdir)):
          self._run_alone(alone, tally, leave_if_asked)
    tally.write()
    return tally

  def _run_alone(self, members, tally, leave_if_asked):
    """Members as runs of their own, in folders of their own."""
    if self._num_jobs == 1:
      for member in members:
        leave_if_asked()
        folder = tally.run_folder(member)
        tally.add(member, **jobs_lib.train_member(member, folder))
        tally.write()
      return

    def show(line):
      print(line, file=sys.stderr, flush=True)

    finished = jobs_lib.train_members(
        [(member, tally.run_folder(member)) for member in members],
        self._num_jobs,
        leave_if_asked,
        show,
    )
    for member, result in finished:
      tally.add(member, **result)
      tally.write()
      show(
          f'{_outcome(member, tally.scores(member))} '
          f'({len(tally)} of {len(self.members)} members are finished)'
      )

  def _run_group(self, members, tally, leave_if_asked):
    """Members together, as many at a time as there are places."""
    todo = [member for member in members if member not in tally]
    data = members[0].config.data
    graphs = self._graphs[data.name, data.dir]
    devices = jax.local_devices()
    per_device = self._per_device or members_lib.default_members_per_device(
        len(todo), len(devices)
    )
    per_device = min(per_device, len(todo))
    group = members_lib.Group(
        members,
        graphs,
        devices=devices[: -(-len(todo) // per_device)],
        members_per_device=per_device,
    )
    starts = range(0, len(todo), group.size)
    label = _label(members[0])
    with progress_lib.Progress(
        len(starts) * group.total_steps,
        batch_size=group.size * len(graphs) / group.steps_per_epoch,
        label=label,
        unit='graphs',
    ) as progress:
      progress.write(
          f'{label}: {len(todo)} of {len(members)} members to train, '
          f'{group.size} at a time'
      )
      for number, start in enumerate(starts):
        block = todo[start : start + group.size]

        def after_step(done, loss, first=number * group.total_steps):
          progress.update(first + done, loss=loss)
          leave_if_asked()

        trained = group.train(block, after_step)
        _finish_block(block, trained, graphs, tally, leave_if_asked)
        tally.write()
        for member in block:
          progress.write(_outcome(member, tally.scores(member)))

  def _record(self):
    """The configuration with the swept values, by which a sweep is known."""
    first = {field: values[0] for field, values in self._fields.items()}
    record = fields_lib.with_values(self._config, first).to_dict()
    record['sweep'] = {}
    for field, values in self._fields.items():
      *path, name = field.split('.')
      parent = record['sweep']
      for part in path:
        parent = parent.setdefault(part, {})
      parent[name] = values
    return ml_collections.ConfigDict(record)


def _label(member):
  """The data set, and what else the members of a group have in common."""
  fixed = [
      str(value)
      for field, value in member.values.items()
      if field not in config_lib.TRACED and field != 'data.name'
  ]
  return ', '.join([member.config.data.name, *fixed])


def _outcome(member, scores):
  words = [
      f'{name} {x:.2%}'
      for name, x in scores.items()
      if name.endswith(('/accuracy', '/top1'))
  ]
  return f'{member.words()}: {", ".join(words) or "no scores"}'


def _finish_block(block, trained, graphs, tally, poll):
  """Evaluates members that stayed finite, and writes all of them down."""
  good = []
  for member, result in zip(block, trained, strict=True):
    step = result.failed_at()
    if step is None:
      good.append((member, result))
    else:
      tally.add(
          member, failure=f'loss or gradient not finite at step {step}'
      )
  config = block[0].config
  scores = members_lib.evaluate(
      [result.features for _, result in good],
      graphs.labels,
      config.evaluate,
      poll,
  )
  for (member, result), of_member in zip(good, scores, strict=True):
    tally.add(
        member,
        scores=of_member,
        loss=_curve(result.losses, config.train.log_every_steps),
    )


def _curve(losses, every):
  """Means of so many steps, by the last of them, as a run logs them."""
  return {
      str(end): float(np.mean(losses[end - every : end], dtype=np.float64))
      for end in range(every, len(losses) + 1, every)
  }
