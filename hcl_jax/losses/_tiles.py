# SPDX-License-Identifier: Apache-2.0
"""Tiles of cosines: their folds and cotangents.

A tile is folded relative to its running row peaks. If 1 + beta is so small for
the temperature that no tilt of a cosine underflows, and the temperature is at
most 16, it is folded relative to the constant 1 instead: then one pair of
exponentials serves both rows and columns. Inner products of embeddings that
are not unit vectors have no such bound, and are always folded relative to
peaks.
"""

from typing import Any
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
# Below every cosine; below every inner product, and finite times any scale.
BELOW, FAR_BELOW = -2.0, -1e18


# Of sides: rows that are not there have cotangent 0 and divide by 1.
PADDING = 0, 1, 1, 0


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
    padded = [
        _blocks.split(x, block, fill)
        for x, fill in zip(self, PADDING, strict=True)
    ]
    return jnp.stack(padded, axis=1)


def visit(step, carry, number, place) -> Any:
  """Scans over tiles.

  Args:
    step: ``(carry, (i, j)) -> carry``.
    carry: initial carry.
    number: number of tiles; may be traced, without a reverse derivative then.
    place: ``t -> (i, j)``, the blocks of tile t. A list of them would grow with
      the square of the batch.

  Returns:
    The carry after the last step.
  """

  def next_tile(state, _):
    t, carry = state
    return (t + 1, step(carry, place(t))), None

  first = jnp.zeros((), jnp.int32)
  if isinstance(number, int):
    (_, carry), _ = lax.scan(next_tile, (first, carry), None, length=number)
    return carry
  _, carry = lax.while_loop(
      lambda state: state[0] < number,
      lambda state: next_tile(state, None)[0],
      (_devices.varying_as(first, number), carry),
  )
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
  """Returns whether tiles are folded relative to the constant 1."""
  beta = jnp.max(jnp.stack([jnp.max(x) for x in jax.tree.leaves(beta)]))
  exact = (beta <= _MAX_BETA) & (scale >= _MIN_SCALE)
  return exact & (2 * (1 + beta) * scale <= _MAX_EXPONENT)


def all_bounded(scale, beta, axis_name=None):
  """Returns whether all tiles are folded relative to the constant 1.

  The tiles of a row, and those of a column, must agree. Where betas differ
  along both, it is decided once for the tiles of all devices.
  """
  most = jnp.max(beta)
  if beta.ndim and axis_name is not None:
    most = lax.pmax(most, axis_name)
  return _is_bounded(scale, most)


def _groups(sides, axes, keep, beta):
  """Groups the sides of a tile that share a mask and a concentration.

  Args:
    sides: for each axis, what belongs to it.
    axes: the axes.
    keep: a mask of the tile, None, or a tuple of masks, one for each axis.
    beta: a scalar, or a tuple of vectors, one along each side.

  Returns:
    Tuples of sides, their axes, their mask and their beta, which broadcasts
    to the tile.
  """
  if not isinstance(keep, tuple) and not isinstance(beta, tuple):
    return [(sides, axes, keep, beta)]
  number = len(axes)
  keeps = keep if isinstance(keep, tuple) else (keep,) * number
  if isinstance(beta, tuple):
    pairs = zip(beta, axes, strict=True)
    betas = [jnp.expand_dims(x, axis) for x, axis in pairs]
  else:
    betas = [beta] * number
  return [
      ((side,), (axis,), *shared)
      for side, axis, *shared in zip(sides, axes, keeps, betas, strict=True)
  ]


def lowest(normalized: bool) -> float:
  """Returns a number below all scores."""
  return BELOW if normalized else FAR_BELOW


