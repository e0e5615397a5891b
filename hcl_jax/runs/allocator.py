# SPDX-License-Identifier: Apache-2.0
"""Lets a process keep memory that it frees, for the next step."""

import ctypes
import sys

# Parameters of mallopt, as malloc.h of glibc numbers them.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 2**30
_TRIM_BYTES = 2**31 - 1


def keep_freed_memory() -> None:
  """Makes glibc keep large blocks that are freed; elsewhere does nothing.

  By default it gives a block of 32 MiB or more back to the system, and a
  compiled step, which takes the same blocks every time, waits for all of their
  pages anew. The most that a process takes at a time does not grow.
  """
  if not sys.platform.startswith('linux'):
    return
  mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
  if mallopt is not None:
    mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
    mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)
