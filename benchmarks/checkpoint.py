# SPDX-License-Identifier: Apache-2.0
"""Times what a checkpoint costs a training run.

  python -m benchmarks checkpoint [--networks=resnet18] \\
      [--window_steps=10] [--checkpoint_dir=DIR]

Times windows of steps with a save at their start, as the training loop saves,
beside the same windows without.
"""

from collections.abc import Sequence
import math
import os
import pathlib
import statistics
import tempfile
import time
from typing import Any
from typing import NamedTuple

from absl import flags

from hcl_jax import command as command_lib
from hcl_jax.bench import harness
from hcl_jax.bench import options
from hcl_jax.bench import steps
from hcl_jax.images import config as image_config
from hcl_jax.images import data as image_data
from hcl_jax.runs import checkpoint
from hcl_jax.runs import reporting
from hcl_jax.training import loop

_WINDOW_STEPS = flags.DEFINE_integer(
    'window_steps', 10, 'Steps of a window, with a save at its start.'
)
_DIRECTORY = flags.DEFINE_string(
    'checkpoint_dir', '',
    'Where to save, in a folder that is removed at the end; by default the '
    'folder of temporary files.',
)  # fmt: skip
command_lib.local('checkpoint_dir')
_CIFAR10_IMAGES = 50_000
_SMALL_SHARE = 0.02
_NOTES = """\
A save costs the time of a window with one less that of a window without,
median over repetitions. It runs in the background of the steps, and is waited
for at the end of its window only where it is not done by then; where that takes
long, a longer window (--window_steps) shows better what a run loses. CPU time
is that of all threads of the process, so other work on the machine disturbs it
less; it leaves out what the system does to write files. As in a run, a save
also removes the oldest checkpoint.\
"""


class Times(NamedTuple):
  """Holds seconds of wall time, and of CPU time of the whole process."""

  wall: float
  cpu: float


def read_clocks() -> Times:
  return Times(time.perf_counter(), time.process_time())


def since(start: Times) -> Times:
  return Times(*(b - a for a, b in zip(start, read_clocks(), strict=True)))


class Window(NamedTuple):
  """Holds how long a window took.

  Attributes:
    whole: all of it.
    blocked: the call that saves; nothing of note where there is none.
    waited: at the end, until the save was done.
  """

  whole: Times
  blocked: Times
  waited: Times


class Windows:
  """Takes steps of a network, and saves its checkpoints.

  Args:
    step: what to call for a step.
    checkpoints: those of the run.
    length: steps of a window.
  """

  def __init__(
      self, step: steps.Step, checkpoints: checkpoint.Checkpoints, length: int
  ):
    self._step = step
    self._checkpoints = checkpoints
    self._length = length
    self._done = 0

  def warm_up(self, saves: int) -> None:
    """Compiles, and saves so often that one more removes the oldest."""
    for _ in range(saves):
      self._take_steps(1)
      self._save()
    self._checkpoints.wait()

  def time_one(self, saves: bool) -> Window:
    """Takes the steps of a window, with a save at its start or without."""
    start = read_clocks()
    if saves:
      self._save()
    blocked = since(start)
    self._take_steps(self._length)
    end = read_clocks()
    self._checkpoints.wait()
    return Window(since(start), blocked, since(end))

  def _take_steps(self, number: int) -> None:
    for _ in range(number):
      self._step()
      self._done += 1

  def _save(self) -> None:
    self._checkpoints.save(self._done, self._step.state)


def released_steps(batch: int) -> float:
  """Returns the steps between checkpoints as released, on CIFAR-10.

  Args:
    batch: images of a step; there are as many images between checkpoints as
      with the batch of the configuration.

  Returns:
    The number of steps.
  """
  config = image_config.simclr()
  size = config.data.batch_size
  per_epoch = image_data.steps_per_epoch(_CIFAR10_IMAGES, size)
  return config.train.checkpoint_every_epochs * per_epoch * size / batch


def costs(
    without: Sequence[float],
    with_save: Sequence[float],
    length: int,
    released: float,
) -> dict[str, Any]:
  """Computes what a save costs by one clock.

  Args:
    without: seconds of windows without a save, one for each
      repetition.
    with_save: seconds of the windows with one.
    length: steps of a window.
    released: steps between checkpoints in the released configuration.

  Returns:
    Milliseconds of a step; seconds of a save in all, with the least and the
    most of a repetition; its share of the time of steps at one save for each
    window and as released; the least number of steps between saves with a small
    share.
  """
  step = statistics.median(without) / length
  saves = [b - a for a, b in zip(without, with_save, strict=True)]
  save = statistics.median(saves)
  return {
      'step_ms': 1e3 * step,
      'save_seconds': save,
      'least_save_seconds': min(saves),
      'most_save_seconds': max(saves),
      'share_of_window': save / (length * step),
      'share_as_released': save / (released * step),
      'steps_for_small_share': max(math.ceil(save / (_SMALL_SHARE * step)), 1),
  }


