# SPDX-License-Identifier: Apache-2.0
"""Free embeddings trained by the loss itself, to watch them find a packing."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax.analysis import packing
from hcl_jax.losses import _arguments
from hcl_jax.losses import _cosine
from hcl_jax.losses import hard_nce_loss


class Trajectory(NamedTuple):
  """Embeddings on their way; row i of a frame is always the same example.

  Attributes:
    steps: of the frames, ``[f]``, the first 0.
    embeddings: unit rows of each frame, ``[f, n, dim]``.
    labels: ``[n]``.
    class_means: directions of the means of the classes, ``[f, classes, dim]``.
    spreads: mean squared distance of a row to its class mean, ``[f]``.
    angles: the least angle between two class means, in radians, ``[f]``.
    values: of the class means in the paper's packing problem, ``[f]``.
    best_angle: the largest least angle known, or else found, in radians.
    best_value: the largest value found.
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
    """By how much the angles are less than Tammes' optimum, radians, ``[f]``.
    """
    return self.best_angle - self.angles

  @property
  def values_to_go(self) -> np.ndarray:
    """By how much the values are less than the paper's optimum, ``[f]``."""
    return self.best_value - self.values


def train_free_embeddings(
    num_classes: int,
    dim: int,
    *,
    beta: float = 50.0,
    temperature: float = 0.5,
    num_rows: int = 8,
    num_steps: int = 2000,
    num_frames: int = 101,
    learning_rate: float = 0.3,
    seed: int = 0,
) -> Trajectory:
  """Trains points on a sphere with the hard loss and true positives.

  Each row is an embedding without an encoder; its positives are the other rows
  of its class and its negatives all rows of other classes (``tau_plus=0``), in
  :func:`hcl_jax.hard_nce_loss`. Steps are of gradient descent, projected to the
  sphere. With a large beta classes contract to points, and these spread as the
  paper's theorem says: to the best ``value``, which for 7 classes in 3-D is
  Tammes' packing and for 7 classes on the circle has several in one place (see
  :mod:`hcl_jax.analysis.packing`). With ``beta=0`` a class is repelled by all
  others and not by the nearest, which leads elsewhere.

  Args:
    num_classes: >= 2.
    dim: of the space, >= 2; 2 and 3 can be drawn.
    beta: concentration, >= 0.
    temperature: t > 0.
    num_rows: of each class, >= 2.
    num_steps: >= 1.
    num_frames: to keep, evenly spread over the steps, the first and the last
      among them; >= 2.
    learning_rate: > 0; falls to 0 as a cosine.
    seed: of the random start.

  Returns:
    The frames, and how far they are from the optimum.
  """
  for name, value, least in (
      ('num_classes', num_classes, 2), ('dim', dim, 2),
      ('num_rows', num_rows, 2), ('num_steps', num_steps, 1),
      ('num_frames', num_frames, 2),
  ):  # fmt: skip
    _arguments.positive_int(name, value)
    if value < least:
      raise ValueError(f'{name} must be >= {least}, got {value}.')
  _arguments.beta(beta)
  _arguments.temperature(temperature)
  _arguments.positive('learning_rate', learning_rate)
  rng = np.random.default_rng(seed)
  start = rng.normal(size=(num_classes, num_rows, dim)).astype(np.float32)
  steps = np.unique(np.linspace(0, num_steps, num_frames).astype(int))
  done = np.arange(num_steps) / num_steps
  rates = np.float32(learning_rate * (1 + np.cos(np.pi * done)) / 2)
  frames = _train(start, beta, temperature, rates)
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


@jax.jit
def _train(start, beta, temperature, rates):
  """All frames, ``[steps + 1, classes, rows, dim]``."""

  def step(points, rate):
    slope = jax.grad(_loss)(points, beta, temperature)
    moved = _cosine.normalize(points - rate * slope)
    return moved, moved

  start = _cosine.normalize(start)
  _, frames = jax.lax.scan(step, start, rates)
  return jnp.concatenate([start[None], frames])


def _loss(points, beta, temperature):
  """The sum over anchors, so that a row's step does not depend on their number.
  """
  classes, rows, dim = points.shape
  flat = points.reshape(-1, dim)
  logits = _cosine.inner_products(flat, flat) / temperature
  row = np.arange(classes * rows)[:, None]
  own = row // rows
  others = own * rows + np.arange(rows - 1)[None, :]
  others += others >= row  # steps over the row itself
  losses = hard_nce_loss(
      jnp.take_along_axis(logits, others, axis=1),
      logits,
      beta=beta,
      tau_plus=0.0,
      where=own != own.T,
  )
  return jnp.sum(losses)
