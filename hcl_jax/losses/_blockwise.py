# SPDX-License-Identifier: Apache-2.0
r"""Computes negatives of cosine losses without the full similarity matrix.

Tiles of ``block`` x ``block`` similarities of rows and columns are computed,
folded into the row sums of :class:`tilting.Fold` and dropped; the derivative
computes them again. With ``axis_name``, columns go around a ring of devices.
Rows against each other, and both directions at once, have scans of their own:
``_gram`` and ``_bidirectional``.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
from jax.lax import stop_gradient
import jax.numpy as jnp

from hcl_jax import _blocks
from hcl_jax import _devices
from hcl_jax.losses import _columns
from hcl_jax.losses import _nce
from hcl_jax.losses import _perplexity
from hcl_jax.losses import _tiles
from hcl_jax.losses import tilting


def choose_block(
    rows: int, columns: int, block_size: int | None
) -> int | None:
  """Returns the block size, or None if the dense matrix is faster."""
  if block_size is not None:
    return None if block_size >= max(rows, columns) else block_size
  on_cpu = jax.default_backend() == 'cpu'
  if rows * columns <= (2**18 if on_cpu else 2**24):
    return None
  return 256 if on_cpu else 2048


def column_negatives(
    columns: _columns.Columns,
    *,
    scale: jax.Array,
    beta: jax.Array,
    block: int,
    own: jax.Array | None = None,
    own_where: jax.Array | None = None,
    axis_name: str | None = None,
    normalized: bool = True,
    stop_gradient_weights: bool = False,
) -> _nce.Negatives:
  """Computes negatives of rows among columns.

  Args:
    columns: rows and columns, and which of them count.
    scale: 1 / temperature.
    beta: concentration, a scalar or ``[batch]``.
    block: rows and columns of a tile.
    own: cosines of further negatives of each row alone, ``[batch, k]``.
    own_where: which of these count, ``[batch, k]``; None: all.
    axis_name: mapped axis; columns (and what belongs to them) of all devices go
      around its ring, so that each row is compared with all columns.
    normalized: whether rows and columns are unit vectors.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    The negatives, each ``[batch]``.
  """
  scan = _Scan(
      block=block,
      masked=columns.row_ids is not None,
      frozen=stop_gradient_weights,
      axis_name=axis_name,
      normalized=normalized,
  )
  inputs = _ColumnInputs(columns, own, own_where, scale, beta)
  peak, log_mean, count = _negatives(_devices.same_varying(inputs), scan)
  peak, count = stop_gradient((jnp.where(count > 0, peak, 0), count))
  return _nce.Negatives(peak, log_mean, jnp.log(count))


def negatives_of(
    columns: _columns.Columns,
    hyperparameters: _nce.Hyperparameters,
    *,
    cosines: jax.Array | None,
    block: int | None,
    own: jax.Array | None = None,
    own_where: jax.Array | None = None,
    axis_name: str | None = None,
    normalized: bool = True,
    stop_gradient_weights: bool = False,
) -> _nce.Negatives:
  """Computes negatives from cosines in memory, or by tiles of ``block``.

  Other arguments are those of :func:`column_negatives`.
  """
  scale, beta, *_ = with_beta(
      columns,
      hyperparameters,
      cosines=cosines,
      block=block,
      own=own,
      own_where=own_where,
      axis_name=axis_name,
      normalized=normalized,
  )
  if block is not None:
    return column_negatives(
        columns,
        scale=scale,
        beta=beta,
        block=block,
        own=own,
        own_where=own_where,
        axis_name=axis_name,
        normalized=normalized,
        stop_gradient_weights=stop_gradient_weights,
    )
  assert cosines is not None
  keep = _columns.mask(columns, cosines)
  if own is not None:
    if keep is not None or own_where is not None:
      parts = [
          jnp.broadcast_to(True if x is None else x, like.shape)
          for x, like in ((keep, cosines), (own_where, own))
      ]
      keep = jnp.concatenate(parts, axis=1)
    cosines = jnp.concatenate([cosines, own], axis=1)
  return _nce.dense_negatives(
      cosines, scale, beta, keep, stop_gradient_weights=stop_gradient_weights
  )


def with_beta(
    columns: _columns.Columns,
    hyperparameters: _nce.Hyperparameters,
    **given: Any,
) -> _nce.Hyperparameters:
  """Replaces effective_negatives, if given, by the betas of the rows.

  Arguments are those of :func:`_perplexity.of_columns`.
  """
  fraction = hyperparameters.effective_negatives
  if fraction is None:
    return hyperparameters
  beta = _perplexity.of_columns(
      columns, fraction=fraction, scale=hyperparameters.scale, **given
  )
  return hyperparameters._replace(beta=beta, effective_negatives=None)


# --- Scans over the tiles ---------------------------------------------------


class _Scan(NamedTuple):
  """Static settings of a scan over the tiles."""

  block: int
  masked: bool
  frozen: bool
  axis_name: str | None = None
  normalized: bool = True


class _ColumnInputs(NamedTuple):
  """Arguments of :func:`column_negatives` that are arrays or None."""

  columns: _columns.Columns
  own: jax.Array | None
  own_where: jax.Array | None
  scale: jax.Array
  beta: jax.Array


def _negatives_primal(inputs, scan):
  return _negatives_fwd(inputs, scan)[0]


_negatives = jax.custom_vjp(_negatives_primal, nondiff_argnums=(1,))


def _beta_of_rows(beta, tiles):
  """Returns a function from a block of rows to its beta, as tiles take it."""
  if not beta.ndim:
    return lambda i: beta
  blocks = _blocks.split(beta, tiles.rows.shape[1])
  return lambda i: (blocks[i],)


def _negatives_fwd(inputs, scan):
  rows, own, own_where, scale, beta = inputs.columns.rows, *inputs[1:]
  tiles = _columns.split(inputs.columns, scan.block)
  beta_of = _beta_of_rows(beta, tiles)

  def fold_tile(fold, c, keep, i):
    return _tiles.fold_tile(
        (fold,), c, keep, scale, beta_of(i), normalized=scan.normalized
    )[0]

  empty = _tiles.nothing(tiles.rows.shape[:2], rows, scan.normalized)
  folds = _columns.fold(
      tiles, jnp.swapaxes(empty, 0, 1), fold_tile, scan.axis_name
  )
  folds = tilting.Fold(
      *(_blocks.join(folds[:, k], rows.shape[0]) for k in range(5))
  )
  if own is not None:
    across = beta[:, None] if beta.ndim else beta
    lowest = _tiles.lowest(scan.normalized)
    mine = tilting.fold(own, scale, across, own_where, lowest=lowest)
    folds = tilting.merge(folds, mine, scale, beta)
  log_mean = tilting.log_mean(*folds[2:])
  residuals = inputs, folds.peak, folds.low, log_mean
  return (folds.peak, log_mean, folds.number), residuals


def _negatives_bwd(scan, residuals, cotangents):
  inputs, peak, low, log_mean = residuals
  columns, own, own_where, scale, beta = inputs
  _, cotangent, _ = cotangents
  tiles = _columns.split(columns, scan.block)
  beta_of = _beta_of_rows(beta, tiles)
  side = _tiles.Side.of(cotangent, peak, low, log_mean)
  tile_cotangents = functools.partial(
      _tiles.tile_cotangents,
      scale=scale,
      frozen=scan.frozen,
      normalized=scan.normalized,
  )

  def to_tile(side, c, keep, i):
    to_c, to_scale, to_beta = tile_cotangents((side,), c, keep, beta=beta_of(i))
    return to_c, to_scale, *jax.tree.leaves(to_beta)

  zeros = jnp.zeros_like(tiles.rows, shape=tiles.rows.shape[: 2 * beta.ndim])
  (to_scale, to_beta), to_rows, to_columns = _columns.cotangents(
      tiles,
      columns,
      side.in_blocks(tiles.rows.shape[1]),
      [jnp.zeros_like(scale), zeros],
      to_tile,
      scan.axis_name,
  )
  if beta.ndim:
    to_beta = _blocks.join(to_beta, beta.shape[0])
  to_own = None
  if own is not None:
    to_own, own_scale, own_beta = tile_cotangents(
        (side,), own, own_where, beta=(beta,) if beta.ndim else beta
    )
    (own_beta,) = jax.tree.leaves(own_beta)
    to_scale, to_beta = to_scale + own_scale, to_beta + own_beta
  if scan.normalized:
    to_scale += jnp.sum(cotangent * (1 - peak))
  to_columns = _columns.Columns(to_rows, to_columns)
  return (_ColumnInputs(to_columns, to_own, None, to_scale, to_beta),)


_negatives.defvjp(_negatives_fwd, _negatives_bwd)
