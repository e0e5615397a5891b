# SPDX-License-Identifier: Apache-2.0
"""Style of all figures: colors, fonts, panels, lines and legends."""

from collections.abc import Sequence
import os
from typing import Any

import matplotlib
from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib
from matplotlib import lines as lines_lib
from matplotlib import ticker
import numpy as np

# Inches: one panel alone, one of several, and the labels around them.
WIDE, PANEL, MARGIN = (6.4, 3.6), (3.0, 2.5), 0.5
MAX_COLUMNS = 4
# Inches: a character, a handle and a line of a legend, with their spacing.
_CHARACTER, _LEGEND_HANDLE, _LEGEND_LINE = 0.085, 0.6, 0.22
# The palette of Okabe and Ito, safe for the color-blind. There is one marker
# more than colors, so that series beyond the palette get a new combination.
COLORS = (
    '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000',
)  # fmt: skip
GRAY = '#666666'
_MARKERS = 'os^Dv<>p'
_DASHES = ('-', '--', '-.', ':')

# A decorator that draws in the style of the library.
styled = matplotlib.rc_context({
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
    'svg.hashsalt': 'hcl_jax',  # equal figures give equal files
})


@styled
def save(figure: figure_lib.Figure, path: str | os.PathLike) -> None:
  """Writes a figure; the suffix of the path sets the format."""
  figure.savefig(
      path,
      dpi=200,
      metadata={'Date': None} if str(path).endswith('.svg') else None,
  )


def panels(
    rows: int, columns: int, size: tuple[float, float], **options: Any
) -> tuple[figure_lib.Figure, list[axes_lib.Axes]]:
  """Creates a figure of the size, in inches, with a grid of axes."""
  figure = figure_lib.Figure(figsize=size, layout='constrained')
  axes = figure.subplots(rows, columns, squeeze=False, **options)
  return figure, list(axes.ravel())


def grid_shape(
    num_panels: int, max_columns: int = MAX_COLUMNS
) -> tuple[int, int]:
  """Returns the numbers of rows and columns that hold so many panels."""
  columns = min(max_columns, num_panels)
  return -(-num_panels // columns), columns


def refuse_empty(name: str, given: Any) -> None:
  """Raises ValueError where there is nothing to draw."""
  if not len(given):
    raise ValueError(f'{name} must have at least one entry to draw; got none.')


def draw_line(
    axes: axes_lib.Axes, x: Any, y: Any, i: int, label: str, *,
    markers: bool = True,
) -> None:  # fmt: skip
  """Draws the line of series i."""
  axes.plot(
      x,
      y,
      marker=marker(i) if markers else '',
      markersize=5,
      color=color(i),
      linestyle=dash(i),
      linewidth=1.8,
      label=label,
  )


def mark_height(
    axes: axes_lib.Axes, height: float, text: str = '', *, below: bool = False
) -> None:
  """Draws a dashed horizontal line, with a text at its right end."""
  axes.axhline(height, color=GRAY, linestyle='--', linewidth=1)
  if text:
    axes.annotate(
        text,
        (1, height),
        xycoords=('axes fraction', 'data'),
        xytext=(-4, -3 if below else 3),
        textcoords='offset points',
        ha='right',
        va='top' if below else 'bottom',
        color=GRAY,
        fontsize=9,
    )


def beta_axis(axes: axes_lib.Axes, betas: np.ndarray) -> None:
  """Sets up an x axis for beta, logarithmic beyond 1 if betas exceed 10."""
  if np.max(betas) > 10:
    axes.set_xscale('symlog', linthresh=1)  # linear up to 1, as beta may be 0
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axes.set_xlim(left=np.min(betas) - 0.1)
  axes.set_xlabel('β')


def legend_above(
    figure: figure_lib.Figure,
    axes: axes_lib.Axes,
    labels: Sequence[str] | None = None,
    **options: Any,
) -> None:
  """Adds a legend above the panels, where it hides no curve.

  It has the given labels of the series 0, 1, ..., or else those of the axes.
  Options are those of ``Figure.legend``.
  """
  if labels is None:
    handles, labels = axes.get_legend_handles_labels()
  else:
    handles = [
        lines_lib.Line2D([], [], color=color(i), linestyle=dash(i), lw=2)
        for i in range(len(labels))
    ]
  figure.legend(
      handles=handles,
      labels=labels,
      loc='outside upper center',
      ncols=legend_columns(figure.get_figwidth(), labels, 2),
      **options,
  )


def legend_height(
    width: float, labels: Sequence[str], max_columns: int
) -> float:
  """Returns the height of a legend in inches."""
  lines = -(-len(labels) // legend_columns(width, labels, max_columns))
  return lines * _LEGEND_LINE


def legend_columns(
    width: float, labels: Sequence[str], max_columns: int
) -> int:
  """Returns how many columns of labels fit into a width in inches."""
  widest = _LEGEND_HANDLE + _CHARACTER * max(map(len, labels), default=0)
  return int(np.clip(width // widest, 1, max_columns))


def color(i: int) -> str:
  """Returns the color of series i."""
  return COLORS[i % len(COLORS)]


def tint(i: int) -> str:
  """Returns the color of series i, one fifth opaque."""
  return f'{color(i)}33'


def marker(i: int) -> str:
  """Returns the marker of series i."""
  return _MARKERS[i % len(_MARKERS)]


def dash(i: int) -> str:
  """Returns the line style of series i; it changes when colors run out."""
  return _DASHES[i // len(COLORS) % len(_DASHES)]
