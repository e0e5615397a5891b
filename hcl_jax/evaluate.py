# SPDX-License-Identifier: Apache-2.0
"""Evaluates a trained encoder.

  hcl_jax evaluate --workdir=DIR --protocol=knn,linear
  hcl_jax evaluate --workdir=DIR --protocol=sentences \\
      --tasks_dir=FOLDER [--tasks=MR,TREC] [--word_vectors=FILE]

Prints a table and adds it to DIR/evaluation.json, or where --json says, which
has the scores of all evaluations by run and step. One process suffices,
whatever the run had; where the devices of several hosts only start together, as
those of a TPU pod, each host runs the command with --distributed.
"""

import collections
import os
import pathlib
from typing import NamedTuple

from absl import flags
import ml_collections

from hcl_jax import command
from hcl_jax import domains
from hcl_jax import hosts
from hcl_jax.runs import checkpoint
from hcl_jax.runs import processes
from hcl_jax.runs import progress as progress_lib
from hcl_jax.runs import reporting
from hcl_jax.runs import scores as scores_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import comparison
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import header
from hcl_jax.training import loop

_WORKDIR = flags.DEFINE_string('workdir', None, 'Directory of the run.')
_PROTOCOL = flags.DEFINE_list(
    'protocol', None,
    'How to evaluate; by default as the run was at its end. '
    + ' '.join(
        f'{name.capitalize()}: {", ".join(room.PROTOCOLS)}.'
        for name, room in domains.configs().items()
    ),
)  # fmt: skip
_STEP = flags.DEFINE_string(
    'step', 'last', "Which checkpoint: a number, 'last' or 'best'."
)
_DATA_DIR = flags.DEFINE_string(
    'data_dir', None,
    'Where the data set is, if not where it was in training.',
)  # fmt: skip
_ALLOW_CODE = command.allow_code_flag()
flags.adopt_module_key_flags(command)
flags.adopt_module_key_flags(hosts)
_JSON = flags.DEFINE_string(
    'json', None,
    'File to add the results to; by default evaluation.json in the workdir.',
)  # fmt: skip


def _define_flags():
  """Defines the flags of rooms; each sets a field of the configuration."""
  helps = collections.defaultdict(list)
  kinds = {}
  for domain, room in domains.configs().items():
    known = fields_lib.flatten_fields(room.FIELDS)
    for name, path in room.EVALUATE_FLAGS.items():
      helps[name].append(f'For {domain}: {known[path].help}.')
      kinds[name] = type(known[path].default)
  for name, lines in helps.items():
    define = flags.DEFINE_list if kinds[name] is tuple else flags.DEFINE_string
    define(name, None, f'{" ".join(lines)} By default as in the run.')
  # What a room takes as a str names a file or a folder.
  command.local(*(name for name, kind in kinds.items() if kind is str))
  return tuple(helps)


_FLAGS_OF_ROOMS = _define_flags()
command.require('workdir')
command.local('workdir', 'data_dir', 'json')


def main(arguments: list[str]) -> int:
  if arguments:
    raise command.UsageError(f'unexpected argument {arguments[0]!r}.')
  command.check_devices()
  workdir = pathlib.Path(_WORKDIR.value)
  path = pathlib.Path(_JSON.value or workdir / 'evaluation.json')
  try:
    config = read_config(workdir)
    check_writable(path)
    if config.get('compare'):
      results = {
          variant: evaluate(
              comparison.variant_config(config, variant), workdir / variant
          )
          for variant in config.compare
      }
    else:
      results = {str(workdir): evaluate(config, workdir)}
  except (ValueError, OSError, checkpoint.DamagedCheckpoint) as error:
    raise command.UsageError(error) from error
  if not processes.is_first():
    return 0
  print(reporting.score_table({
      f'{name}, step {result.step}': result.scores
      for name, result in results.items()
  }))
  last = list(results.values())[-1]
  if scores_lib.errors(last.scores):
    print(f'\n{last.about_errors}')
  try:
    scores_lib.add_evaluations(
        path, {x.run: {x.step: x.scores} for x in results.values()}
    )
  except (ValueError, OSError) as error:
    raise command.Failure(error) from error
  print(f'written to {path}')
  return 0


