# SPDX-License-Identifier: Apache-2.0
"""Progress of a bench."""

import sys


def say(text: str, *, detail: bool = False) -> None:
  """Progress; details only for somebody who is watching."""
  if not detail or sys.stderr.isatty():
    print(text, file=sys.stderr, flush=True)
