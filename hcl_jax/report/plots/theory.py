# SPDX-License-Identifier: Apache-2.0
"""Figures of the theory: bounds, packings, free embeddings, the class prior."""

from collections.abc import Mapping

from matplotlib import figure as figure_lib
from matplotlib import ticker
import numpy as np

from hcl_jax.analysis import prior
from hcl_jax.report.plots import style
from hcl_jax.theory import bounds
from hcl_jax.theory import packing as packing_lib


@style.styled
def beta_figure(curves: Mapping[str, bounds.BetaCurve]) -> figure_lib.Figure:
  """Draws the convergence of the objective to its hardest-negative limit.

  Args:
    curves: results of :func:`hcl_jax.theory.convergence_in_beta`, keyed by run.
  """
  style.refuse_empty('curves', curves)
  figure, (axes,) = style.panels(1, 1, style.WIDE)
  for i, (name, curve) in enumerate(curves.items()):
    axes.axhline(curve.limit, color=style.color(i), ls='--', lw=1)
    style.draw_line(axes, curve.betas, curve.losses, i, name)
  axes.plot([], [], '--', color=style.GRAY, linewidth=1, label='limit L*')
  style.beta_axis(axes, np.concatenate([x.betas for x in curves.values()]))
  axes.set_ylabel('objective L (nats)')
  style.legend_above(figure, axes)
  return figure


@style.styled
def variance_figure(
    curves: Mapping[str, bounds.VarianceCurve],
) -> figure_lib.Figure:
  """Draws the variance of the one-positive estimate, and its dotted bound.

  Args:
    curves: results of :func:`hcl_jax.theory.variance_against_alignment`, by
      name.
  """
  style.refuse_empty('curves', curves)
  figure, (axes,) = style.panels(1, 1, style.WIDE)
  for i, (name, curve) in enumerate(curves.items()):
    shown = (curve.alignment > 0) & (curve.variance > 0)
    alignment = curve.alignment[shown]
    style.draw_line(axes, alignment, curve.variance[shown], i, name)
    bound = curve.bound[shown]
    axes.plot(alignment, bound, ':', color=style.color(i), linewidth=1.5)
  axes.plot([], [], ':', color=style.GRAY, label="the lemma's bound")
  axes.set(xscale='log', xlabel='alignment loss, E |f(x) - f(x⁺)|² / 2')
  axes.set(yscale='log', ylabel='variance of exp f(x)·f(v)')
  style.legend_above(figure, axes)
  return figure


@style.styled
def mixture_figure(
    found: prior.MixtureProportion, *, known: float | None = None
) -> figure_lib.Figure:
  """Draws the curve behind an estimated share of positives, and its bound.

  The curve is the ratio of unlabeled data to positives above each threshold.

  Args:
    found: result of :func:`hcl_jax.analysis.mixture_proportion`.
    known: the true share, if known.
  """
  figure, (axes,) = style.panels(1, 1, style.WIDE)
  coverage = 100 * found.coverage
  axes.plot(coverage, found.ratio, color=style.color(0), linewidth=2)
  for i, name, value, dash in (
      (1, 'estimate', found.share, '--'),
      (2, 'upper bound', found.upper, '-.'),
      (3, 'known', known, ':'),
  ):
    if value is not None:
      label = f'{name}: {value:.3f}'
      axes.axhline(value, color=style.color(i), linestyle=dash, label=label)
  axes.set(xlim=(0, 100), ylim=(0, max(3 * found.upper, 0.1)))
  axes.set_xlabel('positives that score above the threshold (%)')
  axes.set_ylabel('unlabeled / positives above it')
  style.legend_above(figure, axes)
  return figure


