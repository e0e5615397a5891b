# SPDX-License-Identifier: Apache-2.0
"""Reports on sweeps: figures, tables and sections of the page."""

from collections.abc import Mapping
from collections.abc import Sequence
import itertools
import pathlib

import numpy as np

from hcl_jax import analysis
from hcl_jax.analysis import repeats as repeats_lib
from hcl_jax.report import page
from hcl_jax.report import plots
from hcl_jax.report import run_report
from hcl_jax.runs import reporting
from hcl_jax.sweeps import results as results_lib

_DRAWN = (
    'A point is a run, a box the quartiles of three or more runs of a setting, '
    'a bar the mean of fewer, with the standard deviation of two.'
)
_EPOCHS = (
    'Each repeat is compared with the baseline of the same seed; curves are '
    'interpolated linearly. Mean ± standard deviation over the repeats that '
    'reach the score.'
)


class SweepReport:
  """Figures and sections on one sweep, or on several that are joined.

  Args:
    results: results of all runs.
    score: name of the score to show.
    output: folder for the figures and tables.
    axis: see :func:`hcl_jax.analysis.group_repeats`.
  """

  def __init__(
      self,
      results: results_lib.Results,
      score: str,
      output: pathlib.Path,
      axis: str | None = None,
  ):
    self._repeats = analysis.group_repeats(
        results.fields, results.scores[score], axis=axis
    )
    self._errors = analysis.group_repeats(
        results.fields, results.errors[score], axis=axis
    )
    self._curves = analysis.group_curves(
        results.fields, results.curves, axis=axis
    )
    self._curve_score = results.curve_score
    self._score = score
    self._output = output

  def table(self) -> str:
    """Returns mean and deviation of every setting, in Markdown."""
    return repeats_table(self._repeats, self._score, self._errors)

  def sections(self) -> list[page.Section]:
    """Writes figures and tables, and returns all sections of the page."""
    chart = run_report.save_chart(
        plots.repeats_figure(self._repeats, self._score),
        self._output,
        self._score.replace('/', '_'),
        f'{self._score} by {self._repeats.axis}',
        _DRAWN,
    )
    reporting.write_text(self._output / 'table.md', self.table() + '\n')
    cells = page.table(
        *_repeats_cells(self._repeats, self._errors),
        caption=_repeats_caption(self._repeats, self._score, self._errors),
    )
    sections = [page.Section('Scores', [chart]), page.Section('Table', [cells])]
    if self._curves:
      sections.append(page.Section('Training', self._training()))
    return sections

  def _training(self):
    """Draws curves, and tabulates when they reach the baseline's last score."""
    chart = run_report.save_chart(
        plots.repeated_curves_figure(self._curves, self._curve_score),
        self._output,
        f'curves_{self._curve_score.replace("/", "_")}',
        f'{self._curve_score} by epoch',
    )
    header, lines = epochs_cells(self._curves)
    if not lines:
      return [chart]
    text = reporting.markdown_table(header, lines, words=2)
    reporting.write_text(self._output / 'epochs.md', text + '\n')
    return [chart, page.table(header, lines, caption=_EPOCHS)]


def repeats_table(
    repeats: repeats_lib.Repeats,
    score: str,
    errors: repeats_lib.Repeats | None = None,
) -> str:
  """Formats the scores of settings, between 0 and 1, in Markdown.

  Below a caption, the table has a row for each data set and a column for each
  setting. A single data set with several series has a row for each series. The
  best mean of a row is bold. A setting without repeats has its standard error,
  if ``errors``, grouped as the scores are, has it.
  """
  return '\n\n'.join([
      _repeats_caption(repeats, score, errors),
      reporting.markdown_table(*_repeats_cells(repeats, errors)),
  ])


def epochs_cells(
    panels: Mapping[str, Sequence[repeats_lib.Curves]],
) -> tuple[list[str], list[list[str]]]:
  """Returns header and cells of the epochs to the baseline's last score.

  Data sets, which key the curves, have rows if they have one baseline. Each
  repeat is compared with the repeat of the baseline that has its seed.
  """
  lines = []
  for name, panel in panels.items():
    baseline = repeats_lib.baseline_of(panel)
    for curves in panel if baseline else []:
      lines.append([name, curves.setting, *_reached(curves, baseline)])
  return ['', 'setting', 'epochs to the baseline’s last score',
          'repeats that reach it'], lines  # fmt: skip


def _repeats_caption(repeats, score, errors=None):
  counts = repeats.counts()
  alike = len(counts) == 1
  number = f'{min(counts)} repeats' if alike else 'repeats (in parentheses)'
  about = f'mean ± standard deviation over {number}'
  if errors is not None and errors.counts() and 1 in counts:
    error = '± standard error over what is scored'
    about = f'one run {error}' if alike else f'{about}, a single one {error}'
  return f'{score} in percent, {about}; the best mean of each row is bold.'


def _repeats_cells(repeats, errors=None):
  """Returns header and cells of the table of repeats; ``**x**`` is bold."""
  series, names, corner = repeats.series, repeats.panels, ''
  by_series = len(names) == 1 and repeats.axis and len(series) > 1
  if by_series:
    corner, names, series = names[0], series, ['']

  def rows_of(grouped):
    if by_series:
      return grouped.scores[0]
    return [list(itertools.chain(*panel)) for panel in grouped.scores]

  rows = rows_of(repeats)
  if errors is None:
    of_errors = [[()] * len(row) for row in rows]
  else:
    of_errors = rows_of(errors)
  header = [
      _setting(repeats.axis, label, tick)
      for label in series
      for tick in repeats.ticks
  ]
  alike = len(repeats.counts()) == 1
  lines = [
      [name, *_row(row, row_of_errors, alike)]
      for name, row, row_of_errors in zip(names, rows, of_errors, strict=True)
  ]
  return [corner, *header], lines


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


def _row(cells, errors, alike):
  means = [np.mean(cell) if len(cell) else -np.inf for cell in cells]
  best = max(means)
  words = []
  for cell, error, mean in zip(cells, errors, means, strict=True):
    word = reporting.spread(cell, error)
    if len(cell) and mean == best and len(cells) > 1:
      word = f'**{word}**'
    words.append(word if alike or not len(cell) else f'{word} ({len(cell)})')
  return words
