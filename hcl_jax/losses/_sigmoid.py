# SPDX-License-Identifier: Apache-2.0
r"""Sigmoid loss of two towers (SigLIP): each pair of a batch is one decision.

With cosines c, logits l = scale c + bias, and weights q over a row's N
negatives, proportional to e^{beta scale c}, the negatives' term is

.. math::
  N E_q[\zeta(l)] = N \sum_j q_j \zeta(l_j), \qquad \zeta(l) = \log(1 + e^l).

Its derivative by logit j through the value is N q_j sigmoid(l_j), and through
the weights N beta q_j (zeta(l_j) - E_q[zeta(l)]). That difference is computed
from drops zeta(l_j) - zeta(l_peak), which have no error of the size of bias or
scale, so a large beta does not magnify one.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
from jax.lax import stop_gradient
import jax.numpy as jnp
from jax.typing import ArrayLike

from hcl_jax import _blocks
from hcl_jax import _checks
from hcl_jax import _devices
from hcl_jax import _vectors
from hcl_jax.losses import _blockwise
from hcl_jax.losses import _columns
from hcl_jax.losses import _mesh
from hcl_jax.losses import _partners

_BELOW_COSINES = -2.0
# Ways of computing a tile, by beta: all tilts are 1; drops may have an error of
# an ulp, which beta magnifies to 4e-6 at most; drops are exact near the peak.
_PLAIN, _TILTED, _EXACT = range(3)
_MAX_BETA = 64.0


def sigmoid_loss(
    z1: jax.Array,
    z2: jax.Array,
    *,
    logit_scale: ArrayLike = 10.0,
    logit_bias: ArrayLike = -10.0,
    beta: ArrayLike = 0.0,
    labels: jax.Array | None = None,
    axis_name: str | None = None,
    mesh: _mesh.Mesh | None = None,
    block_size: int | None = None,
    stop_gradient_weights: bool = False,
) -> jax.Array:
  r"""Computes SigLIP's sigmoid loss, with plain or hard negatives.

  Each embedding of z1 is an anchor. Its positive is its row of z2, its N
  negatives are the other rows. With logits l = logit_scale cosine + logit_bias,

  .. math::
    \ell = \log(1 + e^{-l^+}) + N \sum_j q_j \log(1 + e^{l_j}), \qquad
    q_j \propto e^{\beta\, \mathrm{logit\_scale}\, c_j}.

  ``beta=0`` weights negatives equally: the mean over anchors is the loss of
  SigLIP, which is the same with the towers exchanged. Otherwise hard negatives
  count more, and for symmetry average both directions. Gradients flow through
  the weights. A zero embedding has cosine 0 to every other. An anchor without
  negatives (one pair, or all labels equal) has only the first term.

  See :func:`simclr_loss` on gradients with ``axis_name``.

  Args:
    z1: embeddings ``[batch, dim]``; need not be unit vectors.
    z2: embeddings of the other tower; row i belongs to row i of z1.
    logit_scale: factor of the cosines, > 0. May be traced and learned. It is
      the factor itself: if you learn its logarithm t', pass ``jnp.exp(t')``.
    logit_bias: added to all logits. May be traced and learned.
    beta: concentration of the tilt on scaled cosines, >= 0. May be traced. Its
      hardness on the cosine is ``beta * logit_scale``. 0 is SigLIP.
    labels: integers ``[batch]``; rows with the anchor's label are no
      negatives.
    axis_name: mapped axis over which the batch is split; negatives come from
      the global batch.
    mesh: mesh whose devices share the rows under ``jit``; see
      :func:`simclr_loss`.
    block_size: rows and columns of the similarity tiles. Tiles avoid the full
      similarity matrix in memory; value and gradient are the same. None: chosen
      by size. With ``axis_name``, blocks go around a ring of devices instead of
      being gathered. Forward-mode derivatives need the dense form,
      ``block_size >= batch``.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    One loss per anchor, ``[batch]``: the sum over its row.

  Example:
    >>> import jax.numpy as jnp
    >>> z = jnp.eye(4)
    >>> print(sigmoid_loss(z, z))
    [0.6932834 0.6932834 0.6932834 0.6932834]

  References:
    [1] Zhai et al., Sigmoid Loss for Language Image Pre-Training, 2023.
    [2] Robinson et al., Contrastive Learning with Hard Negative Samples, 2021.
  """
  z1, z2 = _checks.embeddings(z1=z1, z2=z2)
  _checks.logit_scale(logit_scale)
  _checks.number('logit_bias', logit_bias)
  _checks.beta(beta)
  if block_size is not None:
    _checks.positive_int('block_size', block_size)
  if labels is not None:
    labels = _checks.labels('labels', labels, z1.shape[:1])
  dtype = _vectors.compute_dtype(z1.dtype)
  hyperparameters = _Hyperparameters(
      *(jnp.asarray(x, dtype) for x in (logit_scale, logit_bias, beta))
  )
  batch = z1.shape[0]
  block = _blockwise.choose_block(batch, batch, block_size)
  return _mesh.call(
      _sigmoid_loss,
      _mesh.choose(mesh, axis_name, z1, tiled=block is not None),
      {
          'z1': z1,
          'z2': z2,
          'labels': labels,
          'hyperparameters': hyperparameters,
      },
      axis_name=axis_name,
      block_size=block_size,
      stop_gradient_weights=stop_gradient_weights,
  )


class _Hyperparameters(NamedTuple):
  scale: jax.Array
  bias: jax.Array
  beta: jax.Array


@functools.partial(
    jax.jit,
    static_argnames=('axis_name', 'block_size', 'stop_gradient_weights'),
)
def _sigmoid_loss(
    *, z1, z2, labels, hyperparameters, axis_name, block_size,
    stop_gradient_weights,
):  # fmt: skip
  rows, columns = _vectors.normalize(z1), _vectors.normalize(z2)
  positive = jnp.sum(rows * columns, axis=-1)
  row_ids = column_ids = _partners.row_ids(labels, z1.shape[0], axis_name)
  ring = axis_name is not None and block_size is not None
  if axis_name is not None and not ring:
    columns, column_ids = (
        lax.all_gather(x, axis_name, tiled=True) for x in (columns, column_ids)
    )
  block = _blockwise.choose_block(rows.shape[0], columns.shape[0], block_size)
  if ring:
    block = block_size
  if block is None:
    cosines = _vectors.inner_products(rows, columns)
    keep = row_ids[:, None] != column_ids[None, :]
    negatives = _dense(cosines, keep, hyperparameters, stop_gradient_weights)
  else:
    inputs = _Inputs(
        _columns.Columns(rows, columns, row_ids, column_ids), hyperparameters
    )
    scan = _Scan(block, stop_gradient_weights, axis_name if ring else None)
    negatives = _tiled(_devices.same_varying(inputs), scan)
  scale, bias, _ = hyperparameters
  return jax.nn.softplus(-(scale * positive + bias)) + negatives


# --- Terms of a tile --------------------------------------------------------


class _Terms(NamedTuple):
  """Terms of cosines relative to the peak of their row."""

  softplus: jax.Array
  drop: jax.Array  # softplus minus that of the peak
  sigmoid: jax.Array
  below: jax.Array  # cosine minus peak; 0 where it does not count
  tilt: jax.Array  # e^{beta scale below}; 0 where it does not count


def _terms(c, peak, keep, hyperparameters, way):
  """Computes terms of cosines ``[rows, n]`` from ``peak``, ``[rows]``."""
  scale, bias, beta = hyperparameters
  peak = peak[:, None]
  # A masked cosine may be far above the peak: 0 * inf is NaN.
  below = _kept(c - peak, keep)
  depth = scale * below
  logits, top = scale * c + bias, scale * peak + bias
  above = logits > 0
  # In this form the slopes at 0 are right, too.
  power = jnp.exp(jnp.where(above, -logits, logits))
  rest = jnp.log1p(power)
  # A positive logit is above 0 by less than its peak: compute from `below`.
  drop = jnp.where(
      above, depth - jax.nn.softplus(-top), -jax.nn.softplus(top)
  )
  drop = drop + rest
  if way == _EXACT:
    near = depth > -0.5
    rise = jax.nn.sigmoid(top) * jnp.expm1(jnp.where(near, depth, 0))
    drop = jnp.where(near, jnp.log1p(rise), drop)
  tilt = jnp.ones_like(c) if way == _PLAIN else jnp.exp(beta * depth)
  return _Terms(
      jnp.where(above, logits, 0) + rest,
      drop,
      jnp.where(above, 1, power) / (1 + power),
      below,
      _kept(tilt, keep),
  )


def _way(beta):
  tilted = jnp.where(beta <= _MAX_BETA, _TILTED, _EXACT)
  return jnp.where(beta == 0, _PLAIN, tilted)


def _kept(values, keep):
  return values if keep is None else jnp.where(keep, values, 0)


def _nonzero(x):
  return jnp.where(x == 0, 1, x)


# --- Dense ------------------------------------------------------------------


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _dense(cosines, keep, hyperparameters, frozen):
  """Returns N E_q[softplus] of the kept cosines of each row."""
  del frozen
  terms, number, low = _dense_terms(cosines, keep, hyperparameters)
  # At beta = 0 the factor is exactly 1.
  return number / low * jnp.sum(terms.tilt * terms.softplus, axis=1)


def _dense_terms(cosines, keep, hyperparameters):
  peak = jnp.max(jnp.where(keep, cosines, _BELOW_COSINES), axis=1)
  terms = _terms(cosines, stop_gradient(peak), keep, hyperparameters, _EXACT)
  number = jnp.sum(keep, axis=1, dtype=cosines.dtype)
  return terms, number, _nonzero(jnp.sum(terms.tilt, axis=1))


@_dense.defjvp
def _dense_jvp(frozen, primals, tangents):
  cosines, keep, hyperparameters = primals
  d_cosines, _, (d_scale, d_bias, d_beta) = tangents
  scale, _, beta = hyperparameters
  terms, number, low = _dense_terms(cosines, keep, hyperparameters)
  factor = (number / low)[:, None] * terms.tilt
  if frozen:
    factor = stop_gradient(factor)
  d_scaled = scale * d_cosines + d_scale * cosines
  tangent = jnp.sum(factor * terms.sigmoid * (d_scaled + d_bias), axis=1)
  if not frozen:
    mean_drop = jnp.sum(terms.tilt * terms.drop, axis=1) / low
    gain = factor * (terms.drop - mean_drop[:, None])
    d_tilt = scale * d_cosines + d_scale * terms.below
    d_tilt = beta * d_tilt + d_beta * scale * terms.below
    tangent += jnp.sum(gain * d_tilt, axis=1)
  return _dense(cosines, keep, hyperparameters, frozen), tangent


# --- Tiles ------------------------------------------------------------------


class _Scan(NamedTuple):
  """Static settings of a scan over the tiles."""

  block: int
  frozen: bool
  axis_name: str | None


class _Inputs(NamedTuple):
  columns: _columns.Columns
  hyperparameters: _Hyperparameters


class _Fold(NamedTuple):
  """Sums over a row's negatives so far, with terms relative to its peak."""

  peak: jax.Array  # largest cosine, or an upper bound of it
  number: jax.Array  # number of negatives
  low: jax.Array  # sum of tilts
  total: jax.Array  # sum of tilt * softplus
  drop: jax.Array  # sum of tilt * drop


