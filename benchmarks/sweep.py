# SPDX-License-Identifier: Apache-2.0
"""Times a sweep on graphs, beside the same runs one by one.

  python -m benchmarks sweep [--bench_dataset=MUTAG] \\
      --bench_betas=0,1,2,10 --bench_seeds=10 [--sequential=4]

Both are commands, hcl_jax.sweep and hcl_jax.train, timed from their start to
their scores. --sequential=N times N of the runs only, evenly chosen.
"""

from collections.abc import Sequence
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import flags
import jax
import joblib
import numpy as np

from benchmarks import data_flags
from benchmarks import runs as runs_lib
from hcl_jax import command as command_lib
from hcl_jax.bench import harness
from hcl_jax.bench import options
from hcl_jax.bench import output
from hcl_jax.graphs import config as graph_config
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import reporting
from hcl_jax.sweeps import grid

_BETAS = flags.DEFINE_list('bench_betas', '0,1,2,10', 'Betas of the sweep.')
_SEEDS = flags.DEFINE_integer('bench_seeds', 10, 'Seeds of each beta.')
_EPOCHS = flags.DEFINE_integer('bench_epochs', 200, 'Epochs of a run.')
_SEQUENTIAL = flags.DEFINE_integer(
    'sequential', 0, 'How many of the runs to time one by one; 0: all.'
)
_CURVE = flags.DEFINE_integer(
    'curve_steps', 20, 'Steps of each point of the loss curves.'
)

_CONFIG = """\
from hcl_jax.graphs import config

get_config = config.infograph
"""
_NOTES = """\
A command is timed from its start to its scores, compilation included; half of
the single runs go before the sweep and half after it. 'difference' is the
largest one between the loss curves of a run by itself and in the sweep;
'relative' the largest in relation to the loss, 'first point' that of the first
point of the curves. Training amplifies rounding: small differences grow.\
"""

Curve = dict[int, float]


class Commands:
  """Starts the sweep, and its runs by themselves, as commands.

  Args:
    root: where to write.
    fields: swept values, by the name of the field.
    settings: flags of the configuration that both commands take.
  """

  def __init__(
      self,
      root: pathlib.Path,
      fields: dict[str, Sequence[Any]],
      settings: Sequence[str],
  ):
    self._root = root
    self._fields = fields
    config = root / 'config.py'
    config.write_text(_CONFIG, encoding='utf-8')
    self._settings = [f'--config={config}', *settings]

  def time_sweep(self) -> float:
    """Seconds of the whole sweep."""
    return _time_command(
        'hcl_jax.sweep',
        *self._settings,
        f'--workdir={self._root / "sweep"}',
        *(
            f'--sweep.{field}={",".join(map(str, values))}'
            for field, values in self._fields.items()
        ),
    )

  def time_single(self, run: grid.Run) -> float:
    """Returns the seconds of one of its runs by itself."""
    return _time_command(
        'hcl_jax.train',
        *self._settings,
        f'--workdir={self._root / run.name}',
        *(f'--config.{field}={x}' for field, x in run.values.items()),
    )

  def sweep_curve(self, run: grid.Run) -> Curve:
    """Returns losses of a run of the sweep by step."""
    return _read_curve(self._root / 'sweep' / 'runs' / run.name)

  def single_curve(self, run: grid.Run) -> Curve:
    """Returns losses of the same run by itself."""
    return _read_curve(self._root / run.name)

  def device_kind(self) -> str:
    """What the sweep ran on."""
    return runs_lib.device_kind(self._root / 'sweep')


def _read_curve(workdir):
  return {
      record['step']: record['loss']
      for record in metrics_lib.read_metrics(workdir)
      if 'loss' in record
  }


def _time_command(module, *arguments):
  start = time.perf_counter()
  done = subprocess.run(
      [sys.executable, '-m', module, *arguments],
      env=os.environ | {'JAX_ENABLE_COMPILATION_CACHE': 'false'},
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
  )
  seconds = time.perf_counter() - start
  runs_lib.check_end(module, done.returncode, done.stderr)
  return seconds


def choose_evenly(
    runs: Sequence[grid.Run], number: int
) -> list[grid.Run]:
  """Chooses so many of the runs, from the first to the last; 0: all."""
  if not 0 < number < len(runs):
    return list(runs)
  places = np.linspace(0, len(runs) - 1, number, dtype=int)
  return [runs[i] for i in places]


def compare_curves(curve: Curve, reference: Curve) -> dict[str, float | None]:
  """How far losses are from those of another run at the steps of both.

  Args:
    curve: losses by step.
    reference: those of the other run.

  Returns:
    The largest difference, the largest in relation to the reference, and the
    relative one of the first step; None where no step is of both.
  """
  steps = sorted(curve.keys() & reference.keys())
  apart = [abs(curve[step] - reference[step]) for step in steps]
  relative = [
      x / max(abs(reference[step]), sys.float_info.min)
      for x, step in zip(apart, steps, strict=True)
  ]
  return {
      'difference': max(apart, default=None),
      'relative': max(relative, default=None),
      'first_relative': next(iter(relative), None),
  }