class Result(NamedTuple):
  """Holds what was measured of a run.

  Attributes:
    run: absolute path of its directory.
    step: step of the checkpoint.
    scores: its scores.
    about_errors: says what their standard errors are.
  """

  run: str
  step: int
  scores: scores_lib.Scores
  about_errors: str


def read_config(workdir: pathlib.Path) -> ml_collections.ConfigDict:
  """Reads the configuration of the run, and sets what flags ask for."""
  config = domains.load_config(workdir, allow_code=_ALLOW_CODE.value)
  room = domains.room_config(config)
  own = getattr(room, 'EVALUATE_FLAGS', {})
  given = {
      name: flags.FLAGS[name].value
      for name in _FLAGS_OF_ROOMS
      if flags.FLAGS[name].value is not None
  }
  for name, value in given.items():
    if name not in own:
      raise ValueError(
          f'--{name} is not a flag for runs of '
          f'config.domain={domains.domain_of(config)!r}.'
      )
    if isinstance(value, list):
      before = fields_lib.get(config, own[name])
      kind = type(before[0]) if before else str
      try:
        value = tuple(map(kind, value))
      except ValueError:
        raise ValueError(
            f'--{name} must be {kind.__name__}s between commas, got {value}.'
        ) from None
    config.update_from_flattened_dict({own[name]: value})
  if _DATA_DIR.value is not None:
    config.data.dir = _DATA_DIR.value
  if _PROTOCOL.value is not None:
    protocols = tuple(_PROTOCOL.value)
    if hasattr(room, 'set_protocols'):
      room.set_protocols(config, protocols, given)
    else:
      config.evaluate.protocols = protocols
  return config


def check_writable(path: pathlib.Path) -> None:
  """Raises an error now, not after hours, if a file cannot be written."""
  if path.is_dir():
    raise IsADirectoryError(f'--json must be a file, but {path} is a folder.')
  if not os.access(path.parent, os.W_OK):
    raise PermissionError(f'{path.parent} is no folder that can be written.')
  scores_lib.read_evaluations(path)


def evaluate(config, workdir: pathlib.Path) -> Result:
  """Returns the scores of one run."""
  experiment = domains.make_experiment(config, to_train=False)
  workdir_lib.check_inputs(workdir, experiment.inputs)
  if not experiment.protocols:
    raise ValueError('the run has no protocol of its own; give --protocol.')
  with loop.open_checkpoints(workdir, config, experiment.score) as checkpoints:
    step = choose_step(checkpoints, workdir)
    with progress_lib.if_slow(
        progress_lib.say, f'restoring {workdir}', f'restored {workdir}'
    ):
      state = loop.restore(experiment, checkpoints, step)
  step = int(state.step)
  progress_lib.say(
      *header.warnings(experiment),
      f'evaluating {workdir}, step {step}: {", ".join(experiment.protocols)}',
  )
  with progress_lib.Parts() as parts:
    scores = experiment.evaluate(state, poll=parts)
  return Result(
      os.path.abspath(workdir), step, scores, header.about_errors(experiment)
  )


def choose_step(checkpoints, workdir: pathlib.Path) -> int | None:
  """Returns the step asked for, which must be there; None for the last."""
  steps = checkpoints.steps()
  if not steps:
    raise FileNotFoundError(f'{workdir} has no checkpoint yet.')
  if _STEP.value == 'last':
    return None
  if _STEP.value == 'best':
    best = checkpoints.best_step()
    if best is None:
      raise ValueError(
          '--step=best: no step of this run was evaluated during training.'
      )
    return best
  if not _STEP.value.isdecimal() or int(_STEP.value) not in steps:
    raise ValueError(
        f"--step must be 'last', 'best' or one of {steps}, got {_STEP.value!r}."
    )
  return int(_STEP.value)


if __name__ == '__main__':
  hosts.run('hcl_jax.evaluate', main)
