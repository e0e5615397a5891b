# SPDX-License-Identifier: Apache-2.0
r"""Computes tilted expectations, folds of their sums, and the debiased loss.

Every objective of the paper needs, for scores c with logits s = scale c,

.. math::
  A = \log E_{q_\beta}[e^s] = \log \frac{\sum_j e^{(1+\beta) s_j}}
                                        {\sum_j e^{\beta s_j}},

the log of the mean of e^s under the sample tilted by e^{beta s}. Computing from
differences to the row's peak, taken before scaling, makes errors relative to
those differences and not to 1/temperature. A is represented by the pair
(peak, log_mean) with A = scale * peak + log_mean; the peak is a constant, and
log_mean has the derivative. (``stop_gradient`` is imported by name because
chex.assert_numerical_grads replaces ``jax.lax.stop_gradient``, and JAX would
cache functions traced with the replacement.)
"""

import functools
from typing import NamedTuple

import jax
from jax.lax import stop_gradient
import jax.numpy as jnp
from jax.typing import ArrayLike


class Fold(NamedTuple):
  """Sums over the scores seen so far, with d = scale * (score - peak)."""

  peak: jax.Array  # largest score, or an upper bound of it
  number: jax.Array  # number of scores
  low: jax.Array  # sum of e^{beta d}
  excess: jax.Array  # sum of e^{beta d} (e^d - 1), accurate near d = 0
  high: jax.Array  # sum of e^{(1 + beta) d}, accurate far from d = 0


def fold(
    scores: jax.Array,
    scale: jax.Array,
    beta: jax.Array,
    keep: jax.Array | None,
    *,
    axis: int = -1,
    lowest: ArrayLike | None = None,
) -> Fold:
  """Folds scores along an axis; a row without kept scores has sums 0."""
  masked = jnp.finfo(scores.dtype).min if lowest is None else lowest
  if keep is None:
    keep = jnp.ones_like(scores, dtype=bool)
  scores = jnp.where(keep, scores, masked)
  peak = stop_gradient(jnp.max(scores, axis=axis))
  below = scores - jnp.expand_dims(peak, axis)
  d = scale * jnp.where(keep, below, 0)
  number = jnp.sum(keep, axis=axis, dtype=scores.dtype)
  return Fold(peak, number, *_sums(d, _tilts(d, beta, keep), axis))


def merge(a: Fold, b: Fold, scale: jax.Array, beta: jax.Array) -> Fold:
  """Merges the folds of two samples; associative and commutative."""
  peak = jnp.maximum(a.peak, b.peak)

  def lower(f: Fold) -> Fold:
    drop = scale * (f.peak - peak)
    by_low, by_one = jnp.exp(beta * drop), jnp.exp(drop)
    return Fold(
        peak=peak,
        number=f.number,
        low=by_low * f.low,
        excess=by_low * (by_one * f.excess + jnp.expm1(drop) * f.low),
        high=by_low * by_one * f.high,
    )

  a, b = lower(a), lower(b)
  return Fold(peak, *(x + y for x, y in zip(a[1:], b[1:], strict=True)))


def log_mean(
    low: jax.Array, excess: jax.Array, high: jax.Array
) -> jax.Array:
  """Returns log E_{q_beta}[e^d] of a fold's sums; 0 for an empty fold.

  ``log1p(excess / low)`` is accurate near 0 and inaccurate if the mean is tiny;
  ``log(high / low)`` is the opposite.
  """
  empty = low == 0  # the peak itself adds 1
  low, high = jnp.where(empty, 1, low), jnp.where(empty, 1, high)
  shift = excess / low
  near = shift > -0.5
  return jnp.where(
      near, jnp.log1p(jnp.where(near, shift, 0)), jnp.log(high / low)
  )


