# SPDX-License-Identifier: Apache-2.0
"""Keeps scores, each with its kind and standard error, and writes JSON."""

from collections.abc import Mapping
import json
import math
import pathlib
from typing import Any
from typing import Literal

from hcl_jax.runs import reporting

Kind = Literal['share', 'loss', 'number']
# Scores by ``protocol/measure``; some protocols add details, such as a list of
# folds.
Scores = dict[str, Any]

_FILE = 'scores.json'
_KINDS, _ERRORS, _EVALUATED = 'kinds', 'errors', 'evaluated'


class Score(float):
  """Is a number that knows its kind and how sure it is.

  Attributes:
    kind: ``'share'``, between 0 and 1, the more the better; ``'loss'``, the
      less the better; ``'number'``, all else.
    error: standard error, due to the choice of test rows alone; None: unknown.
  """

  kind: Kind
  error: float | None

  def __new__(
      cls, value: float, kind: Kind = 'share', error: float | None = None
  ):
    score = super().__new__(cls, value)
    score.kind = kind
    score.error = error
    return score

  def __reduce__(self):
    return type(self), (float(self), self.kind, self.error)


def share(value: float, rows: int) -> Score:
  """Returns a share of so many test rows, with its binomial standard error.

  The mean over probes of several seeds, or over divisions into folds, has this
  error too, because all are scored on the same rows. What another seed of the
  training would change is not in it.
  """
  return Score(value, 'share', math.sqrt(max(value * (1 - value), 0) / rows))


def of_numbers(scores: Mapping[str, Any]) -> dict[str, Score]:
  """Returns the scores without details."""
  return {name: x for name, x in scores.items() if isinstance(x, Score)}


def kinds(scores: Mapping[str, Any]) -> dict[str, Kind]:
  """Returns the kinds of the scores that are numbers."""
  return {name: x.kind for name, x in of_numbers(scores).items()}


def errors(scores: Mapping[str, Any]) -> dict[str, float]:
  """Returns the standard errors that are known."""
  numbers = of_numbers(scores)
  return {name: x.error for name, x in numbers.items() if x.error is not None}


def with_kinds(
    scores: Mapping[str, Any],
    kinds: Mapping[str, Kind],
    errors: Mapping[str, float],
) -> Scores:
  """Returns scores that were read from a file with their kinds and errors.

  Files of 0.1.0 have no kinds; there the name tells.
  """
  return {
      name: Score(x, kinds.get(name) or _kind_in_0_1(name), errors.get(name))
      if isinstance(x, float)
      else x
      for name, x in scores.items()
  }


def write(
    workdir: pathlib.Path,
    rows: Mapping[str, Scores],
    evaluated: Mapping[str, Any],
) -> None:
  """Writes ``scores.json``: scores by what they are of, kinds and errors.

  ``evaluated`` says how they were measured, for :func:`read`.
  """
  record = _with_details(rows) | {_EVALUATED: evaluated}
  reporting.write_json(workdir / _FILE, record)


def read(
    workdir: pathlib.Path, evaluated: Mapping[str, Any] | None = None
) -> dict[str, Scores]:
  """Reads what :func:`write` has written; nothing of an unfinished run.

  With ``evaluated``, scores that were measured otherwise are not read.
  """
  try:
    record = json.loads((workdir / _FILE).read_text(encoding='utf-8'))
    # As JSON has it, without tuples.
    wanted = json.loads(json.dumps(evaluated))
    if record.pop(_EVALUATED, None) != wanted and evaluated is not None:
      return {}
    return _without_details(record)
  except (OSError, ValueError, TypeError, AttributeError):
    return {}


def read_evaluations(path: pathlib.Path) -> dict[str, dict[str, Scores]]:
  """Reads scores by run and step; none if there is no file.

  Raises:
    ValueError: the file holds something else.
  """
  try:
    record = json.loads(path.read_text(encoding='utf-8'))
    return {
        run: _without_details(_by_step(found)) for run, found in record.items()
    }
  except FileNotFoundError:
    return {}
  except (ValueError, TypeError, AttributeError) as error:
    raise ValueError(
        f'{path} has no evaluations that new ones could be added to ({error}); '
        'move it away, or write elsewhere by --json=FILE.'
    ) from error


def add_evaluations(
    path: pathlib.Path, new: Mapping[str, Mapping[int, Scores]]
) -> None:
  """Adds scores by run and step to a file; those of the same names replace.

  Raises:
    ValueError: the file holds something else.
  """
  known = read_evaluations(path)
  for run, steps in new.items():
    for step, scores in steps.items():
      known.setdefault(run, {}).setdefault(str(step), {}).update(scores)
  reporting.write_json(
      path, {run: _with_details(steps) for run, steps in known.items()}
  )


def _with_details(rows):
  """Returns scores by row, and beside them their kinds and errors."""
  found = {}
  for scores in rows.values():
    found |= kinds(scores)
  by_row = {row: errors(scores) for row, scores in rows.items()}
  return {**rows, _KINDS: found, _ERRORS: by_row}


def _without_details(record) -> dict[str, Scores]:
  """Returns the scores that :func:`_with_details` was given."""
  record = dict(record)
  found, by_row = record.pop(_KINDS, {}), record.pop(_ERRORS, {})
  return {
      row: with_kinds(scores, found, by_row.get(row, {}))
      for row, scores in record.items()
  }


def _by_step(scores):
  """Returns scores by step; a file of 0.1.0 has one step of each run."""
  if not isinstance(scores.get('step'), int):
    return scores
  step = str(scores['step'])
  return {step: {name: x for name, x in scores.items() if name != 'step'}}


def _kind_in_0_1(name) -> Kind:
  if name.endswith('/loss'):
    return 'loss'
  return 'number' if name.endswith('/deviation') else 'share'
