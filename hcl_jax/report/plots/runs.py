# SPDX-License-Identifier: Apache-2.0
"""Figures of runs: similarities, negatives, curves and galleries."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from matplotlib import figure as figure_lib
from matplotlib import ticker
import numpy as np

from hcl_jax import _checks
from hcl_jax.analysis import negatives
from hcl_jax.analysis import repeats
from hcl_jax.analysis import similarities
from hcl_jax.report.plots import style


@style.styled
def similarity_figure(
    histograms: Mapping[str, similarities.SimilarityHistograms],
) -> figure_lib.Figure:
  """Draws overlaid histograms of the similarities of pairs.

  Pairs of the same label are above, of different labels below; the legend gives
  each run's overlap coefficient.

  Args:
    histograms: results of :func:`hcl_jax.analysis.similarity_histograms`, keyed
      by run.
  """
  style.refuse_empty('histograms', histograms)
  figure, places = style.panels(2, 1, (6.4, 4.8), sharex=True)
  kinds = (('same', 'same label'), ('different', 'different labels'))
  for axes, (kind, title) in zip(places, kinds, strict=True):
    for i, found in enumerate(histograms.values()):
      _draw_histogram(axes, found.edges, getattr(found, kind), i)
    counts = [getattr(x, kind).sum() for x in histograms.values()]
    _say_where_empty(axes, counts)
    axes.set_title(title, loc='left')
    axes.set_ylim(bottom=0)
  axes.set(xlim=(-1, 1), xlabel='cosine similarity')
  figure.supylabel('pairs (% per 0.1 of similarity)')
  labels = []
  for name, found in histograms.items():
    overlap = similarities.overlap_coefficient(found)
    labels.append(_with_number(name, overlap, 'overlap {:.2f}'))
  style.legend_above(figure, axes, labels)
  return figure


@style.styled
def margins_figure(
    pairs: Mapping[str, similarities.PairSimilarities], *, num_bins: int = 50
) -> figure_lib.Figure:
  """Draws histograms of the margin to the hardest negative.

  The legend gives each run's share of anchors with a negative margin, that is,
  a negative nearer than the positive.

  Args:
    pairs: results of :func:`hcl_jax.analysis.pair_similarities`, keyed by run.
    num_bins: number of bins between the smallest and the largest margin.
  """
  style.refuse_empty('pairs', pairs)
  figure, (axes,) = style.panels(1, 1, style.WIDE)
  margins = {
      name: found.hardest_margin[np.isfinite(found.hardest_margin)]
      for name, found in pairs.items()
  }
  joined = np.concatenate(list(margins.values()))
  edges = np.histogram_bin_edges(joined, num_bins)
  labels = []
  for i, (name, of_run) in enumerate(margins.items()):
    _draw_histogram(axes, edges, np.histogram(of_run, edges)[0], i)
    share = np.mean(of_run < 0) if len(of_run) else np.nan
    labels.append(_with_number(name, share, '{:.1%} below 0'))
  _say_where_empty(axes, joined)
  axes.axvline(0, color=style.GRAY, linewidth=1)
  axes.set_ylim(bottom=0)
  axes.set(
      xlabel='margin: cosine to the positive minus hardest negative',
      ylabel='anchors (% per 0.1 of margin)',
  )
  style.legend_above(figure, axes, labels)
  return figure


@style.styled
def false_negatives_figure(
    found: Mapping[str, similarities.FalseNegatives],
) -> figure_lib.Figure:
  """Draws the share of false negatives among the k hardest, for each run.

  A dashed line is at the share among random negatives.

  Args:
    found: results of :func:`hcl_jax.analysis.false_negatives`, keyed by run.
  """
  style.refuse_empty('found', found)
  figure, (axes,) = style.panels(1, 1, style.WIDE)
  for i, (name, shares) in enumerate(found.items()):
    order = np.argsort(shares.k)
    percent = 100 * shares.fraction[order]
    style.draw_line(axes, shares.k[order], percent, i, name)
  axes.set_xscale('log')
  axes.xaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axes.set_ylim(bottom=0)
  for rate in sorted({round(100 * x.base_rate, 1) for x in found.values()}):
    # Lines come down to it from above.
    has_room = rate > 0.1 * axes.get_ylim()[1]
    text = f'random negatives: {rate:.1f} %'
    style.mark_height(axes, rate, text, below=has_room)
  axes.set_xlabel('k, number of hardest negatives')
  axes.set_ylabel("with the anchor's label (%)")
  style.legend_above(figure, axes)
  return figure


@style.styled
def effective_negatives_figure(
    betas: Sequence[float],
    counts: Mapping[str, Any],
    *,
    num_negatives: int | None = None,
) -> figure_lib.Figure:
  """Draws the effective number of negatives against beta.

  Args:
    betas: ``[n]``.
    counts: results of :func:`hcl_jax.analysis.effective_negatives` at each
      beta, keyed by run: ``[n]``, or ``[n, anchors]``, of which the median and
      a band from the 10th to the 90th percentile are drawn.
    num_negatives: N, drawn as a dashed line.
  """
  style.refuse_empty('counts', counts)
  betas = _checks.numbers('betas', betas)
  figure, (axes,) = style.panels(1, 1, style.WIDE)
  for i, (name, of_run) in enumerate(counts.items()):
    of_run = np.asarray(of_run).reshape(len(betas), -1)
    low, middle, high = np.percentile(of_run, (10, 50, 90), axis=1)
    axes.fill_between(betas, low, high, color=style.tint(i), linewidth=0)
    style.draw_line(axes, betas, middle, i, name)
  if num_negatives is not None:
    style.mark_height(axes, num_negatives, f'N = {num_negatives}', below=True)
  style.beta_axis(axes, betas)
  axes.set_yscale('log')
  axes.yaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axes.set_ylim(bottom=0.9)
  axes.set_ylabel('effective number of negatives')
  style.legend_above(figure, axes)
  return figure


@style.styled
def curves_figure(
    curves: Mapping[str, tuple[Any, Any]],
    score: str,
    *,
    baseline: str | None = None,
) -> figure_lib.Figure:
  """Draws scores over epochs, and when runs reach a baseline's last score.

  A mark, and the epoch in the legend, show where a run first reaches it.

  Args:
    curves: epochs and scores between 0 and 1, keyed by run.
    score: name of the score.
    baseline: the run whose last score the others should reach; None draws the
      curves only.
  """
  style.refuse_empty('curves', curves)
  if baseline is not None and baseline not in curves:
    raise ValueError(
        f'baseline must be one of {", ".join(curves)}; got {baseline}.'
    )
  figure, (axes,) = style.panels(1, 1, style.WIDE)
  target = title = None
  if baseline is not None:
    target = curves[baseline][1][-1]
    title = f'reaches {target:.1%} ({baseline}) at'
    style.mark_height(axes, 100 * target)
  for i, (name, (epochs, scores)) in enumerate(curves.items()):
    epochs, scores = np.asarray(epochs), np.asarray(scores)
    label = name
    if target is not None:
      reached = repeats.epochs_to_reach(epochs, scores, target)
      when = 'not reached' if reached is None else f'epoch {reached:g}'
      label = f'{name} ({when})'
      if reached is not None:
        axes.plot(
            reached,
            100 * scores[epochs == reached],
            'o',
            color=style.color(i),
            markersize=9,
            markerfacecolor='white',
            markeredgewidth=2,
            zorder=4,
        )
    style.draw_line(axes, epochs, 100 * scores, i, label, markers=False)
  axes.set_xlabel('epoch')
  axes.set_ylabel(f'{score.replace("/", " ")} (%)')
  style.legend_above(figure, axes, title=title)
  return figure


@style.styled
def losses_figure(curves: Mapping[str, tuple[Any, Any]]) -> figure_lib.Figure:
  """Draws losses over epochs; ``curves`` has (epochs, losses), keyed by run."""
  style.refuse_empty('curves', curves)
  figure, (axes,) = style.panels(1, 1, style.WIDE)
  for i, (name, (epochs, losses)) in enumerate(curves.items()):
    style.draw_line(axes, epochs, losses, i, name, markers=False)
  axes.set(xlabel='epoch', ylabel='loss')
  axes.legend()
  return figure


@style.styled
def gallery_figure(
    gallery: negatives.Gallery, images: Any, *, labels: Any = None
) -> figure_lib.Figure:
  """Draws anchors with their hardest negatives, and random ones below.

  Similarities are above the images.

  Args:
    gallery: result of :func:`hcl_jax.analysis.hard_negative_gallery`.
    images: the whole batch, ``[n, height, width]`` or with channels,
      ``[n, height, width, 1 or 3]``; uint8, or floats between 0 and 1.
    labels: ``[n]``; false negatives, which have the anchor's label, get a
      frame.
  """
  images = _read_images(images)
  rows = 1 + max(x.max() for x in (gallery.anchors, *gallery[1::2]))
  if len(images) < rows:
    raise ValueError(
        f'images must hold the whole batch, at least {rows} rows; got '
        f'{len(images)}.'
    )
  count, k = gallery.hardest.shape
  size = 0.8 * (k + 1) + 0.8, 2 * count + 0.3
  figure, places = style.panels(2 * count, k + 1, size)
  places = np.reshape(places, (count, 2, k + 1))
  for axes in places.ravel():
    axes.set_axis_off()
  for i, anchor in enumerate(gallery.anchors):
    _draw_image(places[i, 0, 0], images[anchor], 'anchor', None)
    for j, kind in enumerate(('hardest', 'random')):
      cosines = getattr(gallery, f'{kind}_similarities')[i]
      axes = places[i, j, 0]
      axes.text(
          -0.15, 0.5, kind, transform=axes.transAxes, ha='right', va='center'
      )
      for axes, row, cosine in zip(
          places[i, j, 1:], getattr(gallery, kind)[i], cosines, strict=True
      ):
        false = labels is not None and labels[row] == labels[anchor]
        _draw_image(axes, images[row], f'{cosine:.2f}', false)
  note = 'numbers: cosine similarity to the anchor'
  if labels is not None:
    note += "; frame: false negative (the anchor's label)"
  figure.supxlabel(note, fontsize=9)
  return figure


def _with_number(name, value, form):
  return name if np.isnan(value) else f'{name} ({form.format(value)})'


def _draw_histogram(axes, edges, counts, i):
  shares = 100 * counts / max(counts.sum(), 1) / np.diff(edges) * 0.1
  axes.stairs(shares, edges, fill=True, color=style.tint(i))
  axes.stairs(
      shares, edges,
      color=style.color(i), linestyle=style.dash(i), linewidth=1.5,
  )  # fmt: skip


def _say_where_empty(axes, values):
  if not np.any(values):
    axes.text(0.5, 0.5, 'none', transform=axes.transAxes, ha='center')
    axes.set_yticks([])


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
      spine.set(visible=True, color=style.COLORS[1], linewidth=3)
