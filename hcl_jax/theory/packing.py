# SPDX-License-Identifier: Apache-2.0
r"""Packings of classes on a sphere, which free embeddings learn to form.

There are two problems, for points v_c on the unit sphere:

.. math::
  \max_v \min_{c \ne c'} \|v_c - v_{c'}\| \qquad\text{(Tammes [2])}, \qquad
  \max_v \sum_c \rho(c) \min_{c' \ne c} \|v_c - v_{c'}\|^2
  \qquad\text{(the theorem of [1])}.

The paper treats them as the same problem. They have the same solution if the
nearest neighbors of all points are equally far and no point can gain more than
the others lose, as in the simplex, the octahedron and the icosahedron. They
differ for 7 classes on the circle: the heptagon has the value 0.753, but three
points 120 degrees apart, one of them shared by five classes, have
2/7 * 3 = 0.857. The smallest distance xi of that solution is 0, which the
paper's generalization theorem excludes. They also differ for 5 classes in 3-D:
the value is 2 at Tammes' optimum and 2.025 close to it.

References:
  [1] Robinson et al., Contrastive Learning with Hard Negative Samples, 2021.
  [2] Tammes, On the Origin of Number and Arrangement of the Places of Exit on
  the Surface of Pollen-Grains, 1930.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import _checks
from hcl_jax import _vectors
from hcl_jax.losses import hard_nce_loss

# Sharpness of the soft maximum of cosines. Restarts begin at different values,
# because soft starts reach few optima, mostly good ones, and sharper starts
# reach more; all end at the same value.
_INITIAL_SHARPNESS, _FINAL_SHARPNESS = (4.0, 30.0), 1e5
_STEP = 0.5  # times the number of points, over the sharpness

# Proven optima in 3-D, in degrees: Schuette and van der Waerden 1951 (7, 8, 9,
# 12), Danzer 1986 (10, 11), Musin and Tarasov 2012 and 2015 (13, 14), Robinson
# 1961 (24).
_PROVEN_DEGREES = {
    7: 77.86954, 8: 74.85849, 9: 70.52878, 10: 66.14682, 11: 63.43495,
    12: 63.43495, 13: 57.13670, 14: 55.67057, 24: 43.69077,
}  # fmt: skip


class Packing(NamedTuple):
  """Points on the unit sphere.

  Attributes:
    points: unit rows ``[num_points, dim]``, float64.
    angle: the smallest angle between two points, in radians.
    value: weighted mean of the squared distance to the nearest other point, the
      objective of the paper's theorem.
  """

  points: np.ndarray
  angle: float
  value: float


class Trajectory(NamedTuple):
  """Embeddings during training; row i is the same example in all frames.

  Attributes:
    steps: steps of the frames, ``[f]``; the first is 0.
    embeddings: unit rows of each frame, ``[f, n, dim]``.
    labels: ``[n]``.
    class_means: unit directions of the class means, ``[f, classes, dim]``.
    spreads: mean squared distance of a row to its class mean, ``[f]``.
    angles: smallest angle between two class means, in radians, ``[f]``.
    values: objective of the paper's packing problem for the means, ``[f]``.
    best_angle: optimum of the smallest angle, proven or else found, in radians.
    best_value: largest objective found.
  """

  steps: np.ndarray
  embeddings: np.ndarray
  labels: np.ndarray
  class_means: np.ndarray
  spreads: np.ndarray
  angles: np.ndarray
  values: np.ndarray
  best_angle: float
  best_value: float

  @property
  def angles_to_go(self) -> np.ndarray:
    """Gap of the angles to Tammes' optimum, in radians, ``[f]``."""
    return self.best_angle - self.angles

  @property
  def values_to_go(self) -> np.ndarray:
    """Gap of the values to the optimum of the paper's problem, ``[f]``."""
    return self.best_value - self.values