def fold_tile(
    folds, c, keep, scale, beta, *, axes=(1,), normalized=True, bounded=None
):
  """Adds a tile to folds.

  Args:
    folds: for each axis, the stacked sums of a :class:`tilting.Fold` so far.
    c: cosines.
    keep: a mask of the tile, None, or a tuple of masks, one for each axis.
    scale: 1 / temperature.
    beta: concentration: a scalar, or a tuple of vectors, one along each side.
    axes: axes to fold along; 1 gives the tile's rows, 0 its columns.
    normalized: whether c are cosines, or inner products of any vectors.
    bounded: of :func:`all_bounded`; None: by the beta of the tile.

  Returns:
    The folds with the tile, stacked.
  """

  def about_one(folds, c, keep, beta):
    d = scale * (c - 1)
    added = []
    for group, group_axes, kept, b in _groups(folds, axes, keep, beta):
      low = _kept(jnp.exp(b * d), kept)
      high = low * jnp.exp(d)
      count = _kept(jnp.ones_like(c), kept)
      for fold, axis in zip(group, group_axes, strict=True):
        counts, lows, highs = (
            jnp.sum(x, axis=axis) for x in (count, low, high)
        )
        sums = fold[1:] + jnp.stack([counts, lows, highs - lows, highs])
        # All tiles are folded relative to 1 then, so it is the peak so far.
        added.append(jnp.concatenate([jnp.ones_like(fold[:1]), sums]))
    return _devices.varying_as(tuple(added), c)

  def about_peak(folds, c, keep, beta):
    added = []
    for group, group_axes, kept, b in _groups(folds, axes, keep, beta):
      for fold, axis in zip(group, group_axes, strict=True):
        new = tilting.fold(
            c, scale, b, kept, axis=axis, lowest=lowest(normalized)
        )
        along = jnp.squeeze(b, axis) if b.ndim else b
        merged = tilting.merge(tilting.Fold(*fold), new, scale, along)
        added.append(jnp.stack(merged))
    return _devices.varying_as(tuple(added), c)

  operands = tuple(folds), c, keep, beta
  if not normalized:
    return about_peak(*operands)
  if bounded is None:
    bounded = _is_bounded(scale, beta)
  return lax.cond(bounded, about_one, about_peak, *operands)


def tile_cotangents(
    sides, c, keep, scale, beta, *, frozen, axes=(1,), normalized=True,
    bounded=None,
):  # fmt: skip
  """Computes cotangents of a tile's cosines, scale and beta.

  Args:
    sides: for each axis a :class:`Side`, or a stacked one.
    c: cosines.
    keep: a mask of the tile, None, or a tuple of masks, one for each axis.
    scale: 1 / temperature.
    beta: concentration: a scalar, or a tuple of vectors, one along each side.
    frozen: whether the weights are constants.
    axes: 1 for the side of the tile's rows, 0 for that of its columns.
    normalized: whether c are cosines, or inner products of any vectors.
    bounded: of :func:`all_bounded`; None: by the beta of the tile.

  Returns:
    The cotangent of c, and the tile's parts of the cotangents of scale (with
    log_mean relative to 1, or to the peak unless ``normalized``) and beta.
  """

  def about_one(sides, c, keep, beta):
    d = scale * (c - 1)
    one = jnp.exp(d)
    to_logits, to_betas = jnp.zeros_like(c), []
    for group, group_axes, kept, b in _groups(sides, axes, keep, beta):
      low = _kept(jnp.exp(b * d), kept)
      q = q_e = 0  # cotangent * q / low and cotangent * q e^{s-A} / (low one)
      for side, axis in zip(group, group_axes, strict=True):
        side = Side(*(jnp.expand_dims(x, axis) for x in side))
        rise = scale * (1 - side.peak)
        weight = side.cotangent * jnp.exp(b * rise) / side.low
        q = q + weight
        q_e = q_e + weight * jnp.exp(rise - side.log_mean)
      if frozen:
        to_logits = to_logits + low * (one * q_e)
      else:
        to_logits = to_logits + low * (one * ((1 + b) * q_e) - b * q)
      to_betas.append(_reduced(low * (one * q_e - q) * d, b, group_axes))
    to_scale = jnp.sum(to_logits * (c - 1))
    return scale * to_logits, to_scale, _joined(to_betas, beta)

  def about_peak(sides, c, keep, beta):
    to_logits, to_betas = jnp.zeros_like(c), []
    to_scale = jnp.zeros_like(scale)
    for group, group_axes, kept, b in _groups(sides, axes, keep, beta):
      for side, axis in zip(group, group_axes, strict=True):
        side = Side(*(jnp.expand_dims(x, axis) for x in side))
        # A masked cosine may be far above the peak: 0 * inf is NaN.
        below = _kept(c - side.peak, kept)
        d = scale * below
        weights = _kept(jnp.exp(b * d), kept) / side.low
        slope, gain = tilting.tilt_slopes(
            weights, d - side.log_mean, b, frozen
        )
        to_logits = to_logits + side.cotangent * slope
        to_scale = to_scale + jnp.sum(side.cotangent * slope * below)
        to_betas.append(_reduced(side.cotangent * gain * d, b, (axis,)))
    if normalized:
      to_scale = jnp.sum(to_logits * (c - 1))
    return scale * to_logits, to_scale, _joined(to_betas, beta)

  operands = tuple(sides), c, keep, beta
  if normalized:
    if bounded is None:
      bounded = _is_bounded(scale, beta)
    found = lax.cond(bounded, about_one, about_peak, *operands)
  else:
    found = about_peak(*operands)
  to_c, to_scale, to_beta = found
  if frozen:
    to_beta = jax.tree.map(jnp.zeros_like, to_beta)
  return to_c, to_scale, to_beta


