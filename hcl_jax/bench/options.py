# SPDX-License-Identifier: Apache-2.0
"""Flags that all benches share."""

import os

from absl import flags

from hcl_jax import command as command_lib

ROUNDS = flags.DEFINE_integer('rounds', 5, 'Timed rounds.')
ONE_CORE = flags.DEFINE_bool(
    'one_core', False, 'Pin the process to one core and report its CPU time.'
)
JSON = flags.DEFINE_string('json', '', 'Where to write the results, if set.')
command_lib.local('json')


def check() -> None:
  """Refuses flags that would fail later."""
  at_least(ROUNDS, 1)
  path = JSON.value
  directory = os.path.dirname(os.path.abspath(path))
  if path and (os.path.isdir(path) or not os.access(directory, os.W_OK)):
    raise command_lib.UsageError(f'--json cannot be written: {path!r}.')


def at_least(flag: flags.FlagHolder, least: float) -> None:
  if not flag.value >= least:
    raise command_lib.UsageError(
        f'--{flag.name} must be >= {least}, got {flag.value}.'
    )


def read_sizes(flag: flags.FlagHolder, least: int = 2) -> list[int]:
  """The whole numbers of a list, each once."""
  for text in flag.value:
    if not text.isdecimal() or int(text) < least:
      raise command_lib.UsageError(
          f'--{flag.name} must be whole numbers >= {least}, got {text!r}.'
      )
  return list(dict.fromkeys(map(int, flag.value)))
