# SPDX-License-Identifier: Apache-2.0
r"""Computes negatives of cosine losses without the full similarity matrix.

Tiles of ``block`` x ``block`` similarities are computed, folded into the row
sums of :class:`tilting.Fold` and dropped; the derivative computes them again.
Two scans over tiles serve every loss:

* :func:`gram_negatives`: all rows against each other. The Gram matrix is
  symmetric, so each unordered pair of blocks is visited once, for both its
  rows and its columns. With ``axis_name``, rows are gathered and devices share
  the pairs of blocks.
* :func:`column_negatives`: rows against other columns. With ``axis_name``, the
  columns go around a ring of devices.
"""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
from jax.lax import stop_gradient
import jax.numpy as jnp
import numpy as np

from hcl_jax import _blocks
from hcl_jax import _devices
from hcl_jax import _vectors
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


def gram_negatives(
    z1: jax.Array,
    z2: jax.Array,
    labels: jax.Array | None,
    *,
    scale: jax.Array,
    beta: jax.Array,
    block: int,
    limits: jax.Array | None = None,
    guide: tuple[jax.Array, ...] | None = None,
    axis_name: Any = None,
    stop_gradient_weights: bool = False,
) -> tuple[jax.Array, _nce.Negatives]:
  """Computes positives and negatives of both views of every pair.

  Args:
    z1: unit vectors, ``[batch, dim]``.
    z2: the other view, ``[batch, dim]``.
    labels: integers ``[batch]``; rows of equal label are no negatives. None:
      the row number.
    scale: 1 / temperature.
    beta: concentration, a scalar or ``[2 * batch]``.
    block: rows of a tile.
    limits: rows above this cosine are no negatives, ``[2 * batch]``.
    guide: unit vectors of both views whose cosines the limits are about.
    axis_name: mapped axis; negatives are those of all devices.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    The positive's cosine and the negatives, each ``[2 * batch]``: rows of z1,
    then rows of z2. Beta and limits have this order too.
  """
  batch = z1.shape[0]

  # Both views of a pair in adjacent rows: a pair never spans two blocks.
  def adjacent(x1, x2):
    return jnp.stack([x1, x2], axis=1).reshape(2 * batch, *x1.shape[1:])

  masked = labels is not None
  if labels is None:
    labels = jnp.arange(batch, dtype=jnp.int32)
    if axis_name is not None:
      labels += batch * lax.axis_index(axis_name)
  pairs = batch * _devices.axis_size(axis_name)
  scan = _Scan(
      block=2 * _blocks.even_block(pairs, max(block // 2, 1)),
      masked=masked,
      frozen=stop_gradient_weights,
      axis_name=axis_name,
  )
  inputs = _GramInputs(
      adjacent(z1, z2),
      adjacent(labels, labels),
      scale,
      adjacent(*jnp.split(beta, 2)) if beta.ndim else beta,
      None if limits is None else adjacent(*jnp.split(limits, 2)),
      None if guide is None else adjacent(*guide),
  )
  outputs = _gram(_devices.same_varying(inputs), scan)
  peak, log_mean, count, positive = (
      x.reshape(batch, 2).T.reshape(2 * batch) for x in outputs
  )
  peak, count = stop_gradient((peak, count))
  return positive, _nce.Negatives(peak, log_mean, jnp.log(count))


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


class _GramInputs(NamedTuple):
  """Arrays of :func:`gram_negatives`, with the views of a pair adjacent."""

  z: jax.Array
  ids: jax.Array | None  # None among cotangents
  scale: jax.Array
  beta: jax.Array
  limits: jax.Array | None
  guide: jax.Array | None


def _gram_primal(inputs, scan):
  return _gram_fwd(inputs, scan)[0]


_gram = jax.custom_vjp(_gram_primal, nondiff_argnums=(1,))


class _GramTiles(NamedTuple):
  """Blocks of rows, tiles of this device, and what belongs to a tile.

  A place is a pair of blocks and whether it is there: devices have the same
  number of tiles, and some of them one too many.
  """

  blocks: jax.Array
  diagonal: tuple[jax.Array, jax.Array]  # blocks, and whether they are there
  pairs: tuple[int, Callable[[jax.Array], tuple[Any, ...]]]
  partners: np.ndarray  # where the tiles of the diagonal have positives
  keep: Callable[..., Any]
  beta: Callable[..., Any]


def _gram_tiles(inputs, scan):
  z, ids, _, beta, limits, guide = _all_rows(inputs, scan.axis_name)
  n, block = z.shape[0], scan.block
  in_blocks = functools.partial(_blocks.split, block=block)
  blocks, id_blocks = in_blocks(z), in_blocks(ids)
  k = blocks.shape[0]
  row = np.arange(block)
  if limits is not None:
    limits = in_blocks(limits)
  if guide is not None:
    guide = in_blocks(guide)
  betas = in_blocks(beta) if beta.ndim else None

  def keep(i, j, there, c, axes, on_diagonal=False):
    kept = None
    # Off the diagonal there is no self or partner to mask.
    if on_diagonal or scan.masked:
      kept = id_blocks[i][:, None] != id_blocks[j][None, :]
    if scan.axis_name is not None:
      there = jnp.broadcast_to(there, c.shape)
      kept = there if kept is None else kept & there
    if n % block:
      inside = jnp.arange(k * block).reshape(k, block) < n
      inside = inside[i][:, None] & inside[j][None, :]
      kept = inside if kept is None else kept & inside
    if limits is None:
      return kept
    if guide is not None:
      c = _vectors.inner_products(guide[i], guide[j])
    low = {1: c <= limits[i][:, None], 0: c <= limits[j][None, :]}
    return tuple(
        low[axis] if kept is None else low[axis] & kept for axis in axes
    )

  def beta_of(i, j, axes):
    if betas is None:
      return beta
    return tuple(betas[i if axis == 1 else j] for axis in axes)

  number, place = _tiles.pairs_of_blocks(k)
  diagonal = jnp.arange(k), jnp.ones(k, bool)
  devices = _devices.axis_size(scan.axis_name)
  if scan.axis_name is None:
    pairs = number, lambda t: (*place(t), True)
  else:
    device = lax.axis_index(scan.axis_name)
    mine = device + devices * jnp.arange(-(-k // devices))
    diagonal = mine % k, mine < k

    def mine_of(t):
      t = device + devices * t
      return *place(jnp.minimum(t, number - 1)), t < number

    pairs = -(-number // devices), mine_of
  return _GramTiles(
      blocks,
      diagonal,
      pairs,
      row[:, None] == (row ^ 1)[None, :],
      keep,
      beta_of,
  )


def _gram_fwd(inputs, scan):
  z, scale = inputs.z, inputs.scale
  tiles = _gram_tiles(inputs, scan)
  bounded = _tiles.all_bounded(inputs.scale, inputs.beta, scan.axis_name)
  blocks = tiles.blocks
  n = z.shape[0] * _devices.axis_size(scan.axis_name)

  def diagonal(carry, place):
    folds, positive = carry
    i, there = place
    c = _vectors.inner_products(blocks[i], blocks[i])
    keep = tiles.keep(i, i, there, c, (1,), on_diagonal=True)
    beta = tiles.beta(i, i, (1,))
    (fold,) = _tiles.fold_tile(
        (folds[i],), c, keep, scale, beta, bounded=bounded
    )
    partners = jnp.sum(jnp.where(tiles.partners & there, c, 0), axis=1)
    return (folds.at[i].set(fold), positive.at[i].add(partners)), None

  def off(folds, place):
    i, j, there = place
    c = _vectors.inner_products(blocks[i], blocks[j])
    axes = 1, 0
    row, column = _tiles.fold_tile(
        (folds[i], folds[j]),
        c,
        tiles.keep(i, j, there, c, axes),
        scale,
        tiles.beta(i, j, axes),
        axes=axes,
        bounded=bounded,
    )
    return folds.at[i].set(row).at[j].set(column)

  empty = jnp.swapaxes(_tiles.nothing(blocks.shape[:2], z), 0, 1)
  zeros = _devices.varying_as(jnp.zeros_like(blocks[:, :, 0]), z)
  (folds, positive), _ = lax.scan(diagonal, (empty, zeros), tiles.diagonal)
  folds = _tiles.visit(off, folds, *tiles.pairs)
  folds = tilting.Fold(*(_blocks.join(folds[:, k], n) for k in range(5)))
  positive = _blocks.join(positive, n)
  if scan.axis_name is not None:
    folds, positive = _of_all(folds, positive, inputs, scan.axis_name)
  log_mean = tilting.log_mean(*folds[2:])
  outputs = folds.peak, log_mean, folds.number, positive
  return outputs, (inputs, folds.peak, folds.low, log_mean)


def _all_rows(inputs, axis_name):
  """Gathers the rows of all devices, and what belongs to them."""
  if axis_name is None:
    return inputs
  return jax.tree.map(
      lambda x: lax.all_gather(x, axis_name, tiled=True) if x.ndim else x,
      inputs,
  )


def _of_all(folds, positive, inputs, axis_name):
  """Merges the folds of all devices; returns those of this device's rows."""
  peak = _devices.varying_as(lax.pmax(folds.peak, axis_name), inputs.z)
  _, _, scale, beta, *_ = _all_rows(inputs, axis_name)
  none = tilting.Fold(peak, *[jnp.zeros_like(peak)] * 4)
  lowered = tilting.merge(folds, none, scale, beta)
  *sums, positive = (
      lax.psum_scatter(x, axis_name, tiled=True)
      for x in (*lowered[1:], positive)
  )
  rows = inputs.z.shape[0]
  start = rows * lax.axis_index(axis_name)
  peak = lax.dynamic_slice_in_dim(peak, start, rows)
  return tilting.Fold(peak, *sums), positive


def _gram_bwd(scan, residuals, cotangents):
  inputs, peak, low, log_mean = residuals
  z, scale, beta = inputs.z, inputs.scale, inputs.beta
  _, cotangent, _, positive_cotangent = cotangents
  tiles = _gram_tiles(inputs, scan)
  bounded = _tiles.all_bounded(inputs.scale, inputs.beta, scan.axis_name)
  blocks = tiles.blocks
  transposed = jnp.swapaxes(blocks, 1, 2)
  side = _tiles.Side.of(cotangent, peak, low, log_mean)
  side, positive = _all_rows((side, positive_cotangent), scan.axis_name)
  n = positive.shape[0]
  sides = side.in_blocks(scan.block)
  positive = _blocks.split(positive, scan.block)

  def to_tile(i, j, there, on_diagonal):
    c, axes = _vectors.inner_products(blocks[i], blocks[j]), (1, 0)
    return _tiles.tile_cotangents(
        (sides[i], sides[j]),
        c,
        tiles.keep(i, j, there, c, axes, on_diagonal),
        scale,
        tiles.beta(i, j, axes),
        frozen=scan.frozen,
        axes=axes,
        bounded=bounded,
    )

  def added(sums, parts, i, j, share):
    (to_scale, to_beta), (scale_part, beta_part) = sums, parts
    to_scale = to_scale + share * scale_part
    if beta.ndim:
      row, column = beta_part
      to_beta = to_beta.at[i].add(share * row).at[j].add(share * column)
    else:
      to_beta = to_beta + share * beta_part
    return to_scale, to_beta

  def diagonal(carry, place):
    sums, rows = carry
    i, there = place
    to_c, *parts = to_tile(i, i, there, True)
    p = jnp.where(there, positive[i], 0)
    to_c = jnp.where(tiles.partners, p[:, None] + p[None, :], to_c)
    # The tile has both triangles, so scale and beta were counted twice.
    sums = added(sums, parts, i, i, 0.5)
    return (sums, rows.at[i].add(_vectors.product(to_c, blocks[i]))), None

  def off(carry, place):
    sums, rows, columns = carry
    i, j, there = place
    to_c, *parts = to_tile(i, j, there, False)
    rows = rows.at[i].add(_vectors.product(to_c, blocks[j]))
    # Transposed sums: XLA:CPU takes twice as long for a transposed left factor.
    columns = columns.at[j].add(_vectors.product(transposed[i], to_c))
    return added(sums, parts, i, j, 1), rows, columns

  zeros = jnp.zeros_like(blocks, shape=blocks.shape[: 2 * beta.ndim])
  sums = jnp.zeros_like(scale), zeros
  start = _devices.varying_as((sums, jnp.zeros_like(blocks)), z)
  (sums, rows), _ = lax.scan(diagonal, start, tiles.diagonal)
  columns = _devices.varying_as(jnp.zeros_like(transposed), z)
  sums, rows, columns = _tiles.visit(off, (sums, rows, columns), *tiles.pairs)
  to_scale, to_beta = sums
  to_z = _blocks.join(rows + jnp.swapaxes(columns, 1, 2), n)
  to_scale += jnp.sum(cotangent * (1 - peak))
  to_beta = _blocks.join(to_beta, n) if beta.ndim else to_beta
  if scan.axis_name is not None:
    # Each device has part of the sums over tiles; rows get theirs.
    home = functools.partial(
        lax.psum_scatter, axis_name=scan.axis_name, tiled=True
    )
    to_z, to_beta = home(to_z), home(to_beta) if beta.ndim else to_beta
  return (_GramInputs(to_z, None, to_scale, to_beta, None, None),)


_gram.defvjp(_gram_fwd, _gram_bwd)


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