def tile_slopes(sides, c, keep, scale, beta, *, frozen, axes, normalized):
  """Computes the slopes of log_mean along axes of a tile.

  Arguments are those of :func:`tile_cotangents`; cotangents are not used.

  Returns:
    For each axis the slopes by logits, ``[rows, columns]``, and the slope by
    beta of each row or column.
  """

  def about_one(sides, c, keep, beta):
    d = scale * (c - 1)
    one = jnp.exp(d)
    found = []
    for group, group_axes, kept, b in _groups(sides, axes, keep, beta):
      low = _kept(jnp.exp(b * d), kept)
      for side, axis in zip(group, group_axes, strict=True):
        across = Side(*(jnp.expand_dims(x, axis) for x in side))
        rise = scale * (1 - across.peak)
        weights = low * (jnp.exp(b * rise) / across.low)
        tilt = one * jnp.exp(rise - across.log_mean)
        slope = weights * (tilt if frozen else (1 + b) * tilt - b)
        gain = jnp.sum(weights * (tilt - 1) * d, axis=axis)
        found.append((slope, gain))
    return _devices.varying_as(tuple(found), c)

  def about_peak(sides, c, keep, beta):
    found = []
    for group, group_axes, kept, b in _groups(sides, axes, keep, beta):
      for side, axis in zip(group, group_axes, strict=True):
        across = Side(*(jnp.expand_dims(x, axis) for x in side))
        d = scale * _kept(c - across.peak, kept)
        weights = _kept(jnp.exp(b * d), kept) / across.low
        slope, gain = tilting.tilt_slopes(
            weights, d - across.log_mean, b, frozen
        )
        found.append((slope, jnp.sum(gain * d, axis=axis)))
    return _devices.varying_as(tuple(found), c)

  operands = tuple(sides), c, keep, beta
  if not normalized:
    return about_peak(*operands)
  bounded = _is_bounded(scale, beta)
  return lax.cond(bounded, about_one, about_peak, *operands)


def _reduced(tile, beta, axes):
  """Sums a tile as far as ``beta`` does not vary."""
  return jnp.sum(tile, axis=axes[0]) if beta.ndim else jnp.sum(tile)


def _joined(to_betas, beta) -> Any:
  """Returns cotangents like ``beta``: a tuple of vectors, or their sum."""
  return tuple(to_betas) if isinstance(beta, tuple) else sum(to_betas)


def _kept(values, keep):
  return values if keep is None else jnp.where(keep, values, 0)


def nothing(shape, like, normalized: bool = True) -> jax.Array:
  """Returns stacked folds of no scores, ``[5, *shape]``."""
  zeros = jnp.zeros(shape, like.dtype)
  empty = tilting.Fold(zeros + lowest(normalized), zeros, zeros, zeros, zeros)
  return _devices.varying_as(jnp.stack(empty), like)