def tilted_log_mean(
    scores: jax.Array,
    scale: jax.Array,
    beta: jax.Array,
    where: jax.Array | None = None,
    *,
    stop_gradient_weights: bool = False,
) -> tuple[jax.Array, jax.Array]:
  """Returns A over the last axis as (peak, log_mean).

  A row without scores has peak 0 and log_mean 0. Scores that ``where`` drops
  may have any value, even NaN. Beta is a scalar, or one for each row.
  """
  beta = beta[..., None] if beta.ndim else beta
  if where is None:
    peak = stop_gradient(jnp.max(scores, axis=-1))
    below = scores - peak[..., None]
  else:
    where = jnp.broadcast_to(where, scores.shape)
    scores = jnp.where(where, scores, 0)
    lowest = jnp.finfo(scores.dtype).min
    peak = jnp.max(jnp.where(where, scores, lowest), axis=-1)
    peak = stop_gradient(jnp.where(jnp.any(where, axis=-1), peak, 0))
    below = jnp.where(where, scores - peak[..., None], 0)
  return peak, _log_mean_below(
      below, scale, beta, where, stop_gradient_weights
  )


@functools.partial(jax.custom_jvp, nondiff_argnums=(4,))
def _log_mean_below(below, scale, beta, where, stop_gradient_weights):
  """Returns log E_{q_beta}[e^d] with d = scale * below, below <= 0."""
  del stop_gradient_weights
  d = scale * below
  return log_mean(*_sums(d, _tilts(d, beta, where), -1))


@_log_mean_below.defjvp
def _log_mean_below_jvp(stop_gradient_weights, primals, tangents):
  below, scale, beta, where = primals
  d_below, d_scale, d_beta, _ = tangents
  log_mean_ = _log_mean_below(*primals, stop_gradient_weights)
  d = scale * below
  low = _tilts(d, beta, where)
  total = jnp.sum(low, axis=-1, keepdims=True)
  weights = low / jnp.where(total == 0, 1, total)
  if stop_gradient_weights:
    weights = stop_gradient(weights)
  slope, gain = tilt_slopes(
      weights, d - log_mean_[..., None], beta, stop_gradient_weights
  )
  d_logits = scale * d_below + d_scale * below
  tangent = jnp.sum(slope * d_logits, axis=-1)
  if not stop_gradient_weights:
    d_beta = jnp.squeeze(d_beta, -1) if beta.ndim else d_beta
    tangent += d_beta * jnp.sum(gain * d, axis=-1)
  return log_mean_, tangent


def tilt_slopes(
    weights: jax.Array,
    above: jax.Array,
    beta: jax.Array,
    stop_gradient_weights: bool,
) -> tuple[jax.Array, jax.Array]:
  r"""Returns dA/ds and the integrand of dA/dbeta.

  With q = softmax(beta s), e = expm1(s - A): dA/ds = q (1 + e + beta e) and
  dA/dbeta = sum q e s. This form avoids the difference of the two large terms
  (1 + beta) q e^{s-A} and beta q.
  """
  e = jnp.expm1(above)
  gain = weights * e
  if stop_gradient_weights:
    return weights + gain, gain
  return weights + (1 + beta) * gain, gain


def _sums(d, low, axis):
  """Returns the three sums of a :class:`Fold` from d and low = e^{beta d}."""
  return (
      jnp.sum(low, axis=axis),
      jnp.sum(low * jnp.expm1(d), axis=axis),
      jnp.sum(low * jnp.exp(d), axis=axis),
  )


def _tilts(d, beta, where):
  low = jnp.exp(beta * d)
  return low if where is None else jnp.where(where, low, 0)


def clipped_beta(
    beta: jax.Array,
    scores: jax.Array,
    clip_scale: ArrayLike,
    where: jax.Array | None = None,
    stop_gradient_clip: bool = False,
) -> jax.Array:
  """Returns beta * clip_scale / max |s| over all scores; 0 if all are 0.

  Its tilts e^{beta s} lie between e^{-clip beta} and e^{clip beta}. The
  gradient flows through the maximum unless ``stop_gradient_clip``.
  """
  sizes = jnp.abs(scores)
  if where is not None:
    sizes = jnp.where(where, sizes, 0)
  largest = jnp.max(sizes)
  if stop_gradient_clip:
    largest = stop_gradient(largest)
  return jnp.where(
      largest == 0, 0, beta * clip_scale / jnp.where(largest == 0, 1, largest)
  )


