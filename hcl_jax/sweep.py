# SPDX-License-Identifier: Apache-2.0
"""Trains and evaluates a configuration for every combination of some values.

  hcl_jax sweep --config=graphs:MUTAG --workdir=DIR \\
      --sweep.loss.beta=0,1,2,10 --sweep.seed=0:10 [--config.loss.variant=...]
  hcl_jax sweep --config=graphs:all --workdir=DIR
  hcl_jax sweep --config=sentences --workdir=DIR \\
      --sweep.loss.beta=0,1,2 --sweep.seed=0:2 --jobs=2

0:10 stands for 0, 1, ..., 9. A configuration may have values to sweep itself,
as the second one has; flags replace them. DIR gets a folder for each run, as
"hcl_jax train" makes it; results.csv, with a line for each run; and results.md,
with means and deviations over seeds. The same command continues a sweep that
was stopped.
"""

import pathlib
import sys

from absl import flags

from hcl_jax import command
from hcl_jax import configurations
from hcl_jax import domains
from hcl_jax.runs import checkpoint
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import grid
from hcl_jax.sweeps import pool
from hcl_jax.sweeps import slots
from hcl_jax.sweeps import sweeping
from hcl_jax.training import loop

_CONFIG, _PRINT_CONFIG = configurations.define_flags()
flags.adopt_module_key_flags(configurations)
_WORKDIR = flags.DEFINE_string(
    'workdir', None, 'Directory of the sweep; continued if it holds this one.'
)
_PER_DEVICE = flags.DEFINE_integer(
    'runs_per_device', None,
    'How many small runs, such as those on graphs, a device trains at a time; '
    'by default one on a CPU and all of them elsewhere.',
    lower_bound=1,
)  # fmt: skip
_JOBS = flags.DEFINE_integer(
    'jobs', 1,
    'How many runs are trained at a time on a CPU, each in a process with a '
    'share of the cores; small runs have a core each without it.',
    lower_bound=1,
)  # fmt: skip
command.local('workdir')


def main(arguments: list[str]) -> int:
  swept = [x for x in arguments if x.startswith(grid.PREFIX)]
  others = [x for x in arguments if x not in swept]
  try:
    config = configurations.read(_CONFIG.value, others)
    if _PRINT_CONFIG.value:
      print(configurations.describe(config))
      return 0
    workdir = pathlib.Path(command.given(_WORKDIR))
    fields = grid.read_fields(config, swept)
    if domains.small_runs(config):
      slots.use_cores()
    command.check_devices()
    sweep = sweeping.Sweep(
        config,
        fields,
        runs_per_device=_PER_DEVICE.value,
        num_processes=_JOBS.value,
    )
  except (ValueError, OSError) as error:
    raise command.UsageError(error) from error
  if command.only_checks():
    print(f'hcl_jax.sweep: {len(sweep.runs)} runs are valid, and their data.')
    return 0
  try:
    results = sweep.run(workdir)
  except (workdir_lib.WorkdirError, checkpoint.StateMismatch) as error:
    raise command.UsageError(error) from error
  except loop.Interrupted as stop:
    print(
        f'hcl_jax.sweep: {stop}. The same command continues.', file=sys.stderr
    )
    return 0
  except (OSError, checkpoint.DamagedCheckpoint, pool.WorkerFailed) as error:
    raise command.Failure(error) from error
  print(results.markdown())
  print(f'\nwritten to {workdir / "results.csv"} and {workdir / "results.md"}')
  for line in results.failures():
    print(f'hcl_jax.sweep: {line}', file=sys.stderr)
  return 1 if results.failures() else 0


if __name__ == '__main__':
  command.run(
      'hcl_jax.sweep',
      main,
      own_flags=[configurations.PREFIX, grid.PREFIX],
      explain=configurations.explain_flag,
  )
