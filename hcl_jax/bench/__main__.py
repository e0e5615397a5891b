# SPDX-License-Identifier: Apache-2.0
"""python -m hcl_jax.bench COMMAND [--flags]"""

import sys

from absl import app
from absl import flags

from hcl_jax.bench import contest
from hcl_jax.bench import loss

_COMMANDS = {'loss': loss.command}


def main(argv: list[str]) -> int:
  try:
    if len(argv) != 2 or argv[1] not in _COMMANDS:
      raise contest.UsageError(
          f'expected one sub-command of: {", ".join(_COMMANDS)}; got '
          f'{" ".join(argv[1:]) or "none"}.'
      )
    _COMMANDS[argv[1]]()
  except contest.UsageError as error:
    return _refuse(error)
  return 0


def _parse(argv: list[str]) -> list[str]:
  try:
    # Or JAX tells of every backend that is absent.
    return flags.FLAGS([argv[0], '--verbosity=-1', *argv[1:]])
  except flags.Error as error:
    sys.exit(_refuse(error))


def _refuse(error: Exception) -> int:
  print(f'hcl_jax.bench: {error}', file=sys.stderr)
  return 2


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