def tammes_packing(
    num_points: int,
    dim: int,
    *,
    num_restarts: int = 64,
    num_steps: int = 1000,
    seed: int = 0,
) -> Packing:
  r"""Maximizes the smallest distance between points on the sphere.

  Runs projected gradient descent from random starts on the soft maximum of the
  cosines

  .. math::
    \frac1p \log \sum_{c \ne c'} e^{p\, v_c^\top v_{c'}}

  while the sharpness p grows to 1e5. The result is a local optimum and need not
  be the global one; :func:`known_angle` has proven optima.

  Args:
    num_points: >= 2.
    dim: dimension of the space around the sphere, >= 2.
    num_restarts: number of random starts, solved in parallel.
    num_steps: steps of gradient descent.
    seed: seed of the starts. The same seed gives the same points.

  Returns:
    The best packing found; its ``value`` is that of classes of equal size.
  """
  _checks.positive_int('num_points', num_points, least=2)
  _checks.positive_int('dim', dim, least=2)
  _checks.positive_int('num_restarts', num_restarts)
  _checks.positive_int('num_steps', num_steps)
  prior = np.full(num_points, 1 / num_points)
  shape = num_restarts, num_points, dim
  candidates = _solve(_soft_largest_cosine, prior, shape, num_steps, seed)
  return max((_measure(v, prior) for v in candidates), key=lambda p: p.angle)


def ball_packing(
    class_prior: Any,
    dim: int,
    *,
    num_restarts: int = 64,
    num_steps: int = 1000,
    seed: int = 0,
) -> Packing:
  r"""Solves the packing problem of the paper's theorem.

  .. math::
    \max_v \sum_c \rho(c) \min_{c' \ne c} \|v_c - v_{c'}\|^2

  The method is that of :func:`tammes_packing`, with a soft maximum for each
  class. The solution of that function is a candidate too. The docstring of this
  module compares the two problems.

  Args:
    class_prior: rho, ``[num_points]``, positive numbers that sum to 1.
    dim: dimension of the space around the sphere, >= 2.
    num_restarts: number of random starts.
    num_steps: steps of gradient descent.
    seed: seed of the starts.
  """
  prior = _read_prior(class_prior)
  even = tammes_packing(
      len(prior), dim,
      num_restarts=num_restarts, num_steps=num_steps, seed=seed,
  ).points  # fmt: skip
  shape = num_restarts, len(prior), dim
  candidates = _solve(_soft_nearest_cosines, prior, shape, num_steps, seed)
  return max(
      (_measure(v, prior) for v in (even, *candidates)), key=lambda p: p.value
  )


def packing_value(points: Any, class_prior: Any = None) -> float:
  r"""Computes the objective of the paper's theorem at given points.

  .. math::
    \sum_c \rho(c) \min_{c' \ne c} \|v_c - v_{c'}\|^2

  It is between 0 and 4.

  Args:
    points: one row for each class, ``[num_points, dim]``, scaled to unit
      length.
    class_prior: rho, ``[num_points]``; by default uniform.
  """
  units = _checks.units('points', points, rows=2)
  if class_prior is None:
    class_prior = np.full(len(units), 1 / len(units))
  prior = _read_prior(class_prior)
  if len(prior) != len(units):
    raise ValueError(
        'class_prior must have one entry for each point; got '
        f'{len(prior)} for points of shape {units.shape}.'
    )
  return _measure(units, prior).value


def known_angle(num_points: int, dim: int) -> float | None:
  """Returns the proven optimum of the smallest angle, in radians.

  Known are the simplex for up to dim + 1 points and 90 degrees for up to 2 dim
  (Rankin, The Closest Packing of Spherical Caps in n Dimensions, 1955),
  polygons on the circle, and up to 14 points, and 24, on the sphere in 3-D.
  Others give None. Both arguments are >= 2; ``dim`` is that of the space around
  the sphere.
  """
  _checks.positive_int('num_points', num_points, least=2)
  _checks.positive_int('dim', dim, least=2)
  if num_points <= dim + 1:
    return float(np.arccos(-1 / (num_points - 1)))
  if dim == 2:
    return 2 * np.pi / num_points
  if num_points <= 2 * dim:
    return np.pi / 2
  degrees = _PROVEN_DEGREES.get(num_points) if dim == 3 else None
  return None if degrees is None else float(np.radians(degrees))


