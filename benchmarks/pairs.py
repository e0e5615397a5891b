# SPDX-License-Identifier: Apache-2.0
"""Times training steps of two towers on pairs, beside torch's.

  python -m benchmarks pairs [--pairs_batch=512] [--one_core]
  python -m benchmarks pairs --pairs_epochs=6 [--pairs_hardness=2]

The pairs are names of molecules and their structures, of the package chemicals.
With --pairs_epochs, whole trainings by hcl_jax.fit and by the trainer of
sentence-transformers are compared instead, with what they end with.
"""

from collections.abc import Callable
import importlib.util
import pathlib
import statistics
import tempfile
import time
from typing import Any

from absl import flags
import jax
import joblib
import numpy as np

from benchmarks import data_flags
import hcl_jax
from hcl_jax import command as command_lib
from hcl_jax import configurations
from hcl_jax import domains
from hcl_jax import evaluation
from hcl_jax.bench import harness
from hcl_jax.bench import options
from hcl_jax.bench import output
from hcl_jax.runs import reporting
from hcl_jax.training import experiment as experiment_lib

_BATCH = flags.DEFINE_integer('pairs_batch', 512, 'Pairs per batch.')
_STEPS = flags.DEFINE_integer('pairs_steps', 10, 'Steps of a repetition.')
_EPOCHS = flags.DEFINE_integer(
    'pairs_epochs', 0, 'Epochs of whole trainings; 0: time steps.'
)
_HARDNESS = flags.DEFINE_float(
    'pairs_hardness', 0.0,
    'Hardness of sentence-transformers, on cosines; ours has as much.',
)  # fmt: skip
_MEASURES = 'R@1', 'MRR', 'group R@1'
_NOTES = """\
A step is from the tokens of the data set to updated weights: the towers of
configs/molecules.py, the loss in both directions, Adam that updates only tokens
that the batch has. torch has the same towers (EmbeddingBag, without padding),
the standard loss, and Adam; 'torch, sparse' has SparseAdam for the tokens.
'/ torch' is the median over repetitions of the time over torch's.\
"""


def make_experiment(
    batch_size: int, **fields: Any
) -> experiment_lib.Experiment:
  """Makes the quick start's experiment for batches of a size."""
  config = configurations.read('molecules:hard', [])
  config.loss.beta = _HARDNESS.value * config.loss.temperature
  config.update_from_flattened_dict(fields)
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
    experiment: experiment_lib.Experiment, count: int, sparse: bool
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
      sparse=sparse,
  )


def measure(
    experiment: experiment_lib.Experiment, count: int, with_torch: bool
) -> list[dict[str, Any]]:
  """Returns one row for each candidate."""
  runs = [harness.timed('hcl_jax', make_steps(experiment, count))]
  if with_torch:
    runs += [
        harness.timed(name, torch_steps(experiment, count, sparse))
        for name, sparse in (('torch, sparse', True), ('torch', False))
    ]
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


def compare_trainings(
    experiment: experiment_lib.Experiment, hardness: float
) -> list[dict[str, Any]]:
  """Trains by both libraries, and scores both on the test queries."""
  from benchmarks import torch_sentence_transformers

  config, data = experiment.config, experiment.data
  start, cpu = time.monotonic(), time.process_time()
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder, 'run')
    hcl_jax.fit(experiment, workdir)
    seconds = time.monotonic() - start, time.process_time() - cpu
    encoder = hcl_jax.load(workdir)
  texts = {'query': data.pairs.queries, 'document': data.pairs.documents}
  ours = {side: getattr(encoder, side)(x) for side, x in texts.items()}
  part = data.pairs.parts['train']
  theirs = torch_sentence_transformers.train(
      {side: list(x) for side, x in texts.items()},
      data.arrays._asdict(),
      {'query': part.query, 'document': part.document},
      epochs=config.train.epochs,
      batch_size=config.data.batch_size,
      learning_rate=config.optimizer.learning_rate,
      temperature=config.loss.temperature,
      hardness=hardness,
      seed=config.seed,
      num_tokens=config.model.buckets,
      token_dim=config.model.token_dim,
      width=config.model.width,
      dim=config.model.dim,
  )
  count = config.train.epochs * len(part.query)
  return [
      {
          'name': name,
          'pairs_per_second': count / wall,
          'pairs_per_cpu_second': count / cpu,
          **_scores(data.pairs, embeddings),
      }
      for name, embeddings, wall, cpu in (
          ('hcl_jax', ours, *seconds),
          ('sentence-transformers', *theirs),
      )
  ]


def _scores(pairs, embeddings) -> dict[str, float]:
  """Returns means over the test queries, in per cent."""
  part = pairs.parts['test']
  ranks = evaluation.retrieval_ranks(
      embeddings['query'][part.query],
      embeddings['document'],
      pairs.ids[part.document],
      pairs.ids,
      document_groups=pairs.groups,
  )
  values = evaluation.retrieval_values(ranks, _MEASURES)
  return {name: 100 * float(np.nanmean(x)) for name, x in values.items()}


def report_trainings(rows: list[dict[str, Any]]) -> str:
  """Returns a table of whole trainings."""
  header = ['trained by', 'pairs/s', 'pairs/CPU s', *_MEASURES]
  lines = [
      [
          row['name'],
          reporting.number(row['pairs_per_second'], 0),
          reporting.number(row['pairs_per_cpu_second'], 0),
          *(reporting.number(row[name], 2) for name in _MEASURES),
      ]
      for row in rows
  ]
  return reporting.table(header, lines)


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
  if _EPOCHS.value:
    if importlib.util.find_spec('sentence_transformers') is None:
      raise command_lib.UsageError(
          '--pairs_epochs needs sentence-transformers and datasets; install '
          'them.'
      )
    found = compare_trainings(
        make_experiment(
            _BATCH.value,
            **{
                'train.epochs': _EPOCHS.value,
                'evaluate.protocols': (),
                'evaluate.validation_every_epochs': 0.0,
                'train.checkpoint_every_epochs': float(_EPOCHS.value),
            },
        ),
        _HARDNESS.value,
    )
    print(report_trainings(found))
    if options.JSON.value:
      reporting.write_json(options.JSON.value, {'candidates': found})
    return
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
