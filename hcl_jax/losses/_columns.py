# SPDX-License-Identifier: Apache-2.0
"""Scans tiles of rows against columns, on one device or on a ring of them.

A loss brings two functions of a tile: one folds it into sums of its rows, the
other returns the cotangent of its cosines. Neither scan has more than one tile
of cosines in memory.
"""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from hcl_jax import _blocks
from hcl_jax import _devices
from hcl_jax import _vectors
from hcl_jax.losses import _tiles


class Columns(NamedTuple):
  """Rows and columns, and which columns count for a row.

  Columns with the id of the row do not count, nor do those whose cosine (of the
  guide, if there is one) is above the row's limit. Ids, limits and guide are
  about the first m <= n columns; the others count for every row. ``where`` is
  ``[batch or 1, n]``, with a ring ``[1, n]``. If columns have negatives, too,
  among the rows, they have limits of their own.
  """

  rows: jax.Array
  columns: jax.Array
  row_ids: jax.Array | None = None
  column_ids: jax.Array | None = None
  where: jax.Array | None = None
  limits: jax.Array | None = None
  guide_rows: jax.Array | None = None
  guide_columns: jax.Array | None = None
  column_limits: jax.Array | None = None


class Visiting(NamedTuple):
  """Blocks of columns, and what goes with them around the ring."""

  blocks: jax.Array
  ids: jax.Array | None
  where: jax.Array | None
  guide: jax.Array | None
  limits: jax.Array | None = None


class ColumnTiles(NamedTuple):
  """Blocks of rows and columns, their tiles, and masks of a tile.

  ``schedule`` returns the number of tiles to visit, and their places.
  ``keep`` has the columns that count for a row; ``keep_both`` the same and the
  rows that count for one of the first m columns, as one mask or two. Both are
  functions ``(i, j, visiting, cosines)``.
  """

  rows: jax.Array
  visiting: Visiting
  schedule: Callable[[Visiting], tuple[int | jax.Array, Callable[..., Any]]]
  keep: Callable[..., jax.Array | None]
  keep_both: Callable[..., jax.Array | tuple[jax.Array | None, ...] | None]


def gathered(inputs: Columns, axis_name: str) -> Columns:
  """Returns the same rows with the columns of all devices."""
  compared = _compared(inputs)
  gather = functools.partial(lax.all_gather, axis_name=axis_name, tiled=True)

  def gather_columns(x):
    parts = [x[:compared]] + [x[compared:]] * (x.shape[0] > compared)
    return jnp.concatenate([gather(part) for part in parts])

  where = inputs.where
  return inputs._replace(
      columns=gather_columns(inputs.columns),
      column_ids=_if_given(gather, inputs.column_ids),
      where=None if where is None else gather_columns(where[0])[None],
      guide_columns=_if_given(gather, inputs.guide_columns),
  )


def mask(inputs: Columns, cosines: jax.Array) -> jax.Array | None:
  """Returns which columns count for which row; None if all of them do."""
  n = inputs.columns.shape[0]
  compared = _compared(inputs)
  if inputs.guide_rows is not None and inputs.guide_columns is not None:
    cosines = _vectors.inner_products(inputs.guide_rows, inputs.guide_columns)
    cosines = jnp.pad(cosines, ((0, 0), (0, n - compared)))
  ids = inputs.column_ids
  kept = _kept(
      inputs.row_ids,
      None if ids is None else jnp.pad(ids, (0, n - compared)),
      cosines,
      inputs.limits,
      jnp.arange(n) >= compared if compared < n else None,
  )
  if inputs.where is None:
    return kept
  return inputs.where if kept is None else inputs.where & kept


def mask_both(
    inputs: Columns, swapped: Columns, cosines: jax.Array
) -> jax.Array | tuple[jax.Array | None, jax.Array | None] | None:
  """Returns one mask, or that for rows and that for the first m columns.

  Args:
    inputs: rows and columns.
    swapped: the first m columns as rows, against the rows.
    cosines: of rows and columns.
  """
  of_rows = mask(inputs, cosines)
  m, n = swapped.rows.shape[0], inputs.columns.shape[0]
  if inputs.where is None and inputs.limits is None and m == n:
    return of_rows
  of_columns = mask(swapped, cosines[:, :m].T)
  if of_columns is not None:
    of_columns = jnp.pad(of_columns.T, ((0, 0), (0, n - m)))
  return of_rows, of_columns


def _compared(inputs):
  """Returns how many columns, the first ones, ids and limits are about."""
  for about in (inputs.column_ids, inputs.guide_columns):
    if about is not None:
      return about.shape[0]
  return inputs.columns.shape[0]


def _if_given(function, x):
  return None if x is None else function(x)


def _kept(row_ids, column_ids, cosines, limits, always):
  """Returns a mask of rows and columns by ids and limits, or None."""
  kept = None
  if row_ids is not None:
    kept = row_ids[:, None] != column_ids[None, :]
  if limits is not None:
    low = cosines <= limits[:, None]
    kept = low if kept is None else kept & low
  if kept is not None and always is not None:
    kept |= always[None, :]
  return kept


