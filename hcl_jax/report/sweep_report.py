# SPDX-License-Identifier: Apache-2.0
"""Reports on sweeps: figures, tables and sections of the page."""

import pathlib

from hcl_jax import analysis
from hcl_jax.report import page
from hcl_jax.report import plots
from hcl_jax.report import run_report
from hcl_jax.report import tables
from hcl_jax.runs import reporting
from hcl_jax.sweeps import results as results_lib

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
    self._curves = analysis.group_curves(
        results.fields, results.curves, axis=axis
    )
    self._curve_score = results.curve_score
    self._score = score
    self._output = output

  def table(self) -> str:
    """Returns mean and deviation of every setting, in Markdown."""
    return tables.repeats_table(self._repeats, self._score)

  def sections(self) -> list[page.Section]:
    """Writes figures and tables, and returns all sections of the page."""
    sections = [
        page.Section('Scores', [self._scores()]),
        page.Section('Table', [self._cells()]),
    ]
    if self._curves:
      sections.append(page.Section('Training', self._training()))
    return sections

  def _scores(self):
    return run_report.save_chart(
        plots.repeats_figure(self._repeats, self._score),
        self._output,
        self._score.replace('/', '_'),
        f'{self._score} by {self._repeats.axis}',
    )

  def _cells(self):
    reporting.write_text(self._output / 'table.md', self.table() + '\n')
    return page.table(
        *tables.repeats_cells(self._repeats),
        caption=tables.repeats_caption(self._repeats, self._score),
    )

  def _training(self):
    """Draws curves, and tabulates when they reach the baseline's last score."""
    chart = run_report.save_chart(
        plots.repeated_curves_figure(self._curves, self._curve_score),
        self._output,
        f'curves_{self._curve_score.replace("/", "_")}',
        f'{self._curve_score} by epoch',
    )
    header, lines = tables.epochs_cells(self._curves)
    if not lines:
      return [chart]
    text = reporting.markdown_table(header, lines, words=2)
    reporting.write_text(self._output / 'epochs.md', text + '\n')
    return [chart, page.table(header, lines, caption=_EPOCHS)]
