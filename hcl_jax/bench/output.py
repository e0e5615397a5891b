# SPDX-License-Identifier: Apache-2.0
"""Progress, tables and JSON."""

import json
import os
import sys
from typing import Any


def say(text: str, *, detail: bool = False) -> None:
  """Progress; details only for somebody who is watching."""
  if not detail or sys.stderr.isatty():
    print(text, file=sys.stderr, flush=True)


def table(header: list[str], lines: list[list[str]]) -> str:
  """Aligns columns, the first to the left and the others to the right."""
  columns = zip(header, *lines, strict=True)
  widths = [max(map(len, column)) for column in columns]
  lines = [header, ['-' * width for width in widths], *lines]
  return '\n'.join(
      '  '.join(
          [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]
      )
      for line in lines
  )


def number(value: float | None, digits: int) -> str:
  return '-' if value is None else f'{value:.{digits}f}'


def write_json(path: str, results: dict[str, Any]) -> None:
  """All or nothing: a reader never meets half a file."""
  temporary = f'{path}.{os.getpid()}.tmp'
  try:
    with open(temporary, 'w', encoding='utf-8') as file:
      json.dump(results, file, indent=2)
      file.write('\n')
    os.replace(temporary, path)
  finally:
    if os.path.exists(temporary):
      os.remove(temporary)
