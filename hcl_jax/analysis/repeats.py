# SPDX-License-Identifier: Apache-2.0
"""Scores and curves of runs, grouped by setting; repeats differ by chance."""

from collections.abc import Mapping
from collections.abc import Sequence
import functools
import itertools
from typing import Any
from typing import NamedTuple

import numpy as np

from hcl_jax import _checks

_PANEL, _AXIS = 'data.name', 'loss.beta'
# What repeats differ in: random numbers, or the division of data into parts.
REPEATED = 'seed', 'data.division'
_SYMBOLS = {'loss.beta': 'β', 'loss.tau_plus': 'τ⁺'}


class Repeats(NamedTuple):
  """Scores of repeats by panel, series and position on an axis.

  Attributes:
    panels: names of the data sets.
    series: labels of the settings that share a panel and a tick; ``['']`` if
      there is only one.
    axis: name of the axis; '' without one.
    ticks: labels of the positions on the axis; ``['']`` without one.
    scores: ``scores[panel][series][tick]`` are the scores of the repeats,
      without NaN.
  """

  panels: list[str]
  series: list[str]
  axis: str
  ticks: list[str]
  scores: list[list[list[np.ndarray]]]

  def counts(self) -> set[int]:
    """Returns the numbers of repeats that settings have, without 0."""
    cells = itertools.chain.from_iterable(itertools.chain(*self.scores))
    return {len(cell) for cell in cells} - {0}


def group_repeats(
    fields: Mapping[str, Sequence[Any]],
    scores: Sequence[float],
    *,
    axis: str | None = None,
) -> Repeats:
  """Groups the scores of runs by the fields that vary.

  Runs that differ only in the seed, or in the division of the data into parts,
  are repeats. Every data set has a panel. The
  axis is ``loss.beta``, or else the first numeric field that varies within a
  data set. The other fields that vary within a data set label the series:

  - Numeric fields of one section that vary together are labeled by the first.
  - A numeric field that takes 0 and one other value in every data set, where
    the other value depends on the data set, is labeled as 0 or > 0.

  Args:
    fields: values of all runs, keyed by field.
    scores: scores of all runs; NaN for a run without one.
    axis: numeric field that varies, to use as the axis instead.
  """
  panel_of, names, axis = _read(fields, len(scores), axis)
  others = _series_fields(fields, names, axis)
  series_of = _labels(_comparable(fields, panel_of), others, scores)
  place_of = fields[axis] if axis else [''] * len(scores)
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
      ticks=[f'{x:g}' for x in places] if axis else places,
      scores=[
          [[np.array(found.get((p, s, x), [])) for x in places] for s in series]
          for p in panels
      ],
  )


class Curves(NamedTuple):
  """Scores during training of runs that repeat each other.

  Attributes:
    setting: label of the setting: its series and its place.
    series: label of the fields that make the series in :func:`group_repeats`.
    place: label of the field on the axis.
    is_baseline: whether beta, and tau_plus if it was swept, are 0.
    epochs: epochs at which every repeat was scored, rising, ``[n]``.
    scores: ``[repeats, n]``.
    seeds: seed of each repeat, and its division of the data, if there are such.
  """

  setting: str
  series: str
  place: str
  is_baseline: bool
  epochs: np.ndarray
  scores: np.ndarray
  seeds: list[tuple[int, ...]]


def group_curves(
    fields: Mapping[str, Sequence[Any]],
    curves: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    axis: str | None = None,
) -> dict[str, list[Curves]]:
  """Groups the curves of runs by the fields that vary.

  Args:
    fields: values of all runs, keyed by field.
    curves: epochs and scores of each run; empty for a run without them.
    axis: see :func:`group_repeats`.

  Returns:
    The curves of each setting at the epochs that its repeats have in common,
    keyed by data set.
  """
  panel_of, names, axis = _read(fields, len(curves), axis)
  others = _series_fields(fields, names, axis)
  labeled = [name for name in names if name == axis or name in others]
  comparable = _comparable(fields, panel_of)
  setting_of = _labels(comparable, labeled, curves)
  series_of = _labels(comparable, others, curves)
  place_of = _labels(comparable, [axis] if axis else [], curves)
  swept = [name for name in names if name in _SYMBOLS]
  groups = {}
  for i, (epochs, _) in enumerate(curves):
    if len(epochs):
      groups.setdefault((panel_of[i], setting_of[i]), []).append(i)
  panels = {}
  for (panel, setting), rows in groups.items():
    common = functools.reduce(np.intersect1d, [curves[i][0] for i in rows])
    panels.setdefault(panel, []).append(
        Curves(
            setting=setting,
            series=series_of[rows[0]],
            place=place_of[rows[0]],
            is_baseline=(
                _AXIS in swept
                and not any(fields[name][rows[0]] for name in swept)
            ),
            epochs=common,
            scores=np.stack([
                curves[i][1][np.isin(curves[i][0], common)] for i in rows
            ]),
            seeds=[
                tuple(fields[name][i] for name in REPEATED if name in fields)
                for i in rows
            ],
        )
    )
  return panels


