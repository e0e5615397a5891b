# SPDX-License-Identifier: Apache-2.0
"""Figures; the only file that imports matplotlib."""

from collections.abc import Mapping
from collections.abc import Sequence
import os
from typing import Any

import matplotlib
from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib
from matplotlib import lines as lines_lib
from matplotlib import ticker
import numpy as np

from hcl_jax import _checks
from hcl_jax.analysis import curves as curves_lib
from hcl_jax.analysis import galleries
from hcl_jax.analysis import prior
from hcl_jax.analysis import repeats as repeats_lib
from hcl_jax.analysis import similarities
from hcl_jax.theory import bounds as theory
from hcl_jax.theory import packing as packing_lib
from hcl_jax.theory import toy

_COLUMNS = 4
_PANEL = (3.0, 2.5)  # inches
_MARGIN = 0.5  # for the names of the axes and the legend
# Inches: a letter, a handle and a line of a legend, with their spaces.
_LETTER, _LEGEND_HANDLE, _LEGEND_LINE = 0.085, 0.6, 0.22
# Okabe and Ito's colours, which the colour-blind can tell apart; series beyond
# them have another marker, as there is one marker more.
_COLORS = (
    '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000',
)  # fmt: skip
_MARKERS = 'os^Dv<>p'
_GROUP, _WIDEST = 0.8, 0.4  # of the distance between two ticks
_FEW = 3  # repeats; fewer have no quartiles to speak of
_WIDE = (6.4, 3.6)  # inches, of one panel by itself
_DASHES = ('-', '--', '-.', ':')  # lines are told apart without colours too
_GREY = '#666666'
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
  width = max(_WIDE[0], columns * _PANEL[0] + _MARGIN)
  height = rows * _PANEL[1] + _MARGIN
  height += _legend_height(width, repeats.series, _COLUMNS)
  with matplotlib.rc_context(_STYLE):
    figure = figure_lib.Figure(figsize=(width, height), layout='constrained')
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
          ncols=_legend_columns(width, repeats.series, _COLUMNS),
          handletextpad=0.2,
      )
  return figure


def similarity_figure(
    histograms: Mapping[str, similarities.SimilarityHistograms],
) -> figure_lib.Figure:
  """Draws the histograms of several runs over each other.

  Args:
    histograms: of :func:`hcl_jax.analysis.similarity_histograms`, by the name
      of the run.

  Returns:
    Pairs with the same label above, with different labels below, and the
    overlap coefficient of each run in the legend.
  """
  _refuse_empty('histograms', histograms)
  figure, places = _panels(2, 1, (6.4, 4.8), sharex=True)
  kinds = (('same', 'same label'), ('different', 'different labels'))
  with matplotlib.rc_context(_STYLE):
    for axes, (kind, title) in zip(places, kinds, strict=True):
      for i, found in enumerate(histograms.values()):
        _draw_histogram(axes, found.edges, getattr(found, kind), i)
      counts = np.stack([getattr(x, kind).sum() for x in histograms.values()])
      _say_where_empty(axes, counts)
      axes.set_title(title, loc='left')
      axes.set_ylim(bottom=0)
    places[0].set_xlim(-1, 1)
    places[1].set_xlabel('cosine similarity')
    figure.supylabel('pairs (% per 0.1 of similarity)')
    labels = [
        _with_number(
            name, similarities.overlap_coefficient(found), 'overlap {:.2f}'
        )
        for name, found in histograms.items()
    ]
    _legend_above(figure, axes, labels)
  return figure


