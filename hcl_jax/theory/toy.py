# SPDX-License-Identifier: Apache-2.0
"""Training of free embeddings, which approach a packing."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import _checks
from hcl_jax import _vectors
from hcl_jax.losses import hard_nce_loss
from hcl_jax.theory import packing


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
      point: a bad optimum for 5 classes on the circle, a good one for 7 (see
      :mod:`hcl_jax.theory.packing`).
    spread: initial standard deviation of the rows of a class around a random
      center, in each dimension, >= 0.
    num_rows: rows per class, >= 2.
    num_steps: >= 1.
    num_frames: maximum number of frames to keep, >= 2, including the first and
      the last. Early frames are denser, since most happens then.
    learning_rate: > 0; decays to 0 as a cosine.
    seed: seed of the random start.

  Returns:
    The frames, and their gap to the optimum.
  """
  for name, value, least in (
      ('num_classes', num_classes, 2), ('dim', dim, 2),
      ('num_rows', num_rows, 2), ('num_steps', num_steps, 1),
      ('num_frames', num_frames, 2),
  ):  # fmt: skip
    _checks.positive_int(name, value)
    if value < least:
      raise ValueError(f'{name} must be >= {least}, got {value}.')
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
  best = packing.ball_packing(np.full(num_classes, 1 / num_classes), dim)
  best_angle = packing.known_angle(num_classes, dim)
  if best_angle is None:
    best_angle = packing.tammes_packing(num_classes, dim).angle
  return Trajectory(
      steps=steps,
      embeddings=frames.reshape(len(steps), -1, dim),
      labels=np.repeat(np.arange(num_classes), num_rows),
      class_means=means,
      spreads=np.mean(np.sum((frames - means[:, :, None]) ** 2, -1), (1, 2)),
      angles=np.array([packing.least_angle(m) for m in means]),
      values=np.array([packing.packing_value(m) for m in means]),
      best_angle=best_angle,
      best_value=best.value,
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
