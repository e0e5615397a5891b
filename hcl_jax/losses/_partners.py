# SPDX-License-Identifier: Apache-2.0
"""Compares rows with columns among which each row has its partner."""

import dataclasses
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from hcl_jax import _vectors
from hcl_jax.losses import _blockwise
from hcl_jax.losses import _columns
from hcl_jax.losses import _margin
from hcl_jax.losses import _mesh
from hcl_jax.losses import _nce
from hcl_jax.losses import _positives


def by_pairs(
    hyperparameters: _nce.Hyperparameters,
    split: _mesh.Split | None,
    batch: int,
) -> _nce.Hyperparameters:
  """Returns a beta for each of the 2 batch anchors with one row for each pair.

  Other betas, and those of rows that are not split, stay as they are.
  """
  beta = hyperparameters.beta
  if split is None or beta.shape != (2 * batch,):
    return hyperparameters
  return hyperparameters._replace(beta=beta.reshape(2, batch).T)


class Grouped(NamedTuple):
  """Settings of rows of one id that are positives of each other."""

  own: jax.Array | None  # the column that is the row itself
  prior: bool = False  # whether the loss has a prior term


def partnered_negatives(
    columns: _columns.Columns,
    partners: jax.Array,
    hyperparameters: _nce.Hyperparameters,
    *,
    partner_columns: jax.Array,
    grouped: Grouped | None = None,
    margin: _margin.Margin | None = None,
    own: jax.Array | None = None,
    own_where: jax.Array | None = None,
    axis_name: str | None = None,
    block_size: int | None = None,
    normalized: bool = True,
    stop_gradient_weights: bool = False,
) -> tuple[Any, _nce.Negatives]:
  """Computes positive cosines and negatives of rows with partners in columns.

  ``partner_columns`` count from this device's first column. With ``grouped``,
  all columns of a row's id are its positives, and these are returned. Other
  arguments are those of :func:`_blockwise.column_negatives`.
  """
  ring = axis_name is not None and block_size is not None
  if axis_name is not None and not ring:
    # The columns that have an id come first.
    first = lax.axis_index(axis_name) * partners.shape[0]
    partner_columns = partner_columns + first
    if grouped is not None and grouped.own is not None:
      grouped = grouped._replace(own=grouped.own + first)
    if margin is not None and margin.guide is not None:
      *guide, others = margin.guide
      others = lax.all_gather(others, axis_name, tiled=True)
      margin = dataclasses.replace(margin, guide=(*guide, others))
    columns = _columns.gathered(columns, axis_name)
  rows = columns.rows
  block = _blockwise.choose_block(
      rows.shape[0], columns.columns.shape[0], block_size
  )
  block = block_size if ring else block
  cosines = None
  if block is None:
    cosines = _vectors.inner_products(rows, columns.columns)
    positive = jnp.take_along_axis(cosines, partner_columns[:, None], axis=1)
    positive = positive[:, 0]
  else:
    positive = jnp.sum(rows * partners, axis=-1)
  if margin is not None:
    columns = margin.limit(columns, positive)
  ring_axis = axis_name if ring else None
  if grouped is not None:
    hyperparameters = _blockwise.with_beta(
        columns,
        hyperparameters,
        cosines=cosines,
        block=block,
        own=own,
        own_where=own_where,
        axis_name=ring_axis,
    )
    positive = _positives.positives_of(
        columns,
        scale=hyperparameters.scale,
        beta=hyperparameters.beta if grouped.prior else None,
        cosines=cosines,
        block=block,
        own=grouped.own,
        axis_name=ring_axis,
        stop_gradient_weights=stop_gradient_weights,
    )
  return positive, _blockwise.negatives_of(
      columns,
      hyperparameters,
      cosines=cosines,
      block=block,
      own=own,
      own_where=own_where,
      axis_name=ring_axis,
      normalized=normalized,
      stop_gradient_weights=stop_gradient_weights,
  )


def row_ids(
    labels: jax.Array | None, batch: int, axis_name: str | None
) -> jax.Array:
  """Returns labels, or ids that are unique in the global batch without them."""
  if labels is not None:
    return labels
  ids = jnp.arange(batch, dtype=jnp.int32)
  if axis_name is None:
    return ids
  return ids + batch * lax.axis_index(axis_name)
