# SPDX-License-Identifier: Apache-2.0
r"""The negatives of cosine losses without ever holding the similarity matrix.

Tiles of ``block`` x ``block`` similarities are made, folded into the row sums
of :class:`tilting.Fold` and dropped; the derivative makes them once more. Two
walks over the tiles serve every loss:

* :func:`gram_negatives`: all rows against each other. The Gram matrix is
  symmetric, so each unordered pair of blocks is visited once and serves its
  rows and its columns.
* :func:`column_negatives`: rows against other columns, which with an
  ``axis_name`` travel round the ring of devices.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
from jax import lax
from jax.lax import stop_gradient
import jax.numpy as jnp
import numpy as np

from hcl_jax import _vectors
from hcl_jax.losses import _devices
from hcl_jax.losses import _nce
from hcl_jax.losses import _tiles
from hcl_jax.losses import tilting


def choose_block(
    rows: int, columns: int, block_size: int | None
) -> int | None:
  """The block to use, or None where the dense matrix is the better choice."""
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
  """Positives and negatives of both views of every pair.

  Args:
    z1: unit vectors, ``[batch, dim]``.
    z2: the other view, ``[batch, dim]``.
    labels: integers ``[batch]``; equal labels are not negatives. None: the row
      number.
    scale: 1 / temperature.
    beta: concentration.
    block: rows of a tile.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    The positive's cosine and the negatives, each ``[2 * batch]``, first the
    rows of z1.
  """
  batch, dim = z1.shape
  # Both views of a pair in neighbouring rows: a pair never spans two blocks.
  z = jnp.stack([z1, z2], axis=1).reshape(2 * batch, dim)
  masked = labels is not None
  labels = jnp.arange(batch, dtype=jnp.int32) if labels is None else labels
  ids = jnp.repeat(labels, 2, total_repeat_length=2 * batch)
  walk = _Walk(
      block=2 * _tiles.even_block(batch, max(block // 2, 1)),
      masked=masked,
      frozen=stop_gradient_weights,
  )
  outputs = _gram(*_devices.same_varying(z, ids, scale, beta), walk)
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
  """Negatives of rows against columns.

  Args:
    rows: unit vectors ``[batch, dim]``.
    columns: unit vectors ``[n, dim]``.
    scale: 1 / temperature.
    beta: concentration.
    block: rows and columns of a tile.
    row_ids: integers ``[batch]``; with ``column_ids``, columns of equal id are
      not negatives.
    column_ids: integers ``[m]``, m <= n, of the first m columns; the others
      are everybody's negatives.
    where: columns to count, ``[batch or 1, n]``; not with ``axis_name``.
    own: cosines of each row's own further negatives, ``[batch, k]``.
    axis_name: pass the columns (and their ids) of all devices along this axis
      round a ring, so that each row meets all.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    The negatives, each ``[batch]``.
  """
  walk = _Walk(
      block=block,
      masked=row_ids is not None,
      frozen=stop_gradient_weights,
      axis_name=axis_name,
  )
  inputs = _devices.same_varying(
      rows, columns, own, row_ids, column_ids, where, scale, beta
  )
  peak, log_mean, count = _columns(*inputs, walk)
  peak, count = stop_gradient((peak, count))
  return _nce.Negatives(peak, log_mean, jnp.log(count))


# --- Walks over the tiles ---------------------------------------------------


class _Walk(NamedTuple):
  """How to visit the tiles; static."""

  block: int
  masked: bool
  frozen: bool
  axis_name: str | None = None


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _gram(z, ids, scale, beta, walk):
  return _gram_fwd(z, ids, scale, beta, walk)[0]


def _gram_tiles(z, ids, walk):
  """Blocks, pairs of different blocks, and the masks of a tile."""
  n, block = z.shape[0], walk.block
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

  # Off the diagonal there are neither selves nor pairs to mask.
  off_keep = keep if walk.masked or n % block else lambda i, j: None
  return blocks, pairs, pair, keep, off_keep


def _gram_fwd(z, ids, scale, beta, walk):
  n = z.shape[0]
  blocks, pairs, pair, keep, off_keep = _gram_tiles(z, ids, walk)
  k = blocks.shape[0]

  def diagonal(_, i):
    c = _vectors.inner_products(blocks[i], blocks[i])
    empty = _tiles.nothing(walk.block, z)
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
  outputs = folds.peak, log_mean, folds.count, _tiles.unblock(positive, n)
  return outputs, (z, ids, scale, beta, folds.peak, folds.low, log_mean)


def _gram_bwd(walk, residuals, cotangents):
  z, ids, scale, beta, peak, low, log_mean = residuals
  _, pull, _, pull_positive = cotangents
  n = z.shape[0]
  blocks, pairs, pair, keep, off_keep = _gram_tiles(z, ids, walk)
  transposed = jnp.swapaxes(blocks, 1, 2)
  sides = _tiles.Side.of(pull, peak, low, log_mean).in_blocks(walk.block)
  positive = _tiles.blocks(pull_positive, walk.block)

  def diagonal(sums, i):
    zi = blocks[i]
    pull, *knobs = _tiles.pull_tile(
        (sides[i], sides[i]),
        _vectors.inner_products(zi, zi),
        keep(i, i),
        scale,
        beta,
        walk.frozen,
        axes=(1, 0),
    )
    p = positive[i]
    pull = jnp.where(pair, p[:, None] + p[None, :], pull)
    # The tile stands for both triangles, so the knobs were counted twice.
    sums = [s + x / 2 for s, x in zip(sums, knobs, strict=True)]
    return sums, _vectors.product(pull, zi)

  def off(carry, ij):
    sums, rows, columns = carry
    i, j = ij
    pull, *knobs = _tiles.pull_tile(
        (sides[i], sides[j]),
        _vectors.inner_products(blocks[i], blocks[j]),
        off_keep(i, j),
        scale,
        beta,
        walk.frozen,
        axes=(1, 0),
    )
    sums = [s + x for s, x in zip(sums, knobs, strict=True)]
    rows = rows.at[i].add(_vectors.product(pull, blocks[j]))
    # Kept transposed: XLA:CPU is twice as slow with a transposed left factor.
    columns = columns.at[j].add(_vectors.product(transposed[i], pull))
    return sums, rows, columns

  sums = [_devices.varying_as(jnp.zeros_like(x), z) for x in (scale, beta)]
  sums, rows = lax.scan(diagonal, sums, jnp.arange(blocks.shape[0]))
  columns = _devices.varying_as(jnp.zeros_like(transposed), z)
  sums, rows, columns = _tiles.visit(off, (sums, rows, columns), *pairs)
  to_z = _tiles.unblock(rows + jnp.swapaxes(columns, 1, 2), n)
  to_scale = sums[0] + jnp.sum(pull * (1 - peak))
  return to_z, None, to_scale, sums[1]


_gram.defvjp(_gram_fwd, _gram_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(8,))
def _columns(rows, columns, own, row_ids, column_ids, where, scale, beta, walk):
  return _columns_fwd(
      rows, columns, own, row_ids, column_ids, where, scale, beta, walk
  )[0]


class _ColumnTiles(NamedTuple):
  """Blocks of rows and columns, all tiles of them, and a tile's mask."""

  rows: jax.Array
  visiting: tuple[jax.Array, jax.Array | None]  # blocks of columns, their ids
  number: int
  place: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
  keep: Callable[..., jax.Array | None]


