# SPDX-License-Identifier: Apache-2.0
r"""Folds several positives of an anchor, dense, by tiles and on the ring.

Positives P of a row are the columns with its id. With logits s = scale c, the
loss of an anchor against its negatives' estimate Ng is

.. math::
  \log\Bigl(w \sum_{p \in P} e^{s_p} + N_g\Bigr)
  - \frac{1}{|P|} \sum_{p \in P} s_p
  = \Bigl(a - \frac{1}{|P|} \sum_{p \in P} s_p\Bigr)
  + \log\Bigl(w + \frac{N_g}{e^a}\Bigr), \qquad
  a = \log \sum_{p \in P} e^{s_p}.

The second term is the loss of one positive with the logit a. Negatives have
their own scan. It visits all tiles, this one only those with positives: rows
and columns are sorted by id, so each block of rows meets its positives in
consecutive blocks of columns.
"""

from collections.abc import Callable
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


class Positives(NamedTuple):
  """Summary of an anchor's positives: a = scale cosine + spread."""

  cosine: jax.Array  # mean over the positives
  spread: jax.Array  # a less the mean logit; exactly 0 for one positive
  excess: jax.Array | None  # B - a, with B the tilted log-mean; None if unused


def positives_of(
    columns: _columns.Columns,
    *,
    scale: jax.Array,
    beta: jax.Array | None,
    cosines: jax.Array | None,
    block: int | None,
    own: jax.Array | None = None,
    axis_name: str | None = None,
    stop_gradient_weights: bool = False,
) -> Positives:
  """Computes positives from cosines in memory, or by tiles of ``block``.

  Args:
    columns: unit vectors of rows and columns with ids; columns without an id
      are no positives. Masks and limits are about negatives.
    scale: 1 / temperature.
    beta: concentration of the prior term, a scalar or ``[batch]``; None if the
      loss has no such term.
    cosines: of rows and columns, ``[batch, n]``, where block is None.
    block: rows and columns of a tile; None: dense.
    own: the column of this device that is the row itself, and so no positive,
      ``[batch]``; None if rows are not among the columns.
    axis_name: mapped axis; columns of all devices go around its ring.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    The positives, each ``[batch]``; every row must have one.
  """
  row_ids, column_ids = columns.row_ids, columns.column_ids
  assert row_ids is not None and column_ids is not None
  n, m = row_ids.shape[0], column_ids.shape[0]
  if block is None:
    assert cosines is not None
    same = row_ids[:, None] == column_ids[None, :]
    if own is not None:
      same &= own[:, None] != jnp.arange(m)[None, :]
    sums = _dense(cosines[:, :m], same, scale, beta, stop_gradient_weights)
  else:
    first = m * _devices.axis_index(axis_name)
    numbers = jnp.full((n,), _NOBODY) if own is None else own + first
    inputs = _Inputs(
        columns.rows,
        columns.columns[:m],
        _keys(row_ids, numbers),
        _keys(column_ids, jnp.arange(m) + first),
        scale,
        None if beta is None else jnp.broadcast_to(beta, (n,)),
    )
    scan = _Scan(_fine(block), stop_gradient_weights, axis_name)
    sums = _tiled(_devices.same_varying(inputs), scan)
  return _summary(sums, scale)


def positives_among(
    rows: jax.Array, ids: jax.Array, *, scale: jax.Array, block: int
) -> Positives:
  """Computes positives of rows among themselves, without a prior term.

  Cosines are symmetric, so each unordered pair of blocks is visited once, for
  both its rows and its columns.

  Args:
    rows: unit vectors, ``[n, dim]``.
    ids: integers ``[n]``; each must be there twice at least.
    scale: 1 / temperature.
    block: rows of a tile.

  Returns:
    The positives, each ``[n]``; a row is none of its own.
  """
  inputs = _devices.same_varying(_RowInputs(rows, ids, scale))
  return _summary(_among(inputs, _fine(block)), scale)


