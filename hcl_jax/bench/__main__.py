# SPDX-License-Identifier: Apache-2.0
"""python -m hcl_jax.bench COMMAND [--flags]"""

from hcl_jax import command
from hcl_jax.bench import loss
from hcl_jax.bench import train

_COMMANDS = {
    'loss': loss.command,
    'train': train.command,
}


def main(arguments: list[str]) -> None:
  if len(arguments) != 1 or arguments[0] not in _COMMANDS:
    raise command.UsageError(
        f'expected one sub-command of: {", ".join(_COMMANDS)}; got '
        f'{" ".join(arguments) or "none"}.'
    )
  _COMMANDS[arguments[0]]()


if __name__ == '__main__':
  command.run('hcl_jax.bench', main)
