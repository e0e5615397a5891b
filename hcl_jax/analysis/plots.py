# SPDX-License-Identifier: Apache-2.0
"""Figures; the only file that imports matplotlib."""

import os

import matplotlib
from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib
from matplotlib import lines as lines_lib
from matplotlib import ticker
import numpy as np

from hcl_jax.analysis import repeats as repeats_lib

_COLUMNS = 4
_PANEL = (3.0, 2.5)  # inches
_MARGIN = 0.5  # for the names of the axes and the legend
# Okabe and Ito's colours, which the colour-blind can tell apart; series beyond
# them have another marker, as there is one marker more.
_COLORS = (
    '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000',
)  # fmt: skip
_MARKERS = 'os^Dv<>p'
_GROUP, _WIDEST = 0.8, 0.4  # of the distance between two ticks
_FEW = 3  # repeats; fewer have no quartiles to speak of
_STYLE = {
    'font.size': 10,
    'axes.titlesize': 11,
    'axes.labelsize': 11,
    'figure.labelsize': 12,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.grid': True,
    'axes.grid.axis': 'y',
    'axes.axisbelow': True,
    'grid.color': '#e0e0e0',
    'legend.frameon': False,
    'svg.hashsalt': 'hcl_jax',  # the same figure, the same file
}


def repeats_figure(
    repeats: repeats_lib.Repeats, score: str
) -> figure_lib.Figure:
  """Draws the distribution over repeats of each setting.

  Boxes have the quartiles of the repeats, which are points, and whiskers to the
  last within 1.5 of their distance; fewer than three repeats have their mean
  and standard deviation instead.

  Args:
    repeats: the scores, between 0 and 1.
    score: their name.

  Returns:
    A figure with a panel for each data set and a colour for each series.
  """
  columns = min(_COLUMNS, len(repeats.panels))
  rows = -(-len(repeats.panels) // columns)
  with matplotlib.rc_context(_STYLE):
    figure = figure_lib.Figure(
        figsize=(
            columns * _PANEL[0] + _MARGIN, rows * _PANEL[1] + 2 * _MARGIN
        ),
        layout='constrained',
    )  # fmt: skip
    figure.get_layout_engine().set(hspace=0.06, wspace=0.03)
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for i, axes in enumerate(places):
      if i < len(repeats.panels):
        _draw_panel(axes, repeats.scores[i], repeats.ticks)
        axes.set_title(repeats.panels[i])
      else:
        axes.set_axis_off()
    figure.supylabel(f'{score.replace("/", " ")} (%)')
    figure.supxlabel(repeats.axis)
    if len(repeats.series) > 1:
      figure.legend(
          handles=list(map(_sample, range(len(repeats.series)))),
          labels=repeats.series,
          loc='outside upper center',
          ncols=_COLUMNS,
          handletextpad=0.2,
      )
  return figure


def save(figure: figure_lib.Figure, path: str | os.PathLike) -> None:
  """Writes a figure in the format that the end of the path says."""
  with matplotlib.rc_context(_STYLE):
    figure.savefig(
        path,
        dpi=200,
        metadata={'Date': None} if str(path).endswith('.svg') else None,
    )


def _draw_panel(axes: axes_lib.Axes, scores, ticks):
  width = _GROUP / len(scores)
  wide = min(0.8 * width, _WIDEST)
  for i, of_series in enumerate(scores):
    for tick, cell in enumerate(of_series):
      place = tick + (i - (len(scores) - 1) / 2) * width
      draw = _draw_box if len(cell) >= _FEW else _draw_mean
      if len(cell):
        draw(axes, place, 100 * cell, wide, _color(i))
        _draw_points(axes, place, 100 * cell, wide / 2, i)
  axes.set_xticks(range(len(ticks)), ticks)
  axes.set_xlim(-0.5, len(ticks) - 0.5)
  axes.tick_params(axis='x', length=0)
  axes.yaxis.set_major_locator(ticker.MaxNLocator(6, steps=(1, 2, 5, 10)))


def _draw_box(axes, place, values, width, color):
  line = {'color': color, 'linewidth': 1}
  axes.boxplot(
      values,
      positions=[place],
      widths=width,
      manage_ticks=False,
      patch_artist=True,
      showfliers=False,  # all repeats are points
      boxprops={'facecolor': _tint(color), 'edgecolor': color},
      medianprops={'color': color, 'linewidth': 2},
      whiskerprops=line,
      capprops=line,
  )


def _draw_mean(axes, place, values, width, color):
  deviation = np.std(values, ddof=1) if len(values) > 1 else None
  axes.errorbar(
      place, values.mean(), yerr=deviation, color=color, capsize=3
  )
  ends = place - width / 2, place + width / 2
  axes.hlines(values.mean(), *ends, color, linewidth=2)


def _draw_points(axes, place, values, width, i):
  """Side by side in the order of the repeats, so that all are seen."""
  offsets = width * np.linspace(-1, 1, len(values) + 2)[1:-1]
  axes.plot(
      place + offsets,
      values,
      _marker(i),
      color=_color(i),
      markersize=3.5,
      markeredgewidth=0.4,
      markeredgecolor='white',
      zorder=3,
  )


def _sample(i):
  """What the legend shows of a series."""
  return lines_lib.Line2D(
      [],
      [],
      linestyle='',
      marker=_marker(i),
      markersize=9,
      markerfacecolor=_tint(_color(i)),
      markeredgecolor=_color(i),
      markeredgewidth=1.5,
  )


def _color(i):
  return _COLORS[i % len(_COLORS)]


def _tint(color):
  return f'{color}33'  # one fifth opaque


def _marker(i):
  return _MARKERS[i % len(_MARKERS)]
