# SPDX-License-Identifier: Apache-2.0
"""Evaluates a trained encoder.

  python -m hcl_jax.evaluate --workdir=DIR --protocol=knn,linear

Prints a table and writes it to DIR/evaluation.json, or where --json says.
"""

import pathlib

from absl import flags

from hcl_jax import command
from hcl_jax import reporting
from hcl_jax.training import checkpoint
from hcl_jax.training import comparison
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import limits
from hcl_jax.training import loop
from hcl_jax.training import readout
from hcl_jax.training import workdir as workdir_lib

_WORKDIR = flags.DEFINE_string('workdir', None, 'Directory of the run.')
_PROTOCOL = flags.DEFINE_list(
    'protocol', None,
    f'Of {", ".join(limits.PROTOCOLS)}; for graphs, of '
    f'{", ".join(limits.GRAPH_PROTOCOLS)}; for sentences, of '
    f'{", ".join(limits.SENTENCE_PROTOCOLS)}; by default those of the run.',
)
_STEP = flags.DEFINE_string(
    'step', 'last', "Which checkpoint: a number, 'last' or 'best'."
)
_DATA_DIR = flags.DEFINE_string(
    'data_dir', None, 'Where the data set is, if not where it was in training.'
)
_SEEDS = flags.DEFINE_list(
    'seeds', None,
    'Seeds of the linear readout, or of the folds, if not those of the run.',
)
_JSON = flags.DEFINE_string('json', None, 'Where to write the results.')
flags.mark_flag_as_required('workdir')


def main(arguments: list[str]) -> int:
  if arguments:
    raise command.UsageError(f'unexpected argument {arguments[0]!r}.')
  workdir = pathlib.Path(_WORKDIR.value)
  try:
    config = read_config(workdir)
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
  path = _JSON.value or workdir / 'evaluation.json'
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
  if _PROTOCOL.value is not None:
    config.evaluate.protocols = tuple(_PROTOCOL.value)
  if not config.evaluate.protocols:
    raise ValueError('the run has no protocol of its own; give --protocol.')
  if _DATA_DIR.value is not None:
    config.data.dir = _DATA_DIR.value
  if _SEEDS.value is not None:
    known = {'fold_seeds', 'linear_seeds'} & set(config.evaluate)
    if not known:
      raise ValueError('--seeds: no protocol of this run has any.')
    config.evaluate[known.pop()] = tuple(map(int, _SEEDS.value))
  return config


def evaluate(config, workdir: pathlib.Path) -> readout.Scores:
  """Scores of one run, and the ``step`` they are of."""
  experiment = experiment_lib.prepare(config, to_train=False)
  with loop.open_checkpoints(workdir, config) as checkpoints:
    step = choose_step(checkpoints, workdir)
    state = loop.restore(experiment, checkpoints, step)
  scores = experiment.reader().evaluate(state, config.evaluate.protocols)
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
  command.run('hcl_jax.evaluate', main)
