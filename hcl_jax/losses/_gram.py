# SPDX-License-Identifier: Apache-2.0
"""Computes negatives of rows against each other by tiles, each pair once.

The Gram matrix is symmetric, so each unordered pair of blocks is visited once,
for both its rows and its columns. With ``axis_name``, rows are gathered, and
devices share the pairs of blocks.
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
from hcl_jax.losses import _nce
from hcl_jax.losses import _perplexity
from hcl_jax.losses import _tiles
from hcl_jax.losses import tilting


def negatives(
    z1: jax.Array,
    z2: jax.Array,
    labels: jax.Array | None,
    *,
    scale: jax.Array,
    beta: jax.Array,
    block: int,
    limits: jax.Array | None = None,
    guide: tuple[jax.Array, ...] | None = None,
    effective_negatives: jax.Array | None = None,
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
    effective_negatives: share of the negatives that shall count; beta is not
      used then. None: beta as given.
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
  inputs = _Inputs(
      adjacent(z1, z2),
      adjacent(labels, labels),
      scale,
      adjacent(*jnp.split(beta, 2)) if beta.ndim else beta,
      None if limits is None else adjacent(*jnp.split(limits, 2)),
      None if guide is None else adjacent(*guide),
  )
  inputs = _devices.same_varying(inputs)
  if effective_negatives is not None:
    beta = _chosen_beta(inputs, scan, effective_negatives)
    inputs = inputs._replace(beta=beta)
  outputs = _scan(inputs, scan)
  peak, log_mean, count, positive = (
      x.reshape(batch, 2).T.reshape(2 * batch) for x in outputs
  )
  peak, count = stop_gradient((peak, count))
  return positive, _nce.Negatives(peak, log_mean, jnp.log(count))


# --- The scan over the tiles ------------------------------------------------


class _Scan(NamedTuple):
  """Static settings of a scan over the tiles."""

  block: int
  masked: bool
  frozen: bool
  axis_name: Any


class _Inputs(NamedTuple):
  """Arrays of :func:`negatives`, with the views of a pair adjacent."""

  z: jax.Array
  ids: jax.Array | None  # None among cotangents
  scale: jax.Array
  beta: jax.Array
  limits: jax.Array | None
  guide: jax.Array | None


def _primal(inputs, scan):
  return _fwd(inputs, scan)[0]


_scan = jax.custom_vjp(_primal, nondiff_argnums=(1,))


class _Tiles(NamedTuple):
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


def _tiles_of(inputs, scan):
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
  return _Tiles(
      blocks,
      diagonal,
      pairs,
      row[:, None] == (row ^ 1)[None, :],
      keep,
      beta_of,
  )


def _fwd(inputs, scan):
  z, scale = inputs.z, inputs.scale
  tiles = _tiles_of(inputs, scan)
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


def _chosen_beta(inputs, scan, fraction):
  """Finds the beta of each row by the perplexity of its weights."""
  inputs, fraction = stop_gradient((inputs, fraction))
  return stop_gradient(
      _perplexity.of_cosines(
          functools.partial(_gather, inputs, scan),
          inputs.z,
          fraction,
          inputs.scale,
          scan.axis_name,
      )
  )


def _gather(inputs, scan, what):
  """Makes a pass over the tiles, each for its rows and its columns."""
  tiles = _tiles_of(inputs, scan)
  blocks = tiles.blocks
  if scan.axis_name is not None:
    what = what._replace(
        sides=lax.all_gather(what.sides, scan.axis_name, axis=1, tiled=True)
    )
  sides = what.side_blocks(scan.block)

  def add(found, i, j, there, axes, on_diagonal):
    c = _vectors.inner_products(blocks[i], blocks[j])
    keep = tiles.keep(i, j, there, c, axes, on_diagonal)
    places = (i, j)[: len(axes)]
    parts = what.of_tile(tuple(sides[x] for x in places), c, keep, axes)
    for x, part in zip(places, parts, strict=True):
      found = found.at[x].set(what.merge(found[x], part))
    return found

  def diagonal(found, place):
    i, there = place
    return add(found, i, i, there, (1,), True), None

  def off(found, place):
    i, j, there = place
    return add(found, i, j, there, (1, 0), False)

  found = jnp.swapaxes(what.nothing(blocks.shape[:2]), 0, 1)
  found = _devices.varying_as(found, inputs.z)
  found, _ = lax.scan(diagonal, found, tiles.diagonal)
  found = _tiles.visit(off, found, *tiles.pairs)
  found = what.join(found)
  if scan.axis_name is None:
    return found
  maxima, sums = found[: what.maxima], found[what.maxima :]
  rows = inputs.z.shape[0]
  maxima = lax.dynamic_slice_in_dim(
      lax.pmax(maxima, scan.axis_name),
      rows * lax.axis_index(scan.axis_name),
      rows,
      axis=1,
  )
  sums = lax.psum_scatter(
      sums, scan.axis_name, scatter_dimension=1, tiled=True
  )
  return jnp.concatenate([_devices.varying_as(maxima, inputs.z), sums])


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


def _bwd(scan, residuals, cotangents):
  inputs, peak, low, log_mean = residuals
  z, scale, beta = inputs.z, inputs.scale, inputs.beta
  _, cotangent, _, positive_cotangent = cotangents
  tiles = _tiles_of(inputs, scan)
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
  return (_Inputs(to_z, None, to_scale, to_beta, None, None),)


_scan.defvjp(_fwd, _bwd)
