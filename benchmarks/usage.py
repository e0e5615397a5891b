# SPDX-License-Identifier: Apache-2.0
"""Reads what another process uses from Linux's /proc."""

import os
import pathlib
from typing import NamedTuple

from hcl_jax import command as command_lib

_PROC = pathlib.Path('/proc')
_KIB = 1024


class Usage(NamedTuple):
  """What a process uses now.

  Attributes:
    cpu_seconds: CPU time of all its threads since it began.
    resident: bytes of memory.
    peak: the most that ``resident`` ever was.
    files: open ones, sockets and pipes too.
    threads: how many.
  """

  cpu_seconds: float
  resident: int
  peak: int
  files: int
  threads: int


def check_system() -> None:
  """Raises UsageError unless /proc exists."""
  if not (_PROC / 'self' / 'fd').is_dir():
    raise command_lib.UsageError(
        f'this bench reads {_PROC}/PID, which only Linux has.'
    )


def read(pid: int) -> Usage | None:
  """Returns what a process uses; None if it has ended."""
  folder = _PROC / str(pid)
  try:
    status = dict(
        line.split(':', 1)
        for line in (folder / 'status').read_text().splitlines()
    )
    # The name of the program, in brackets, may hold anything.
    _, _, stat = (folder / 'stat').read_text().rpartition(')')
    user, system = stat.split()[11:13]
    return Usage(
        (int(user) + int(system)) / os.sysconf('SC_CLK_TCK'),
        _KIB * int(status['VmRSS'].split()[0]),
        _KIB * int(status['VmHWM'].split()[0]),
        len(os.listdir(folder / 'fd')),
        int(status['Threads']),
    )
  except (OSError, KeyError):  # one that nobody waited for yet has no memory
    return None