def train_free_embeddings(
    num_classes: int,
    dim: int,
    *,
    beta: float = 50.0,
    temperature: float = 0.5,
    warmup: float = 0.8,
    spread: float = 0.5,
    num_rows: int = 8,
    num_steps: int = 2000,
    num_frames: int = 101,
    learning_rate: float = 0.02,
    seed: int = 0,
) -> Trajectory:
  """Trains points on a sphere with the hard loss and true positives.

  Rows are embeddings without an encoder. In :func:`hcl_jax.hard_nce_loss`, with
  ``tau_plus=0``, the positives of a row are the other rows of its class, and
  its negatives all rows of other classes. Training is projected gradient
  descent. With a large beta, classes contract to points, which spread out as
  the paper's theorem says: 8 classes in 3-D end 0.06 degrees from Tammes'
  packing. With ``beta=0``, where all other classes repel and not only the
  nearest, they end 3.7 degrees from it. The result is a local optimum: 7
  classes in 3-D end as a bipyramid, 5.9 degrees from the best packing.

  Args:
    num_classes: >= 2.
    dim: dimension of the space, >= 2; 2-D and 3-D can be drawn.
    beta: concentration, >= 0.
    temperature: t > 0.
    warmup: share of the steps during which beta rises from 0, quadratically.
      With 0, beta is large from the start, and classes may collapse to one
      point: a bad optimum for 5 classes on the circle, a good one for 7.
    spread: initial standard deviation of the rows of a class around a random
      center, in each dimension, >= 0.
    num_rows: rows per class, >= 2.
    num_steps: >= 1.
    num_frames: maximum number of frames to keep, >= 2, including the first and
      the last. Early frames are denser, since most happens then.
    learning_rate: > 0; decays to 0 as a cosine.
    seed: seed of the random start.
  """
  for name, value, least in (
      ('num_classes', num_classes, 2), ('dim', dim, 2),
      ('num_rows', num_rows, 2), ('num_steps', num_steps, 1),
      ('num_frames', num_frames, 2),
  ):  # fmt: skip
    _checks.positive_int(name, value, least=least)
  _checks.beta(beta)
  _checks.temperature(temperature)
  if not 0 <= warmup <= 1:
    raise ValueError(f'warmup must be in [0, 1], got {warmup}.')
  _checks.number('spread', spread)
  _checks.positive('learning_rate', learning_rate)
  start = _random_classes(num_classes, num_rows, dim, spread, seed)
  done = np.arange(num_steps) / num_steps
  rise = np.minimum(done / warmup, 1) ** 2 if warmup else np.ones(num_steps)
  betas = np.float32(beta * rise)
  rates = np.float32(learning_rate * (1 + np.cos(np.pi * done)) / 2)
  frames = _train(start, betas, temperature, rates)
  steps = num_steps * np.linspace(0, 1, num_frames) ** 2
  steps = np.unique(steps.round().astype(int))
  frames = np.asarray(frames, np.float64)[steps]
  means = frames.mean(axis=2)
  means /= np.linalg.norm(means, axis=-1, keepdims=True)
  best = ball_packing(np.full(num_classes, 1 / num_classes), dim)
  best_angle = known_angle(num_classes, dim)
  if best_angle is None:
    best_angle = tammes_packing(num_classes, dim).angle
  return Trajectory(
      steps=steps,
      embeddings=frames.reshape(len(steps), -1, dim),
      labels=np.repeat(np.arange(num_classes), num_rows),
      class_means=means,
      spreads=np.mean(np.sum((frames - means[:, :, None]) ** 2, -1), (1, 2)),
      angles=np.array([np.arccos(_nearest_cosines(m).max()) for m in means]),
      values=np.array([packing_value(m) for m in means]),
      best_angle=best_angle,
      best_value=best.value,
  )


