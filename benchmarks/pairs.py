# SPDX-License-Identifier: Apache-2.0
"""Times training steps of two towers on pairs, beside torch's.

  python -m benchmarks pairs [--pairs_batch=512] [--one_core]

The pairs are names of molecules and their structures, of the package chemicals.
"""

from collections.abc import Callable
import importlib.util
import statistics
from typing import Any

from absl import flags
import jax
import joblib

from benchmarks import data_flags
from hcl_jax import command as command_lib
from hcl_jax import configurations
from hcl_jax import domains
from hcl_jax.bench import harness
from hcl_jax.bench import options
from hcl_jax.bench import output
from hcl_jax.runs import reporting
from hcl_jax.training import experiment as experiment_lib

_BATCH = flags.DEFINE_integer('pairs_batch', 512, 'Pairs per batch.')
_STEPS = flags.DEFINE_integer('pairs_steps', 10, 'Steps of a repetition.')
_NOTES = """\
A step is from the tokens of the data set to updated weights: the towers of
configs/molecules.py, the loss in both directions, Adam. torch has the same
towers (EmbeddingBag, without padding), the standard loss, and Adam as it is by
default. '/ torch' is the median over repetitions of the time over torch's.\
"""


def make_experiment(batch_size: int) -> experiment_lib.Experiment:
  """Makes the quick start's experiment for batches of a size."""
  config = configurations.read('molecules:hard', [])
  config.data.name = data_flags.DATASET.value or config.data.name
  config.data.dir = data_flags.DATA_DIR.value
  config.data.batch_size = batch_size
  try:
    return domains.make_experiment(config)
  except (ValueError, OSError) as error:
    raise command_lib.UsageError(error) from error


def make_steps(
    experiment: experiment_lib.Experiment, count: int
) -> Callable[[], Any]:
  """Makes a function that takes some steps, as the loop does."""
  init, take = experiment.programs()
  state = init(experiment.hyperparameters)

  def steps():
    nonlocal state
    for batch in experiment.batches(0, count):
      state, metrics = take(experiment.hyperparameters, state, batch)
    return jax.block_until_ready(metrics)

  return steps


def torch_steps(
    experiment: experiment_lib.Experiment, count: int
) -> Callable[[], Any]:
  """Makes the same in torch."""
  from benchmarks import torch_pairs

  config = experiment.config
  return torch_pairs.make_epoch(
      lambda: experiment.batches(0, count),
      num_tokens=config.model.buckets,
      token_dim=config.model.token_dim,
      width=config.model.width,
      dim=config.model.dim,
      temperature=config.loss.temperature,
      learning_rate=config.optimizer.learning_rate,
      threads=1 if options.ONE_CORE.value else joblib.cpu_count(),
  )


def measure(
    experiment: experiment_lib.Experiment, count: int, with_torch: bool
) -> list[dict[str, Any]]:
  """Returns one row for each candidate."""
  runs = [harness.timed('hcl_jax', make_steps(experiment, count))]
  if with_torch:
    runs.append(harness.timed('torch', torch_steps(experiment, count)))
  _, clock = harness.choose_clock()
  harness.time_all(runs, options.REPETITIONS.value, clock)
  torch_seconds = runs[-1].seconds if with_torch else []
  rows = count * experiment.config.data.batch_size
  return [
      {
          'name': run.name,
          'ms': 1e3 * statistics.median(run.seconds) / count,
          'pairs_per_second': rows / statistics.median(run.seconds),
          'to_torch': harness.paired_ratio(run.seconds, torch_seconds),
          'first_seconds': run.first_seconds,
          'repetition_ms': [1e3 * x for x in run.seconds],
      }
      for run in runs
  ]


def report(results: dict[str, Any]) -> str:
  """Returns the text: what ran where, the table, how to read it."""
  lines = [
      [
          r['name'],
          reporting.number(r['ms'], 1),
          reporting.number(r['pairs_per_second'], 0),
          reporting.number(r['to_torch'], 3),
          reporting.number(r['first_seconds'], 1),
      ]
      for r in results['candidates']
  ]
  return '\n'.join([
      f'Steps of {results["batch"]} pairs of {results["data"]}.',
      f'jax {results["jax"]}, backend {results["backend"]} '
      f'({results["device_kind"]}), {results["cores"]} host core(s); torch '
      'runs on the host.',
      f'Medians of {results["repetitions"]} repetitions, {results["clock"]}:',
      '',
      reporting.table(
          ['towers', 'ms a step', 'pairs/s', '/ torch', 'first s'], lines
      ),
      '',
      _NOTES,
  ])


def command() -> None:
  """Times training steps of two towers on pairs, beside torch's."""
  if options.ONE_CORE.value:
    harness.pin_to_one_core()
  options.check()
  options.at_least(_BATCH, 2)
  options.at_least(_STEPS, 1)
  with_torch = importlib.util.find_spec('torch') is not None
  if not with_torch:
    output.say('not installed: torch')
  experiment = make_experiment(_BATCH.value)
  results = {
      'command': 'pairs',
      **harness.environment(),
      'data': experiment.config.data.name,
      'batch': _BATCH.value,
      'repetitions': options.REPETITIONS.value,
      'candidates': measure(experiment, _STEPS.value, with_torch),
  }
  print(report(results))
  if options.JSON.value:
    reporting.write_json(options.JSON.value, results)
