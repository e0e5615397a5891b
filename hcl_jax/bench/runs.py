# SPDX-License-Identifier: Apache-2.0
"""Commands of this package as processes of their own, and what they leave."""

import json
import pathlib

from hcl_jax import command as command_lib


def check_end(module: str, status: int, errors: str) -> None:
  """Raises what a command ended with, in one line.

  Args:
    module: name of the command.
    status: exit status of its process.
    errors: what it wrote to standard error.

  Raises:
    UsageError: it was used wrongly.
    Failure: it failed on the way.
  """
  if not status:
    return
  silent = f'it ended with status {status} and said nothing'
  *_, reason = [silent, *errors.strip().splitlines()]
  kind = command_lib.UsageError if status == 2 else command_lib.Failure
  raise kind(f'{module} failed: {reason}')


def device_kind(workdir: pathlib.Path) -> str:
  """What a run ran on; asking jax would take the device from it."""
  path = workdir / 'versions.json'
  return json.loads(path.read_text(encoding='utf-8'))[-1]['device_kind']
