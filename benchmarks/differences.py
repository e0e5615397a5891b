# SPDX-License-Identifier: Apache-2.0
"""Tabulates the results of sweeps, and their differences run by run.

  python -m benchmarks differences --results=FILE.csv,FILE2.csv,... \\
      [--scores=test/R@1,test/MRR] [--unit=data.division]

The files are results.csv of sweeps over the same values, such as seeds and
divisions of the data. The first one is what the others are compared with.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import csv
import pathlib
import statistics

from absl import flags

from hcl_jax import command as command_lib
from hcl_jax.runs import reporting

_RESULTS = flags.DEFINE_list('results', [], 'Files results.csv of sweeps.')
_SCORES = flags.DEFINE_list(
    'scores', ['test/R@1', 'test/MRR', 'test/nDCG@10', 'test/group R@1'],
    'Columns to tabulate, shares.',
)  # fmt: skip
_UNIT = flags.DEFINE_string(
    'unit', '',
    'Field whose values count as independent, such as data.division; runs of '
    'one value are averaged. By default each run counts.',
)  # fmt: skip
_NOTES = """\
Above, mean and standard deviation over {count} {of}; below, mean difference to
the first and its standard error over the same. In points of a per cent.\
"""

# Scores of the runs of a sweep, by the values that runs differ in.
Runs = Mapping[tuple[str, ...], Mapping[str, float]]


def read(
    path: pathlib.Path, fields: Sequence[str], scores: Sequence[str]
) -> Runs:
  """Reads the runs of a sweep.

  Args:
    path: its results.csv.
    fields: what tells runs apart.
    scores: columns of scores.

  Raises:
    command.UsageError: a column is missing, or two runs are not told apart.
  """
  header, rows = _rows(path)
  for name in (*fields, *scores):
    if name not in header:
      raise command_lib.UsageError(
          f'{path} has no column {name!r}, only {", ".join(header)}.'
      )
  found = {}
  for row in rows:
    key = tuple(row[name] for name in fields)
    if key in found:
      raise command_lib.UsageError(
          f'{path} has two runs of {_named(fields, key)}; give sweeps that '
          'differ in nothing else.'
      )
    found[key] = {name: float(row[name]) for name in scores}
  return found


def shared_fields(paths: Sequence[pathlib.Path]) -> list[str]:
  """Returns the fields that all sweeps have, which tell their runs apart."""
  headers = [_rows(path)[0] for path in paths]
  return [
      name
      for name in headers[0]
      if name != 'run'
      and '/' not in name
      and all(name in header for header in headers)
  ]


def by_unit(
    runs: Runs, fields: Sequence[str], unit: str
) -> dict[str, dict[str, float]]:
  """Averages the runs of each value of a field; '' for each run by itself."""
  groups: dict[str, list[Mapping[str, float]]] = {}
  for key, scores in runs.items():
    name = key[list(fields).index(unit)] if unit else _named(fields, key)
    groups.setdefault(name, []).append(scores)
  return {
      name: {
          score: statistics.fmean(x[score] for x in some) for score in some[0]
      }
      for name, some in groups.items()
  }


def difference(
    first: Mapping[str, Mapping[str, float]],
    other: Mapping[str, Mapping[str, float]],
    score: str,
) -> tuple[float, float]:
  """Returns the mean of other - first over units, and its standard error.

  Raises:
    command.UsageError: the units are not the same, or too few.
  """
  if set(first) != set(other) or len(first) < 2:
    raise command_lib.UsageError(
        'sweeps must be of the same runs, two or more; got '
        f'{", ".join(sorted(first))} and {", ".join(sorted(other))}.'
    )
  found = [other[name][score] - first[name][score] for name in first]
  return statistics.fmean(found), statistics.stdev(found) / len(found) ** 0.5


def tables(
    paths: Sequence[pathlib.Path], scores: Sequence[str], unit: str
) -> list[str]:
  """Returns the tables of scores and of differences, in Markdown."""
  fields = shared_fields(paths)
  if unit and unit not in fields:
    raise command_lib.UsageError(
        f'--unit must be a field of all sweeps, {", ".join(fields)}; got '
        f'{unit!r}.'
    )
  sweeps = {
      path.stem: by_unit(read(path, fields, scores), fields, unit)
      for path in paths
  }
  first, *others = sweeps
  means, differences = [], []
  for name, units in sweeps.items():
    values = [[x[score] for x in units.values()] for score in scores]
    means.append([name, *(reporting.spread(x) for x in values)])
  for name in others:
    found = [difference(sweeps[first], sweeps[name], x) for x in scores]
    shown = [f'{100 * mean:+.2f} ± {100 * error:.2f}' for mean, error in found]
    differences.append([f'{name} - {first}', *shown])
  return [
      reporting.markdown_table([title, *scores], lines)
      for title, lines in (('sweep', means), ('difference', differences))
      if lines
  ]


def command() -> None:
  """Tabulates the results of sweeps, and their differences run by run."""
  paths = [pathlib.Path(x) for x in _RESULTS.value]
  if not paths:
    raise command_lib.UsageError('--results must name files; got none.')
  if len({path.stem for path in paths}) < len(paths):
    raise command_lib.UsageError(
        f'--results must have files of distinct names, got {_RESULTS.value}.'
    )
  print('\n\n'.join(tables(paths, _SCORES.value, _UNIT.value)))
  fields = shared_fields(paths)
  count = len(by_unit(read(paths[0], fields, ()), fields, _UNIT.value))
  print('\n' + _NOTES.format(count=count, of=_UNIT.value or 'runs'))


def _rows(path) -> tuple[list[str], list[dict[str, str]]]:
  try:
    with path.open(newline='', encoding='utf-8') as file:
      reader = csv.DictReader(file)
      rows = list(reader)
  except (OSError, UnicodeDecodeError) as error:
    raise command_lib.UsageError(f'{path} cannot be read: {error}.') from error
  if not rows:
    raise command_lib.UsageError(f'{path} has no runs.')
  return list(reader.fieldnames or ()), rows


def _named(fields, key) -> str:
  return ', '.join(f'{x}={y}' for x, y in zip(fields, key, strict=True))
