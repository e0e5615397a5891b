# SPDX-License-Identifier: Apache-2.0
"""Runs commands of hcl_jax as processes of their own."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import json
import pathlib
import signal
import subprocess
from typing import Any

from hcl_jax import command as command_lib

_PATIENCE_SECONDS = 10.0  # between SIGTERM and SIGKILL


@contextlib.contextmanager
def started(
    arguments: Sequence[str], errors: Any = None
) -> Iterator[subprocess.Popen]:
  """Starts a process that ends with the block at the latest.

  SIGTERM leaves the block as Ctrl-C does.

  Args:
    arguments: the program and its arguments.
    errors: file for its standard error.

  Yields:
    The process.
  """
  before = signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    process = subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=errors
    )
    try:
      yield process
    finally:
      _end(process)
  finally:
    signal.signal(signal.SIGTERM, before)


def _end(process) -> None:
  process.terminate()  # which does nothing to one that has ended
  try:
    process.wait(_PATIENCE_SECONDS)
  except subprocess.TimeoutExpired:
    pass
  finally:
    process.kill()
    process.wait()


def check_end(module: str, status: int, errors: str) -> None:
  """Raises the error of a command that failed, in one line.

  Args:
    module: name of the command.
    status: exit status of its process.
    errors: what it wrote to standard error.

  Raises:
    UsageError: it was used wrongly.
    Failure: it failed otherwise.
  """
  if not status:
    return
  silent = f'it ended with status {status} and printed nothing'
  *_, reason = [silent, *errors.strip().splitlines()]
  kind = command_lib.UsageError if status == 2 else command_lib.Failure
  raise kind(f'{module} failed: {reason}')


def device_kind(workdir: pathlib.Path) -> str:
  """Returns what a run ran on; asking jax would take the device from it."""
  path = workdir / 'versions.json'
  return json.loads(path.read_text(encoding='utf-8'))[-1]['device_kind']
