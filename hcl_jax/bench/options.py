# SPDX-License-Identifier: Apache-2.0
"""Flags that all benches share."""

import os

from absl import flags

from hcl_jax import command as command_lib

REPETITIONS = flags.DEFINE_integer(
    'repetitions', 5, 'How often each candidate is timed.'
)
ONE_CORE = flags.DEFINE_bool(
    'one_core', False, 'Pin the process to one core and report its CPU time.'
)
JSON = flags.DEFINE_string('json', '', 'File to write the results to.')
command_lib.local('json')


def check() -> None:
  """Raises UsageError for a shared flag that would fail later."""
  at_least(REPETITIONS, 1)
  path = JSON.value
  directory = os.path.dirname(os.path.abspath(path))
  if path and (os.path.isdir(path) or not os.access(directory, os.W_OK)):
    raise command_lib.UsageError(f'--json cannot be written: {path!r}.')


def at_least(flag: flags.FlagHolder, least: float) -> None:
  """Raises UsageError unless a flag is a number >= ``least``."""
  if not flag.value >= least:
    raise command_lib.UsageError(
        f'--{flag.name} must be >= {least}, got {flag.value}.'
    )


def read_sizes(flag: flags.FlagHolder, least: int = 2) -> list[int]:
  """Returns the ints of a list flag, each once."""
  for text in flag.value:
    if not text.isdecimal() or int(text) < least:
      raise command_lib.UsageError(
          f'--{flag.name} must be integers >= {least}, got {text!r}.'
      )
  return list(dict.fromkeys(map(int, flag.value)))