def _column_tiles(rows, columns, row_ids, column_ids, where, walk):
  n, block = columns.shape[0], walk.block
  row_block, block = (_tiles.even_block(x, block) for x in (rows.shape[0], n))
  row_blocks = _tiles.blocks(rows, row_block)
  column_blocks = _tiles.blocks(columns, block)
  k_rows, k_columns = row_blocks.shape[0], column_blocks.shape[0]
  index = jnp.arange(k_columns * block).reshape(k_columns, block)
  if walk.masked:
    with_id = column_ids.shape[0]
    row_ids = _tiles.blocks(row_ids, row_block)
    padding = (0, k_columns * block - with_id)
    column_ids = jnp.pad(column_ids, padding).reshape(k_columns, block)
  if where is not None:
    where = jnp.pad(where, ((0, 0), (0, k_columns * block - n)))
    where = _tiles.blocks(where, row_block if where.shape[0] > 1 else 1)
    where = where.reshape(*where.shape[:2], k_columns, block)

  def keep(i, j, visiting_ids):
    kept = None
    if walk.masked:
      kept = row_ids[i][:, None] != visiting_ids[j][None, :]
      if with_id < n:
        kept |= index[j][None, :] >= with_id
    if where is not None:
      counted = where[i if where.shape[0] > 1 else 0, :, j]
      kept = counted if kept is None else kept & counted
    elif n % block:
      inside = index[j][None, :] < n
      kept = inside if kept is None else kept & inside
    if kept is None:
      return None
    return jnp.broadcast_to(kept, (row_block, block))

  return _ColumnTiles(
      row_blocks,
      (column_blocks, column_ids),
      k_rows * k_columns,
      lambda t: (t // k_columns, t % k_columns),
      keep,
  )


def _columns_fwd(
    rows, columns, own, row_ids, column_ids, where, scale, beta, walk
):
  tiles = _column_tiles(rows, columns, row_ids, column_ids, where, walk)
  shape = tiles.rows.shape[:2]

  def tile(visiting, folds, ij):
    i, j = ij
    blocks, ids = visiting
    c = _vectors.inner_products(tiles.rows[i], blocks[j])
    (fold,) = _tiles.fold_tile(
        (folds[i],), c, tiles.keep(i, j, ids), scale, beta
    )
    return folds.at[i].set(fold)

  def hop(carry, _):
    visiting, folds = carry
    step = functools.partial(tile, visiting)
    folds = _tiles.visit(step, folds, tiles.number, tiles.place)
    return (_devices.pass_on(visiting, walk.axis_name), folds), None

  empty = jnp.swapaxes(_tiles.nothing(shape, rows), 0, 1)
  carry = tiles.visiting, empty
  (_, folds), _ = _devices.hops(hop, carry, walk.axis_name)
  folds = tilting.Fold(
      *(_tiles.unblock(folds[:, k], rows.shape[0]) for k in range(5))
  )
  if own is not None:
    mine = tilting.fold(own, scale, beta, None)
    folds = tilting.merge(folds, mine, scale, beta)
  log_mean = tilting.log_mean(*folds[2:])
  residuals = rows, columns, own, row_ids, column_ids, where, scale, beta
  return (folds.peak, log_mean, folds.count), (
      *residuals,
      folds.peak,
      folds.low,
      log_mean,
  )


def _columns_bwd(walk, residuals, cotangents):
  rows, columns, own, row_ids, column_ids, where, scale, beta = residuals[:8]
  peak, low, log_mean = residuals[8:]
  _, pull, _ = cotangents
  tiles = _column_tiles(rows, columns, row_ids, column_ids, where, walk)
  transposed = jnp.swapaxes(tiles.rows, 1, 2)
  side = _tiles.Side.of(pull, peak, low, log_mean)
  side_blocks = side.in_blocks(tiles.rows.shape[1])

  def tile(visiting, carry, ij):
    sums, to_rows, to_columns = carry
    i, j = ij
    blocks, ids = visiting
    t, *knobs = _tiles.pull_tile(
        (side_blocks[i],),
        _vectors.inner_products(tiles.rows[i], blocks[j]),
        tiles.keep(i, j, ids),
        scale,
        beta,
        walk.frozen,
    )
    sums = [s + x for s, x in zip(sums, knobs, strict=True)]
    to_rows = to_rows.at[i].add(_vectors.product(t, blocks[j]))
    to_columns = to_columns.at[j].add(_vectors.product(transposed[i], t))
    return sums, to_rows, to_columns

  def hop(carry, _):
    visiting, sums, to_rows, to_columns = carry
    sums, to_rows, to_columns = _tiles.visit(
        functools.partial(tile, visiting),
        (sums, to_rows, to_columns),
        tiles.number,
        tiles.place,
    )
    visiting, to_columns = _devices.pass_on(
        (visiting, to_columns), walk.axis_name
    )
    return (visiting, sums, to_rows, to_columns), None

  blocks, _ = tiles.visiting
  zeros = jnp.zeros_like(tiles.rows), jnp.zeros_like(jnp.swapaxes(blocks, 1, 2))
  sums = [jnp.zeros_like(x) for x in (scale, beta)]
  carry = tiles.visiting, *_devices.varying_as((sums, *zeros), rows)
  (_, sums, to_rows, to_columns), _ = _devices.hops(hop, carry, walk.axis_name)
  to_rows = _tiles.unblock(to_rows, rows.shape[0])
  to_columns = _tiles.unblock(jnp.swapaxes(to_columns, 1, 2), columns.shape[0])
  to_scale, to_beta = sums
  to_own = None
  if own is not None:
    to_own, own_scale, own_beta = _tiles.pull_tile(
        (side,), own, None, scale, beta, walk.frozen
    )
    to_scale, to_beta = to_scale + own_scale, to_beta + own_beta
  to_scale += jnp.sum(pull * (1 - peak))
  return to_rows, to_columns, to_own, None, None, None, to_scale, to_beta


_columns.defvjp(_columns_fwd, _columns_bwd)