def measure(network: str, folder: pathlib.Path) -> dict[str, Any]:
  """Times windows of a network.

  Args:
    network: name of the encoder.
    folder: of a run; checkpoints are written there.

  Returns:
    Costs by each clock, and the size of a checkpoint.
  """
  batch, length = steps.BATCH.value, _WINDOW_STEPS.value
  setting = steps.prepare(network, batch)
  step = steps.Step(setting.task, setting.optimizer, next(setting.batches))
  timed = {False: [], True: []}
  with loop.open_checkpoints(
      folder, setting.config, image_config.SCORE
  ) as checkpoints:
    windows = Windows(step, checkpoints, length)
    windows.warm_up(setting.config.train.keep_checkpoints)
    for saves in harness.in_turns((False, True), options.REPETITIONS.value):
      timed[saves].append(windows.time_one(saves))
    newest = folder / 'checkpoints' / str(checkpoints.steps()[-1])
  clocks = {
      clock: _by_clock(timed, clock, length, released_steps(batch))
      for clock in Times._fields
  }
  return {'network': network, 'megabytes': size_of(newest) / 1e6, **clocks}


def _by_clock(timed, clock, length, released):
  def seconds(saves, part):
    return [getattr(getattr(x, part), clock) for x in timed[saves]]

  without, with_save = seconds(False, 'whole'), seconds(True, 'whole')
  return {
      **costs(without, with_save, length, released),
      'blocked_seconds': statistics.median(seconds(True, 'blocked')),
      'waited_seconds': statistics.median(seconds(True, 'waited')),
      'repetition_seconds_without': without,
      'repetition_seconds_with': with_save,
  }


def size_of(folder: pathlib.Path) -> int:
  """Returns the bytes of all files in a folder."""
  return sum(x.stat().st_size for x in folder.rglob('*') if x.is_file())


def table(row: dict[str, Any], length: int, released: float) -> str:
  """Returns the costs of a network by each clock."""
  names = {
      'step, ms': ('step_ms', '{:.1f}'),
      'save blocks the loop, s': ('blocked_seconds', '{:.3f}'),
      'waited for it at the end, s': ('waited_seconds', '{:.3f}'),
      'a save in all, s': ('save_seconds', '{:.3f}'),
      '  least of a repetition': ('least_save_seconds', '{:.3f}'),
      '  most of a repetition': ('most_save_seconds', '{:.3f}'),
      f'share, saved every {length} steps': ('share_of_window', '{:.3%}'),
      f'share, saved every {released:.0f} steps, as released': (
          'share_as_released', '{:.3%}'
      ),
      f'least steps between saves for {_SMALL_SHARE:.0%}': (
          'steps_for_small_share', '{}'
      ),
  }  # fmt: skip
  lines = [
      [label, *(form.format(row[clock][name]) for clock in Times._fields)]
      for label, (name, form) in names.items()
  ]
  return reporting.table([row['network'], 'wall', 'CPU'], lines)


def report(results: dict[str, Any]) -> str:
  """Returns the text: what ran where, the tables, how to read them."""
  tables = []
  for row in results['rows']:
    cells = table(row, results['window_steps'], results['released_steps'])
    tables += [cells, f'on disk: {row["megabytes"]:.1f} MB', '']
  return '\n'.join([
      f'Checkpoints in {results["directory"]} while training, two views of '
      f'{results["batch"]} images of 32x32, in windows of '
      f'{results["window_steps"]} steps.',
      f'jax {results["jax"]}, backend {results["backend"]} '
      f'({results["device_kind"]}), {results["devices"]} device(s), '
      f'{results["cores"]} host core(s).',
      f'Medians of {results["repetitions"]} repetitions, {results["clock"]}:',
      '',
      *tables,
      _NOTES,
  ])


def find_directory() -> str:
  """Returns where to save; raises UsageError if that is not writable."""
  path = _DIRECTORY.value or tempfile.gettempdir()
  if not os.path.isdir(path) or not os.access(path, os.W_OK):
    raise command_lib.UsageError(
        f'--{_DIRECTORY.name} must be a directory that can be written to, got '
        f'{path!r}.'
    )
  return path


def command() -> None:
  """Times steps with checkpoints and without."""
  if options.ONE_CORE.value:
    harness.pin_to_one_core()
  options.check()
  networks = steps.read_networks(default=['resnet18'])
  steps.check_batch(steps.BATCH)
  options.at_least(_WINDOW_STEPS, 1)
  directory = find_directory()
  results = {
      'command': 'checkpoint',
      **harness.environment(),
      'clock': 'wall time and process CPU time',
      'directory': directory,
      'batch': steps.BATCH.value,
      'window_steps': _WINDOW_STEPS.value,
      'released_steps': released_steps(steps.BATCH.value),
      'repetitions': options.REPETITIONS.value,
      'rows': [],
  }
  for network in networks:
    with tempfile.TemporaryDirectory(dir=directory) as folder:
      try:
        results['rows'].append(measure(network, pathlib.Path(folder)))
      except checkpoint.SaveError as error:
        raise command_lib.Failure(error) from error
    if options.JSON.value:
      reporting.write_json(options.JSON.value, results)
  print(report(results))