def _read_prior(class_prior):
  prior = _checks.numbers('class_prior', class_prior, least=2)
  if np.any(prior <= 0) or abs(prior.sum() - 1) > 1e-6:
    raise ValueError(
        'class_prior must have positive entries that sum to 1; got '
        f'{prior} with sum {prior.sum():g}.'
    )
  return prior


def _solve(objective, prior, shape, num_steps, seed):
  """Descends from random points while the soft maxima sharpen."""
  starts = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
  soft = np.geomspace(*_INITIAL_SHARPNESS, len(starts), dtype=np.float32)
  return np.asarray(_descend(objective, prior, starts, soft, num_steps))


@functools.partial(jax.jit, static_argnums=(0, 4))
def _descend(objective, prior, starts, soft, num_steps):
  step_size = _STEP * starts.shape[1]
  slopes = jax.vmap(jax.grad(objective), (0, 0, None))

  def step(i, points):
    points *= jax.lax.rsqrt(jnp.sum(points**2, axis=-1, keepdims=True))
    sharpness = soft * (_FINAL_SHARPNESS / soft) ** (i / num_steps)
    slope = slopes(points, sharpness, prior)
    return points - (step_size / sharpness)[:, None, None] * slope

  return jax.lax.fori_loop(0, num_steps, step, starts)


def _soft_largest_cosine(points, sharpness, prior):
  del prior
  cosines = _other_cosines(points)
  return jax.nn.logsumexp(sharpness * cosines) / sharpness


def _soft_nearest_cosines(points, sharpness, prior):
  cosines = _other_cosines(points)
  nearest = jax.nn.logsumexp(sharpness * cosines, axis=1) / sharpness
  return jnp.sum(prior.astype(points.dtype) * nearest)


def _other_cosines(points):
  cosines = _vectors.inner_products(points, points)
  return jnp.where(jnp.eye(len(points), dtype=bool), -jnp.inf, cosines)


def _nearest_cosines(points):
  cosines = points @ points.T
  np.fill_diagonal(cosines, -np.inf)
  return np.clip(cosines.max(axis=1), -1, 1)


def _measure(points, prior):
  points = np.asarray(points, np.float64)
  points = points / np.linalg.norm(points, axis=1, keepdims=True)
  nearest = _nearest_cosines(points)
  return Packing(
      points=points,
      angle=float(np.arccos(nearest.max())),
      value=float(np.sum(prior * (2 - 2 * nearest))),
  )


def _random_classes(num_classes, num_rows, dim, spread, seed):
  rng = np.random.default_rng(seed)
  centers = rng.normal(size=(num_classes, 1, dim))
  centers /= np.linalg.norm(centers, axis=-1, keepdims=True)
  noise = rng.normal(size=(num_classes, num_rows, dim))
  return np.float32(centers + spread * noise)


@jax.jit
def _train(start, betas, temperature, rates):
  """Returns all frames, ``[steps + 1, classes, rows, dim]``."""

  def step(points, now):
    beta, rate = now
    slope = jax.grad(_loss)(points, beta, temperature)
    moved = _vectors.normalize(points - rate * slope)
    return moved, moved

  start = _vectors.normalize(start)
  _, frames = jax.lax.scan(step, start, (betas, rates))
  return jnp.concatenate([start[None], frames])


def _loss(points, beta, temperature):
  """Sums over anchors, so that their number does not scale a row's step."""
  classes, rows, dim = points.shape
  flat = points.reshape(-1, dim)
  logits = _vectors.inner_products(flat, flat) / temperature
  row = np.arange(classes * rows)[:, None]
  own = row // rows
  others = own * rows + np.arange(rows - 1)[None, :]
  others += others >= row  # skips the row itself
  losses = hard_nce_loss(
      jnp.take_along_axis(logits, others, axis=1),
      logits,
      beta=beta,
      tau_plus=0.0,
      where=own != own.T,
  )
  return jnp.sum(losses)