def margins_figure(
    pairs: Mapping[str, similarities.PairSimilarities], *, num_bins: int = 50
) -> figure_lib.Figure:
  """Draws how much nearer positives are than the hardest negatives.

  Args:
    pairs: of :func:`hcl_jax.analysis.pair_similarities`, by the name of the
      run.
    num_bins: between the least and the largest margin.

  Returns:
    A histogram for each run, and in the legend the share of anchors with a
    negative nearer than the positive.
  """
  _refuse_empty('pairs', pairs)
  figure, (axes,) = _panels(1, 1, _WIDE)
  margins = {
      name: found.hardest_margin[np.isfinite(found.hardest_margin)]
      for name, found in pairs.items()
  }
  joined = np.concatenate(list(margins.values()))
  edges = np.histogram_bin_edges(joined, num_bins)
  labels = []
  with matplotlib.rc_context(_STYLE):
    for i, (name, of_run) in enumerate(margins.items()):
      _draw_histogram(axes, edges, np.histogram(of_run, edges)[0], i)
      share = np.mean(of_run < 0) if len(of_run) else np.nan
      labels.append(_with_number(name, share, '{:.1%} below 0'))
    _say_where_empty(axes, joined)
    axes.axvline(0, color=_GREY, linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel('margin: cosine to the positive less the hardest negative')
    axes.set_ylabel('anchors (% per 0.1 of margin)')
    _legend_above(figure, axes, labels)
  return figure


def false_negatives_figure(
    found: Mapping[str, similarities.FalseNegatives],
) -> figure_lib.Figure:
  """Draws the share of false negatives among the k hardest.

  Args:
    found: of :func:`hcl_jax.analysis.false_negatives`, by the name of the run.

  Returns:
    A line for each run over k, and a dashed one at what random negatives give.
  """
  _refuse_empty('found', found)
  figure, (axes,) = _panels(1, 1, _WIDE)
  with matplotlib.rc_context(_STYLE):
    for i, (name, shares) in enumerate(found.items()):
      order = np.argsort(shares.k)
      _draw_line(axes, shares.k[order], 100 * shares.fraction[order], i, name)
    rates = sorted({round(100 * x.base_rate, 1) for x in found.values()})
    for rate in rates:
      axes.axhline(rate, color=_GREY, linestyle='--', linewidth=1)
      _annotate_line(axes, rate, f'random negatives: {rate:.1f} %')
    axes.set_xscale('log')
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
    axes.set_ylim(bottom=0)
    axes.set_xlabel('k, number of hardest negatives')
    axes.set_ylabel("with the anchor's label (%)")
    _legend_above(figure, axes)
  return figure


def effective_negatives_figure(
    betas: Sequence[float],
    counts: Mapping[str, Any],
    *,
    num_negatives: int | None = None,
) -> figure_lib.Figure:
  """Draws how many negatives count as beta grows.

  Args:
    betas: ``[n]``.
    counts: of :func:`hcl_jax.analysis.effective_negatives` at each beta, by
      the name of the run: ``[n]``, or ``[n, anchors]``, whose median is drawn
      with a band from the tenth to the ninetieth percentile.
    num_negatives: N, drawn as a dashed line.

  Returns:
    A line for each run.
  """
  _refuse_empty('counts', counts)
  betas = _checks.numbers('betas', betas)
  figure, (axes,) = _panels(1, 1, _WIDE)
  with matplotlib.rc_context(_STYLE):
    for i, (name, of_run) in enumerate(counts.items()):
      of_run = np.asarray(of_run).reshape(len(betas), -1)
      low, middle, high = np.percentile(of_run, (10, 50, 90), axis=1)
      axes.fill_between(betas, low, high, color=_tint(_color(i)), linewidth=0)
      _draw_line(axes, betas, middle, i, name)
    if num_negatives is not None:
      axes.axhline(num_negatives, color=_GREY, linestyle='--', linewidth=1)
      _annotate_line(axes, num_negatives, f'N = {num_negatives}', below=True)
    _beta_axis(axes, betas)
    axes.set_yscale('log')
    axes.yaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
    axes.set_ylim(bottom=0.9)
    axes.set_ylabel('effective number of negatives')
    _legend_above(figure, axes)
  return figure


def curves_figure(
    curves: Mapping[str, tuple[Any, Any]],
    score: str,
    *,
    baseline: str | None = None,
) -> figure_lib.Figure:
  """Draws scores over epochs, and when runs reach what a baseline ended at.

  Args:
    curves: epochs and scores between 0 and 1, by the name of the run.
    score: its name.
    baseline: name of the run whose last score the others are to reach; None
      draws the curves only.

  Returns:
    A line for each run, with a mark and its epoch in the legend where it
    first reaches the baseline's last score.
  """
  _refuse_empty('curves', curves)
  if baseline is not None and baseline not in curves:
    raise ValueError(
        f'baseline must be one of {", ".join(curves)}; got {baseline}.'
    )
  figure, (axes,) = _panels(1, 1, _WIDE)
  with matplotlib.rc_context(_STYLE):
    target = None if baseline is None else curves[baseline][1][-1]
    if target is not None:
      axes.axhline(100 * target, color=_GREY, linestyle='--', linewidth=1)
    for i, (name, (epochs, scores)) in enumerate(curves.items()):
      epochs, scores = np.asarray(epochs), np.asarray(scores)
      label = name
      if target is not None:
        reached = curves_lib.epochs_to_reach(epochs, scores, target)
        when = 'not reached' if reached is None else f'epoch {reached:g}'
        label = f'{name} ({when})'
        if reached is not None:
          axes.plot(
              reached,
              100 * scores[epochs == reached],
              'o',
              color=_color(i),
              markersize=9,
              markerfacecolor='white',
              markeredgewidth=2,
              zorder=4,
          )
      _draw_line(axes, epochs, 100 * scores, i, label, marker='')
    axes.set_xlabel('epoch')
    axes.set_ylabel(f'{score.replace("/", " ")} (%)')
    title = target and f'reaches the {target:.1%} of {baseline} at'
    _legend_above(figure, axes, title=title)
  return figure


def repeated_curves_figure(
    panels: Mapping[str, Sequence[repeats_lib.Curves]], score: str
) -> figure_lib.Figure:
  """Draws the mean over repeats of scores over epochs.

  Args:
    panels: curves of settings, by the name of the data set.
    score: its name.

  Returns:
    A figure with a panel for each data set and a line for each setting, in a
    band of a standard deviation to each side; where a panel has one baseline,
    with a broken line at its last score. If there are more lines than colours,
    each series has its own panel, of one data set all with the same scale.
  """
  _refuse_empty('panels', panels)
  one_scale = len(panels) == 1
  if max(map(len, panels.values())) > len(_COLORS):
    panels = repeats_lib.curves_by_series(panels)
  settings = list(dict.fromkeys(x.setting for y in panels.values() for x in y))
  columns = min(2, len(panels))
  rows = -(-len(panels) // columns)
  width = max(_WIDE[0], columns * _WIDE[0] * 0.75)
  height = rows * _WIDE[1] * 0.85 + _MARGIN + _legend_height(width, settings, 2)
  figure, places = _panels(rows, columns, (width, height), sharey=one_scale)
  with matplotlib.rc_context(_STYLE):
    for axes in places[len(panels) :]:
      axes.set_axis_off()
    for axes, (name, panel) in zip(places, panels.items(), strict=False):
      axes.set_title(name)
      baseline = repeats_lib.baseline_of(panel)
      if baseline is not None:
        last = 100 * baseline.scores[:, -1].mean()
        axes.axhline(last, color=_GREY, linestyle='--', linewidth=1)
      for curves in panel:
        _draw_band(axes, curves, settings.index(curves.setting))
    figure.supylabel(f'{score.replace("/", " ")} (%)')
    figure.supxlabel('epoch')
    _legend_above(figure, places[0], labels=settings)
  return figure


def losses_figure(
    curves: Mapping[str, tuple[Any, Any]],
) -> figure_lib.Figure:
  """Draws the loss of runs over epochs.

  Args:
    curves: epochs and losses, by the name of the run.

  Returns:
    A line for each run.
  """
  _refuse_empty('curves', curves)
  figure, (axes,) = _panels(1, 1, _WIDE)
  with matplotlib.rc_context(_STYLE):
    for i, (name, (epochs, losses)) in enumerate(curves.items()):
      _draw_line(axes, epochs, losses, i, name, marker='')
    axes.set_xlabel('epoch')
    axes.set_ylabel('loss')
    axes.legend()
  return figure


def gallery_figure(
    gallery: galleries.Gallery, images: Any, *, labels: Any = None
) -> figure_lib.Figure:
  """Draws anchors, their hardest negatives and random ones as a grid.

  Args:
    gallery: of :func:`hcl_jax.analysis.hard_negative_gallery`.
    images: of the whole batch, ``[n, height, width]`` or with channels,
      ``[n, height, width, 1 or 3]``; uint8, or floats between 0 and 1.
    labels: ``[n]``; negatives with the anchor's label, which are false, have a
      frame.

  Returns:
    Two rows for each anchor, with similarities above the images.
  """
  images = _read_images(images)
  rows = 1 + max(x.max() for x in (gallery.anchors, *gallery[1::2]))
  if len(images) < rows:
    raise ValueError(
        f'images must be those of the whole batch, {rows} at least; got '
        f'{len(images)}.'
    )
  count, k = gallery.hardest.shape
  rows, columns = 2 * count, k + 1
  figure, places = _panels(rows, columns, (0.8 * columns + 0.8, rows + 0.3))
  places = np.reshape(places, (count, 2, columns))
  with matplotlib.rc_context(_STYLE):
    for axes in places.ravel():
      axes.set_axis_off()
    for i, anchor in enumerate(gallery.anchors):
      _draw_image(places[i, 0, 0], images[anchor], 'anchor', None)
      for j, kind in enumerate(('hardest', 'random')):
        cosines = getattr(gallery, f'{kind}_similarities')[i]
        _name_row(places[i, j, 0], kind)
        for axes, row, cosine in zip(
            places[i, j, 1:], getattr(gallery, kind)[i], cosines, strict=True
        ):
          false = labels is not None and labels[row] == labels[anchor]
          _draw_image(axes, images[row], f'{cosine:.2f}', false)
    note = 'numbers: cosine similarity to the anchor'
    if labels is not None:
      note += "; framed: of the anchor's label, so a false negative"
    figure.supxlabel(note, fontsize=9)
  return figure


def beta_figure(curves: Mapping[str, theory.BetaCurve]) -> figure_lib.Figure:
  """Draws how the objective converges to that of the hardest negatives.

  Args:
    curves: of :func:`hcl_jax.theory.convergence_in_beta`, by the name of the
      run.

  Returns:
    A line for each run, and a dashed one at its limit.
  """
  _refuse_empty('curves', curves)
  figure, (axes,) = _panels(1, 1, _WIDE)
  with matplotlib.rc_context(_STYLE):
    for i, (name, curve) in enumerate(curves.items()):
      axes.axhline(curve.limit, color=_color(i), linestyle='--', linewidth=1)
      _draw_line(axes, curve.betas, curve.losses, i, name)
    axes.plot([], [], '--', color=_GREY, linewidth=1, label='limit L*')
    _beta_axis(axes, np.concatenate([x.betas for x in curves.values()]))
    axes.set_ylabel('objective L (nats)')
    _legend_above(figure, axes)
  return figure


def variance_figure(
    curves: Mapping[str, theory.VarianceCurve],
) -> figure_lib.Figure:
  """Draws the variance of the one-positive estimate against alignment.

  Args:
    curves: of :func:`hcl_jax.theory.variance_against_alignment`, by name.

  Returns:
    A line for each, and a dotted one for its bound, on logarithmic axes.
  """
  _refuse_empty('curves', curves)
  figure, (axes,) = _panels(1, 1, _WIDE)
  with matplotlib.rc_context(_STYLE):
    for i, (name, curve) in enumerate(curves.items()):
      shown = (curve.alignment > 0) & (curve.variance > 0)
      alignment = curve.alignment[shown]
      _draw_line(axes, alignment, curve.variance[shown], i, name)
      axes.plot(
          alignment, curve.bound[shown], ':', color=_color(i), linewidth=1.5
      )
    axes.plot([], [], ':', color=_GREY, label="the lemma's bound")
    axes.set_xscale('log')
    axes.set_yscale('log')
    axes.set_xlabel('alignment loss, E |f(x) - f(x⁺)|² / 2')
    axes.set_ylabel('variance of exp f(x)·f(v)')
    _legend_above(figure, axes)
  return figure


def mixture_figure(
    found: prior.MixtureProportion, *, known: float | None = None
) -> figure_lib.Figure:
  """Draws where an estimate of the share of positives comes from.

  Args:
    found: of :func:`hcl_jax.analysis.mixture_proportion`.
    known: the true share, where it is known.

  Returns:
    The ratio of the unlabelled to the positives above each threshold, the
    estimate and its upper bound.
  """
  figure, (axes,) = _panels(1, 1, _WIDE)
  with matplotlib.rc_context(_STYLE):
    axes.plot(100 * found.coverage, found.ratio, color=_color(0), linewidth=2)
    for i, (name, value) in enumerate(
        (('estimate', found.share), ('upper bound', found.upper),
         ('known', known)), 1
    ):  # fmt: skip
      if value is not None:
        axes.axhline(
            value,
            color=_color(i),
            linestyle=_DASHES[i],
            label=f'{name}: {value:.3f}',
        )
    axes.set_xlim(0, 100)
    axes.set_ylim(0, max(3 * found.upper, 0.1))
    axes.set_xlabel('positives that score above the threshold (%)')
    axes.set_ylabel('unlabelled / positives above it')
    _legend_above(figure, axes)
  return figure


def packing_figure(
    packings: Mapping[str, packing_lib.Packing],
) -> figure_lib.Figure:
  """Draws packings on the circle or the sphere.

  Args:
    packings: of :func:`hcl_jax.theory.tammes_packing` or ``ball_packing``,
      in 2-D or 3-D, by name.

  Returns:
    A panel for each, with the least angle in degrees in its title.
  """
  _refuse_empty('packings', packings)
  columns = min(_COLUMNS, len(packings))
  rows = -(-len(packings) // columns)
  size = columns * _PANEL[0] + _MARGIN, rows * _PANEL[0] + _MARGIN
  figure = figure_lib.Figure(figsize=size, layout='constrained')
  with matplotlib.rc_context(_STYLE):
    for i, (name, packing) in enumerate(packings.items()):
      axes = _sphere(figure, (rows, columns, i + 1), packing.points.shape[1])
      _draw_contacts(axes, packing)
      _draw_on_sphere(axes, packing.points, np.arange(len(packing.points)))
      axes.set_title(f'{name}: {np.degrees(packing.angle):.2f}°')
  return figure


def trajectory_figure(trajectory: toy.Trajectory) -> figure_lib.Figure:
  """Draws embeddings at first and at last, and how near the optimum they come.

  Args:
    trajectory: of :func:`hcl_jax.theory.train_free_embeddings`. Beyond 3-D
      only the curves are drawn.

  Returns:
    On the circle or sphere the rows of the first and of the last frame and the
    paths of the class means, and over steps their least angle and the spread
    of the classes.
  """
  dim = trajectory.embeddings.shape[-1]
  drawn = dim in (2, 3)
  figure = figure_lib.Figure(
      figsize=(10.5 if drawn else 4.2, 3.4), layout='constrained'
  )
  with matplotlib.rc_context(_STYLE):
    if drawn:
      for i, (frame, when) in enumerate(((0, 'start'), (-1, 'end'))):
        axes = _sphere(figure, (1, 3, i + 1), dim)
        if frame:
          _draw_paths(axes, trajectory.class_means)
        _draw_on_sphere(
            axes, trajectory.embeddings[frame], trajectory.labels, size=5
        )
        axes.set_title(f'{when}, step {trajectory.steps[frame]}')
    axes = figure.add_subplot(1, 3 if drawn else 1, 3 if drawn else 1)
    _draw_progress(axes, trajectory)
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


def _panels(rows, columns, size, **options):
  with matplotlib.rc_context(_STYLE):
    figure = figure_lib.Figure(figsize=size, layout='constrained')
    places = figure.subplots(rows, columns, squeeze=False, **options)
  return figure, list(places.ravel())


def _refuse_empty(name, given):
  if not len(given):
    raise ValueError(f'{name} must have at least one entry to draw; got none.')


def _with_number(name, value, form):
  return name if np.isnan(value) else f'{name} ({form.format(value)})'


def _legend_above(figure, axes, labels=None, **options):
  """Above the panels, where no curve can be; by default what axes name."""
  handles, named = axes.get_legend_handles_labels()
  if labels is not None:
    handles = [
        lines_lib.Line2D([], [], color=_color(i), linestyle=_dash(i), lw=2)
        for i in range(len(labels))
    ]
  labels = named if labels is None else labels
  figure.legend(
      handles=handles,
      labels=labels,
      loc='outside upper center',
      ncols=_legend_columns(figure.get_figwidth(), labels, 2),
      **options,
  )


def _legend_height(width, labels, most):
  lines = -(-len(labels) // _legend_columns(width, labels, most))
  return lines * _LEGEND_LINE


def _legend_columns(width, labels, most):
  """As many as fit beside each other without being cut off."""
  widest = _LEGEND_HANDLE + _LETTER * max(map(len, labels), default=0)
  return int(np.clip(width // widest, 1, most))


def _draw_histogram(axes, edges, counts, i):
  shares = 100 * counts / max(counts.sum(), 1) / np.diff(edges) * 0.1
  axes.stairs(shares, edges, fill=True, color=_tint(_color(i)))
  axes.stairs(shares, edges, color=_color(i), linestyle=_dash(i), linewidth=1.5)


def _say_where_empty(axes, values):
  if not np.any(values):
    axes.text(0.5, 0.5, 'none', transform=axes.transAxes, ha='center')
    axes.set_yticks([])


def _draw_line(axes, x, y, i, label, *, marker=None):
  axes.plot(
      x,
      y,
      marker=_marker(i) if marker is None else marker,
      markersize=5,
      color=_color(i),
      linestyle=_dash(i),
      linewidth=1.8,
      label=label,
  )


def _draw_band(axes, curves, i):
  """The mean of repeats and, if there are several, their deviation."""
  scores = 100 * curves.scores
  mean = scores.mean(axis=0)
  if len(scores) > 1:
    deviation = scores.std(axis=0, ddof=1)
    axes.fill_between(
        curves.epochs, mean - deviation, mean + deviation, color=_color(i),
        alpha=0.15, linewidth=0,
    )  # fmt: skip
  _draw_line(axes, curves.epochs, mean, i, curves.setting, marker='')


def _annotate_line(axes, height, text, *, below=False):
  axes.annotate(
      text,
      (1, height),
      xycoords=('axes fraction', 'data'),
      xytext=(-4, -3 if below else 3),
      textcoords='offset points',
      ha='right',
      va='top' if below else 'bottom',
      color=_GREY,
      fontsize=9,
  )


def _beta_axis(axes, betas):
  """Linear up to 1 and logarithmic beyond, so that 0 has a place."""
  if np.max(betas) > 10:
    axes.set_xscale('symlog', linthresh=1)
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axes.set_xlim(left=np.min(betas) - 0.1)
  axes.set_xlabel('β')


def _read_images(images):
  images = np.asarray(images)
  if images.ndim == 4 and images.shape[-1] == 1:
    images = images[..., 0]
  if images.ndim != 3 and not (images.ndim == 4 and images.shape[-1] == 3):
    raise ValueError(
        'images must have shape [n, height, width] or [n, height, width, 1 or '
        f'3]; got {images.shape}.'
    )
  if images.dtype != np.uint8 and not 0 <= images.min() <= images.max() <= 1:
    raise ValueError(
        'images must be uint8, or floats between 0 and 1; got '
        f'{images.dtype} from {images.min():g} to {images.max():g}.'
    )
  return images


def _draw_image(axes, image, title, false):
  most = 255 if image.dtype == np.uint8 else 1
  axes.imshow(image, cmap='gray', vmin=0, vmax=most)
  axes.set_title(title, fontsize=9, pad=3)
  if false:
    axes.set_axis_on()
    axes.grid(visible=False)
    axes.tick_params(length=0, labelleft=False, labelbottom=False)
    for spine in axes.spines.values():
      spine.set(visible=True, color=_COLORS[1], linewidth=3)


def _name_row(axes, kind):
  axes.text(
      -0.15, 0.5, kind, transform=axes.transAxes, ha='right', va='center'
  )


def _sphere(figure, place, dim):
  """Axes with the unit circle or sphere, and nothing else, in them."""
  if dim not in (2, 3):
    raise ValueError(f'Only 2-D and 3-D points can be drawn; got {dim}-D.')
  if dim == 2:
    axes = figure.add_subplot(*place, aspect='equal')
    turn = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(turn), np.sin(turn), color='#bbbbbb', linewidth=1)
  else:
    axes = figure.add_subplot(*place, projection='3d', aspect='equal')
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 25), np.linspace(0, np.pi, 13))
    axes.plot_wireframe(
        np.cos(u) * np.sin(v),
        np.sin(u) * np.sin(v),
        np.cos(v),
        color='#d0d0d0',
        linewidth=0.5,
    )
    axes.set_box_aspect((1, 1, 1), zoom=1.6)
  axes.set_axis_off()
  return axes


def _draw_on_sphere(axes, points, classes, *, size=9):
  for i in np.unique(classes):
    axes.plot(
        *points[classes == i].T,
        linestyle='',
        marker=_marker(i),
        markersize=size,
        color=_color(i),
        markeredgecolor='white',
        markeredgewidth=0.5,
        zorder=5,
    )


def _draw_contacts(axes, packing):
  """Lines between the points at the least angle of each other."""
  cosines = packing.points @ packing.points.T
  near = np.arccos(np.clip(cosines, -1, 1)) < packing.angle + 1e-2
  for i, j in zip(*np.nonzero(np.triu(near, 1)), strict=True):
    axes.plot(*packing.points[[i, j]].T, color=_GREY, linewidth=1)


def _draw_paths(axes, means):
  for i in range(means.shape[1]):
    axes.plot(*means[:, i].T, color=_color(i), linewidth=1, alpha=0.6)


def _draw_progress(axes, trajectory):
  degrees = np.degrees(trajectory.angles)
  (line,) = axes.plot(
      trajectory.steps, degrees, color=_color(0), linewidth=2
  )
  best = np.degrees(trajectory.best_angle)
  axes.axhline(best, color=_GREY, linestyle='--', linewidth=1)
  _annotate_line(axes, best, f'best packing: {best:.2f}°')
  axes.set_ylim(0, 1.15 * max(best, degrees.max()))
  axes.set_xscale('symlog', linthresh=10)
  axes.set_xlim(0, trajectory.steps[-1])
  axes.xaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axes.set_xlabel('step')
  axes.set_ylabel('least angle of class means (°)')
  other = axes.twinx()
  other.grid(visible=False)
  other.spines['right'].set_visible(True)
  (spread,) = other.plot(
      trajectory.steps,
      trajectory.spreads,
      color=_color(1),
      linestyle='--',
      linewidth=2,
  )
  other.set_ylim(bottom=0)
  other.set_ylabel('spread: squared distance to it')
  axes.legend(
      handles=[line, spread], labels=['angle', 'spread'], loc='center right'
  )


def _dash(i):
  return _DASHES[i // len(_COLORS) % len(_DASHES)]


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
