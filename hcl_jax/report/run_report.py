# SPDX-License-Identifier: Apache-2.0
"""Reports on runs: figures, tables, a gallery and the interactive panel."""

from collections.abc import Sequence
import pathlib
from typing import Any

import jax
import numpy as np

import hcl_jax
from hcl_jax import analysis
from hcl_jax.report import inspection as inspection_lib
from hcl_jax.report import page
from hcl_jax.report import plots
from hcl_jax.runs import progress as progress_lib
from hcl_jax.runs import reporting
from hcl_jax.runs import scores as scores_lib
from hcl_jax.training import fields as fields_lib

_BETAS = np.concatenate([[0], np.geomspace(0.1, 20, 24)])
_GALLERY_ANCHORS = 4
_WIDTH = 60  # characters of a document in a ranking
_GALLERY_SIZE = 10
_PANEL_ANCHORS = 8
_FALSE_AMONG = (1, 3, 10, 30, 100)


class RunReport:
  """Figures and sections on one run, or on several to compare.

  Args:
    inspections: the runs. The gallery shows the last one; the panel shows those
      with the same batch as the first.
    output: folder for the figures.
  """

  def __init__(
      self,
      inspections: Sequence[inspection_lib.Inspection],
      output: pathlib.Path,
  ):
    self._runs = list(inspections)
    self._output = output

  def sections(self) -> list[page.Section]:
    """Writes figures, and returns all sections of the page."""
    makers = {
        'Scores': self._scores,
        'Training': self._training,
        'Similarities of pairs': self._similarities,
        'Effect of beta': self._weights,
        'Drag beta': self._panel,
        'Hardest negatives': self._gallery,
        'Configuration': self._configuration,
    }
    return [
        page.Section(title, makers[title]())
        for title in progress_lib.stages(makers, 'report')
    ]

  def _scores(self):
    scores = {run.name: run.scores() for run in self._runs}
    names = list(dict.fromkeys(x for of_run in scores.values() for x in of_run))
    if not names:
      return [page.paragraph('No score was measured.')]
    lines = [
        [name, *(reporting.score(of_run.get(column)) for column in names)]
        for name, of_run in scores.items()
    ]
    about = []
    if any(map(scores_lib.errors, scores.values())):
      about = [page.paragraph('± is the standard error over what is scored.')]
    return [
        page.table(['run', *names], lines),
        *about,
        *(page.paragraph(f'{run.name}: {run.summary}') for run in self._runs),
    ]

  def _training(self):
    parts = []
    losses = self._curves('loss')
    if losses:
      parts.append(
          self._chart(plots.losses_figure(losses), 'loss', 'loss by epoch')
      )
    for score in dict.fromkeys(run.score for run in self._runs):
      curves = self._curves(score)
      if curves:
        figure = plots.curves_figure(
            curves, score, baseline=self._baseline(curves)
        )
        name = f'curve_{score.replace("/", "_")}'
        parts.append(self._chart(figure, name, f'{score} by epoch'))
    return parts

  def _curves(self, metric):
    curves = {run.name: run.curve(metric) for run in self._runs}
    return {name: x for name, x in curves.items() if len(x[0]) > 1}

  def _baseline(self, curves):
    """Returns the only run without beta and tau_plus, if there are others."""
    standard = [
        run.name
        for run in self._runs
        if run.name in curves
        and not (np.any(_betas(run)) or run.sample.negatives.tau_plus)
    ]
    return standard[0] if len(standard) == 1 and len(curves) > 1 else None

  def _similarities(self):
    histograms = {
        run.name: analysis.similarity_histograms(
            run.sample.embeddings, run.sample.labels
        )
        for run in self._runs
    }
    pairs = {
        run.name: analysis.pair_similarities(*run.sample.views)
        for run in self._runs
        if run.sample.views is not None
    }
    parts = [
        self._chart(
            plots.similarity_figure(histograms),
            'similarities',
            'histograms of cosine similarities',
            _describe_pairs(self._runs[0].sample),
        ),
        page.table(
            ['run', 'overlap', 'uniformity', 'alignment', 'margin'],
            [
                [
                    run.name,
                    f'{analysis.overlap_coefficient(histograms[run.name]):.3f}',
                    *_geometry(run.sample, pairs.get(run.name)),
                ]
                for run in self._runs
            ],
        ),
        page.paragraph(
            'Uniformity and alignment are those of Wang and Isola: less is '
            'better. The margin is the cosine to the positive minus the mean '
            'cosine to negatives.'
        ),
    ]
    if pairs:
      figure = plots.margins_figure(pairs)
      parts.append(self._chart(figure, 'margins', 'histograms of margins'))
    false = {
        run.name: analysis.false_negatives(
            run.sample.embeddings,
            run.sample.labels,
            k=[k for k in _FALSE_AMONG if k < len(run.sample.labels)],
        )
        for run in self._runs
        if run.sample.item_names is not None
    }
    if false:
      figure = plots.false_negatives_figure(false)
      words = 'shares of false negatives'
      parts.append(self._chart(figure, 'false_negatives', words))
    return parts

  def _weights(self):
    numbers = {
        run.name: np.stack([_effective(run, beta) for beta in _BETAS])
        for run in self._runs
    }
    lines = [
        [
            run.name,
            _hardness(run),
            f'{run.sample.negatives.tau_plus:g}',
            f'{np.mean(_effective(run, _betas(run))):.1f}',
            f'{np.mean(run.sample.negatives.where.sum(axis=1)):.0f}',
            _clamped(run),
        ]
        for run in self._runs
    ]
    return [
        self._chart(
            plots.effective_negatives_figure(_BETAS, numbers),
            'effective_negatives',
            'effective number of negatives by beta',
            'Effective number of negatives, 1 / (sum of squared weights), of '
            'the anchors of one batch: median, and 10th to 90th percentile.',
        ),
        page.table(
            ['run', 'beta', 'tau_plus', 'effective', 'negatives', 'clamped'],
            lines,
        ),
        page.paragraph(
            'Beta: that of the run, or the share of negatives that counts '
            'in its place. Effective: effective number of negatives at it. '
            'Negatives: their number. Both are means over anchors. Clamped: '
            'share of anchors with a debiased estimate below its floor.'
        ),
    ]

  def _panel(self):
    words = (
        'The negatives of an anchor in one batch, weighted by q_beta. Choose '
        'an anchor and drag beta: the bars are the weights, and the negatives '
        'with the largest weights are below.'
    )
    labels, marked = _marked(self._runs[0].sample)
    if labels is not None:
      words += f' A ✱ marks {marked}.'
    return [page.paragraph(words), beta_panel(self._runs)]

  def _rankings(self):
    """Returns what queries find, by all runs that have the same ones."""
    first = self._runs[0].sample.rankings
    runs = [
        run
        for run in self._runs
        if [x.query for x in run.sample.rankings] == [x.query for x in first]
    ]
    tables = []
    for number, ranking in enumerate(first):
      found = {run.name: run.sample.rankings[number] for run in runs}
      lines = [
          [f'{place + 1}', *(_found(x.found[place]) for x in found.values())]
          for place in range(len(ranking.found))
      ]
      header = [f'{k}: right one at {x.rank}' for k, x in found.items()]
      tables.append(page.table(['', *header], lines, caption=ranking.query))
    return [
        page.paragraph(
            'Queries of the validation part and the documents nearest to them, '
            'of all. The right one is bold; a ✱ marks documents of its group, '
            'which are certain to be wrong.'
        ),
        *tables,
    ]

  def _gallery(self):
    run = self._runs[-1]
    sample = run.sample
    if sample.rankings:
      return self._rankings()
    m = len(sample.items)
    size = min(_GALLERY_SIZE, m - 1)
    if size < 1:
      return []
    gallery = analysis.hard_negative_gallery(
        sample.embeddings[:m],
        np.arange(min(_GALLERY_ANCHORS, m)),
        k=size,
        ids=None if sample.item_names else sample.labels[:m],
    )
    words = (
        f'{run.name}: the {size} most similar items of a batch of {m}, and '
        'random ones.'
    )
    if isinstance(sample.items, np.ndarray):
      figure = plots.gallery_figure(
          gallery, sample.items, labels=_item_labels(sample)
      )
      plots.save(figure, self._output / 'gallery.png')
      png = (self._output / 'gallery.png').read_bytes()
      return [page.picture(png, 'hardest negatives', words)]
    text = analysis.gallery_text(gallery, sample.items)
    reporting.write_text(self._output / 'gallery.txt', text)
    return [page.paragraph(words), page.preformatted(text)]

  def _configuration(self):
    return [
        page.configurations({
            run.name: fields_lib.flatten(run.config) for run in self._runs
        }),
        *(
            page.paragraph(f'{run.name}: checkpoint of step {run.step}.')
            for run in self._runs
        ),
    ]

  def _chart(self, figure, *args):
    return save_chart(figure, self._output, *args)