def debiased_loss(
    gap: jax.Array,
    log_n: jax.Array,
    tau_plus: jax.Array,
    *,
    excess: jax.Array | None = None,
    floor_gap: jax.Array | None = None,
    soft_floor: jax.Array | None = None,
    positive_weight: ArrayLike = 1.0,
) -> jax.Array:
  r"""Returns log(w + Ng / e^a) from differences to the positive logit a.

  .. math::
    N_g = \frac{N}{1-\tau^+} \bigl(e^{A} - \tau^+ e^{B}\bigr)

  with A the negatives' tilted log-mean and B the positives'. The difference is
  an estimate and may be negative. ``floor_gap`` is a lower bound of
  log(Ng/N) - a; without it Ng is at least 0. ``soft_floor`` r0 replaces the
  factor 1 - r, r = tau e^{B-A}, by (1-r0)^2 / (1-2 r0+r) for r > r0, which is
  positive and has the same slope at r0.

  Args:
    gap: A - a.
    log_n: log of the number of negatives; -inf gives the loss 0.
    tau_plus: class prior; at 0 the floors have no effect.
    excess: B - a; None: 0, as with one positive.
    floor_gap: lower bound of log(Ng/N) - a.
    soft_floor: r0 in (0, 1).
    positive_weight: w >= 0, the share of the positive in the denominator.

  Returns:
    The loss, with the shape of gap.
  """
  excess = jnp.zeros_like(gap) if excess is None else excess
  if floor_gap is None:
    floor_gap = jnp.full_like(gap, -jnp.inf)
  log_n = jnp.broadcast_to(log_n, gap.shape).astype(gap.dtype)
  weight = jnp.asarray(positive_weight, gap.dtype)
  return _debiased_loss(
      _Debiasing(gap, excess, floor_gap, log_n, tau_plus, soft_floor, weight)
  )


def is_clamped(
    gap: jax.Array,
    tau_plus: jax.Array,
    *,
    excess: jax.Array,
    floor_gap: jax.Array | None = None,
) -> jax.Array:
  """Returns whether Ng of :func:`debiased_loss` is below its floor or 0."""
  if floor_gap is None:
    floor_gap = jnp.full_like(gap, -jnp.inf)
  log_n = jnp.zeros_like(gap)
  one = jnp.ones_like(tau_plus)
  terms = _Debiasing(gap, excess, floor_gap, log_n, tau_plus, None, one)
  return _log_odds(terms)[2]


class _Debiasing(NamedTuple):
  """Terms of :func:`debiased_loss`."""

  gap: jax.Array
  excess: jax.Array
  floor_gap: jax.Array
  log_n: jax.Array
  tau_plus: jax.Array
  soft_floor: jax.Array | None
  positive_weight: jax.Array


@jax.custom_jvp
def _debiased_loss(terms):
  return jnp.logaddexp(_log_odds(terms)[0], _log_weight(terms))


def _log_weight(terms):
  """Returns log w; 0 without negatives, where the loss is 0 for every w."""
  weight = _safe_log(terms.positive_weight)
  return jnp.where(jnp.isneginf(terms.log_n), 0, weight)


def _log_odds(terms):
  """Returns log(Ng / e^a), log(tau e^{B-A}), and whether the floor applies."""
  gap, excess, floor_gap, log_n, tau_plus, soft_floor, _ = terms
  delta = _safe_log(tau_plus) + excess - gap
  spread = gap - jnp.log1p(-tau_plus)
  if soft_floor is not None:
    raw = spread + _log_soft_shrinkage(delta, soft_floor)
    return log_n + raw, delta, jnp.zeros_like(delta, dtype=bool)
  raw = spread + _log1mexp(delta)
  # In this form a NaN is not below the floor and stays a NaN.
  clamped = (tau_plus > 0) & ((raw < floor_gap) | (delta > 0))
  return log_n + jnp.where(clamped, floor_gap, raw), delta, clamped


