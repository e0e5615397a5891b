# SPDX-License-Identifier: Apache-2.0
"""Evaluates a trained encoder.

  python -m hcl_jax.evaluate --workdir=DIR --protocol=knn,linear
  python -m hcl_jax.evaluate --workdir=DIR --protocol=sentences \\
      --data_dir=FOLDER [--tasks=MR,TREC] [--word_vectors=FILE]

Prints a table and writes it to DIR/evaluation.json, or where --json says. One
process suffices, whatever the run had; where the devices of several hosts only
start together, as those of a TPU pod, each host runs the command with
--distributed.
"""

import os
import pathlib

from absl import flags

from hcl_jax import command
from hcl_jax import domains
from hcl_jax import hosts
from hcl_jax.graphs import config as graph_config
from hcl_jax.images import config as image_config
from hcl_jax.runs import checkpoint
from hcl_jax.runs import processes
from hcl_jax.runs import reporting
from hcl_jax.runs import scores as scores_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sentences import config as sentence_config
from hcl_jax.sentences import scored_tasks as sentence_tasks
from hcl_jax.sweeps import comparison
from hcl_jax.training import loop

_WORKDIR = flags.DEFINE_string('workdir', None, 'Directory of the run.')
_PROTOCOL = flags.DEFINE_list(
    'protocol', None,
    f'Of {", ".join(image_config.PROTOCOLS)}; for graphs, of '
    f'{", ".join(graph_config.PROTOCOLS)}; for sentences, of '
    f'{", ".join(sentence_config.PROTOCOLS)}; by default those of the run.',
)
_STEP = flags.DEFINE_string(
    'step', 'last', "Which checkpoint: a number, 'last' or 'best'."
)
_DATA_DIR = flags.DEFINE_string(
    'data_dir', None,
    'Where the data set is, if not where it was in training. Of the protocol '
    'sentences, the folder of the tasks.',
)
_CORPUS_DIR = flags.DEFINE_string(
    'corpus_dir', None,
    'Of the protocol sentences: where the corpus is, if not where it was in '
    'training.',
)
_TASKS = flags.DEFINE_list(
    'tasks', None,
    'Of the protocol sentences: which of '
    f'{", ".join(sentence_tasks.TASKS)}; by default those of the run.',
)
_WORD_VECTORS = flags.DEFINE_string(
    'word_vectors', None,
    'Of the protocol sentences: text of word2vec or GloVe, for words that the '
    'run did not see.',
)
_SEEDS = flags.DEFINE_list(
    'seeds', None,
    'Seeds of the linear readout, or of the folds, if not those of the run.',
)
_JSON = flags.DEFINE_string('json', None, 'Where to write the results.')
command.require('workdir')
command.local('workdir', 'data_dir', 'corpus_dir', 'word_vectors', 'json')


def main(arguments: list[str]) -> int:
  if arguments:
    raise command.UsageError(f'unexpected argument {arguments[0]!r}.')
  workdir = pathlib.Path(_WORKDIR.value)
  path = pathlib.Path(_JSON.value or workdir / 'evaluation.json')
  try:
    config = read_config(workdir)
    check_writable(path)
    if config.get('compare'):
      scores = {
          variant: evaluate(
              comparison.variant_config(config, variant), workdir / variant
          )
          for variant in config.compare
      }
    else:
      scores = {str(workdir): evaluate(config, workdir)}
  except (ValueError, OSError, checkpoint.DamagedCheckpoint) as error:
    raise command.UsageError(error) from error
  if not processes.is_first():
    return 0
  reporting.write_json(path, scores)
  print(reporting.score_table({
      f'{name}, step {result.pop("step")}': result
      for name, result in scores.items()
  }))
  print(f'written to {path}')
  return 0


def read_config(workdir: pathlib.Path):
  """The configuration of the run, with the protocols asked for."""
  config = workdir_lib.load_config(workdir)
  domains.fill_defaults(config)
  asked = _PROTOCOL.value
  if asked is not None:
    config.evaluate.protocols = tuple(asked)
  elif config.domain == 'sentences':
    config.evaluate.protocols = sentence_config.final_protocols(config)
  if not config.evaluate.protocols:
    raise ValueError('the run has no protocol of its own; give --protocol.')
  if 'sentences' in config.evaluate.protocols:
    read_tasks(config)
  else:
    read_no_tasks(config)
  if _SEEDS.value is not None:
    known = {'fold_seeds', 'linear_seeds'} & set(config.evaluate)
    if not known:
      raise ValueError('--seeds: no protocol of this run has any.')
    try:
      config.evaluate[known.pop()] = tuple(map(int, _SEEDS.value))
    except ValueError:
      raise ValueError(
          f'--seeds must be whole numbers between commas, got {_SEEDS.value}.'
      ) from None
  return config


def read_tasks(config) -> None:
  """Sets the fields that the protocol sentences has flags for."""
  if 'tasks_dir' not in config.evaluate:
    raise ValueError('--protocol=sentences needs a run on sentences.')
  for flag, group, field in (
      (_DATA_DIR, config.evaluate, 'tasks_dir'),
      (_CORPUS_DIR, config.data, 'dir'),
      (_WORD_VECTORS, config.evaluate, 'word_vectors'),
  ):
    if flag.value is not None:
      group[field] = flag.value
  if _TASKS.value is not None:
    config.evaluate.tasks = tuple(_TASKS.value)
  if not config.evaluate.tasks_dir:
    raise ValueError(
        '--protocol=sentences needs --data_dir, the folder of the tasks.'
    )


def read_no_tasks(config) -> None:
  """Sets what there are flags for without the protocol sentences."""
  for flag in (_CORPUS_DIR, _TASKS, _WORD_VECTORS):
    if flag.value is not None:
      raise ValueError(f'--{flag.name} needs --protocol=sentences.')
  if _DATA_DIR.value is not None:
    config.data.dir = _DATA_DIR.value
  if 'tasks_dir' in config.evaluate:
    config.evaluate.tasks_dir = ''  # or the run's would be read


def check_writable(path: pathlib.Path) -> None:
  """Raises an OSError now, not after hours, where a file cannot be."""
  if path.is_dir():
    raise IsADirectoryError(f'--json must be a file, but {path} is a folder.')
  if not os.access(path.parent, os.W_OK):
    raise PermissionError(f'{path.parent} is no folder that can be written.')


def evaluate(config, workdir: pathlib.Path) -> scores_lib.Scores:
  """Scores of one run, and the ``step`` they are of."""
  experiment = domains.make_experiment(config, to_train=False)
  with loop.open_checkpoints(
      workdir, config, experiment.score
  ) as checkpoints:
    step = choose_step(checkpoints, workdir)
    state = loop.restore(experiment, checkpoints, step)
  scores = experiment.evaluate(state, config.evaluate.protocols)
  return {'step': int(state.step), **scores}


def choose_step(checkpoints, workdir: pathlib.Path) -> int | None:
  """The step asked for, which must be there; None for the last."""
  steps = checkpoints.steps()
  if not steps:
    raise FileNotFoundError(f'{workdir} has no checkpoint yet.')
  if _STEP.value == 'last':
    return None
  if _STEP.value == 'best':
    best = checkpoints.best_step()
    if best is None:
      raise ValueError(
          '--step=best: no step of this run was evaluated on the way.'
      )
    return best
  if not _STEP.value.isdecimal() or int(_STEP.value) not in steps:
    raise ValueError(
        f"--step must be 'last', 'best' or one of {steps}, got "
        f'{_STEP.value!r}.'
    )
  return int(_STEP.value)


if __name__ == '__main__':
  hosts.run('hcl_jax.evaluate', main)
