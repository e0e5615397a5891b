# SPDX-License-Identifier: Apache-2.0
"""Turns measurements into verdicts, Markdown tables and a CSV."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import csv
import math
import pathlib
import re

import numpy as np

from benchmarks.correctness import cases
from benchmarks.correctness import compare
from benchmarks.correctness import processes

# A larger error than this is no matter of digits.
_WRONG = 0.01
# Errors over processes: roundings of float32, summed in another order.
_SHARED = 1e-5
_RIGHT, _BROKEN, _NOT_FINITE = 'right', 'wrong', 'not finite'


def status(rows: Sequence[compare.Measured]) -> str:
  """Says how right some measurements are together.

  Args:
    rows: at least one.

  Returns:
    ``raises ...``, ``not finite``, ``wrong``, both, ``right to N digits`` or
    ``right``: the worst that there is among them.
  """
  raised = [row.error for row in rows if row.error]
  if raised:
    return f'raises {raised[0].split(":")[0]}'
  finite = [row for row in rows if math.isfinite(row.worst)]
  worst = max(
      (row.worst for row in finite if row.worst > row.tolerance), default=0.0
  )
  if len(finite) < len(rows):
    return f'{_BROKEN} or {_NOT_FINITE}' if worst > _WRONG else _NOT_FINITE
  if not worst:
    return _RIGHT
  if worst > _WRONG:
    return _BROKEN
  return f'{_RIGHT} to {math.floor(-math.log10(worst))} digits'


def verdict(rows: Sequence[compare.Measured]) -> str:
  """Says where on ordinary float32 inputs an implementation is right.

  Args:
    rows: all measurements of an implementation.

  Returns:
    A verdict in words, by temperature.
  """
  rows = ordinary(rows)
  found: dict[str, list[float]] = {}
  for t in sorted({row.setting.temperature for row in rows}):
    here = [row for row in rows if row.setting.temperature == t]
    found.setdefault(status(here), []).append(t)
  if len(found) == 1:
    return next(iter(found))
  parts = [
      f'{words} at t = {", ".join(map(_short, temperatures))}'
      for words, temperatures in found.items()
      if words != _RIGHT
  ]
  return '; '.join([*parts, 'right above'] if _RIGHT in found else parts)


def ordinary(rows: Iterable[compare.Measured]) -> list[compare.Measured]:
  """Returns the measurements that training is about."""
  return [
      row for row in rows if row.is_ordinary and row.dtype == 'float32'
  ]


def measurements_table(
    implementations: Mapping[str, Sequence[compare.Implementation]],
    rows: Mapping[tuple[str, str], Sequence[compare.Measured]],
    versions: Mapping[str, str],
) -> str:
  """Returns the table of one process, in Markdown.

  Args:
    implementations: by package.
    rows: measurements, by package and name.
    versions: by package.

  Returns:
    The table.
  """
  lines = []
  for package, given in implementations.items():
    for one in given:
      own = rows[package, one.name]
      high, low = (
          [r for r in ordinary(own) if (r.setting.temperature < cases.LOW) is x]
          for x in (False, True)
      )
      half = [
          r for r in own
          if r.dtype == 'bfloat16' and r.setting.temperature >= cases.LOW
      ]  # fmt: skip
      said = verdict(own)
      why = '' if said == _RIGHT else one.why
      lines.append([
          _title(package, versions), one.name, _code(one.definition.__name__),
          *_both(high), *_both(low), *_both(half), said, why,
      ])  # fmt: skip
  header = [
      'package', 'loss', 'compared with', 'loss, t >= .05', 'gradient',
      'loss, t < .05', 'gradient', 'bfloat16 loss', 'gradient', 'verdict',
      'why',
  ]  # fmt: skip
  return markdown(header, lines)


def degenerate_table(
    implementations: Mapping[str, Sequence[compare.Implementation]],
    rows: Mapping[tuple[str, str], Sequence[compare.Measured]],
) -> str:
  """Returns the table of degenerate inputs, in Markdown.

  Args:
    implementations: by package.
    rows: measurements, by package and name.

  Returns:
    The table; cells have the worst error where rounding does not explain it.
  """
  names = [case.name for case in cases.degenerate()]
  lines = []
  for package, given in implementations.items():
    for one in given:
      own = rows[package, one.name]
      if all(row.error for row in own):
        continue
      cells = [_cell([r for r in own if r.case == name]) for name in names]
      zeros = [
          r.zero_gradient for r in own
          if r.zero_gradient is not None and r.setting.temperature == 0.1
      ]  # fmt: skip
      zero = f'{max(zeros):.0e}' if zeros else '-'
      if zeros and not np.isfinite(zeros).all():
        zero = 'NaN'
      lines.append([package, one.name, *cells, zero])
  header = ['package', 'loss', *names, 'gradient of a row of zeros, t = .1']
  return markdown(header, lines)


def processes_table(
    outcomes: Sequence[processes.Outcome], versions: Mapping[str, str]
) -> str:
  """Returns the table of several processes, in Markdown."""
  lines = []
  for one in outcomes:
    said = shared_verdict(one)
    lines.append([
        _title(one.package, versions), one.name, str(one.processes),
        _error(one.value_error), _factor(one.factor), _error(one.rest),
        said, '' if said == _RIGHT else one.why,
    ])  # fmt: skip
  header = [
      'package', 'loss', 'processes', 'loss', 'gradient, times the right one',
      'error of its direction', 'verdict', 'why',
  ]  # fmt: skip
  return markdown(header, lines)


def shared_verdict(one: processes.Outcome) -> str:
  """Says how right a loss over processes is."""
  if one.error:
    return f'raises {one.error.split(":")[0]}'
  if not math.isfinite(one.gradient_error):
    return _NOT_FINITE
  value = one.value_error < _SHARED
  if one.gradient_error < _SHARED:
    return _RIGHT if value else 'gradient right, value not'
  if one.rest < _SHARED:
    return f'gradient {_factor(one.factor)} times the right one'
  return f'gradient off by {100 * one.gradient_error:.0f} %'


def write_csv(
    path: pathlib.Path,
    implementations: Mapping[str, Sequence[compare.Implementation]],
    rows: Mapping[tuple[str, str], Sequence[compare.Measured]],
    versions: Mapping[str, str],
) -> None:
  """Writes a line for each loss, input and dtype: the worst of the grid."""
  with path.open('w', newline='') as file:
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow([
        'package', 'version', 'loss', 'compared_with', 'input', 'dtype',
        'loss_error', 'gradient_error', 'worst_temperature', 'worst_beta',
        'worst_tau_plus', 'not_finite', 'cells', 'status',
    ])  # fmt: skip
    for package, given in implementations.items():
      for one in given:
        groups: dict[tuple[str, str], list[compare.Measured]] = {}
        for row in rows[package, one.name]:
          groups.setdefault((row.case, row.dtype), []).append(row)
        for (case, dtype), group in groups.items():
          finite = [r for r in group if math.isfinite(r.worst)]
          worst = max(finite, key=lambda r: r.worst, default=None)
          where = ['', '', ''] if worst is None else worst.setting
          errors = ['', ''] if worst is None else [
              f'{worst.value_error:.1e}', f'{worst.gradient_error:.1e}'
          ]  # fmt: skip
          writer.writerow([
              package, versions[package], one.name, one.definition.__name__,
              case, dtype, *errors, *where, len(group) - len(finite),
              len(group), status(group),
          ])  # fmt: skip


def fill(page: str, tables: Mapping[str, str]) -> str:
  """Replaces the tables of a page.

  Args:
    page: Markdown with ``<!-- NAME -->`` and ``<!-- end -->`` round each.
    tables: by name.

  Returns:
    The page.

  Raises:
    ValueError: if the page has no place for a table.
  """
  for name, table in tables.items():
    pattern = f'(<!-- {name} -->\n).*?(<!-- end -->)'
    if not re.search(pattern, page, flags=re.DOTALL):
      raise ValueError(f'the page has no place for {name!r}.')
    page = re.sub(
        pattern,
        lambda found, table=table: f'{found[1]}{table}\n{found[2]}',
        page,
        flags=re.DOTALL,
    )
  return page


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
  """Returns a table in Markdown."""
  rows = [header, ['---'] * len(header), *lines]
  cells = [[cell.replace('|', '\\|') for cell in row] for row in rows]
  return '\n'.join(f'| {" | ".join(row)} |' for row in cells)


def _cell(rows):
  if not rows:
    return '-'
  bad = [r for r in rows if not math.isfinite(r.worst)]
  if bad:
    if len(bad) == len(rows):
      return 'NaN'
    return f'NaN, t <= {_short(max(r.setting.temperature for r in bad))}'
  if status(rows) == _RIGHT:
    return _RIGHT
  return _error(max(r.worst for r in rows))


def _both(rows):
  return [
      _worst([r.value_error for r in rows]),
      _worst([r.gradient_error for r in rows]),
  ]


def _worst(errors):
  if not errors:
    return '-'
  finite = [e for e in errors if math.isfinite(e)]
  if not finite:
    return 'NaN'
  if len(finite) < len(errors):
    return f'{_error(max(finite))}, NaN in {len(errors) - len(finite)} of ' + (
        f'{len(errors)}'
    )
  return _error(max(finite))


def _error(value):
  if not math.isfinite(value):
    return 'NaN'
  return f'{value:.0e}' if value else '0'


def _factor(value):
  return 'NaN' if not math.isfinite(value) else f'{value:.3g}'


def _title(package, versions):
  return f'{package} {versions[package]}'


def _code(name):
  return f'`{name}`'


def _short(value):
  return f'{value:g}'.removeprefix('0')
