# SPDX-License-Identifier: Apache-2.0
"""Scans tiles of rows against columns, on one device or on a ring of them.

A loss brings two functions of a tile: one folds it into sums of its rows, the
other returns the cotangent of its cosines. Neither scan has more than one tile
of cosines in memory.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hcl_jax import _vectors
from hcl_jax.losses import _devices
from hcl_jax.losses import _tiles


class Columns(NamedTuple):
  """Rows and columns, and which columns count for a row.

  Columns with the id of the row do not count. The ids are those of the first
  m <= n columns; the others have none. ``where`` is ``[batch or 1, n]``.
  """

  rows: jax.Array
  columns: jax.Array
  row_ids: jax.Array | None = None
  column_ids: jax.Array | None = None
  where: jax.Array | None = None


class ColumnTiles(NamedTuple):
  """Blocks of rows and columns, their tiles, and masks of a tile."""

  rows: jax.Array
  visiting: tuple[jax.Array, jax.Array | None]  # blocks of columns, their ids
  number: int
  place: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
  keep: Callable[..., jax.Array | None]


def split(inputs: Columns, block: int) -> ColumnTiles:
  """Splits rows and columns into blocks of at most ``block``."""
  rows, columns, row_ids, column_ids, where = inputs
  n, masked = columns.shape[0], row_ids is not None
  row_block, block = (_tiles.even_block(x, block) for x in (rows.shape[0], n))
  row_blocks = _tiles.blocks(rows, row_block)
  column_blocks = _tiles.blocks(columns, block)
  k_rows, k_columns = row_blocks.shape[0], column_blocks.shape[0]
  index = jnp.arange(k_columns * block).reshape(k_columns, block)
  with_id = n
  if row_ids is not None and column_ids is not None:
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
    if masked:
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

  return ColumnTiles(
      row_blocks,
      (column_blocks, column_ids),
      k_rows * k_columns,
      lambda t: (t // k_columns, t % k_columns),
      keep,
  )


def fold(
    tiles: ColumnTiles,
    folds: jax.Array,
    fold_tile: Callable[..., jax.Array],
    axis_name: str | None,
) -> jax.Array:
  """Folds all tiles; with ``axis_name``, those of all devices.

  Args:
    tiles: blocks of rows and columns.
    folds: stacked sums of the blocks of rows so far, ``[k, sums, block]``.
    fold_tile: ``(fold, cosines, keep) -> fold`` of a block of rows.
    axis_name: mapped axis; columns and their ids go around its ring.

  Returns:
    The folds after the last tile.
  """

  def tile(visiting, folds, ij):
    i, j = ij
    blocks, ids = visiting
    c = _vectors.inner_products(tiles.rows[i], blocks[j])
    return folds.at[i].set(fold_tile(folds[i], c, tiles.keep(i, j, ids)))

  def ring_step(carry, _):
    visiting, folds = carry
    step = functools.partial(tile, visiting)
    folds = _tiles.visit(step, folds, tiles.number, tiles.place)
    return (_devices.pass_on(visiting, axis_name), folds), None

  carry = tiles.visiting, folds
  (_, folds), _ = _devices.scan_ring(ring_step, carry, axis_name)
  return folds


def cotangents(
    tiles: ColumnTiles,
    inputs: Columns,
    sides: jax.Array,
    sums: list[jax.Array],
    tile_cotangents: Callable[..., tuple[jax.Array, ...]],
    axis_name: str | None,
) -> tuple[list[jax.Array], jax.Array, jax.Array]:
  """Sums the cotangents of all tiles; with ``axis_name``, of all devices.

  Args:
    tiles: blocks of rows and columns.
    inputs: what the tiles were split from.
    sides: stacked residuals of the blocks of rows, ``[k, residuals, block]``.
    sums: zeros, one for each hyperparameter.
    tile_cotangents: ``(side, cosines, keep) -> (to_cosines, *parts)``, with a
      part for each hyperparameter.
    axis_name: mapped axis; columns go around its ring with their cotangents.

  Returns:
    The cotangents of the hyperparameters, of rows and of columns.
  """
  transposed = jnp.swapaxes(tiles.rows, 1, 2)

  def tile(visiting, carry, ij):
    sums, to_rows, to_columns = carry
    i, j = ij
    blocks, ids = visiting
    to_c, *parts = tile_cotangents(
        sides[i],
        _vectors.inner_products(tiles.rows[i], blocks[j]),
        tiles.keep(i, j, ids),
    )
    sums = [s + x for s, x in zip(sums, parts, strict=True)]
    to_rows = to_rows.at[i].add(_vectors.product(to_c, blocks[j]))
    # Transposed sums: XLA:CPU takes twice as long for a transposed left factor.
    to_columns = to_columns.at[j].add(_vectors.product(transposed[i], to_c))
    return sums, to_rows, to_columns

  def ring_step(carry, _):
    visiting, sums, to_rows, to_columns = carry
    sums, to_rows, to_columns = _tiles.visit(
        functools.partial(tile, visiting),
        (sums, to_rows, to_columns),
        tiles.number,
        tiles.place,
    )
    visiting, to_columns = _devices.pass_on((visiting, to_columns), axis_name)
    return (visiting, sums, to_rows, to_columns), None

  blocks, _ = tiles.visiting
  zeros = jnp.zeros_like(tiles.rows), jnp.zeros_like(jnp.swapaxes(blocks, 1, 2))
  carry = tiles.visiting, *_devices.varying_as((sums, *zeros), inputs.rows)
  (_, sums, to_rows, to_columns), _ = _devices.scan_ring(
      ring_step, carry, axis_name
  )
  to_rows = _tiles.unblock(to_rows, inputs.rows.shape[0])
  to_columns = _tiles.unblock(
      jnp.swapaxes(to_columns, 1, 2), inputs.columns.shape[0]
  )
  return sums, to_rows, to_columns
