# SPDX-License-Identifier: Apache-2.0
"""Keeps the results of a sweep as JSON, and joins those of several sweeps."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import csv
import io
import json
import math
import os
import pathlib
from typing import Any
from typing import NamedTuple

import ml_collections
import numpy as np

from hcl_jax import domains
from hcl_jax.analysis import repeats
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import reporting
from hcl_jax.runs import scores as scores_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import grid
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib

CSV = 'results.csv'
_FOLDER, _FOLDER_OF_0_1 = 'runs', 'members'
_DATA_SET = 'data.name'
_ABOUT_ERRORS = (
    '± is the standard deviation over runs; of a single run, the standard '
    'error over what is scored.'
)


def folder(workdir: pathlib.Path) -> pathlib.Path:
  """Returns where the runs of a sweep have their files."""
  before = workdir / _FOLDER_OF_0_1
  return before if before.is_dir() else workdir / _FOLDER


class SweepResults:
  """Keeps what is known of the runs so far, in the directory of the sweep.

  A run has a file of its own, written whole when it is finished, so a sweep
  that is stopped has lost no finished one.
  """

  def __init__(self, workdir: pathlib.Path, runs: Sequence[grid.Run]):
    self._workdir = workdir
    self._folder = folder(workdir)
    self._runs = list(runs)
    self._results = {}
    for run in runs:
      path = self._path(run)
      if path.exists():
        self._results[run.number] = _read_result(path)

  def __len__(self) -> int:
    return len(self._results)

  def __contains__(self, run: grid.Run) -> bool:
    return run.number in self._results

  def run_folder(self, run: grid.Run) -> pathlib.Path:
    """Returns the directory of a run."""
    return self._folder / run.name

  def add(self, run: grid.Run, result: Mapping[str, Any]) -> None:
    """Writes a finished run: ``scores``, or the ``failure`` of it."""
    record = {
        'values': run.values,
        'kinds': scores_lib.kinds(result.get('scores', {})),
        'errors': scores_lib.errors(result.get('scores', {})),
        **result,
    }
    path = self._path(run)
    path.parent.mkdir(exist_ok=True)
    reporting.write_json(path, record)
    self._results[run.number] = _with_kinds(record)

  def scores(self, run: grid.Run) -> dict[str, scores_lib.Score]:
    """Returns the scores of a finished run; none if it failed."""
    return scores_lib.of_numbers(self._results[run.number]['scores'])

  def failures(self) -> list[str]:
    """Returns a line for each run that failed."""
    return [
        f'{run.label}: {self._results[run.number]["failure"]}'
        for run in self._finished()
        if self._results[run.number].get('failure')
    ]

  def write(self) -> None:
    """Writes ``results.csv`` and ``results.md`` of what is finished."""
    reporting.write_text(self._workdir / CSV, self.csv())
    reporting.write_text(self._workdir / 'results.md', self.markdown() + '\n')

  def csv(self) -> str:
    """Returns a line for each finished run: number, values, scores, errors.

    The standard error of a score has the column ``SCORE_error``.
    """
    names = self._score_names()
    finished = [(run, self.scores(run)) for run in self._finished()]
    with_errors = dict.fromkeys(
        name for _, scores in finished for name in scores_lib.errors(scores)
    )
    file = io.StringIO()
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow([
        'run',
        *self._runs[0].values,
        *names,
        *(f'{name}_error' for name in with_errors),
    ])
    for run, scores in finished:
      errors = scores_lib.errors(scores)
      cells = [scores.get(name, '') for name in names]
      cells += [errors.get(name, '') for name in with_errors]
      writer.writerow([run.number, *run.values.values(), *cells])
    return file.getvalue()

  def markdown(self) -> str:
    """Returns mean and standard deviation of shares over repeats, in percent.

    These differ in the seed or in the division of the data only. A share of a
    single run has its standard error instead.
    """
    values = self._runs[0].values
    fields = [x for x in values if x not in repeats.REPEATED]
    names = [x for x, kind in self._score_names().items() if kind == 'share']
    rows = {}
    for run in self._finished():
      key = tuple(run.values[field] for field in fields)
      rows.setdefault(key, []).append(self.scores(run))
    lines, single = [], False
    for key, scores in rows.items():
      found = [[x[name] for x in scores if name in x] for name in names]
      cells = [_spread(values) for values in found]
      single |= any(len(x) == 1 and x[0].error is not None for x in found)
      lines.append([*map(str, key), str(len(scores)), *cells])
    table = reporting.markdown_table(
        [*fields, 'runs', *names], lines, words=len(fields)
    )
    return f'{table}\n\n{_ABOUT_ERRORS}' if single else table

  def _finished(self):
    return [run for run in self._runs if run in self]

  def _score_names(self):
    """Returns the kinds of all scores by name."""
    return {
        name: score.kind
        for run in self._finished()
        for name, score in self.scores(run).items()
    }

  def _path(self, run):
    return self._folder / f'{run.name}.json'


def _read_result(path):
  try:
    return _with_kinds(json.loads(path.read_text(encoding='utf-8')))
  except (ValueError, AttributeError, OSError) as error:
    raise workdir_lib.WorkdirError(
        f'{path} cannot be read: {error}. Without this file its run is trained '
        'again.'
    ) from error


def _spread(scores):
  errors = [x.error for x in scores if x.error is not None]
  return reporting.spread(scores, errors)


def _with_kinds(record):
  parts = [record.get(x, {}) for x in ('scores', 'kinds', 'errors')]
  return {**record, 'scores': scores_lib.with_kinds(*parts)}


class Results(NamedTuple):
  """Holds the finished runs of one sweep or more, as columns.

  Attributes:
    fields: values of all runs, by the name of the field: the data set, what
      was swept, and what the sweeps differ in.
    scores: of all runs, by name; NaN where a run has none.
    errors: standard errors of the scores; NaN where none is known.
    kinds: of the scores, by name.
    curves: of all runs, epochs and the score that was measured during training;
      empty where there is none.
    curve_score: name of that score.
  """

  fields: dict[str, list[Any]]
  scores: dict[str, np.ndarray]
  errors: dict[str, np.ndarray]
  kinds: dict[str, scores_lib.Kind]
  curves: list[tuple[np.ndarray, np.ndarray]]
  curve_score: str


class _Run(NamedTuple):
  """Holds what is known of a run."""

  values: dict[str, Any]
  scores: dict[str, scores_lib.Score]
  curve: tuple[np.ndarray, np.ndarray]


class _Sweep(NamedTuple):
  """Holds a directory, its configuration, and its runs."""

  workdir: pathlib.Path
  config: ml_collections.ConfigDict
  runs: list[_Run]


def read(workdirs: Sequence[str | os.PathLike]) -> Results:
  """Reads the results of one sweep, or of several that go together.

  Raises:
    FileNotFoundError: a directory holds no sweep, or nothing of it is finished.
    ValueError: a directory holds something else, or sweeps cannot be joined.
  """
  sweeps = [_read_sweep(pathlib.Path(workdir)) for workdir in workdirs]
  swept = [x for sweep in sweeps for run in sweep.runs for x in run.values]
  fields = dict.fromkeys([*swept, *_different_fields(sweeps), _DATA_SET])
  runs = {}
  for sweep in sweeps:
    for run in sweep.runs:
      key = tuple(
          run.values[field]
          if field in run.values
          else fields_lib.get(sweep.config, field)
          for field in fields
      )
      if key in runs:
        words = ', '.join(map('{}={}'.format, fields, key))
        raise ValueError(f'{sweep.workdir}: {words} is there twice.')
      runs[key] = run
  kinds = {
      name: score.kind
      for run in runs.values()
      for name, score in run.scores.items()
  }
  return Results(
      fields={
          field: [key[k] for key in runs] for k, field in enumerate(fields)
      },
      scores={
          name: _column([run.scores for run in runs.values()], name)
          for name in kinds
      },
      errors={
          name: _column(
              [scores_lib.errors(run.scores) for run in runs.values()], name
          )
          for name in kinds
      },
      kinds=kinds,
      curves=[run.curve for run in runs.values()],
      curve_score=domains.main_score(sweeps[0].config),
  )


def _column(rows, name):
  return np.array([row.get(name, math.nan) for row in rows])


def _read_sweep(workdir):
  config = workdir_lib.load_config(workdir)
  if 'sweep' not in config:
    raise ValueError(
        f'{workdir} holds a single run; give the directory of a sweep, which '
        'python -m hcl_jax.sweep makes.'
    )
  config = grid.without_sweep(config)
  domains.fill_defaults(config)
  runs = list(_read_runs(workdir, config))
  if not runs:
    raise FileNotFoundError(
        f'{workdir} has no results: no run of the sweep is finished yet.'
    )
  return _Sweep(workdir, config, runs)


def _read_runs(workdir, config) -> Iterator[_Run]:
  for path in sorted(folder(workdir).glob('[0-9]*.json')):
    result = _read_result(path)
    values = result.get('values')
    if not isinstance(values, dict) or not all(
        isinstance(x, bool | int | float | str) for x in values.values()
    ):
      raise ValueError(
          f'{path} must have values of swept fields, got {values!r}.'
      )
    config_of_run = fields_lib.with_values(config, values)
    curve = _read_curve(path.with_suffix(''), config_of_run)
    yield _Run(values, scores_lib.of_numbers(result['scores']), curve)


def _read_curve(folder, config):
  """Reads epochs and the score that chooses the best step of a finished run.

  The length of an epoch is that of the data; what is known here is how many
  epochs the steps of the whole run are.
  """
  records = metrics_lib.read_metrics(folder) if folder.is_dir() else []
  name = domains.main_score(config)
  by_step = {x['step']: x[name] for x in records if name in x}
  if config.train.get('steps') or len(by_step) < 2:
    return np.zeros(0), np.zeros(0)
  steps = np.array(sorted(by_step))
  share = steps / max(x['step'] for x in records)
  return share * config.train.epochs, np.array([by_step[x] for x in steps])


def _different_fields(sweeps):
  """Returns fields that configurations differ in, swept or not."""
  first, *others = sweeps
  names = fields_lib.flatten(first.config)
  for sweep in others:
    odd = set(names).symmetric_difference(fields_lib.flatten(sweep.config))
    if odd:
      raise ValueError(
          f'{first.workdir} and {sweep.workdir} cannot be joined: only one has '
          f'a field {min(odd)}.'
      )
  return [
      name
      for name in names
      if name not in config_lib.SWEEP_MAY_CHANGE
      and len({fields_lib.get(sweep.config, name) for sweep in sweeps}) > 1
  ]
