# SPDX-License-Identifier: Apache-2.0
"""One tile of cosines: its folds, the transpose of their derivative, blocks.

A tile is folded about its running row peaks, or, where 1 + beta is small
enough for the temperature that no tilt of a cosine can underflow and the
temperature is no larger than 16, about the constant 1: then one pair of
exponentials serves rows and columns alike.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from hcl_jax.losses import _devices
from hcl_jax.losses import tilting

# About the constant 1 an exponent (1 + beta) (c - 1) / t is at least minus
# this, far above underflow and with a rounding error of a few 1e-6.
_MAX_EXPONENT = 60.0
# (1 + beta) q e^{s-A} and beta q are subtracted there, which costs beta ulps.
_MAX_BETA = 16.0
# e^{s-A} and 1 likewise, which costs ulps times the temperature.
_MIN_SCALE = 1 / 16
_BELOW_COSINES = -2.0


class Side(NamedTuple):
  """Per row of a tile: the pull on its log_mean, and what log_mean is of."""

  pull: jax.Array
  peak: jax.Array
  low: jax.Array
  log_mean: jax.Array

  @classmethod
  def of(cls, pull, peak, low, log_mean):
    """Guards rows without negatives, whose pull is 0, against 0 / 0."""
    return cls(pull, peak, jnp.where(low == 0, 1, low), log_mean)

  def in_blocks(self, block):
    """Stacked, ``[k, 4, block]``; a padded row pulls at nothing."""
    padding = Side(pull=0, peak=1, low=1, log_mean=0)
    padded = [
        blocks(x, block, fill) for x, fill in zip(self, padding, strict=True)
    ]
    return jnp.stack(padded, axis=1)


def visit(step, carry, number, place):
  """Takes a step at each of so many tiles.

  Args:
    step: ``(carry, (i, j)) -> carry``.
    carry: what the first step begins with.
    number: of tiles.
    place: the blocks i and j of tile t. A list of them would grow with the
      square of the batch.

  Returns:
    What the last step ends with.
  """

  def next_tile(state, _):
    t, carry = state
    return (t + 1, step(carry, place(t))), None

  start = jnp.zeros((), jnp.int32), carry
  (_, carry), _ = lax.scan(next_tile, start, None, length=number)
  return carry


def pairs_of_blocks(k):
  """How many pairs of k blocks there are, and which blocks pair t has.

  Pair t has the blocks i and i + s, modulo k: each pair of blocks is that far
  apart in one direction or the other, and the last s of an even k, k / 2, in
  both, so only half of its pairs are visited.
  """

  def place(t):
    i = t % k
    return i, (i + t // k + 1) % k

  return k * (k - 1) // 2, place


def _is_bounded(scale, beta):
  exact = (beta <= _MAX_BETA) & (scale >= _MIN_SCALE)
  return exact & (2 * (1 + beta) * scale <= _MAX_EXPONENT)


def fold_tile(folds, c, keep, scale, beta, axes=(1,)):
  """Adds a tile to folds.

  Args:
    folds: for each axis the stacked sums so far of a :class:`tilting.Fold`.
    c: cosines.
    keep: mask or None.
    scale: 1 / temperature.
    beta: concentration.
    axes: along which to fold; 1 gives the tile's rows, 0 its columns.

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
      # All tiles are folded about 1 then, so that is the peak so far.
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


def pull_tile(sides, c, keep, scale, beta, frozen, axes=(1,)):
  """Transposes the derivative of a tile's folds.

  Args:
    sides: for each axis a :class:`Side`, or one stacked.
    c: cosines.
    keep: mask or None.
    scale: 1 / temperature.
    beta: concentration.
    frozen: whether the weights are constants.
    axes: 1 for the side of the tile's rows, 0 for its columns'.

  Returns:
    The cotangent of c, and the tile's part of those of scale (with log_mean
    taken about 1) and beta.
  """

  def about_one(sides, c, keep):
    d = scale * (c - 1)
    low, one = _kept(jnp.exp(beta * d), keep), jnp.exp(d)
    q = q_e = 0  # pull * q / low and pull * q e^{s-A} / (low one)
    for side, axis in zip(sides, axes, strict=True):
      side = Side(*side)
      rise = scale * (1 - side.peak)
      weight = side.pull * jnp.exp(beta * rise) / side.low
      q = q + jnp.expand_dims(weight, axis)
      q_e = q_e + jnp.expand_dims(
          weight * jnp.exp(rise - side.log_mean), axis
      )
    gain = low * (one * q_e - q)
    if frozen:
      pull = low * (one * q_e)
    else:
      pull = low * (one * ((1 + beta) * q_e) - beta * q)
    return scale * pull, jnp.sum(pull * (c - 1)), jnp.sum(gain * d)

  def about_peak(sides, c, keep):
    pull, to_beta = jnp.zeros_like(c), jnp.zeros_like(scale)
    for side, axis in zip(sides, axes, strict=True):
      side = Side(*(jnp.expand_dims(x, axis) for x in side))
      # A masked cosine may lie far above the peak: 0 * inf is NaN.
      d = _kept(scale * (c - side.peak), keep)
      weights = _kept(jnp.exp(beta * d), keep) / side.low
      slope, gain = tilting.tilt_slopes(
          weights, d - side.log_mean, beta, frozen
      )
      pull = pull + side.pull * slope
      to_beta = to_beta + jnp.sum(side.pull * gain * d)
    return scale * pull, jnp.sum(pull * (c - 1)), to_beta

  bounded = _is_bounded(scale, beta)
  pull, to_scale, to_beta = lax.cond(
      bounded, about_one, about_peak, tuple(sides), c, keep
  )
  return pull, to_scale, jnp.zeros_like(to_beta) if frozen else to_beta


def _kept(values, keep):
  return values if keep is None else jnp.where(keep, values, 0)


def even_block(n: int, block: int) -> int:
  """The least block that covers n in as many steps as ``block`` does."""
  steps = -(-n // block)
  return -(-n // steps)


def blocks(x: jax.Array, block: int, fill=0) -> jax.Array:
  """``[n, ...] -> [k, block, ...]``, padded with ``fill``."""
  k = -(-x.shape[0] // block)
  padding = [(0, k * block - x.shape[0])] + [(0, 0)] * (x.ndim - 1)
  x = jnp.pad(x, padding, constant_values=fill)
  return x.reshape(k, block, *x.shape[1:])


def unblock(x: jax.Array, n: int) -> jax.Array:
  return x.reshape(-1, *x.shape[2:])[:n]


def nothing(shape, like) -> jax.Array:
  """Stacked folds of no cosines, ``[5, *shape]``."""
  zeros = jnp.zeros(shape, like.dtype)
  empty = tilting.Fold(zeros + _BELOW_COSINES, zeros, zeros, zeros, zeros)
  return _devices.varying_as(jnp.stack(empty), like)
