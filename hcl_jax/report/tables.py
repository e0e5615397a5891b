# SPDX-License-Identifier: Apache-2.0
"""Tables of the results of sweeps."""

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from hcl_jax.analysis import repeats as repeats_lib
from hcl_jax.runs import reporting


def repeats_table(repeats: repeats_lib.Repeats, score: str) -> str:
  """Formats the scores of settings in Markdown.

  The table has a row for each data set and a column for each setting. A single
  data set with several series has a row for each series.

  Args:
    repeats: scores between 0 and 1.
    score: name of the score.

  Returns:
    A caption and the table; the best mean of a row is bold.
  """
  return '\n\n'.join([
      repeats_caption(repeats, score),
      reporting.markdown_table(*repeats_cells(repeats)),
  ])


def repeats_caption(repeats: repeats_lib.Repeats, score: str) -> str:
  """Returns a caption that says what the numbers of the table are."""
  counts = repeats.counts()
  alike = len(counts) == 1
  number = f'{min(counts)} repeats' if alike else 'repeats (in parentheses)'
  return (
      f'{score} in percent, mean ± standard deviation over {number}; the best '
      'mean of each row is bold.'
  )


def repeats_cells(
    repeats: repeats_lib.Repeats,
) -> tuple[list[str], list[list[str]]]:
  """Returns header and cells of :func:`repeats_table`; ``**x**`` is bold."""
  alike = len(repeats.counts()) == 1
  if len(repeats.panels) == 1 and repeats.axis and len(repeats.series) > 1:
    header = [_setting(repeats.axis, '', tick) for tick in repeats.ticks]
    lines = [
        [series, *_row(cells, alike)]
        for series, cells in zip(
            repeats.series, repeats.scores[0], strict=True
        )
    ]
    return [repeats.panels[0], *header], lines
  header = [
      _setting(repeats.axis, series, tick)
      for series in repeats.series
      for tick in repeats.ticks
  ]
  lines = [
      [panel, *_row([cell for line in cells for cell in line], alike)]
      for panel, cells in zip(repeats.panels, repeats.scores, strict=True)
  ]
  return ['', *header], lines


def epochs_cells(
    panels: Mapping[str, Sequence[repeats_lib.Curves]],
) -> tuple[list[str], list[list[str]]]:
  """Returns header and cells of the epochs to the baseline's last score.

  Each repeat is compared with the repeat of the baseline that has its seed.

  Args:
    panels: curves of settings, keyed by data set.

  Returns:
    Header, and a row for each setting of the data sets with one baseline.
  """
  lines = []
  for name, panel in panels.items():
    baseline = repeats_lib.baseline_of(panel)
    for curves in panel if baseline else []:
      lines.append([name, curves.setting, *_reached(curves, baseline)])
  return ['', 'setting', 'epochs to the baseline’s last score',
          'repeats that reach it'], lines  # fmt: skip


def _reached(curves, baseline):
  """Returns the cells of a setting: epochs, and how many repeats get there."""
  targets = dict(zip(baseline.seeds, baseline.scores[:, -1], strict=True))
  epochs = [
      repeats_lib.epochs_to_reach(
          curves.epochs, scores, targets[seed], interpolate=True
      )
      for seed, scores in zip(curves.seeds, curves.scores, strict=True)
      if seed in targets
  ]
  reached = [x for x in epochs if x is not None]
  words = '-'
  if reached:
    words = f'{np.mean(reached):.1f}'
  if len(reached) > 1:
    words += f' ± {np.std(reached, ddof=1):.1f}'
  return [words, f'{len(reached)} of {len(epochs)}']


def _setting(axis, series, tick):
  place = f'{axis} = {tick}' if axis else ''
  return ', '.join(filter(None, [series, place])) or 'all'


def _row(cells, alike):
  means = [np.mean(cell) if len(cell) else -np.inf for cell in cells]
  best = max(means)
  words = []
  for cell, mean in zip(cells, means, strict=True):
    word = reporting.spread(cell)
    if len(cell) and mean == best and len(cells) > 1:
      word = f'**{word}**'
    words.append(word if alike or not len(cell) else f'{word} ({len(cell)})')
  return words