def _summary(sums, scale):
  """Returns positives from sums over them."""
  peak, number = stop_gradient((sums.peak, sums.number))
  cosine = sums.total / number
  several = number > 1
  log_number = jnp.log(number)
  spread = sums.log_mean + log_number + scale * (peak - cosine)
  excess = None
  if sums.tilted is not None:
    excess = jnp.where(several, sums.tilted - sums.log_mean - log_number, 0)
  return Positives(cosine, jnp.where(several, spread, 0), excess)


def nce(
    positives: Positives,
    negatives: _nce.Negatives,
    hyperparameters: _nce.Hyperparameters,
    *,
    floor: str,
) -> jax.Array:
  """Computes the loss of several positives; see :func:`_nce.cosine_nce`."""
  scale = hyperparameters.scale
  cosine, spread, excess = positives
  floor_gap = None
  if floor == 'sphere':
    floor_gap = -scale * (1 + cosine) - spread
  return spread + _nce.nce(
      cosine,
      negatives._replace(log_mean=negatives.log_mean - spread),
      scale=scale,
      tau_plus=hyperparameters.tau_plus,
      excess=excess,
      floor_gap=floor_gap,
      soft_floor=_nce.SOFT_FLOOR if floor == 'soft' else None,
      positive_weight=hyperparameters.positive_weight,
  )


class _Sums(NamedTuple):
  """Sums over the positives of a row; log-means are relative to the peak."""

  peak: jax.Array  # largest cosine, or an upper bound of it
  number: jax.Array
  total: jax.Array  # sum of cosines
  log_mean: jax.Array  # log of the mean of e^s
  tilted: jax.Array | None  # log E_{q_beta}[e^s]


def _dense(cosines, same, scale, beta, frozen):
  zero = jnp.zeros_like(scale)
  peak, log_mean = tilting.tilted_log_mean(cosines, scale, zero, same)
  tilted = None
  if beta is not None:
    _, tilted = tilting.tilted_log_mean(
        cosines, scale, beta, same, stop_gradient_weights=frozen
    )
  number = jnp.sum(same, axis=1, dtype=cosines.dtype)
  total = jnp.sum(jnp.where(same, cosines, 0), axis=1)
  return _Sums(peak, number, total, log_mean, tilted)


# --- Scans over the tiles that have positives -------------------------------


