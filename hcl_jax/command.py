# SPDX-License-Identifier: Apache-2.0
"""Runs commands: parses flags, prints errors as one line with a status."""

from collections.abc import Callable
from collections.abc import Sequence
import os
import shutil
import sys
from typing import Any

from absl import app
from absl import flags
import jax

import hcl_jax
from hcl_jax.runs import allocator
from hcl_jax.storage import locations

_STOPPED = 130  # as a shell says of Ctrl-C
_only_checks = False


class UsageError(Exception):
  """Raised when what the user asked for cannot be done, and says why."""


class Failure(Exception):
  """Raised when what was begun cannot be finished, and says why."""


def run(
    name: str,
    main: Callable[[list[str]], int | None],
    *,
    own_flags: Sequence[str] = (),
    explain: Callable[[str], str] = lambda flag: '',
) -> None:
  """Parses flags and runs a command.

  Args:
    name: what an error message begins with.
    main: the command; gets the arguments that are not flags. A UsageError or
      Failure is printed as one line, and the process ends with status 2 or 1;
      Ctrl-C that it does not catch likewise, with status 130.
    own_flags: prefixes, ``'--NAME.'``, of flags that main reads itself, passed
      among its arguments; it asks :func:`only_checks` too.
    explain: returns a hint for a flag that there is not.
  """

  def guarded(argv):
    allocator.keep_freed_memory()
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
    if {'-h', '--help'}.intersection(argv):
      app.usage(shorthelp=True, writeto_stdout=True, exitcode=0)
    if '--version' in argv:
      print(f'hcl_jax {hcl_jax.__version__}')
      sys.exit(0)
    own, others = _separate(argv[1:], tuple(own_flags))
    try:
      # Or JAX tells of every backend that is absent.
      rest = flags.FLAGS([argv[0], '--verbosity=-1', *others]) + own
    except flags.UnrecognizedFlagError as error:
      hint = explain(error.flagname)
      if hint:
        hint = f"Unknown command line flag '{error.flagname}'. {hint}"
      sys.exit(refuse(name, UsageError(hint or error)))
    except flags.Error as error:
      sys.exit(refuse(name, error))
    if flags.FLAGS.only_check_args:
      if own_flags:
        flags.FLAGS.only_check_args = False
        global _only_checks
        _only_checks = True
      else:
        print(f'{name}: the flags are valid.')
    return rest

  app.run(guarded, flags_parser=parse)


def program() -> str:
  """Returns what one types to run ``hcl_jax`` again."""
  if shutil.which('hcl_jax'):
    return 'hcl_jax'
  path = os.path.join(os.path.dirname(sys.executable), 'hcl_jax')
  if not os.path.exists(path):
    return f'{sys.executable} -m hcl_jax'
  short = os.path.relpath(path)
  return path if short.startswith(os.pardir) else short


def only_checks() -> bool:
  """Returns whether --only_check_args asks for no more than checks."""
  return _only_checks


def _separate(arguments, prefixes):
  """Returns flags with these prefixes, and the others.

  A value after a space, ``'--NAME.X' 'VALUE'``, goes with its flag.
  """
  own, others, needs_value = [], [], False
  for argument in arguments:
    if prefixes and argument.startswith(prefixes):
      own.append(argument)
      needs_value = '=' not in argument
    elif needs_value and not argument.startswith('--'):
      own[-1] += f'={argument}'
      needs_value = False
    else:
      others.append(argument)
      needs_value = False
  return own, others


def require(*names: str) -> None:
  """Makes flags required, also refusing empty ones such as ``--workdir=``."""
  for name in names:
    flags.register_validator(
        name, lambda value: value not in (None, '', []), 'it must be given.'
    )


def check_devices() -> None:
  """Raises UsageError if JAX has no device; starts its backend."""
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:
    platforms = os.environ.get('JAX_PLATFORMS', '')
    raise UsageError(
        f'JAX finds no device with JAX_PLATFORMS={platforms!r}; unset it, or '
        'install what JAX needs for that platform. "hcl_jax doctor" shows more.'
    ) from error


def given(flag: flags.FlagHolder) -> Any:
  """Returns the value of a flag; raises UsageError if it was not given."""
  if flag.value in (None, '', []):
    raise UsageError(f'flag --{flag.name}={flag.value}: it must be given.')
  return flag.value


def allow_code_flag() -> flags.FlagHolder:
  """Adds ``--allow_code`` to the flags of a command that loads runs."""
  return flags.DEFINE_bool(
      'allow_code', False,
      'Run the code that the run names as its own: config.model.encoder or '
      'config.domain.',
  )  # fmt: skip


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
