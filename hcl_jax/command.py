# SPDX-License-Identifier: Apache-2.0
"""Runs commands: parses flags, prints errors as one line with a status."""

from collections.abc import Callable
import sys

from absl import app
from absl import flags

from hcl_jax.storage import locations

_STOPPED = 130  # as a shell says of Ctrl-C


class UsageError(Exception):
  """Raised when what the user asked for cannot be done, and says why."""


class Failure(Exception):
  """Raised when what was begun cannot be finished, and says why."""


def run(
    name: str,
    main: Callable[[list[str]], int | None],
    *,
    own_flags: str | None = None,
) -> None:
  """Parses flags and runs a command.

  Args:
    name: what an error message begins with.
    main: the command; gets the arguments that are not flags. A UsageError or
      Failure is printed as one line, and the process ends with status 2 or 1;
      Ctrl-C that it does not catch likewise, with status 130.
    own_flags: prefix, ``'--NAME.'``, of flags that main reads itself; they are
      passed among its arguments.
  """

  def guarded(argv):
    try:
      return main(argv[1:])
    except UsageError as error:
      return refuse(name, error)
    except Failure as error:
      return fail(name, error)
    except KeyboardInterrupt:  # where there is nothing to save yet, or ever
      print(f'\n{name}: stopped.', file=sys.stderr)
      return _STOPPED

  def parse(argv):
    own = [x for x in argv[1:] if own_flags and x.startswith(own_flags)]
    others = [x for x in argv[1:] if x not in own]
    try:
      # Or JAX tells of every backend that is absent.
      return flags.FLAGS([argv[0], '--verbosity=-1', *others]) + own
    except Exception as error:  # whatever a configuration file raises
      sys.exit(refuse(name, error))

  app.run(guarded, flags_parser=parse)


def require(*names: str) -> None:
  """Makes flags required, also refusing empty ones such as ``--workdir=``."""
  for name in names:
    flags.register_validator(
        name, lambda value: value not in (None, '', []), 'it must be given.'
    )


def local(*names: str) -> None:
  """Refuses a scheme, such as gs://, in flags that name folders or files."""
  for name in names:
    flags.register_validator(name, _is_local, locations.LOCAL_ONLY)


def _is_local(value: str | list[str] | None) -> bool:
  paths = [value] if isinstance(value, str) else value or []
  return not any(map(locations.is_remote, paths))


def refuse(name: str, error: Exception) -> int:
  """Prints an error on one line and returns the exit status."""
  print(f'{name}: {one_line(error)}', file=sys.stderr)
  return 2


def fail(name: str, error: Exception) -> int:
  """Prints as :func:`refuse`; returns the status of a failed command."""
  refuse(name, error)
  return 1


def one_line(error: Exception) -> str:
  """Returns the message of an error; of a traceback in it, the last line."""
  # ml_collections wraps a KeyError for a field that is not there, and
  # str(KeyError) quotes its message once more.
  if error.args and isinstance(error.args[0], KeyError):
    error = error.args[0]
  if isinstance(error, KeyError):
    return ' '.join(f'no such field: {error.args[0]}'.split())
  text = str(error).strip()
  if 'Traceback (most recent call last):' in text:
    before = text.partition('Traceback (most recent call last):')[0]
    text = f'{before.rstrip()} {text.splitlines()[-1]}'
  return ' '.join(text.split()) or type(error).__name__
