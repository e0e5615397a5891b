# SPDX-License-Identifier: Apache-2.0
"""Scores of runs that differ only in the seed, by setting."""

from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Any
from typing import NamedTuple

import numpy as np

_SEED, _PANEL, _AXIS = 'seed', 'data.name', 'loss.beta'
_SYMBOLS = {'loss.beta': 'β', 'loss.tau_plus': 'τ⁺'}


class Repeats(NamedTuple):
  """Scores by panel, series and place on an axis.

  Attributes:
    panels: names of the data sets.
    series: what tells runs at one place of a panel apart; ``['']`` if nothing.
    axis: name of the axis, '' where there is none.
    ticks: names of the places on it; ``['']`` where there is none.
    scores: ``scores[panel][series][tick]`` are those of the repeats, without
      NaN.
  """

  panels: list[str]
  series: list[str]
  axis: str
  ticks: list[str]
  scores: list[list[list[np.ndarray]]]

  def counts(self) -> set[int]:
    """How many repeats settings have that have any."""
    cells = itertools.chain.from_iterable(itertools.chain(*self.scores))
    return {len(cell) for cell in cells} - {0}


def group_repeats(
    fields: Mapping[str, Sequence[Any]], scores: Sequence[float]
) -> Repeats:
  """Groups runs by what they differ in.

  A panel is a data set, the axis is ``loss.beta`` or else the first field of
  numbers, and all other fields make the series. The seed tells repeats apart.

  Args:
    fields: values of all runs, by the name of the field.
    scores: of all runs, NaN where a run has none.

  Returns:
    The scores of the repeats.
  """
  names = [
      name
      for name, values in fields.items()
      if name not in (_SEED, _PANEL) and len(set(values)) > 1
  ]
  axis = _choose_axis(fields, names)
  others = [name for name in names if name != axis]
  blank = [''] * len(scores)
  panel_of = list(map(str, fields.get(_PANEL, blank)))
  series_of = [
      ', '.join(_label(name, fields[name][i]) for name in others)
      for i in range(len(scores))
  ]
  place_of = fields[axis] if axis else blank
  found = {}
  for *key, score in zip(panel_of, series_of, place_of, scores, strict=True):
    if np.isfinite(score):
      found.setdefault(tuple(key), []).append(score)
  panels, series = list(dict.fromkeys(panel_of)), list(dict.fromkeys(series_of))
  places = sorted(set(place_of))
  return Repeats(
      panels=panels,
      series=series,
      axis=_SYMBOLS.get(axis, axis),
      ticks=list(map(_number, places)) if axis else places,
      scores=[
          [[np.array(found.get((p, s, x), [])) for x in places] for s in series]
          for p in panels
      ],
  )


def _choose_axis(fields, names):
  numeric = [name for name in names if all(map(_is_number, fields[name]))]
  return _AXIS if _AXIS in numeric else next(iter(numeric), '')


def _is_number(value):
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value):
  return f'{value:g}'


def _label(name, value):
  """A word speaks for itself; a number does not."""
  if isinstance(value, str):
    return value
  symbol = _SYMBOLS.get(name, name.rpartition('.')[-1])
  return f'{symbol} = {_number(value) if _is_number(value) else value}'