def _fine(block):
  """Returns a block so small that few tiles have positives by their borders."""
  return max(block // 4, 1)


def _consecutive(start, count):
  """Returns the number of tiles, and a function from t to tile t.

  Block i of the rows meets ``count[i]`` blocks of columns, from ``start[i]``.
  """
  ends = jnp.cumsum(count)

  def place(t):
    i = jnp.sum(ends <= t, dtype=jnp.int32)
    return i, start[i] + t - (ends[i] - count[i])

  return ends[-1], place


def _restored(arrays, order):
  """Returns arrays in the order before they were sorted."""
  # XLA:CPU takes much longer for the scatter that transposes a gather.
  back = jnp.argsort(order)
  return jax.tree.map(lambda x: x[back], arrays)


# --- Rows among themselves --------------------------------------------------


class _RowInputs(NamedTuple):
  rows: jax.Array
  ids: jax.Array | None  # None among cotangents
  scale: jax.Array


class _RowTiles(NamedTuple):
  """Blocks of sorted rows, pairs of blocks, and masks of a tile."""

  blocks: jax.Array
  pairs: tuple[jax.Array, Callable[[jax.Array], tuple[jax.Array, jax.Array]]]
  same: Callable[..., jax.Array]


def _row_tiles(inputs, block):
  """Splits sorted rows into blocks; each pair of positives is in one tile."""
  rows, ids, _ = inputs
  n = rows.shape[0]
  block = _blocks.even_block(n, block)
  blocks, ids = _blocks.split(rows, block), _blocks.split(ids, block, ids[-1])
  k = blocks.shape[0]
  index = jnp.arange(k * block, dtype=jnp.int32).reshape(k, block)

  def same(i, j):
    later = index[i][:, None] < index[j][None, :]
    later &= (index[j] < n)[None, :]
    return later & (ids[i][:, None] == ids[j][None, :])

  start = jnp.arange(k, dtype=jnp.int32)
  reached = jnp.sum(ids[None, :, 0] <= ids[:, -1:], axis=1, dtype=jnp.int32)
  return _RowTiles(blocks, _consecutive(start, reached - start), same)


def _among_primal(inputs, block):
  return _among_fwd(inputs, block)[0]


_among = jax.custom_vjp(_among_primal, nondiff_argnums=(1,))


def _among_fwd(inputs, block):
  order = jnp.argsort(inputs.ids)
  inputs = inputs._replace(rows=inputs.rows[order], ids=inputs.ids[order])
  rows, _, scale = inputs
  tiles = _row_tiles(inputs, block)
  blocks = tiles.blocks
  zero = jnp.zeros_like(scale)
  empty = _tiles.nothing(blocks.shape[1], rows)

  # A block has a stacked fold, and then the sum of its cosines.
  def step(stacked, ij):
    c, same = _vectors.inner_products(*blocks[jnp.stack(ij)]), tiles.same(*ij)
    total = jnp.where(same, c, 0)
    folds = _tiles.fold_tile(
        (empty, empty), c, same, scale, zero, axes=(1, 0)
    )
    # One after the other, because both may be of one block.
    for i, fold, axis in zip(ij, folds, (1, 0), strict=True):
      old = stacked[i]
      fold = tilting.merge(
          tilting.Fold(*old[:-1]), tilting.Fold(*fold), scale, zero
      )
      new = jnp.stack([*fold, old[-1] + jnp.sum(total, axis=axis)])
      stacked = stacked.at[i].set(new)
    return stacked

  start = _tiles.nothing(blocks.shape[:2], rows)
  start = jnp.swapaxes(jnp.concatenate([start, start[1:2]]), 0, 1)
  stacked = _tiles.visit(step, start, *tiles.pairs)
  *fold, total = (_blocks.join(stacked[:, k], rows.shape[0]) for k in range(6))
  fold = tilting.Fold(*fold)
  log_mean = tilting.log_mean(*fold[2:])
  sums = _Sums(fold.peak, fold.number, total, log_mean, None)
  return _restored(sums, order), (order, inputs, fold.peak, fold.low, log_mean)


def _among_bwd(block, residuals, cotangents):
  order, inputs, peak, low, log_mean = residuals
  cotangents = jax.tree.map(lambda x: x[order], cotangents)
  rows, _, scale = inputs
  tiles = _row_tiles(inputs, block)
  blocks = tiles.blocks
  transposed = jnp.swapaxes(blocks, 1, 2)
  side = _tiles.Side.of(cotangents.log_mean, peak, low, log_mean)
  sides = side.in_blocks(blocks.shape[1])
  total = _blocks.split(cotangents.total, blocks.shape[1])
  zero = jnp.zeros_like(scale)

  def step(carry, ij):
    to_scale, to_rows, to_columns = carry
    i, j = ij
    c, same = _vectors.inner_products(blocks[i], blocks[j]), tiles.same(i, j)
    to_c, scale_part, _ = _tiles.tile_cotangents(
        (sides[i], sides[j]), c, same, scale, zero, frozen=False, axes=(1, 0)
    )
    both = total[i][:, None] + total[j][None, :]
    to_c = to_c + jnp.where(same, both, 0)
    to_rows = to_rows.at[i].add(_vectors.product(to_c, blocks[j]))
    # Transposed sums: XLA:CPU takes twice as long for a transposed left factor.
    to_columns = to_columns.at[j].add(_vectors.product(transposed[i], to_c))
    return to_scale + scale_part, to_rows, to_columns

  zeros = zero, jnp.zeros_like(blocks), jnp.zeros_like(transposed)
  to_scale, to_rows, to_columns = _tiles.visit(
      step, _devices.varying_as(zeros, rows), *tiles.pairs
  )
  to_rows = _blocks.join(
      to_rows + jnp.swapaxes(to_columns, 1, 2), rows.shape[0]
  )
  to_scale += jnp.sum(cotangents.log_mean * (1 - peak))
  return (_RowInputs(_restored(to_rows, order), None, to_scale),)


_among.defvjp(_among_fwd, _among_bwd)


# --- Rows among columns -----------------------------------------------------

# Numbers of rows that are no column, and of columns that are padding.
_NOBODY, _PADDING = -1, -2


class _Scan(NamedTuple):
  """Static settings of a scan over the tiles."""

  block: int
  frozen: bool
  axis_name: str | None


class _Inputs(NamedTuple):
  """Rows and columns; their keys are ids and numbers."""

  rows: jax.Array
  columns: jax.Array
  row_keys: jax.Array | None  # None among cotangents
  column_keys: jax.Array | None
  scale: jax.Array
  beta: jax.Array | None


def _keys(ids, numbers):
  """Stacks ids and numbers, ``[n, 2]``."""
  dtype = jnp.int64 if ids.dtype.itemsize == 8 else jnp.int32
  return jnp.stack([ids.astype(dtype), numbers.astype(dtype)], axis=1)


def _key_blocks(keys, block):
  """Splits keys into blocks that are still sorted."""
  ids, numbers = keys[:, 0], keys[:, 1]
  return jnp.stack(
      [
          _blocks.split(ids, block, ids[-1]),
          _blocks.split(numbers, block, _PADDING),
      ],
      axis=-1,
  )


class _Order(NamedTuple):
  """Places of the sorted rows and columns."""

  rows: jax.Array
  columns: jax.Array


def _sorted(inputs):
  """Sorts rows and columns by id."""
  rows, columns = order = _Order(
      jnp.argsort(inputs.row_keys[:, 0]), jnp.argsort(inputs.column_keys[:, 0])
  )
  beta = inputs.beta
  return order, inputs._replace(
      rows=inputs.rows[rows],
      columns=inputs.columns[columns],
      row_keys=inputs.row_keys[rows],
      column_keys=inputs.column_keys[columns],
      beta=None if beta is None else beta[rows],
  )


def _split(inputs, block):
  """Splits sorted rows and columns into blocks, with masks of positives."""
  row_block, block = (
      _blocks.even_block(x.shape[0], block) for x in inputs[:2]
  )
  row_keys = _key_blocks(inputs.row_keys, row_block)
  visiting = _columns.Visiting(
      _blocks.split(inputs.columns, block),
      _key_blocks(inputs.column_keys, block),
      None,
      None,
  )

  def same(i, j, visiting, c):
    del c
    ids, numbers = (row_keys[i, :, k][:, None] for k in range(2))
    column_ids, column_numbers = (
        visiting.ids[j, :, k][None, :] for k in range(2)
    )
    counts = (numbers != column_numbers) & (column_numbers != _PADDING)
    return counts & (ids == column_ids)

  def schedule(visiting):
    least, most = visiting.ids[:, 0, 0], visiting.ids[:, -1, 0]
    below = most[None, :] < row_keys[:, :1, 0]
    above = least[None, :] > row_keys[:, -1:, 0]
    start = jnp.sum(below, axis=1, dtype=jnp.int32)
    count = jnp.sum(~below & ~above, axis=1, dtype=jnp.int32)
    return _consecutive(start, count)

  rows = _blocks.split(inputs.rows, row_block)
  return _columns.ColumnTiles(rows, visiting, schedule, same, same)


def _tiled_primal(inputs, scan):
  return _tiled_fwd(inputs, scan)[0]


_tiled = jax.custom_vjp(_tiled_primal, nondiff_argnums=(1,))


def _betas(inputs, tiles):
  """Returns a function from a block of rows to the betas of its folds."""
  plain = jnp.zeros_like(inputs.scale, shape=tiles.rows.shape[1:2])
  if inputs.beta is None:
    return lambda i: (plain,)
  blocks = _blocks.split(inputs.beta, tiles.rows.shape[1])
  return lambda i: (plain, blocks[i])


def _tiled_fwd(inputs, scan):
  order, inputs = _sorted(inputs)
  rows, scale = inputs.rows, inputs.scale
  tiles = _split(inputs, scan.block)
  betas = _betas(inputs, tiles)
  number = 1 if inputs.beta is None else 2
  axes = (1,) * number

  # A block of rows has the stacked folds, and then the sums of its cosines.
  def fold_tile(stacked, c, same, i):
    folds, total = stacked[:-1].reshape(number, 5, -1), stacked[-1:]
    folds = _tiles.fold_tile(
        tuple(folds), c, (same,) * number, scale, betas(i), axes=axes
    )
    added = jnp.sum(jnp.where(same, c, 0), axis=1)
    return jnp.concatenate([*folds, total + added[None]])

  empty = jnp.swapaxes(_tiles.nothing(tiles.rows.shape[:2], rows), 0, 1)
  start = jnp.concatenate([*[empty] * number, empty[:, 1:2]], axis=1)
  stacked = _columns.fold(tiles, start, fold_tile, scan.axis_name)
  sums = [
      _blocks.join(stacked[:, k], rows.shape[0])
      for k in range(stacked.shape[1])
  ]
  folds = [tilting.Fold(*sums[5 * k : 5 * k + 5]) for k in range(number)]
  log_means = [tilting.log_mean(*x[2:]) for x in folds]
  peak, count = folds[0][:2]
  lows = [x.low for x in folds]
  outputs = _Sums(peak, count, sums[-1], log_means[0], None)
  if inputs.beta is not None:
    outputs = outputs._replace(tilted=log_means[1])
  outputs = _restored(outputs, order.rows)
  return outputs, (order, inputs, peak, lows, log_means)


def _tiled_bwd(scan, residuals, cotangents):
  order, inputs, peak, lows, log_means = residuals
  cotangents = jax.tree.map(lambda x: x[order.rows], cotangents)
  scale, beta = inputs.scale, inputs.beta
  tiles = _split(inputs, scan.block)
  block = tiles.rows.shape[1]
  betas = _betas(inputs, tiles)
  given = [cotangents.log_mean]
  if beta is not None:
    given.append(cotangents.tilted)
  number = len(given)
  axes = (1,) * number
  sides = [
      _tiles.Side.of(cotangent, peak, low, log_mean).in_blocks(block)
      for cotangent, low, log_mean in zip(given, lows, log_means, strict=True)
  ]
  to_total = _blocks.split(cotangents.total, block)[:, None]

  def to_tile(stacked, c, same, i):
    sides, to_total = stacked[:-1].reshape(number, 4, -1), stacked[-1]
    to_c, to_scale, to_betas = _tiles.tile_cotangents(
        tuple(sides),
        c,
        (same,) * number,
        scale,
        betas(i),
        frozen=scan.frozen,
        axes=axes,
    )
    to_c = to_c + jnp.where(same, to_total[:, None], 0)
    return to_c, to_scale, *to_betas[1:]

  zeros = jnp.zeros_like(tiles.rows, shape=tiles.rows.shape[:2])
  (to_scale, *to_beta), to_rows, to_columns = _columns.cotangents(
      tiles,
      _columns.Columns(inputs.rows, inputs.columns),
      jnp.concatenate([*sides, to_total], axis=1),
      [jnp.zeros_like(scale), *[zeros] * (number - 1)],
      to_tile,
      scan.axis_name,
  )
  to_scale += jnp.sum(sum(given) * (1 - peak))
  to_beta = [_blocks.join(x, peak.shape[0]) for x in to_beta]
  to_rows, to_beta = _restored(
      (to_rows, to_beta[0] if to_beta else None), order.rows
  )
  to_columns = _restored(to_columns, order.columns)
  return (_Inputs(to_rows, to_columns, None, None, to_scale, to_beta),)


_tiled.defvjp(_tiled_fwd, _tiled_bwd)
