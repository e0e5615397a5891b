# SPDX-License-Identifier: Apache-2.0
"""Prints the progress of a bench."""

import sys


def say(text: str, *, detail: bool = False) -> None:
  """Prints to standard error; details only if that is a terminal."""
  if not detail or sys.stderr.isatty():
    print(text, file=sys.stderr, flush=True)
