# SPDX-License-Identifier: Apache-2.0
"""Results for people and programs: text tables, and atomic writes of files."""

from collections.abc import Sequence
import json
import os
import statistics
from typing import Any


def table(header: list[str], lines: list[list[str]]) -> str:
  """Formats a table, the first column aligned left, the others right."""
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
  """Formats a number; None is a dash."""
  return '-' if value is None else f'{value:.{digits}f}'


def score(value: Any) -> str:
  """Formats a score by its kind, as 59.30 ± 0.97 % or 4.1581; None is a dash.

  A standard error that is not known is left out.
  """
  if value is None:
    return '-'
  is_share = value.kind == 'share'
  scale, digits = (100, 2) if is_share else (1, 4)
  numbers = [value] if value.error is None else [value, value.error]
  text = ' ± '.join(number(scale * x, digits) for x in numbers)
  return f'{text} %' if is_share else text


def spread(values: Sequence[float], errors: Sequence[float] = ()) -> str:
  """Formats mean and standard deviation of shares, in percent: 86.71 ± 1.25.

  A single value has its standard error instead, if ``errors`` has it; no value
  is a dash.
  """
  if not len(values):
    return '-'
  mean = f'{100 * statistics.fmean(values):.2f}'
  widths = list(errors)
  if len(values) > 1:
    widths = [statistics.stdev(values)]
  return ' ± '.join([mean, *(f'{100 * x:.2f}' for x in widths)])


def markdown_table(
    header: list[str], lines: list[list[str]], *, words: int = 1
) -> str:
  """Formats a table in Markdown, the first ``words`` columns aligned left."""
  rule = ['---'] * words + ['---:'] * (len(header) - words)
  return '\n'.join(f'| {" | ".join(line)} |' for line in [header, rule, *lines])


def score_table(rows: dict[str, dict[str, float]]) -> str:
  """Formats scores as a table with a row for each key and a column per score.

  What is not a score, such as a list of folds, is left out. Shares are shown in
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
  """Writes results as JSON, atomically."""
  write_text(path, json.dumps(results, indent=2) + '\n')


def write_text(path: str | os.PathLike, text: str) -> None:
  """Writes a text file atomically: a reader never sees a part of it."""
  temporary = f'{path}.{os.getpid()}.tmp'
  try:
    with open(temporary, 'w', encoding='utf-8') as file:
      file.write(text)
    os.replace(temporary, path)
  finally:
    if os.path.exists(temporary):
      os.remove(temporary)