class _Side(NamedTuple):
  """Residuals of the rows of a tile."""

  factor: jax.Array  # cotangent * N / sum of tilts
  peak: jax.Array
  mean_drop: jax.Array


def _fold_tile(fold, c, keep, hyperparameters):
  """Adds a tile to the stacked folds of its rows."""

  def plain(fold, c, keep):
    # All tiles are folded relative to 1 then, so it is the peak so far.
    peak = jnp.ones_like(fold[0])
    terms = _terms(c, peak, keep, hyperparameters, _PLAIN)
    count = jnp.sum(terms.tilt, axis=1)
    total = jnp.sum(_kept(terms.softplus, keep), axis=1)
    # Only the gradient by beta needs the drops, and it is not tilted, either.
    top = jax.nn.softplus(hyperparameters.scale + hyperparameters.bias)
    sums = fold[1:] + jnp.stack([count, count, total, total - count * top])
    return _devices.varying_as(jnp.concatenate([peak[None], sums]), c)

  def tilted(way, fold, c, keep):
    fold = _Fold(*fold)
    peak = jnp.max(
        c if keep is None else jnp.where(keep, c, _BELOW_COSINES), axis=1
    )
    peak = jnp.maximum(fold.peak, peak)
    added = _sums(_terms(c, peak, keep, hyperparameters, way), peak, keep)
    before = _lower(fold, peak, hyperparameters)
    sums = [x + y for x, y in zip(before[1:], added[1:], strict=True)]
    return _devices.varying_as(jnp.stack([peak, *sums]), c)

  ways = (
      plain,
      functools.partial(tilted, _TILTED),
      functools.partial(tilted, _EXACT),
  )
  return lax.switch(_way(hyperparameters.beta), ways, fold, c, keep)


