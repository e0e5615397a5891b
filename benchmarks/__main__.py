# SPDX-License-Identifier: Apache-2.0
"""python -m benchmarks COMMAND [--flags]"""

from benchmarks import augment
from benchmarks import checkpoint
from benchmarks import graph
from benchmarks import scale
from benchmarks import soak
from benchmarks import sweep
from benchmarks import text
from hcl_jax import command

_COMMANDS = {
    'augment': augment.command,
    'checkpoint': checkpoint.command,
    'graph': graph.command,
    'scale': scale.command,
    'soak': soak.command,
    'sweep': sweep.command,
    'text': text.command,
}


def main(arguments: list[str]) -> None:
  if len(arguments) != 1 or arguments[0] not in _COMMANDS:
    raise command.UsageError(
        f'expected one sub-command of: {", ".join(_COMMANDS)}; got '
        f'{" ".join(arguments) or "none"}.'
    )
  _COMMANDS[arguments[0]]()


if __name__ == '__main__':
  command.run('benchmarks', main)
