# SPDX-License-Identifier: Apache-2.0
r"""Computes negatives of cosine losses without the full similarity matrix.

Tiles of ``block`` x ``block`` similarities are computed, folded into the row
sums of :class:`tilting.Fold` and dropped; the derivative computes them again.
Two scans over tiles serve every loss:

* :func:`gram_negatives`: all rows against each other. The Gram matrix is
  symmetric, so each unordered pair of blocks is visited once, for both its
  rows and its columns.
* :func:`column_negatives`: rows against other columns. With ``axis_name``, the
  columns go around a ring of devices.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
from jax.lax import stop_gradient
import jax.numpy as jnp
import numpy as np

from hcl_jax import _vectors
from hcl_jax.losses import _columns
from hcl_jax.losses import _devices
from hcl_jax.losses import _nce
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


def gram_negatives(
    z1: jax.Array,
    z2: jax.Array,
    labels: jax.Array | None,
    *,
    scale: jax.Array,
    beta: jax.Array,
    block: int,
    stop_gradient_weights: bool = False,
) -> tuple[jax.Array, _nce.Negatives]:
  """Computes positives and negatives of both views of every pair.

  Args:
    z1: unit vectors, ``[batch, dim]``.
    z2: the other view, ``[batch, dim]``.
    labels: integers ``[batch]``; rows of equal label are no negatives. None:
      the row number.
    scale: 1 / temperature.
    beta: concentration.
    block: rows of a tile.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    The positive's cosine and the negatives, each ``[2 * batch]``: rows of z1,
    then rows of z2.
  """
  batch, dim = z1.shape
  # Both views of a pair in adjacent rows: a pair never spans two blocks.
  z = jnp.stack([z1, z2], axis=1).reshape(2 * batch, dim)
  masked = labels is not None
  labels = jnp.arange(batch, dtype=jnp.int32) if labels is None else labels
  ids = jnp.repeat(labels, 2, total_repeat_length=2 * batch)
  scan = _Scan(
      block=2 * _tiles.even_block(batch, max(block // 2, 1)),
      masked=masked,
      frozen=stop_gradient_weights,
  )
  outputs = _gram(*_devices.same_varying((z, ids, scale, beta)), scan)
  peak, log_mean, count, positive = (
      x.reshape(batch, 2).T.reshape(2 * batch) for x in outputs
  )
  peak, count = stop_gradient((peak, count))
  return positive, _nce.Negatives(peak, log_mean, jnp.log(count))


def column_negatives(
    rows: jax.Array,
    columns: jax.Array,
    *,
    scale: jax.Array,
    beta: jax.Array,
    block: int,
    row_ids: jax.Array | None = None,
    column_ids: jax.Array | None = None,
    where: jax.Array | None = None,
    own: jax.Array | None = None,
    axis_name: str | None = None,
    stop_gradient_weights: bool = False,
) -> _nce.Negatives:
  """Computes negatives of rows among columns.

  Args:
    rows: unit vectors ``[batch, dim]``.
    columns: unit vectors ``[n, dim]``.
    scale: 1 / temperature.
    beta: concentration.
    block: rows and columns of a tile.
    row_ids: integers ``[batch]``; with ``column_ids``, columns of equal id are
      no negatives.
    column_ids: ids of the first m <= n columns, integers ``[m]``; the other
      columns are negatives of every row.
    where: columns to count, ``[batch or 1, n]``; not with ``axis_name``.
    own: cosines of further negatives of each row alone, ``[batch, k]``.
    axis_name: mapped axis; columns (and their ids) of all devices go around its
      ring, so that each row is compared with all columns.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    The negatives, each ``[batch]``.
  """
  scan = _Scan(
      block=block,
      masked=row_ids is not None,
      frozen=stop_gradient_weights,
      axis_name=axis_name,
  )
  inputs = _ColumnInputs(
      _columns.Columns(rows, columns, row_ids, column_ids, where),
      own,
      scale,
      beta,
  )
  peak, log_mean, count = _negatives(_devices.same_varying(inputs), scan)
  peak, count = stop_gradient((peak, count))
  return _nce.Negatives(peak, log_mean, jnp.log(count))


# --- Scans over the tiles ---------------------------------------------------


class _Scan(NamedTuple):
  """Static settings of a scan over the tiles."""

  block: int
  masked: bool
  frozen: bool
  axis_name: str | None = None


def _gram_primal(z, ids, scale, beta, scan):
  return _gram_fwd(z, ids, scale, beta, scan)[0]


_gram = jax.custom_vjp(_gram_primal, nondiff_argnums=(4,))


def _gram_tiles(z, ids, scan):
  """Returns blocks, pairs of different blocks, and masks of a tile."""
  n, block = z.shape[0], scan.block
  blocks, id_blocks = _tiles.blocks(z, block), _tiles.blocks(ids, block)
  k = blocks.shape[0]
  row = np.arange(block)
  pair = row[:, None] == (row ^ 1)[None, :]
  pairs = _tiles.pairs_of_blocks(k)

  def keep(i, j):
    differ = id_blocks[i][:, None] != id_blocks[j][None, :]
    if n % block:
      inside = jnp.arange(k * block).reshape(k, block) < n
      differ &= inside[i][:, None] & inside[j][None, :]
    return differ

  # Off the diagonal there is no self or partner to mask.
  off_keep = keep if scan.masked or n % block else lambda i, j: None
  return blocks, pairs, pair, keep, off_keep


def _gram_fwd(z, ids, scale, beta, scan):
  n = z.shape[0]
  blocks, pairs, pair, keep, off_keep = _gram_tiles(z, ids, scan)
  k = blocks.shape[0]

  def diagonal(_, i):
    c = _vectors.inner_products(blocks[i], blocks[i])
    empty = _tiles.nothing(scan.block, z)
    (fold,) = _tiles.fold_tile((empty,), c, keep(i, i), scale, beta)
    return None, (fold, jnp.sum(jnp.where(pair, c, 0), axis=1))

  def off(folds, ij):
    i, j = ij
    c = _vectors.inner_products(blocks[i], blocks[j])
    row, column = _tiles.fold_tile(
        (folds[i], folds[j]), c, off_keep(i, j), scale, beta, axes=(1, 0)
    )
    return folds.at[i].set(row).at[j].set(column)

  _, (folds, positive) = lax.scan(diagonal, None, jnp.arange(k))
  folds = _tiles.visit(off, folds, *pairs)
  folds = tilting.Fold(*(_tiles.unblock(folds[:, k], n) for k in range(5)))
  log_mean = tilting.log_mean(*folds[2:])
  outputs = folds.peak, log_mean, folds.number, _tiles.unblock(positive, n)
  return outputs, (z, ids, scale, beta, folds.peak, folds.low, log_mean)


def _gram_bwd(scan, residuals, cotangents):
  z, ids, scale, beta, peak, low, log_mean = residuals
  _, cotangent, _, positive_cotangent = cotangents
  n = z.shape[0]
  blocks, pairs, pair, keep, off_keep = _gram_tiles(z, ids, scan)
  transposed = jnp.swapaxes(blocks, 1, 2)
  side = _tiles.Side.of(cotangent, peak, low, log_mean)
  sides = side.in_blocks(scan.block)
  positive = _tiles.blocks(positive_cotangent, scan.block)

  def diagonal(sums, i):
    zi = blocks[i]
    to_c, *parts = _tiles.tile_cotangents(
        (sides[i], sides[i]),
        _vectors.inner_products(zi, zi),
        keep(i, i),
        scale,
        beta,
        frozen=scan.frozen,
        axes=(1, 0),
    )
    p = positive[i]
    to_c = jnp.where(pair, p[:, None] + p[None, :], to_c)
    # The tile has both triangles, so scale and beta were counted twice.
    sums = [s + x / 2 for s, x in zip(sums, parts, strict=True)]
    return sums, _vectors.product(to_c, zi)

  def off(carry, ij):
    sums, rows, columns = carry
    i, j = ij
    to_c, *parts = _tiles.tile_cotangents(
        (sides[i], sides[j]),
        _vectors.inner_products(blocks[i], blocks[j]),
        off_keep(i, j),
        scale,
        beta,
        frozen=scan.frozen,
        axes=(1, 0),
    )
    sums = [s + x for s, x in zip(sums, parts, strict=True)]
    rows = rows.at[i].add(_vectors.product(to_c, blocks[j]))
    # Transposed sums: XLA:CPU takes twice as long for a transposed left factor.
    columns = columns.at[j].add(_vectors.product(transposed[i], to_c))
    return sums, rows, columns

  sums = [_devices.varying_as(jnp.zeros_like(x), z) for x in (scale, beta)]
  sums, rows = lax.scan(diagonal, sums, jnp.arange(blocks.shape[0]))
  columns = _devices.varying_as(jnp.zeros_like(transposed), z)
  sums, rows, columns = _tiles.visit(off, (sums, rows, columns), *pairs)
  to_z = _tiles.unblock(rows + jnp.swapaxes(columns, 1, 2), n)
  to_scale = sums[0] + jnp.sum(cotangent * (1 - peak))
  return to_z, None, to_scale, sums[1]


_gram.defvjp(_gram_fwd, _gram_bwd)


class _ColumnInputs(NamedTuple):
  """Arguments of :func:`column_negatives` that are arrays or None."""

  columns: _columns.Columns
  own: jax.Array | None
  scale: jax.Array
  beta: jax.Array


def _negatives_primal(inputs, scan):
  return _negatives_fwd(inputs, scan)[0]


_negatives = jax.custom_vjp(_negatives_primal, nondiff_argnums=(1,))


def _negatives_fwd(inputs, scan):
  rows, own, scale, beta = inputs.columns.rows, *inputs[1:]
  tiles = _columns.split(inputs.columns, scan.block)

  def fold_tile(fold, c, keep):
    return _tiles.fold_tile((fold,), c, keep, scale, beta)[0]

  empty = _tiles.nothing(tiles.rows.shape[:2], rows)
  folds = _columns.fold(
      tiles, jnp.swapaxes(empty, 0, 1), fold_tile, scan.axis_name
  )
  folds = tilting.Fold(
      *(_tiles.unblock(folds[:, k], rows.shape[0]) for k in range(5))
  )
  if own is not None:
    mine = tilting.fold(own, scale, beta, None)
    folds = tilting.merge(folds, mine, scale, beta)
  log_mean = tilting.log_mean(*folds[2:])
  residuals = inputs, folds.peak, folds.low, log_mean
  return (folds.peak, log_mean, folds.number), residuals


def _negatives_bwd(scan, residuals, cotangents):
  inputs, peak, low, log_mean = residuals
  columns, own, scale, beta = inputs
  _, cotangent, _ = cotangents
  tiles = _columns.split(columns, scan.block)
  side = _tiles.Side.of(cotangent, peak, low, log_mean)
  tile_cotangents = functools.partial(
      _tiles.tile_cotangents, scale=scale, beta=beta, frozen=scan.frozen
  )
  (to_scale, to_beta), to_rows, to_columns = _columns.cotangents(
      tiles,
      columns,
      side.in_blocks(tiles.rows.shape[1]),
      [jnp.zeros_like(x) for x in (scale, beta)],
      lambda side, c, keep: tile_cotangents((side,), c, keep),
      scan.axis_name,
  )
  to_own = None
  if own is not None:
    to_own, own_scale, own_beta = tile_cotangents((side,), own, None)
    to_scale, to_beta = to_scale + own_scale, to_beta + own_beta
  to_scale += jnp.sum(cotangent * (1 - peak))
  to_columns = _columns.Columns(to_rows, to_columns)
  return (_ColumnInputs(to_columns, to_own, to_scale, to_beta),)


_negatives.defvjp(_negatives_fwd, _negatives_bwd)
