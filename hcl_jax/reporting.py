# SPDX-License-Identifier: Apache-2.0
"""Results for people and programs: aligned tables, and JSON written whole."""

from collections.abc import Sequence
import json
import os
import statistics
from typing import Any


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
  """A number, or a dash where there is none."""
  return '-' if value is None else f'{value:.{digits}f}'


def percent(value: float | None) -> str:
  """A share as a percentage, or a dash."""
  return '-' if value is None else f'{value:.2%}'


def score(value: Any) -> str:
  """Formats a score by its kind, or a dash."""
  is_share = value is None or value.kind == 'share'
  return percent(value) if is_share else number(value, 4)


def spread(values: Sequence[float]) -> str:
  """Mean and standard deviation of shares, in per cent: 86.71 ± 1.25.

  Of one value there is no deviation, and of none a dash.
  """
  if not len(values):
    return '-'
  mean = f'{100 * statistics.fmean(values):.2f}'
  if len(values) == 1:
    return mean
  return f'{mean} ± {100 * statistics.stdev(values):.2f}'


def markdown_table(
    header: list[str], lines: list[list[str]], *, words: int = 1
) -> str:
  """A table in Markdown.

  Args:
    header: names of the columns.
    lines: cells.
    words: how many columns go to the left; the others go to the right.

  Returns:
    The table, without a line break at its end.
  """
  rule = ['---'] * words + ['---:'] * (len(header) - words)
  return '\n'.join(
      f'| {" | ".join(line)} |' for line in [header, rule, *lines]
  )


def score_table(rows: dict[str, dict[str, float]]) -> str:
  """Returns scores, a line for each name, a column for each score.

  What is no number, such as a list of folds, is left out. Shares are shown in
  percent.
  """

  names = dict.fromkeys(
      name
      for scores in rows.values()
      for name, value in scores.items()
      if isinstance(value, float)
  )
  return table(
      ['', *names],
      [
          [row, *(score(scores.get(name)) for name in names)]
          for row, scores in rows.items()
      ],
  )


def write_json(path: str | os.PathLike, results: dict[str, Any]) -> None:
  """Writes results as :func:`write_text` does."""
  write_text(path, json.dumps(results, indent=2) + '\n')


def write_text(path: str | os.PathLike, text: str) -> None:
  """All or nothing: a reader never meets half a file."""
  temporary = f'{path}.{os.getpid()}.tmp'
  try:
    with open(temporary, 'w', encoding='utf-8') as file:
      file.write(text)
    os.replace(temporary, path)
  finally:
    if os.path.exists(temporary):
      os.remove(temporary)
