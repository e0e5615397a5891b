# SPDX-License-Identifier: Apache-2.0
"""Compares public contrastive losses with 60 digits.

  python -m benchmarks correctness                        # prints the tables
  python -m benchmarks correctness --page=docs/correctness.md \\
      --csv=docs/results/correctness.csv                  # writes them

Every library is optional; ``docs/correctness.md`` says how to install them.
"""

import pathlib

from absl import flags
import jax

from benchmarks.correctness import loading
from hcl_jax import command as command_lib
from hcl_jax.bench import output

# What the losses of hcl_jax and the equation itself are listed as.
_OWN = ('hcl_jax', 'jax', 'torch')
_DEVICES = 8
_PACKAGES = flags.DEFINE_list(
    'packages',
    [],
    'Distributions to compare, such as hcl_jax,lightly; none means all.',
)
_PAGE = flags.DEFINE_string('page', '', 'Page whose tables are replaced.')
_CSV = flags.DEFINE_string('csv', '', 'File for a line per loss and input.')
command_lib.local('page', 'csv')


def command() -> None:
  """Compares public losses and ours with 60 digits, gradients too."""
  # mpmath is needed here only, and torch once it is asked for.
  from benchmarks.correctness import cases
  from benchmarks.correctness import compare
  from benchmarks.correctness import report

  one, many = _known()
  asked = _PACKAGES.value or list(dict.fromkeys([*one, *many]))
  unknown = [name for name in asked if name not in one and name not in many]
  if unknown:
    raise command_lib.UsageError(
        f'--packages must be among {", ".join({**one, **many})}; got '
        f'{unknown[0]!r}.'
    )
  page = pathlib.Path(_PAGE.value)
  if _PAGE.value and not page.is_file():
    raise command_lib.UsageError(f'--page={_PAGE.value!r}: no such file.')
  jax.config.update('jax_num_cpu_devices', _DEVICES)

  versions, implementations, rows, outcomes, missing = {}, {}, {}, [], []
  for package in asked:
    version = _version(package)
    if version is None:
      missing.append(package)
      continue
    output.say(package, detail=True)
    try:
      if package in one:
        implementations[package] = one[package]()
        for given in implementations[package]:
          rows[package, given.name] = compare.measure(
              given, cases.TEMPERATURES
          )
      if package in many:
        outcomes += many[package]()
    except ImportError as error:
      implementations.pop(package, None)
      missing.append(f'{package} (does not import: {error})')
      continue
    versions[package] = version
  tables = {
      'one process': report.measurements_table(
          implementations, rows, versions
      ),
      'degenerate inputs': report.degenerate_table(implementations, rows),
      'several processes': report.processes_table(outcomes, versions),
      'not installed': ', '.join(missing) or 'none',
  }
  if _CSV.value:
    report.write_csv(
        pathlib.Path(_CSV.value), implementations, rows, versions
    )
  if _PAGE.value:
    page.write_text(report.fill(page.read_text(), tables))
  else:
    print('\n\n'.join(f'{name}:\n{text}' for name, text in tables.items()))


def _known():
  """Returns what measures a package in one process, and in several."""
  from benchmarks.correctness import devices
  from benchmarks.correctness import jax_losses
  from benchmarks.correctness import processes
  from benchmarks.correctness import torch_losses

  one = {
      'hcl_jax': jax_losses.own,
      'jax': lambda: [jax_losses.exp_space()],
      'torch': torch_losses.exp_space,
      **jax_losses.PEERS,
      **torch_losses.PEERS,
  }
  many = {
      'hcl_jax': devices.own,
      **{
          name: (lambda name=name: processes.run(name))
          for name in processes.TORCH
      },
  }
  both = many['tevatron']
  many['tevatron'] = lambda: [*both(), *devices.tevax()]
  return one, many


def _version(package):
  if package == 'hcl_jax':
    import hcl_jax

    return hcl_jax.__version__
  return loading.version(package)