@_debiased_loss.defjvp
def _debiased_loss_jvp(primals, tangents):
  (terms,), (d_terms,) = primals, tangents
  gap, excess, _, log_n, tau_plus, soft_floor, _ = terms
  d_gap, d_excess, d_floor_gap, _, d_tau_plus, _, d_weight = d_terms
  loss = _debiased_loss(terms)
  log_odds, delta, clamped = _log_odds(terms)
  odds_slope = jax.nn.sigmoid(log_odds - _log_weight(terms))
  log_ratio = log_n - jnp.log1p(-tau_plus) - loss
  shrink = None
  if soft_floor is not None:
    shrink = _soft_shrinkage_slope(delta, soft_floor)
    by_gap, by_excess = odds_slope * (1 - shrink), odds_slope * shrink
  else:
    # Far from delta = 0 the ratio has no large exponents to cancel; near it
    # the exponential form has no 0 * inf.
    far = delta < -jnp.log(2.0).astype(delta.dtype)
    ratio = odds_slope / -jnp.expm1(jnp.where(far, delta, -1))
    by_gap = jnp.where(far, ratio, jnp.exp(log_ratio + gap))
    by_gap = jnp.where(clamped, 0, by_gap)
    by_excess = -by_gap * jnp.exp(jnp.minimum(delta, 0))
  # (e^A - e^B) / ((1 - tau) (e^A - tau e^B)), without a difference of ratios
  # that rounding destroys if the temperature is high and A is near B.
  above = gap - excess
  by_tau = jnp.where(
      above > 0,
      by_gap * -jnp.expm1(-jnp.where(above > 0, above, 0)),
      jnp.exp(log_ratio + excess) * jnp.expm1(jnp.where(above > 0, 0, above)),
  ) / (1 - tau_plus)
  if soft_floor is not None and shrink is not None:
    safe_tau = jnp.where(tau_plus > 0, tau_plus, 1)
    outside = odds_slope * (1 / (1 - tau_plus) + shrink / safe_tau)
    by_tau = jnp.where(delta <= jnp.log(soft_floor), by_tau, outside)
  by_tau = jnp.where(clamped, 0, by_tau)
  tangent = by_gap * d_gap + by_excess * d_excess + by_tau * d_tau_plus
  tangent += jnp.where(clamped, odds_slope, 0) * d_floor_gap
  tangent += jnp.where(jnp.isneginf(log_n), 0, jnp.exp(-loss)) * d_weight
  return loss, tangent


def _safe_log(x):
  return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)), -jnp.inf)


def _log1mexp(x):
  """Returns log(1 - e^x) for x < 0; -inf, with gradient 0, for x >= 0."""
  above = x >= 0
  near = ~above & (x > -jnp.log(2.0).astype(x.dtype))
  close = jnp.log(-jnp.expm1(jnp.where(near, x, -1)))
  far = jnp.log1p(-jnp.exp(jnp.where(near | above, -1, x)))
  return jnp.where(above, -jnp.inf, jnp.where(near, close, far))


def _log_soft_shrinkage(delta, r0):
  """Returns log phi(e^delta), phi(r) = 1-r or, r > r0, (1-r0)^2/(1-2r0+r)."""
  inside = delta <= jnp.log(r0)
  linear = _log1mexp(jnp.where(inside, delta, jnp.log(r0)))
  outer = jnp.where(inside, jnp.log(r0), delta)
  tail = 2 * jnp.log1p(-r0) - outer - jnp.log1p((1 - 2 * r0) * jnp.exp(-outer))
  return jnp.where(inside, linear, tail)


def _soft_shrinkage_slope(delta, r0):
  """Returns d log phi / d delta."""
  inside = delta <= jnp.log(r0)
  r = jnp.exp(jnp.where(inside, delta, jnp.log(r0)))
  outer = jnp.where(inside, jnp.log(r0), delta)
  return jnp.where(
      inside, -r / (1 - r), -1 / (1 + (1 - 2 * r0) * jnp.exp(-outer))
  )
