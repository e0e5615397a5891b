# SPDX-License-Identifier: Apache-2.0
"""Computes the negatives of rows and of columns from one similarity matrix.

Row i and column i are partners; the other columns are the negatives of row i,
the other rows those of column i. A tile is folded along both axes, and its
cotangent is the sum of both directions'. With ``axis_name``, columns go around
a ring of devices; the folds of columns and their cotangents follow them and
come home.
"""

import functools
from typing import NamedTuple

import jax
from jax.lax import stop_gradient
import jax.numpy as jnp

from hcl_jax import _blocks
from hcl_jax import _devices
from hcl_jax import _vectors
from hcl_jax.losses import _columns
from hcl_jax.losses import _nce
from hcl_jax.losses import _tiles
from hcl_jax.losses import tilting


def negatives(
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
) -> tuple[_nce.Negatives, _nce.Negatives]:
  """Computes the negatives of rows and of columns by tiles.

  Args:
    columns: rows, columns, and which of them count for each other. The first
      columns are the partners of the rows; further ones are negatives of rows
      only.
    scale: 1 / temperature.
    beta: concentration, a scalar or ``[2 * batch]``, that of rows first.
    block: rows and columns of a tile.
    own: scores of further negatives of each row alone, ``[batch, k]``.
    own_where: which of these count, ``[batch, k]``; None: all.
    axis_name: mapped axis; columns of all devices go around its ring.
    normalized: whether rows and columns are unit vectors.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    The negatives of rows and those of their partners, each ``[batch]``.
  """
  scan = _Scan(block, normalized, stop_gradient_weights, axis_name)
  inputs = _Inputs(columns, own, own_where, scale, beta)
  found = []
  for peak, log_mean, count in _scan(_devices.same_varying(inputs), scan):
    peak, count = stop_gradient((jnp.where(count > 0, peak, 0), count))
    found.append(_nce.Negatives(peak, log_mean, jnp.log(count)))
  rows, partners = found
  return rows, partners


def dense_negatives(
    scores: jax.Array,
    keep: jax.Array | tuple[jax.Array | None, ...] | None,
    *,
    scale: jax.Array,
    beta: jax.Array,
    normalized: bool,
    stop_gradient_weights: bool,
) -> tuple[_nce.Negatives, _nce.Negatives]:
  """Computes the negatives of rows and of columns from scores in memory.

  Args:
    scores: ``[batch, n]``, n >= batch.
    keep: mask of the scores, or masks for rows and for columns.
    scale: see :func:`negatives`, as for the following.
    beta: see there.
    normalized: see there.
    stop_gradient_weights: see there.

  Returns:
    The negatives of rows, ``[batch]``, and of columns, ``[n]``.
  """
  betas = beta
  if beta.ndim:
    rows, columns = jnp.split(beta, 2)
    missing = scores.shape[1] - columns.shape[0]
    betas = rows, jnp.pad(columns, (0, missing))
  inputs = _devices.same_varying((scores, keep, scale, betas))
  found = []
  for peak, log_mean, count in _dense(
      *inputs, stop_gradient_weights, normalized
  ):
    peak = jnp.where(count > 0, peak, 0)
    found.append(_nce.Negatives(peak, log_mean, jnp.log(count)))
  rows, columns = found
  return rows, columns


@functools.partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def _dense(scores, keep, scale, beta, frozen, normalized):
  """Returns (peak, log_mean, number) of rows and of columns."""
  del frozen
  return _summaries(_folds(scores, keep, scale, beta, normalized))


def _folds(scores, keep, scale, beta, normalized):
  """Folds scores in memory along both axes."""
  empty = [_tiles.nothing((x,), scores, normalized) for x in scores.shape]
  folds = _tiles.fold_tile(
      empty, scores, keep, scale, beta, axes=(1, 0), normalized=normalized
  )
  return [tilting.Fold(*x) for x in folds]


def _summaries(folds):
  return tuple((x.peak, tilting.log_mean(*x[2:]), x.number) for x in folds)