@style.styled
def packing_figure(
    packings: Mapping[str, packing_lib.Packing],
) -> figure_lib.Figure:
  """Draws packings on the circle or the sphere, with their smallest angles.

  Args:
    packings: results of :func:`hcl_jax.theory.tammes_packing` or
      ``ball_packing``, in 2-D or 3-D, by name.
  """
  style.refuse_empty('packings', packings)
  rows, columns = style.grid_shape(len(packings))
  side = style.PANEL[0]
  size = columns * side + style.MARGIN, rows * side + style.MARGIN
  figure = figure_lib.Figure(figsize=size, layout='constrained')
  for i, (name, packing) in enumerate(packings.items()):
    axes = _sphere(figure, (rows, columns, i + 1), packing.points.shape[1])
    _draw_contacts(axes, packing)
    _draw_on_sphere(axes, packing.points, np.arange(len(packing.points)))
    axes.set_title(f'{name}: {np.degrees(packing.angle):.2f}°')
  return figure


@style.styled
def trajectory_figure(trajectory: packing_lib.Trajectory) -> figure_lib.Figure:
  """Draws how free embeddings approach the optimal packing.

  In 2-D and 3-D there are the first and the last frame and the paths of the
  class means; in any dimension the smallest angle between class means and the
  spread of classes over steps.

  Args:
    trajectory: result of :func:`hcl_jax.theory.train_free_embeddings`.
  """
  dim = trajectory.embeddings.shape[-1]
  drawn = dim in (2, 3)
  figure = figure_lib.Figure(
      figsize=(10.5 if drawn else 4.2, 3.4), layout='constrained'
  )
  if drawn:
    for i, (frame, when) in enumerate(((0, 'start'), (-1, 'end'))):
      axes = _sphere(figure, (1, 3, i + 1), dim)
      paths = trajectory.class_means.swapaxes(0, 1) if when == 'end' else []
      for k, path in enumerate(paths):
        axes.plot(*path.T, color=style.color(k), linewidth=1, alpha=0.6)
      _draw_on_sphere(
          axes, trajectory.embeddings[frame], trajectory.labels, size=5
      )
      axes.set_title(f'{when}, step {trajectory.steps[frame]}')
  axes = figure.add_subplot(1, 3 if drawn else 1, 3 if drawn else 1)
  _draw_progress(axes, trajectory)
  return figure


def _sphere(figure, place, dim):
  """Adds axes that show nothing but the unit circle or sphere."""
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
        marker=style.marker(i),
        markersize=size,
        color=style.color(i),
        markeredgecolor='white',
        markeredgewidth=0.5,
        zorder=5,
    )


def _draw_contacts(axes, packing):
  """Draws lines between points at the smallest angle."""
  cosines = packing.points @ packing.points.T
  near = np.arccos(np.clip(cosines, -1, 1)) < packing.angle + 1e-2
  for i, j in zip(*np.nonzero(np.triu(near, 1)), strict=True):
    axes.plot(*packing.points[[i, j]].T, color=style.GRAY, linewidth=1)


def _draw_progress(axes, trajectory):
  degrees = np.degrees(trajectory.angles)
  (angle,) = axes.plot(
      trajectory.steps, degrees, color=style.color(0), linewidth=2
  )
  best = np.degrees(trajectory.best_angle)
  style.mark_height(axes, best, f'best packing: {best:.2f}°')
  axes.set_ylim(0, 1.15 * max(best, degrees.max()))
  axes.set_xscale('symlog', linthresh=10)
  axes.set_xlim(0, trajectory.steps[-1])
  axes.xaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axes.set_xlabel('step')
  axes.set_ylabel('smallest angle of class means (°)')
  other = axes.twinx()
  other.grid(visible=False)
  other.spines['right'].set_visible(True)
  (spread,) = other.plot(
      trajectory.steps,
      trajectory.spreads,
      color=style.color(1),
      linestyle='--',
      linewidth=2,
  )
  other.set_ylim(bottom=0)
  other.set_ylabel('spread: squared distance to mean')
  axes.legend(
      handles=[angle, spread], labels=['angle', 'spread'], loc='center right'
  )
