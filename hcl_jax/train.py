# SPDX-License-Identifier: Apache-2.0
"""Trains an encoder.

  hcl_jax train --config=digits:hard --workdir=DIR [--config.loss.beta=1 ...]
  hcl_jax train --config=digits:hard --print_config
  hcl_jax train --config=digits:hard --workdir=DIR --only_check_args

"hcl_jax configs" lists configurations. DIR gets the configuration, metrics,
checkpoints and scores. The same command resumes a run that was stopped. The
second one shows the fields that can be set, the last one checks flags,
configuration and data only.

On several hosts, give each process of the run one of these:

  ... --coordinator=HOST:PORT --num_processes=N --process_id=I
  ... --distributed                        on Cloud TPU, SLURM, Open MPI
"""

import os
import pathlib
import sys
from typing import Any

from absl import flags

from hcl_jax import command
from hcl_jax import configurations
from hcl_jax import domains
from hcl_jax import hosts
from hcl_jax.runs import checkpoint
from hcl_jax.runs import processes
from hcl_jax.runs import reporting
from hcl_jax.runs import scores as scores_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import comparison
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import finite
from hcl_jax.training import header
from hcl_jax.training import loop

_CONFIG, _PRINT_CONFIG = configurations.define_flags()
flags.adopt_module_key_flags(configurations)
flags.adopt_module_key_flags(hosts)
_WORKDIR = flags.DEFINE_string(
    'workdir', None, 'Directory of the run; resumed if it holds this run.'
)
_INIT_FROM = flags.DEFINE_string(
    'init_from', None,
    'Directory of another run; this one begins with its encoder, as '
    'config.train.init_from says.',
)  # fmt: skip
_PROFILE_STEPS = flags.DEFINE_string(
    'profile_steps', None,
    'Steps to write a JAX trace of, as 100:110, to profile/ in the workdir.',
)  # fmt: skip
command.local('workdir', 'init_from')


def main(arguments: list[str]) -> int:
  try:
    config = configurations.read(_CONFIG.value, arguments)
    if _INIT_FROM.value:
      config.train.init_from = os.path.abspath(_INIT_FROM.value)
    if _PROFILE_STEPS.value:
      config.train.profile_steps = _steps(_PROFILE_STEPS.value)
    if _PRINT_CONFIG.value:
      print(configurations.describe(config))
      return 0
    workdir = pathlib.Path(command.given(_WORKDIR))
    comparison.use_cores(config)
    command.check_devices()
    with processes.together('prepare'):
      experiment = domains.make_experiment(config)
    processes.check_same(
        f'{config}{experiment.summary}', 'configuration and data'
    )
  except processes.PeerError as error:
    return command.fail('hcl_jax.train', error)
  except (ValueError, OSError) as error:
    raise command.UsageError(error) from error
  if command.only_checks():
    print('hcl_jax.train: flags, configuration and data are valid.')
    return 0
  try:
    scores = comparison.fit(experiment, workdir)
  except (workdir_lib.WorkdirError, checkpoint.StateMismatch) as error:
    raise command.UsageError(error) from error
  except loop.Interrupted as stop:
    print(f'hcl_jax.train: {stop}. The same command resumes.', file=sys.stderr)
    return 0
  except (
      finite.NonFiniteError, checkpoint.DamagedCheckpoint, processes.PeerError
  ) as error:  # fmt: skip
    return command.fail('hcl_jax.train', error)
  except OSError as error:
    raise command.Failure(
        f'{error}. The same command resumes from the last checkpoint.'
    ) from error
  if processes.is_first():
    print(report(experiment, scores))
    for line in comparison.closing_lines(
        experiment, scores, workdir, command.program()
    ):
      print(line)
  return 0


def _steps(text: str) -> tuple[int, int]:
  """Reads the first step and the one after the last."""
  first, _, end = text.partition(':')
  if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
    raise ValueError(
        f'--profile_steps must be FIRST:END, as 100:110; got {text!r}.'
    )
  return int(first), int(end)


def report(
    experiment: experiment_lib.Experiment, scores: dict[str, Any]
) -> str:
  """Returns the scores as a table, and how sure they are."""
  lines = [experiment.summary]
  if any(scores.values()):
    lines += ['', reporting.score_table(scores)]
  if any(map(scores_lib.errors, scores.values())):
    lines += ['', header.about_errors(experiment)]
  return '\n'.join(lines)


if __name__ == '__main__':
  hosts.run(
      'hcl_jax.train',
      main,
      own_flags=[configurations.PREFIX],
      explain=configurations.explain_flag,
  )
