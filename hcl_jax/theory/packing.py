# SPDX-License-Identifier: Apache-2.0
r"""Packings of classes on a sphere, which optimal embeddings form.

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
    num_restarts: number of random starts, solved in parallel; the best result
      is returned.
    num_steps: steps of gradient descent.
    seed: seed of the starts. The same seed gives the same points.

  Returns:
    The packing; its ``value`` is that of classes of equal size.
  """
  _read_size(num_points, dim, num_restarts, num_steps)
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

  Returns:
    The packing with the largest ``value`` found.
  """
  prior = read_prior(class_prior)
  _read_size(len(prior), dim, num_restarts, num_steps)
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

  Args:
    points: one row for each class, ``[num_points, dim]``, scaled to unit
      length.
    class_prior: rho, ``[num_points]``; by default uniform.

  Returns:
    A number between 0 and 4.
  """
  units = _checks.units('points', points, rows=2)
  if class_prior is None:
    class_prior = np.full(len(units), 1 / len(units))
  prior = read_prior(class_prior)
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

  Args:
    num_points: >= 2.
    dim: dimension of the space around the sphere, >= 2.

  Returns:
    The angle, or None if this function does not know it.
  """
  _read_size(num_points, dim)
  if num_points <= dim + 1:
    return float(np.arccos(-1 / (num_points - 1)))
  if dim == 2:
    return 2 * np.pi / num_points
  if num_points <= 2 * dim:
    return np.pi / 2
  degrees = _PROVEN_DEGREES.get(num_points) if dim == 3 else None
  return None if degrees is None else float(np.radians(degrees))


def read_prior(class_prior: Any) -> np.ndarray:
  """Returns the shares of at least two classes, checked, as float64."""
  prior = _checks.numbers('class_prior', class_prior, least=2)
  if np.any(prior <= 0) or abs(prior.sum() - 1) > 1e-6:
    raise ValueError(
        'class_prior must have positive entries that sum to 1; got '
        f'{prior} with sum {prior.sum():g}.'
    )
  return prior


def _read_size(num_points, dim, *counts):
  for name, value in (('num_points', num_points), ('dim', dim)):
    _checks.positive_int(name, value)
    if value < 2:
      raise ValueError(f'{name} must be >= 2, got {value}.')
  for name, value in zip(('num_restarts', 'num_steps'), counts, strict=False):
    _checks.positive_int(name, value)


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
    points = _unit(points)
    sharpness = soft * (_FINAL_SHARPNESS / soft) ** (i / num_steps)
    slope = slopes(points, sharpness, prior)
    return points - (step_size / sharpness)[:, None, None] * slope

  return jax.lax.fori_loop(0, num_steps, step, starts)


def _unit(points):
  return points * jax.lax.rsqrt(jnp.sum(points**2, axis=-1, keepdims=True))


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


def least_angle(points: np.ndarray) -> float:
  """Returns the smallest angle between two unit rows, in radians."""
  return float(np.arccos(_nearest_cosines(points).max()))


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
