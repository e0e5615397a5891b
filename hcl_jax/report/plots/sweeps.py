# SPDX-License-Identifier: Apache-2.0
"""Figures of sweeps: scores and curves of settings, over their repeats."""

from collections.abc import Mapping
from collections.abc import Sequence

from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib
from matplotlib import lines as lines_lib
from matplotlib import ticker
import numpy as np

from hcl_jax.analysis import repeats as repeats_lib
from hcl_jax.report.plots import style

# Widths of a tick's group of boxes and of one box, between ticks 1 apart.
_GROUP_WIDTH, _MAX_BOX_WIDTH = 0.8, 0.4
_MIN_REPEATS_OF_BOX = 3


@style.styled
def repeats_figure(
    repeats: repeats_lib.Repeats, score: str
) -> figure_lib.Figure:
  """Draws the distribution of scores over the repeats of each setting.

  Every data set has a panel, every series a color, and every repeat a point. A
  box shows the quartiles, and whiskers reach to the last points within 1.5
  times the interquartile range; fewer than three repeats get mean and standard
  deviation instead.

  Args:
    repeats: scores between 0 and 1.
    score: name of the score.
  """
  rows, columns = style.grid_shape(len(repeats.panels))
  width = max(style.WIDE[0], columns * style.PANEL[0] + style.MARGIN)
  height = rows * style.PANEL[1] + style.MARGIN
  height += style.legend_height(width, repeats.series, style.MAX_COLUMNS)
  figure, places = style.panels(rows, columns, (width, height))
  figure.get_layout_engine().set(hspace=0.06, wspace=0.03)
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
        handles=[_legend_handle(i) for i in range(len(repeats.series))],
        labels=repeats.series,
        loc='outside upper center',
        ncols=style.legend_columns(width, repeats.series, style.MAX_COLUMNS),
        handletextpad=0.2,
    )
  return figure


@style.styled
def repeated_curves_figure(
    panels: Mapping[str, Sequence[repeats_lib.Curves]], score: str
) -> figure_lib.Figure:
  """Draws scores over epochs, averaged over repeats.

  Every data set has a panel and every setting a line, in a band of one standard
  deviation to each side. A dashed line marks the last score of a panel's only
  baseline. With more lines than colors each series gets its own panel; those of
  a single data set share their scale.

  Args:
    panels: curves of settings, keyed by data set.
    score: name of the score.
  """
  style.refuse_empty('panels', panels)
  share_scale = len(panels) == 1
  if max(map(len, panels.values())) > len(style.COLORS):
    panels = repeats_lib.curves_by_series(panels)
  settings = list(dict.fromkeys(x.setting for y in panels.values() for x in y))
  rows, columns = style.grid_shape(len(panels), 2)
  width = max(style.WIDE[0], columns * style.WIDE[0] * 0.75)
  height = rows * style.WIDE[1] * 0.85 + style.MARGIN
  height += style.legend_height(width, settings, 2)
  figure, places = style.panels(
      rows, columns, (width, height), sharey=share_scale
  )
  for axes in places[len(panels) :]:
    axes.set_axis_off()
  for axes, (name, panel) in zip(places, panels.items(), strict=False):
    axes.set_title(name)
    baseline = repeats_lib.baseline_of(panel)
    if baseline is not None:
      style.mark_height(axes, 100 * baseline.scores[:, -1].mean())
    for curves in panel:
      _draw_band(axes, curves, settings.index(curves.setting))
  figure.supylabel(f'{score.replace("/", " ")} (%)')
  figure.supxlabel('epoch')
  style.legend_above(figure, places[0], labels=settings)
  return figure


def _draw_panel(axes: axes_lib.Axes, scores, ticks):
  width = _GROUP_WIDTH / len(scores)
  wide = min(0.8 * width, _MAX_BOX_WIDTH)
  for i, of_series in enumerate(scores):
    for tick, cell in enumerate(of_series):
      place = tick + (i - (len(scores) - 1) / 2) * width
      draw = _draw_box if len(cell) >= _MIN_REPEATS_OF_BOX else _draw_mean
      if len(cell):
        draw(axes, place, 100 * cell, wide, i)
        _draw_points(axes, place, 100 * cell, wide / 2, i)
  axes.set_xticks(range(len(ticks)), ticks)
  axes.set_xlim(-0.5, len(ticks) - 0.5)
  axes.tick_params(axis='x', length=0)
  axes.yaxis.set_major_locator(ticker.MaxNLocator(6, steps=(1, 2, 5, 10)))


def _draw_box(axes, place, values, width, i):
  color = style.color(i)
  line = {'color': color, 'linewidth': 1}
  axes.boxplot(
      values,
      positions=[place],
      widths=width,
      manage_ticks=False,
      patch_artist=True,
      showfliers=False,  # every repeat is a point already
      boxprops={'facecolor': style.tint(i), 'edgecolor': color},
      medianprops={'color': color, 'linewidth': 2},
      whiskerprops=line,
      capprops=line,
  )


def _draw_mean(axes, place, values, width, i):
  color = style.color(i)
  deviation = np.std(values, ddof=1) if len(values) > 1 else None
  axes.errorbar(place, values.mean(), yerr=deviation, color=color, capsize=3)
  ends = place - width / 2, place + width / 2
  axes.hlines(values.mean(), *ends, color, linewidth=2)


def _draw_points(axes, place, values, width, i):
  """Draws repeats side by side, in their order, so that none is hidden."""
  offsets = width * np.linspace(-1, 1, len(values) + 2)[1:-1]
  axes.plot(
      place + offsets,
      values,
      style.marker(i),
      color=style.color(i),
      markersize=3.5,
      markeredgewidth=0.4,
      markeredgecolor='white',
      zorder=3,
  )


def _draw_band(axes, curves, i):
  """Draws the mean of the repeats and, of several, the deviation."""
  scores = 100 * curves.scores
  mean = scores.mean(axis=0)
  if len(scores) > 1:
    deviation = scores.std(axis=0, ddof=1)
    axes.fill_between(
        curves.epochs, mean - deviation, mean + deviation, color=style.color(i),
        alpha=0.15, linewidth=0,
    )  # fmt: skip
  style.draw_line(axes, curves.epochs, mean, i, curves.setting, markers=False)


def _legend_handle(i):
  return lines_lib.Line2D(
      [],
      [],
      linestyle='',
      marker=style.marker(i),
      markersize=9,
      markerfacecolor=style.tint(i),
      markeredgecolor=style.color(i),
      markeredgewidth=1.5,
  )