def _sums(terms, peak, keep):
  count = _kept(jnp.ones_like(terms.tilt), keep)
  return _Fold(
      peak,
      jnp.sum(count, axis=1),
      jnp.sum(terms.tilt, axis=1),
      jnp.sum(terms.tilt * terms.softplus, axis=1),
      jnp.sum(terms.tilt * terms.drop, axis=1),
  )


def _lower(fold, peak, hyperparameters):
  """Returns a fold relative to a peak that is not below its own."""
  terms = _terms(fold.peak[:, None], peak, None, hyperparameters, _EXACT)
  tilt, drop = terms.tilt[:, 0], terms.drop[:, 0]
  return _Fold(
      peak,
      fold.number,
      tilt * fold.low,
      tilt * fold.total,
      tilt * (fold.drop + drop * fold.low),
  )


def _tile_cotangents(side, c, keep, hyperparameters, frozen):
  """Computes cotangents of a tile's cosines and of the hyperparameters."""
  scale, _, beta = hyperparameters

  def cotangents(way, side, c, keep):
    side = _Side(*side)
    terms = _terms(c, side.peak, keep, hyperparameters, way)
    factor = side.factor[:, None] * terms.tilt
    direct = factor * terms.sigmoid
    to_scale, to_bias = jnp.sum(direct * c), jnp.sum(direct)
    if frozen:
      return scale * direct, to_scale, to_bias, jnp.zeros_like(beta)
    gain = factor * (terms.drop - side.mean_drop[:, None])
    spread = jnp.sum(gain * terms.below)
    to_logits = direct if way == _PLAIN else direct + beta * gain
    to_scale = to_scale + beta * spread
    return scale * to_logits, to_scale, to_bias, scale * spread

  ways = [functools.partial(cotangents, x) for x in (_PLAIN, _TILTED, _EXACT)]
  return lax.switch(_way(beta), ways, side, c, keep)


