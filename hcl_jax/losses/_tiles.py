# SPDX-License-Identifier: Apache-2.0
"""Tiles of cosines: their folds and cotangents.

A tile is folded relative to its running row peaks. If 1 + beta is so small for
the temperature that no tilt of a cosine underflows, and the temperature is at
most 16, it is folded relative to the constant 1 instead: then one pair of
exponentials serves both rows and columns.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from hcl_jax import _blocks
from hcl_jax import _devices
from hcl_jax.losses import tilting

# Relative to the constant 1 an exponent (1 + beta) (c - 1) / t is at least
# minus this, far above underflow and with a rounding error of a few 1e-6.
_MAX_EXPONENT = 60.0
# There (1 + beta) q e^{s-A} - beta q has an error of beta ulps.
_MAX_BETA = 16.0
# There e^{s-A} - 1 has an error of ulps times the temperature.
_MIN_SCALE = 1 / 16
_BELOW_COSINES = -2.0


class Side(NamedTuple):
  """Residuals along one axis of a tile, and the cotangent of its log_mean."""

  cotangent: jax.Array
  peak: jax.Array
  low: jax.Array
  log_mean: jax.Array

  @classmethod
  def of(cls, cotangent, peak, low, log_mean):
    """Returns a side that is safe from 0 / 0 in rows without negatives."""
    return cls(cotangent, peak, jnp.where(low == 0, 1, low), log_mean)

  def in_blocks(self, block):
    """Returns stacked blocks, ``[k, 4, block]``; padding has cotangent 0."""
    padding = 0, 1, 1, 0
    padded = [
        _blocks.split(x, block, fill)
        for x, fill in zip(self, padding, strict=True)
    ]
    return jnp.stack(padded, axis=1)


def visit(step, carry, number, place):
  """Scans over tiles.

  Args:
    step: ``(carry, (i, j)) -> carry``.
    carry: initial carry.
    number: number of tiles.
    place: ``t -> (i, j)``, the blocks of tile t. A list of them would grow with
      the square of the batch.

  Returns:
    The carry after the last step.
  """

  def next_tile(state, _):
    t, carry = state
    return (t + 1, step(carry, place(t))), None

  start = jnp.zeros((), jnp.int32), carry
  (_, carry), _ = lax.scan(next_tile, start, None, length=number)
  return carry


def pairs_of_blocks(k):
  """Returns the number of pairs of k blocks, and a function from t to pair t.

  Pair t consists of the blocks i and i + s, modulo k. Each pair of blocks is s
  apart in one direction or the other; for even k, the pairs with s = k / 2 are
  so in both directions, and only half of them are visited.
  """

  def place(t):
    i = t % k
    return i, (i + t // k + 1) % k

  return k * (k - 1) // 2, place


def _is_bounded(scale, beta):
  exact = (beta <= _MAX_BETA) & (scale >= _MIN_SCALE)
  return exact & (2 * (1 + beta) * scale <= _MAX_EXPONENT)


def fold_tile(folds, c, keep, scale, beta, *, axes=(1,)):
  """Adds a tile to folds.

  Args:
    folds: for each axis, the stacked sums of a :class:`tilting.Fold` so far.
    c: cosines.
    keep: mask or None.
    scale: 1 / temperature.
    beta: concentration.
    axes: axes to fold along; 1 gives the tile's rows, 0 its columns.

  Returns:
    The folds with the tile, stacked.
  """

  def about_one(folds, c, keep):
    d = scale * (c - 1)
    low = _kept(jnp.exp(beta * d), keep)
    high = low * jnp.exp(d)
    count = _kept(jnp.ones_like(c), keep)
    added = []
    for fold, axis in zip(folds, axes, strict=True):
      counts, lows, highs = (jnp.sum(x, axis=axis) for x in (count, low, high))
      sums = fold[1:] + jnp.stack([counts, lows, highs - lows, highs])
      # All tiles are folded relative to 1 then, so it is the peak so far.
      added.append(jnp.concatenate([jnp.ones_like(fold[:1]), sums]))
    return _devices.varying_as(tuple(added), c)

  def about_peak(folds, c, keep):
    added = []
    for fold, axis in zip(folds, axes, strict=True):
      new = tilting.fold(
          c, scale, beta, keep, axis=axis, lowest=_BELOW_COSINES
      )
      merged = tilting.merge(tilting.Fold(*fold), new, scale, beta)
      added.append(jnp.stack(merged))
    return _devices.varying_as(tuple(added), c)

  bounded = _is_bounded(scale, beta)
  return lax.cond(bounded, about_one, about_peak, tuple(folds), c, keep)


def tile_cotangents(sides, c, keep, scale, beta, *, frozen, axes=(1,)):
  """Computes cotangents of a tile's cosines, scale and beta.

  Args:
    sides: for each axis a :class:`Side`, or a stacked one.
    c: cosines.
    keep: mask or None.
    scale: 1 / temperature.
    beta: concentration.
    frozen: whether the weights are constants.
    axes: 1 for the side of the tile's rows, 0 for that of its columns.

  Returns:
    The cotangent of c, and the tile's parts of the cotangents of scale (with
    log_mean relative to 1) and beta.
  """

  def about_one(sides, c, keep):
    d = scale * (c - 1)
    low, one = _kept(jnp.exp(beta * d), keep), jnp.exp(d)
    q = q_e = 0  # cotangent * q / low and cotangent * q e^{s-A} / (low one)
    for side, axis in zip(sides, axes, strict=True):
      side = Side(*side)
      rise = scale * (1 - side.peak)
      weight = side.cotangent * jnp.exp(beta * rise) / side.low
      q = q + jnp.expand_dims(weight, axis)
      q_e = q_e + jnp.expand_dims(
          weight * jnp.exp(rise - side.log_mean), axis
      )
    gain = low * (one * q_e - q)
    if frozen:
      to_logits = low * (one * q_e)
    else:
      to_logits = low * (one * ((1 + beta) * q_e) - beta * q)
    to_scale = jnp.sum(to_logits * (c - 1))
    return scale * to_logits, to_scale, jnp.sum(gain * d)

  def about_peak(sides, c, keep):
    to_logits, to_beta = jnp.zeros_like(c), jnp.zeros_like(scale)
    for side, axis in zip(sides, axes, strict=True):
      side = Side(*(jnp.expand_dims(x, axis) for x in side))
      # A masked cosine may be far above the peak: 0 * inf is NaN.
      d = _kept(scale * (c - side.peak), keep)
      weights = _kept(jnp.exp(beta * d), keep) / side.low
      slope, gain = tilting.tilt_slopes(
          weights, d - side.log_mean, beta, frozen
      )
      to_logits = to_logits + side.cotangent * slope
      to_beta = to_beta + jnp.sum(side.cotangent * gain * d)
    return scale * to_logits, jnp.sum(to_logits * (c - 1)), to_beta

  bounded = _is_bounded(scale, beta)
  to_c, to_scale, to_beta = lax.cond(
      bounded, about_one, about_peak, tuple(sides), c, keep
  )
  return to_c, to_scale, jnp.zeros_like(to_beta) if frozen else to_beta


def _kept(values, keep):
  return values if keep is None else jnp.where(keep, values, 0)


def nothing(shape, like) -> jax.Array:
  """Returns stacked folds of no cosines, ``[5, *shape]``."""
  zeros = jnp.zeros(shape, like.dtype)
  empty = tilting.Fold(zeros + _BELOW_COSINES, zeros, zeros, zeros, zeros)
  return _devices.varying_as(jnp.stack(empty), like)