@_dense.defjvp
def _dense_jvp(frozen, normalized, primals, tangents):
  scores, keep, scale, beta = primals
  d_scores, _, d_scale, d_beta = tangents
  folds = _folds(scores, keep, scale, beta, normalized)
  found = _summaries(folds)
  sides = []
  for fold, (peak, log_mean, _) in zip(folds, found, strict=True):
    low = stop_gradient(fold.low) if frozen else fold.low
    sides.append(_tiles.Side.of(jnp.zeros_like(low), peak, low, log_mean))
  slopes = _tiles.tile_slopes(
      sides, scores, keep, scale, beta, frozen=frozen, axes=(1, 0),
      normalized=normalized,
  )  # fmt: skip
  if not isinstance(d_beta, tuple):
    d_beta = d_beta, d_beta
  d_found = []
  for axis, (peak, _, number), (slope, gain), by_beta in zip(
      (1, 0), found, slopes, d_beta, strict=True
  ):
    below = scores - jnp.expand_dims(peak, axis)
    tangent = scale * jnp.sum(slope * d_scores, axis=axis)
    tangent += d_scale * jnp.sum(slope * below, axis=axis)
    if not frozen:
      tangent += by_beta * gain
    d_found.append((jnp.zeros_like(peak), tangent, jnp.zeros_like(number)))
  return found, tuple(d_found)


class _Scan(NamedTuple):
  """Static settings of a scan over the tiles."""

  block: int
  normalized: bool
  frozen: bool
  axis_name: str | None


class _Inputs(NamedTuple):
  """Arguments of :func:`negatives` that are arrays or None."""

  columns: _columns.Columns
  own: jax.Array | None
  own_where: jax.Array | None
  scale: jax.Array
  beta: jax.Array


class _Visiting(NamedTuple):
  """Columns with what belongs to their direction; both go round the ring."""

  columns: _columns.Visiting
  betas: jax.Array | None
  sides: jax.Array | None = None


def _tiles_of(inputs, scan):
  """Splits inputs; returns tiles, betas of rows and blocks that visit."""
  tiles = _columns.split(inputs.columns, scan.block)
  if not inputs.beta.ndim:
    return tiles, None, _Visiting(tiles.visiting, None)
  row_betas, column_betas = jnp.split(inputs.beta, 2)
  row_betas = _blocks.split(row_betas, tiles.rows.shape[1])
  column_betas = _in_column_blocks(tiles, column_betas)
  return tiles, row_betas, _Visiting(tiles.visiting, column_betas)


def _in_column_blocks(tiles, x, fill=0):
  """Splits what the first columns have, ``[m]``, as columns are."""
  k, block = tiles.visiting.blocks.shape[:2]
  missing = k * block - x.shape[0]
  return jnp.pad(x, (0, missing), constant_values=fill).reshape(k, block)


def _betas(beta, row_betas, visiting, i, j):
  """Returns beta of a tile, as tiles take it."""
  return beta if row_betas is None else (row_betas[i], visiting.betas[j])


def _scan_primal(inputs, scan):
  return _scan_fwd(inputs, scan)[0]


_scan = jax.custom_vjp(_scan_primal, nondiff_argnums=(1,))


def _scan_fwd(inputs, scan):
  rows, own, own_where, scale, beta = inputs.columns.rows, *inputs[1:]
  tiles, row_betas, visiting = _tiles_of(inputs, scan)
  bounded = _tiles.all_bounded(scale, beta, scan.axis_name)

  def nothing(blocks):
    empty = _tiles.nothing(blocks.shape[:2], rows, scan.normalized)
    return jnp.swapaxes(empty, 0, 1)

  def tile(visiting, folds, ij):
    (of_rows, of_columns), (i, j) = folds, ij
    c = _vectors.inner_products(tiles.rows[i], visiting.columns.blocks[j])
    row, column = _tiles.fold_tile(
        (of_rows[i], of_columns[j]),
        c,
        tiles.keep_both(i, j, visiting.columns, c),
        scale,
        _betas(beta, row_betas, visiting, i, j),
        axes=(1, 0),
        normalized=scan.normalized,
        bounded=bounded,
    )
    return of_rows.at[i].set(row), of_columns.at[j].set(column)

  def visit(of_rows, visiting):
    folds = of_rows, nothing(visiting.columns.blocks)
    step = functools.partial(tile, visiting)
    return _tiles.visit(step, folds, *tiles.schedule(visiting.columns))

  def merge(folds, others, visiting):
    old, new = (tilting.Fold(*jnp.swapaxes(x, 0, 1)) for x in (folds, others))
    along = beta if visiting.betas is None else visiting.betas
    return jnp.stack(tilting.merge(old, new, scale, along), axis=1)

  of_rows, of_columns = _devices.accumulate_ring(
      visit, merge, nothing(tiles.rows), visiting, scan.axis_name
  )
  batch = rows.shape[0]
  of_rows, of_columns = (
      tilting.Fold(*(_blocks.join(x[:, k], batch) for k in range(5)))
      for x in (of_rows, of_columns)
  )
  if own is not None:
    by_row = beta[:batch] if beta.ndim else beta
    across = by_row[:, None] if beta.ndim else beta
    lowest = _tiles.lowest(scan.normalized)
    mine = tilting.fold(own, scale, across, own_where, lowest=lowest)
    of_rows = tilting.merge(of_rows, mine, scale, by_row)
  log_means = [tilting.log_mean(*x[2:]) for x in (of_rows, of_columns)]
  found = tuple(
      (x.peak, log_mean, x.number)
      for x, log_mean in zip((of_rows, of_columns), log_means, strict=True)
  )
  lows = of_rows.low, of_columns.low
  return found, (inputs, found, lows)