def split(inputs: Columns, block: int) -> ColumnTiles:
  """Splits rows and columns into blocks of at most ``block``."""
  rows, columns, row_ids, column_ids, where, limits, *guide, own_limits = inputs
  n, compared = columns.shape[0], _compared(inputs)
  number = rows.shape[0]
  row_block, block = (_blocks.even_block(x, block) for x in (number, n))
  row_blocks = _blocks.split(rows, row_block)
  column_blocks = _blocks.split(columns, block)
  k_rows, k_columns = row_blocks.shape[0], column_blocks.shape[0]
  index = jnp.arange(k_columns * block).reshape(k_columns, block)

  def in_column_blocks(x):
    padding = [(0, k_columns * block - x.shape[0])] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, padding).reshape(k_columns, block, *x.shape[1:])

  if row_ids is not None and column_ids is not None:
    row_ids = _blocks.split(row_ids, row_block)
    column_ids = in_column_blocks(column_ids)
  if limits is not None:
    limits = _blocks.split(limits, row_block)
  if own_limits is not None:
    own_limits = in_column_blocks(own_limits)
  guide_rows, guide_columns = guide
  if guide_rows is not None and guide_columns is not None:
    guide_rows = _blocks.split(guide_rows, row_block)
    guide_columns = in_column_blocks(guide_columns)
  own_where = visiting_where = None
  if where is not None and where.shape[0] == 1:
    visiting_where = in_column_blocks(where[0])
  elif where is not None:
    own_where = jnp.pad(where, ((0, 0), (0, k_columns * block - n)))
    own_where = _blocks.split(own_where, row_block)
    own_where = own_where.reshape(*own_where.shape[:2], k_columns, block)

  def keep(i, j, visiting, c):
    if guide_rows is not None:
      c = _vectors.inner_products(guide_rows[i], visiting.guide[j])
    kept = _kept(
        None if row_ids is None else row_ids[i],
        None if row_ids is None else visiting.ids[j],
        c,
        None if limits is None else limits[i],
        index[j] >= compared if compared < n else None,
    )
    if where is not None:
      if own_where is None:
        counted = visiting.where[j][None, :]
      else:
        counted = own_where[i, :, j]
      kept = counted if kept is None else kept & counted
    elif n % block:
      inside = index[j][None, :] < n
      kept = inside if kept is None else kept & inside
    if kept is None:
      return None
    return jnp.broadcast_to(kept, (row_block, block))

  def keep_both(i, j, visiting, c):
    kept = keep(i, j, visiting, c)
    inside = None
    if number % row_block:
      inside = i * row_block + jnp.arange(row_block) < number
      inside = jnp.broadcast_to(inside[:, None], (row_block, block))
    if where is None and limits is None and compared == n:
      # One mask: rows that a column does not count do not count it, either.
      if kept is None or inside is None:
        return inside if kept is None else kept
      return kept & inside
    if guide_rows is not None:
      c = _vectors.inner_products(guide_rows[i], visiting.guide[j])
    for_columns = None
    if row_ids is not None:
      for_columns = row_ids[i][:, None] != visiting.ids[j][None, :]
    if own_limits is not None:
      low = c <= visiting.limits[j][None, :]
      for_columns = low if for_columns is None else for_columns & low
    if inside is not None:
      for_columns = inside if for_columns is None else for_columns & inside
    return kept, for_columns

  return ColumnTiles(
      row_blocks,
      Visiting(
          column_blocks, column_ids, visiting_where, guide_columns, own_limits
      ),
      lambda _: (
          k_rows * k_columns, lambda t: (t // k_columns, t % k_columns)
      ),
      keep,
      keep_both,
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
    fold_tile: ``(fold, cosines, keep, i) -> fold`` of block i of the rows.
    axis_name: mapped axis; columns and their ids go around its ring.

  Returns:
    The folds after the last tile.
  """

  def tile(visiting, folds, ij):
    i, j = ij
    c = _vectors.inner_products(tiles.rows[i], visiting.blocks[j])
    keep = tiles.keep(i, j, visiting, c)
    return folds.at[i].set(fold_tile(folds[i], c, keep, i))

  def visit(folds, visiting):
    step = functools.partial(tile, visiting)
    return _tiles.visit(step, folds, *tiles.schedule(visiting))

  return _devices.visit_ring(visit, folds, tiles.visiting, axis_name)


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
    sums: zeros for each hyperparameter: a scalar, or blocks of rows,
      ``[k, block]``.
    tile_cotangents: ``(side, cosines, keep, i) -> (to_cosines, *parts)`` of
      block i of the rows, with a part for each hyperparameter.
    axis_name: mapped axis; columns go around its ring with their cotangents.

  Returns:
    The cotangents of the hyperparameters, of rows and of columns.
  """
  transposed = jnp.swapaxes(tiles.rows, 1, 2)

  def tile(visiting, carry, ij):
    sums, to_rows, to_columns = carry
    i, j = ij
    block = visiting.blocks[j]
    c = _vectors.inner_products(tiles.rows[i], block)
    keep = tiles.keep(i, j, visiting, c)
    to_c, *parts = tile_cotangents(sides[i], c, keep, i)
    sums = [
        s.at[i].add(x) if s.ndim else s + x
        for s, x in zip(sums, parts, strict=True)
    ]
    to_rows = to_rows.at[i].add(_vectors.product(to_c, block))
    # Transposed sums: XLA:CPU takes twice as long for a transposed left factor.
    to_columns = to_columns.at[j].add(_vectors.product(transposed[i], to_c))
    return sums, to_rows, to_columns


  def visit(carry, visiting):
    to_columns = jnp.zeros_like(jnp.swapaxes(visiting.blocks, 1, 2))
    *carry, to_columns = _tiles.visit(
        functools.partial(tile, visiting),
        (*carry, _devices.varying_as(to_columns, inputs.rows)),
        *tiles.schedule(visiting),
    )
    return tuple(carry), to_columns

  carry = _devices.varying_as((sums, jnp.zeros_like(tiles.rows)), inputs.rows)
  (sums, to_rows), to_columns = _devices.accumulate_ring(
      visit, lambda x, y, _: x + y, carry, tiles.visiting, axis_name
  )
  to_rows = _blocks.join(to_rows, inputs.rows.shape[0])
  to_columns = _blocks.join(
      jnp.swapaxes(to_columns, 1, 2), inputs.columns.shape[0]
  )
  return sums, to_rows, to_columns