def _tiled_primal(inputs, scan):
  return _tiled_fwd(inputs, scan)[0]


_tiled = jax.custom_vjp(_tiled_primal, nondiff_argnums=(1,))


def _tiled_fwd(inputs, scan):
  rows, hyperparameters = inputs.columns.rows, inputs.hyperparameters
  tiles = _columns.split(inputs.columns, scan.block)
  zeros = jnp.zeros(tiles.rows.shape[:2], rows.dtype)
  empty = jnp.stack(_Fold(zeros + _BELOW_COSINES, *[zeros] * 4), axis=1)
  folds = _columns.fold(
      tiles,
      _devices.varying_as(empty, rows),
      lambda fold, c, keep, _: _fold_tile(fold, c, keep, hyperparameters),
      scan.axis_name,
  )
  peak, number, low, total, drop = (
      _blocks.join(folds[:, k], rows.shape[0]) for k in range(5)
  )
  low = _nonzero(low)
  factor = number / low
  return factor * total, (inputs, _Side(factor, peak, drop / low))


def _tiled_bwd(scan, residuals, cotangent):
  (columns, hyperparameters), side = residuals
  side = side._replace(factor=cotangent * side.factor)
  tiles = _columns.split(columns, scan.block)
  block = tiles.rows.shape[1]

  def tile_cotangents(side, c, keep, _):
    return _tile_cotangents(side, c, keep, hyperparameters, scan.frozen)

  to_hyperparameters, to_rows, to_columns = _columns.cotangents(
      tiles,
      columns,
      jnp.stack([_blocks.split(x, block) for x in side], axis=1),
      [jnp.zeros_like(x) for x in hyperparameters],
      tile_cotangents,
      scan.axis_name,
  )
  return (
      _Inputs(
          _columns.Columns(to_rows, to_columns),
          _Hyperparameters(*to_hyperparameters),
      ),
  )


_tiled.defvjp(_tiled_fwd, _tiled_bwd)
