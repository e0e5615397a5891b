# SPDX-License-Identifier: Apache-2.0
"""Whether a long run keeps its memory and its speed.

  python -m benchmarks soak [--soak_config=configs/digits.py:hard] \\
      [--soak_steps=5000] [--soak_every_epochs=2]

Runs hcl_jax.train on images, with checkpoints and kNN evaluations on the way,
and samples what its process uses. Linux only.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import flags
import jax
import joblib

from benchmarks import data_flags
from benchmarks import runs
from benchmarks import trends
from benchmarks import usage as usage_lib
from hcl_jax import command as command_lib
from hcl_jax.bench import harness
from hcl_jax.bench import options
from hcl_jax.bench import output
from hcl_jax.images import config as image_config
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import reporting

_CONFIG = flags.DEFINE_string(
    'soak_config', 'configs/digits.py:hard',
    'Configuration to train, configs/NAME.py[:VARIANT], on images.',
)  # fmt: skip
_WORKDIR = flags.DEFINE_string(
    'soak_workdir', '',
    'Directory of the run, new or empty; by default a temporary one.',
)  # fmt: skip
command_lib.local('soak_workdir')
_STEPS = flags.DEFINE_integer('soak_steps', 5000, 'Steps of the run.')
_EVERY = flags.DEFINE_integer(
    'soak_every_epochs', 2, 'Epochs between checkpoints and evaluations.'
)
_SAMPLE_SECONDS = flags.DEFINE_float(
    'soak_sample_seconds', 1.0, 'Least seconds between samples.'
)
_LINES = 500  # of metrics, in a run: a sample is taken when one is written
_POLL_SECONDS = 0.02
_TENTHS = 10
_NOTES = """\
A sample is taken at the end of a step. Times are medians between samples, so
evaluations and checkpoints do not count in them unless they are frequent:
'earlier' in the second quarter of the steps, 'later' in the last one. CPU time
is that of all threads, so other work on the machine disturbs it less. Memory,
files and threads are those at the beginning of the second half and at the end,
medians of ten samples.\
"""


def train_arguments(workdir: pathlib.Path) -> list[str]:
  """Flags of hcl_jax.train."""
  settings = {
      'compare': (),
      'train.steps': _STEPS.value,
      'train.log_every_steps': max(_STEPS.value // _LINES, 1),
      'train.checkpoint_every_epochs': _EVERY.value,
      'evaluate.knn_every_epochs': _EVERY.value,
      'evaluate.protocols': (),
  }
  if data_flags.DATASET.value:
    settings['data.name'] = data_flags.DATASET.value
  if data_flags.DATA_DIR.value:
    settings['data.dir'] = data_flags.DATA_DIR.value
  return [
      f'--config={_CONFIG.value}',
      f'--workdir={workdir}',
      *(f'--config.{field}={value}' for field, value in settings.items()),
  ]


def follow(
    process: subprocess.Popen,
    workdir: pathlib.Path,
    total_steps: int,
    least_seconds: float,
) -> list[trends.Sample]:
  """Samples a run until its process ends.

  Args:
    process: of the run.
    workdir: of the run.
    total_steps: length of the run; the last step is always sampled.
    least_seconds: between two samples.

  Returns:
    The samples, each taken just when metrics of its step were written.
  """
  samples, seen, last, due = [], 0, 0, 0.0
  while process.poll() is None:
    step, now = metrics_lib.last_step(workdir), time.perf_counter()
    # A line that was there before says nothing of where the run is now.
    if step > seen and (now >= due or step == total_steps):
      usage = usage_lib.read(process.pid)
      if usage is not None:
        samples.append(trends.Sample(step, now, usage))
        _say_tenths(last, samples[-1], total_steps)
        last, due = step, now + least_seconds
    seen = step
    time.sleep(min(_POLL_SECONDS, least_seconds))
  return samples


def _say_tenths(before, sample, total_steps):
  tenth, old = (_TENTHS * x // total_steps for x in (sample.step, before))
  if tenth > old:
    output.say(
        f'step {sample.step} of {total_steps}: '
        f'{sample.usage.resident / 2**20:.0f} MiB, '
        f'{sample.usage.cpu_seconds:.0f} s of CPU time'
    )


def check_finished(workdir: str | os.PathLike, total_steps: int) -> None:
  """Refuses a run without an error that was asked to leave early."""
  reached = metrics_lib.last_step(workdir)
  if reached < total_steps:
    raise command_lib.Failure(
        f'the run was stopped after step {reached} of {total_steps}.'
    )


def measure(workdir: pathlib.Path) -> dict[str, Any]:
  """Trains in a directory, and says how that went."""
  module, total = 'hcl_jax.train', _STEPS.value
  command = [sys.executable, '-m', module, *train_arguments(workdir)]
  with tempfile.TemporaryFile('w+') as errors:
    with runs.started(command, errors) as process:
      output.say(f'{module} runs as process {process.pid}')
      samples = follow(process, workdir, total, _SAMPLE_SECONDS.value)
    errors.seek(0)
    runs.check_end(module, process.returncode, errors.read())
  check_finished(workdir, total)
  score = image_config.SCORE
  records = metrics_lib.read_metrics(workdir)
  return {
      'device_kind': runs.device_kind(workdir),
      'evaluations': sum(score in record for record in records),
      **trends.summarize(samples, total),
      'rows': [
          {'step': x.step, 'seconds': x.seconds, **x.usage._asdict()}
          for x in samples
      ],
  }


def report(results: dict[str, Any]) -> str:
  """The whole text: what ran where, the table, how to read it."""
  names = {
      'CPU ms of a step': ('cpu_ms_per_step', 2),
      'wall ms of a step': ('wall_ms_per_step', 2),
      'resident MiB': ('resident_mib', 1),
      'open files': ('files', 0),
      'threads': ('threads', 0),
  }
  lines = [
      [
          label,
          reporting.number(results[name]['earlier'], digits),
          reporting.number(results[name]['later'], digits),
          reporting.number(results[name]['ratio'], 3),
      ]
      for label, (name, digits) in names.items()
  ]
  return '\n'.join([
      f'{results["config"]}: {results["steps"]} steps, with '
      f'{results["evaluations"]} evaluations and checkpoints on the way.',
      f'jax {results["jax"]}, {results["device_kind"]}, {results["cores"]} '
      f'host core(s), {results["samples"]} samples:',
      '',
      reporting.table(['', 'earlier', 'later', 'later / earlier'], lines),
      '',
      'Resident memory over the second half, by least squares: '
      f'{_signed(results["slope_mib_per_1000_steps"])} MiB per 1000 steps, '
      f'{_signed(results["drift_mib"])} MiB in all.',
      f'Peak: {reporting.number(results["peak_mib"], 1)} MiB.',
      '',
      _NOTES,
  ])


def _signed(value):
  return '-' if value is None else f'{value:+.2f}'


def check_flags() -> None:
  """Refuses what would fail later."""
  options.check()
  usage_lib.check_system()
  for flag, least in ((_STEPS, 8), (_EVERY, 1), (_SAMPLE_SECONDS, 0.001)):
    options.at_least(flag, least)
  path = _CONFIG.value.partition(':')[0]
  if not os.path.isfile(path):
    raise command_lib.UsageError(
        f'--{_CONFIG.name}: there is no file {path!r}; the default is one of '
        'the repository, at its root.'
    )
  if _WORKDIR.value and not _is_free(pathlib.Path(_WORKDIR.value)):
    raise command_lib.UsageError(
        f'--{_WORKDIR.name} must be an empty directory, or one that is not '
        f'there yet; got {_WORKDIR.value!r}.'
    )


def _is_free(path):
  return not path.exists() or path.is_dir() and not any(path.iterdir())


def command() -> None:
  """Trains for long and reports whether memory and speed stay the same."""
  if options.ONE_CORE.value:
    harness.pin_to_one_core()
  check_flags()
  with contextlib.ExitStack() as stack:
    workdir = _WORKDIR.value or stack.enter_context(
        tempfile.TemporaryDirectory()
    )
    measured = measure(pathlib.Path(workdir))
  results = {
      'command': 'soak',
      'jax': jax.__version__,
      'cores': joblib.cpu_count(),
      'config': _CONFIG.value,
      'steps': _STEPS.value,
      'every_epochs': _EVERY.value,
      **measured,
  }
  print(report(results))
  if options.JSON.value:
    reporting.write_json(options.JSON.value, results)