def measure(
    commands: Commands, runs: Sequence[grid.Run], number: int
) -> dict[str, Any]:
  """Times the sweep, and so many of its runs by themselves."""
  chosen = choose_evenly(runs, number)
  seconds = {}

  def time_singles(some):
    for run in some:
      seconds[run.name] = commands.time_single(run)
      output.say(f'{run.label}: {seconds[run.name]:.1f} s')

  half = len(chosen) // 2
  time_singles(chosen[:half])
  sweep_seconds = commands.time_sweep()
  output.say(f'sweep: {sweep_seconds:.1f} s')
  time_singles(chosen[half:])
  single_seconds = statistics.fmean(seconds.values())
  return {
      'device_kind': commands.device_kind(),
      'runs': len(runs),
      'timed': len(chosen),
      'sweep_seconds': sweep_seconds,
      'single_seconds': single_seconds,
      'sequential_seconds': len(runs) * single_seconds,
      'ratio': sweep_seconds / (len(runs) * single_seconds),
      'rows': [
          {
              'name': run.label,
              'seconds': seconds[run.name],
              **compare_curves(
                  commands.sweep_curve(run), commands.single_curve(run)
              ),
          }
          for run in chosen
      ],
  }


def report(results: dict[str, Any]) -> str:
  """The whole text: what ran where, the tables, how to read them."""
  runs, timed = results['runs'], results['timed']
  scaled = f'; {timed} of these were timed, and their mean stands for all'
  differences = 'difference', 'relative', 'first_relative'
  lines = [
      [
          r['name'],
          reporting.number(r['seconds'], 1),
          *(_short(r[name]) for name in differences),
      ]
      for r in results['rows']
  ]
  header = ['single run', 's', 'difference', 'relative', 'first point']
  return '\n'.join([
      f'A sweep of {runs} runs on {results["dataset"]}, '
      f'{results["epochs"]} epochs, beside the same one by one'
      f'{scaled if timed < runs else ""}.',
      f'jax {results["jax"]}, {results["device_kind"]}, {results["cores"]} '
      f'host core(s), {results["clock"]}:',
      '',
      reporting.table(
          ['', 's', 's for each'],
          [
              _total('sweep', results['sweep_seconds'], runs),
              _total('one by one', results['sequential_seconds'], runs),
              ['ratio', f'{results["ratio"]:.3f}', ''],
          ],
      ),
      '',
      reporting.table(header, lines),
      '',
      _NOTES,
  ])


def _total(name, seconds, runs):
  return [name, f'{seconds:.1f}', f'{seconds / runs:.1f}']


def _short(value):
  return '-' if value is None else f'{value:.1e}'


def read_betas() -> list[float]:
  try:
    betas = list(dict.fromkeys(map(float, _BETAS.value)))
    if betas and all(0 <= beta < math.inf for beta in betas):
      return betas
  except ValueError:
    pass
  raise command_lib.UsageError(
      f'--{_BETAS.name} must be numbers >= 0 between commas, got '
      f'{",".join(_BETAS.value)!r}.'
  )


def command() -> None:
  """Times a sweep on graphs beside the same runs one by one."""
  if options.ONE_CORE.value:
    harness.pin_to_one_core()
  options.check()
  for flag, least in ((_SEEDS, 1), (_EPOCHS, 1), (_SEQUENTIAL, 0), (_CURVE, 1)):
    options.at_least(flag, least)
  dataset = data_flags.DATASET.value or 'MUTAG'
  fields = {'loss.beta': read_betas(), 'seed': range(_SEEDS.value)}
  settings = {
      'data.name': dataset,
      'data.dir': data_flags.DATA_DIR.value,
      'train.epochs': _EPOCHS.value,
      'train.log_every_steps': _CURVE.value,
  }
  runs = grid.expand(graph_config.infograph(), fields)
  with tempfile.TemporaryDirectory() as root:
    commands = Commands(
        pathlib.Path(root),
        fields,
        [f'--config.{field}={value}' for field, value in settings.items()],
    )
    measured = measure(commands, runs, _SEQUENTIAL.value)
  results = {
      'command': 'sweep',
      'jax': jax.__version__,
      'cores': joblib.cpu_count(),
      'clock': 'wall time',
      'dataset': dataset,
      'epochs': _EPOCHS.value,
      **measured,
  }
  print(report(results))
  if options.JSON.value:
    reporting.write_json(options.JSON.value, results)
