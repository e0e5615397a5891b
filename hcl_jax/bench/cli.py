# SPDX-License-Identifier: Apache-2.0
"""Runs one of several benches, chosen by its name."""

from collections.abc import Callable
from collections.abc import Mapping
import sys
import textwrap
import types
from typing import NamedTuple

from absl import flags

from hcl_jax import command as command_lib
from hcl_jax.bench import options

_COLUMNS = 80


class Bench(NamedTuple):
  """Describes a bench.

  Attributes:
    command: runs it; the first line of its docstring says what it does.
    modules: those that define its flags, beside the shared ones.
  """

  command: Callable[[], None]
  modules: tuple[types.ModuleType, ...]


def run(name: str, benches: Mapping[str, Bench]) -> None:
  """Runs ``python -m NAME BENCH [--flags]``."""

  def main(arguments):
    if len(arguments) != 1 or arguments[0] not in benches:
      raise command_lib.UsageError(
          f'expected one sub-command of: {", ".join(benches)}; got '
          f'{" ".join(arguments) or "none"}.'
      )
    try:
      benches[arguments[0]].command()
    except (RuntimeError, AssertionError):
      command_lib.check_devices()  # Not before: a bench may ask for devices.
      raise

  # absl prints the docstring of this module, %-formatted, for --help.
  text = describe(name, benches).replace('%', '%%')
  sys.modules['__main__'].__doc__ = text
  command_lib.run(name, main)


def describe(name: str, benches: Mapping[str, Bench]) -> str:
  """Returns the help: every bench with its flags, then the shared flags."""
  parts = [f'python -m {name} BENCH [--flags]']
  for bench_name, bench in benches.items():
    does = bench.command.__doc__.splitlines()[0]
    parts.append(_section(f'{bench_name}: {does}', bench.modules))
  parts.append(_section('Shared flags:', (options,)))
  return '\n\n'.join(parts)


def _section(title: str, modules: tuple[types.ModuleType, ...]) -> str:
  found = [x for m in modules for x in flags.FLAGS.get_flags_for_module(m)]
  return '\n'.join([title, *map(_describe_flag, found)])


def _describe_flag(flag: flags.Flag) -> str:
  name = f'--[no]{flag.name}' if flag.boolean else f'--{flag.name}'
  text = f'{name}: {flag.help}'
  if flag.default not in (None, '', []):
    default = flag.default_as_str.strip("'")
    text += f' (default: {default})'
  return textwrap.fill(
      text, _COLUMNS, initial_indent='  ', subsequent_indent=6 * ' '
  )