def _scan_bwd(scan, residuals, cotangents):
  inputs, found, lows = residuals
  columns, own, own_where, scale, beta = inputs
  rows = columns.rows
  tiles, row_betas, visiting = _tiles_of(inputs, scan)
  sides = [
      _tiles.Side.of(cotangent, peak, low, log_mean)
      for (_, cotangent, _), (peak, log_mean, _), low in zip(
          cotangents, found, lows, strict=True
      )
  ]
  row_sides = sides[0].in_blocks(tiles.rows.shape[1])
  # Columns without a partner have cotangent 0.
  column_sides = jnp.stack(
      [
          _in_column_blocks(tiles, x, fill)
          for x, fill in zip(sides[1], _tiles.PADDING, strict=True)
      ],
      axis=1,
  )
  visiting = visiting._replace(sides=column_sides)
  transposed = jnp.swapaxes(tiles.rows, 1, 2)
  tile_cotangents = functools.partial(
      _tiles.tile_cotangents,
      scale=scale,
      frozen=scan.frozen,
      normalized=scan.normalized,
      bounded=_tiles.all_bounded(scale, beta, scan.axis_name),
  )

  def tile(visiting, carry, ij):
    (to_scale, to_beta, to_rows), (to_columns, to_betas) = carry
    i, j = ij
    block = visiting.columns.blocks[j]
    c = _vectors.inner_products(tiles.rows[i], block)
    to_c, scale_part, beta_part = tile_cotangents(
        (row_sides[i], visiting.sides[j]),
        c,
        tiles.keep_both(i, j, visiting.columns, c),
        beta=_betas(beta, row_betas, visiting, i, j),
        axes=(1, 0),
    )
    if row_betas is None:
      to_beta = to_beta + beta_part
    else:
      by_row, by_column = beta_part
      to_beta = to_beta.at[i].add(by_row)
      to_betas = to_betas.at[j].add(by_column)
    to_rows = to_rows.at[i].add(_vectors.product(to_c, block))
    # Transposed sums: XLA:CPU takes twice as long for a transposed left factor.
    to_columns = to_columns.at[j].add(_vectors.product(transposed[i], to_c))
    return (to_scale + scale_part, to_beta, to_rows), (to_columns, to_betas)

  def zeros(x):
    return _devices.varying_as(jax.tree.map(jnp.zeros_like, x), rows)

  def visit(carry, visiting):
    blocks = jnp.swapaxes(visiting.columns.blocks, 1, 2)
    return _tiles.visit(
        functools.partial(tile, visiting),
        (carry, zeros((blocks, visiting.betas))),
        *tiles.schedule(visiting.columns),
    )

  def add(sums, parts, _):
    return jax.tree.map(jnp.add, sums, parts)

  carry = zeros((scale, beta if row_betas is None else row_betas, tiles.rows))
  (to_scale, to_beta, to_rows), (to_columns, to_betas) = (
      _devices.accumulate_ring(visit, add, carry, visiting, scan.axis_name)
  )
  batch = rows.shape[0]
  to_own = None
  if row_betas is not None:
    to_beta, to_betas = (_blocks.join(x, batch) for x in (to_beta, to_betas))
  if own is not None:
    to_own, own_scale, own_beta = tile_cotangents(
        sides[:1],
        own,
        own_where,
        beta=(beta[:batch],) if beta.ndim else beta,
    )
    (own_beta,) = jax.tree.leaves(own_beta)
    to_scale, to_beta = to_scale + own_scale, to_beta + own_beta
  if row_betas is not None:
    to_beta = jnp.concatenate([to_beta, to_betas])
  if scan.normalized:
    for side in sides:
      to_scale += jnp.sum(side.cotangent * (1 - side.peak))
  to_columns = _blocks.join(
      jnp.swapaxes(to_columns, 1, 2), columns.columns.shape[0]
  )
  to_columns = _columns.Columns(_blocks.join(to_rows, batch), to_columns)
  return (_Inputs(to_columns, to_own, None, to_scale, to_beta),)


_scan.defvjp(_scan_fwd, _scan_bwd)
