# SPDX-License-Identifier: Apache-2.0
"""Keeps the scores of a run, each with its kind, and writes them as JSON."""

from collections.abc import Mapping
import json
import pathlib
from typing import Any
from typing import Literal

from hcl_jax.runs import reporting

Kind = Literal['share', 'loss', 'number']
# Scores by ``protocol/measure``; some protocols add details, such as a list of
# folds.
Scores = dict[str, Any]

_FILE = 'scores.json'
_KINDS = 'kinds'


class Score(float):
  """Is a number that knows its kind.

  Attributes:
    kind: ``'share'``, between 0 and 1, the more the better; ``'loss'``, the
      less the better; ``'number'``, all else.
  """

  kind: Kind

  def __new__(cls, value: float, kind: Kind = 'share'):
    score = super().__new__(cls, value)
    score.kind = kind
    return score

  def __reduce__(self):
    return type(self), (float(self), self.kind)


def of_numbers(scores: Mapping[str, Any]) -> dict[str, Score]:
  """Returns the scores without details."""
  return {name: x for name, x in scores.items() if isinstance(x, Score)}


def kinds(scores: Mapping[str, Any]) -> dict[str, Kind]:
  """Returns the kinds of the scores that are numbers."""
  return {name: x.kind for name, x in of_numbers(scores).items()}


def with_kinds(scores: Mapping[str, Any], kinds: Mapping[str, Kind]) -> Scores:
  """Returns scores that were read from a file with their kinds.

  Files of 0.1.0 have no kinds; there the name tells.
  """
  return {
      name: Score(x, kinds.get(name) or _kind_in_0_1(name))
      if isinstance(x, float)
      else x
      for name, x in scores.items()
  }


def write(workdir: pathlib.Path, rows: Mapping[str, Scores]) -> None:
  """Writes ``scores.json``: scores by what they are of, and their kinds."""
  found = {}
  for scores in rows.values():
    found |= kinds(scores)
  reporting.write_json(workdir / _FILE, {**rows, _KINDS: found})


def read_kinds(workdir: pathlib.Path) -> dict[str, Kind]:
  """Reads the kinds of the scores of a run; none of an unfinished one."""
  try:
    text = (workdir / _FILE).read_text(encoding='utf-8')
    return dict(json.loads(text)[_KINDS])
  except (OSError, ValueError, TypeError, KeyError):
    return {}


def _kind_in_0_1(name) -> Kind:
  if name.endswith('/loss'):
    return 'loss'
  return 'number' if name.endswith('/deviation') else 'share'