def _found(found):
  """Returns what a query has found as a cell of a table."""
  text = found.text
  if len(text) > _WIDTH:
    text = f'{text[: _WIDTH - 1]}…'
  if found.mark == 'right':
    text = f'**{text}**'
  return f'{text} {"✱ " * bool(found.mark == "same group")}{found.cosine:.3f}'


def save_chart(
    figure: Any,
    output: pathlib.Path,
    name: str,
    label: str,
    caption: str | None = None,
) -> str:
  """Writes a figure as PNG and SVG into a folder, and returns it as HTML.

  The name of the files is without suffix; see :func:`page.chart` for the rest.
  """
  for kind in ('png', 'svg'):
    plots.save(figure, output / f'{name}.{kind}')
  svg = (output / f'{name}.svg').read_text('utf-8')
  return page.chart(svg, label, caption)


def beta_panel(runs: Sequence[inspection_lib.Inspection]) -> str:
  """Returns the panel with a slider for beta; see :func:`page.beta_panel`.

  Runs with another batch than the first are left out.
  """
  first = runs[0].sample
  return page.beta_panel(
      [
          _panel_run(run)
          for run in runs
          if np.array_equal(run.sample.items, first.items)
      ],
      items=first.items,
      names=first.item_names,
      labels=_marked(first)[0],
      marked=_marked(first)[1],
  )