def curves_by_series(
    panels: Mapping[str, Sequence[Curves]],
) -> dict[str, list[Curves]]:
  """Splits the panel of each data set into one for each series."""
  spread = {}
  for panel, of_panel in panels.items():
    for curves in of_panel:
      parts = [panel if len(panels) > 1 else '', curves.series]
      name = ', '.join(filter(None, parts)) or panel
      curves = curves._replace(setting=curves.place or curves.setting)
      spread.setdefault(name, []).append(curves)
  return spread


def baseline_of(panel: Sequence[Curves]) -> Curves | None:
  """Returns the baseline of a panel, or None unless there is exactly one."""
  found = [curves for curves in panel if curves.is_baseline]
  return found[0] if len(found) == 1 and len(panel) > 1 else None


def epochs_to_reach(
    epochs: Any, scores: Any, target: float, *, interpolate: bool = False
) -> float | None:
  """Returns the first epoch at which a score is at least a target.

  With the final accuracy of another run as the target, this is the paper's
  comparison of speed: on STL10, 60 epochs with hard negatives reach the
  accuracy of 400 epochs of SimCLR (Robinson et al., 2021).

  Args:
    epochs: epochs at which the score was measured, rising, ``[n]``.
    scores: ``[n]``.
    target: the score to reach.
    interpolate: whether to interpolate linearly between measurements.

  Returns:
    The epoch, or None if the curve stays below the target.

  Example:
    >>> epochs_to_reach([10, 20, 30], [0.2, 0.6, 0.7], 0.4)
    20.0
    >>> epochs_to_reach([10, 20, 30], [0.2, 0.6, 0.7], 0.4, interpolate=True)
    15.0
  """
  epochs = _checks.numbers('epochs', epochs)
  scores = _checks.numbers('scores', scores)
  if epochs.shape != scores.shape:
    raise ValueError(
        'epochs and scores must have the same length; got '
        f'{len(epochs)} and {len(scores)}.'
    )
  if np.any(np.diff(epochs) <= 0):
    raise ValueError(f'epochs must rise; got {epochs}. Sort both first.')
  reached = np.flatnonzero(scores >= target)
  if not len(reached):
    return None
  i = reached[0]
  if i == 0 or not interpolate:
    return float(epochs[i])
  part = (target - scores[i - 1]) / (scores[i] - scores[i - 1])
  return float(epochs[i - 1] + part * (epochs[i] - epochs[i - 1]))


def _read(fields, num_runs, axis):
  """Returns panels of the runs, fields that vary within a panel, and the axis.

  What repeats differ in is not one of the fields.
  """
  panel_of = list(map(str, fields.get(_PANEL, [''] * num_runs)))
  num_panels = len(set(panel_of))
  names = [
      name
      for name, values in fields.items()
      if name not in (*REPEATED, _PANEL)
      and len(set(zip(panel_of, values, strict=True))) > num_panels
  ]
  numeric = [name for name in names if all(map(_is_number, fields[name]))]
  if axis and axis not in numeric:
    raise ValueError(
        'axis must be a numeric field that varies: '
        f'{" or ".join(numeric) or "there is none"}; got {axis!r}.'
    )
  axis = axis or (_AXIS if _AXIS in numeric else next(iter(numeric), ''))
  return panel_of, names, axis


def _comparable(fields, panel_of):
  """Replaces values that are specific to a data set by '> 0'."""
  return {
      name: [
          f'{_symbol(name)} > 0' if value and own else value for value in values
      ]
      for name, values in fields.items()
      for own in [_depends_on_panel(values, panel_of)]
  }


def _depends_on_panel(values, panel_of):
  """Returns whether each panel has 0 and one other number, not all the same."""
  if not all(map(_is_number, values)):
    return False
  found = {}
  for panel, value in zip(panel_of, values, strict=True):
    found.setdefault(panel, set()).add(value)
  others = [tuple(of_panel - {0}) for of_panel in found.values()]
  return (
      all(0 in of_panel for of_panel in found.values())
      and all(len(x) == 1 for x in others)
      and len(set(others)) > 1
  )


def _labels(fields, names, runs):
  return [
      ', '.join(_label(name, fields[name][i]) for name in names)
      for i in range(len(runs))
  ]


def _series_fields(fields, names, axis):
  """Returns the fields that label series.

  These are all fields but the axis and those that vary together with it or with
  an earlier one, so that one hyperparameter of a method stands for all of them.
  Beta and tau_plus are always labeled.
  """
  kept = [axis] if axis else []
  for name in names:
    redundant = any(_vary_together(fields, other, name) for other in kept)
    if name != axis and (name in _SYMBOLS or not redundant):
      kept.append(name)
  return kept[1:] if axis else kept


def _vary_together(fields, first, second):
  """Returns whether two numeric fields of one section vary together."""
  x, y = fields[first], fields[second]
  return (
      first.rpartition('.')[0] == second.rpartition('.')[0]
      and all(map(_is_number, [*x, *y]))
      and len(set(x)) == len(set(y)) == len(set(zip(x, y, strict=True)))
  )


def _is_number(value):
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def _label(name, value):
  if isinstance(value, str):
    return value  # clear without the name of its field
  shown = f'{value:g}' if _is_number(value) else value
  return f'{_symbol(name)} = {shown}'


def _symbol(name):
  return _SYMBOLS.get(name, name.rpartition('.')[-1])