def _marked(sample):
  """Returns labels that mark negatives of the anchor's, and what these are."""
  if sample.groups is not None:
    return sample.groups, "negatives of the anchor's group"
  return _item_labels(sample), 'false negatives'


def _describe_pairs(sample):
  compared = 'embeddings, as the loss compares them'
  if sample.views is None:
    compared = 'the features that are evaluated'
  related = 'of one class' if sample.item_names else 'that belong together'
  return (
      f'Cosine similarities of {compared}. Rows {related} have the same label. '
      'The overlap is the area that both histograms of a run share: less is '
      'better.'
  )


def _geometry(sample, pairs):
  """Returns uniformity, alignment and margin as cells of a table."""
  aligned = margin = '-'
  if pairs is not None:
    aligned = f'{analysis.alignment(*sample.views):.3f}'
    margin = f'{np.nanmean(pairs.margin):.3f}'
  return f'{analysis.uniformity(sample.embeddings):.3f}', aligned, margin


def _betas(run):
  """Returns the beta of each anchor, in the units of its logits."""
  negatives, loss = run.sample.negatives, run.config.loss
  share = loss.get('effective_negatives')
  if share is None:
    return np.full(len(negatives.anchors), loss.beta, np.float32)
  betas = hcl_jax.beta_for_perplexity(
      negatives.neg_logits, share, where=negatives.where
  )
  return np.asarray(betas)


def _hardness(run):
  share = run.config.loss.get('effective_negatives')
  return f'{run.config.loss.beta:g}' if share is None else f'{share:g} N'


def _effective(run, beta):
  """Returns effective numbers of negatives; beta may be one per anchor."""
  negatives = run.sample.negatives

  def of_anchor(logits, where, beta):
    return analysis.effective_negatives(logits, beta=beta, where=where)

  betas = np.broadcast_to(np.float32(beta), len(negatives.anchors))
  return np.asarray(
      jax.vmap(of_anchor)(negatives.neg_logits, negatives.where, betas)
  )


def _log_floor(run):
  loss = run.config.loss
  if loss.floor != 'sphere':
    return None
  return -1 / (run.sample.negatives.temperature or loss.temperature)


def _clamped(run):
  negatives = run.sample.negatives
  if negatives.pos_logits is None:
    return '-'

  def of_anchor(positive, logits, where, beta):
    return analysis.clamp_fraction(
        positive,
        logits,
        beta=beta,
        tau_plus=negatives.tau_plus,
        log_floor=_log_floor(run),
        where=where,
    )

  clamped = jax.vmap(of_anchor)(
      negatives.pos_logits, negatives.neg_logits, negatives.where, _betas(run)
  )
  some = negatives.where.any(axis=1)
  return f'{np.sum(clamped) / max(np.sum(some), 1):.1%}'


def _item_labels(sample):
  if sample.item_names is None:
    return None
  return sample.labels[: len(sample.items)]


def _panel_run(run):
  negatives = run.sample.negatives
  rows = np.arange(min(_PANEL_ANCHORS, len(negatives.anchors)))
  loss = run.config.loss
  # The panel's script cannot compute a loss with a soft floor.
  with_loss = negatives.pos_logits is not None and loss.floor != 'soft'
  return page.PanelRun(
      name=run.name,
      beta=float(np.median(_betas(run))),
      tau_plus=negatives.tau_plus,
      pos_logits=negatives.pos_logits[rows] if with_loss else None,
      neg_logits=negatives.neg_logits[rows],
      where=negatives.where[rows],
      anchors=negatives.anchors[rows],
      items=negatives.items,
      log_floor=_log_floor(run) if with_loss else None,
  )
