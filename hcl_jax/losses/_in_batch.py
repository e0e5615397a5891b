# SPDX-License-Identifier: Apache-2.0
"""Losses with negatives from the batch: two views (SimCLR) or two towers."""

import functools

import jax
from jax import lax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hcl_jax import _checks
from hcl_jax import _vectors
from hcl_jax.losses import _blockwise
from hcl_jax.losses import _devices
from hcl_jax.losses import _nce

# Outside jit, JAX would run operation by operation and trace the scans over
# tiles at every call.
_compiled = functools.partial(
    jax.jit,
    static_argnames=(
        'floor', 'axis_name', 'block_size', 'stop_gradient_weights'
    ),
)  # fmt: skip


def simclr_loss(
    z1: jax.Array,
    z2: jax.Array,
    *,
    temperature: ArrayLike = 0.5,
    beta: ArrayLike = 1.0,
    tau_plus: ArrayLike = 0.1,
    positive_weight: ArrayLike = 1.0,
    floor: str = 'sphere',
    labels: jax.Array | None = None,
    axis_name: str | None = None,
    block_size: int | None = None,
    stop_gradient_weights: bool = False,
) -> jax.Array:
  r"""Computes SimCLR's loss with hard, debiased or plain negatives.

  Each of the 2 batch embeddings is an anchor. Its positive is the other view,
  its negatives are the N = 2 batch - 2 embeddings of other pairs. With logits
  s = cosine / t,

  .. math::
    \ell = \log\Bigl(1 + \frac{N_g}{e^{s^+}}\Bigr), \qquad
    N_g = N \max\Bigl\{\frac{1}{1-\tau^+}\Bigl(
      \frac{\sum_j e^{(1+\beta) s_j}}{\sum_j e^{\beta s_j}}
      - \tau^+ e^{s^+}\Bigr),\; e^{-1/t}\Bigr\}.

  ``beta=0`` is the debiased loss; with ``tau_plus=0`` too, it is NT-Xent.
  Gradients flow through the weights. A zero embedding has cosine 0 to every
  other. An anchor without negatives (if all labels are equal) has loss 0.

  Under ``pmap`` and ``shard_map(check_vma=False)`` average the per-device
  gradients (``pmean(grad(local_mean))``); under ``shard_map(check_vma=True)``
  differentiate the average (``grad(pmean(local_mean))``).

  Args:
    z1: embeddings of the first views, ``[batch, dim]``; need not be unit
      vectors.
    z2: embeddings of the second views; row i belongs to row i of z1.
    temperature: t > 0. May be traced and learned.
    beta: concentration of the tilt on logits, >= 0. May be traced.
    tau_plus: probability that a negative has the anchor's class, in
      ``[0, 1)``. May be traced.
    positive_weight: weight w >= 0 of the positive in the denominator:
      log(w + Ng / e^{s+}). 0 is the decoupled loss, which is unbounded below;
      see :func:`hard_nce_loss`. May be traced.
    floor: lower bound of the estimate Ng. ``'sphere'``: N e^{-1/t}, its minimum
      for unit vectors; ``'soft'``: a smooth positive continuation; ``'none'``:
      0.
    labels: integers ``[batch]``; if given, embeddings of the anchor's class are
      no negatives.
    axis_name: mapped axis over which the batch is split; negatives come from
      the global batch.
    block_size: rows of a similarity tile. Tiles avoid the full similarity
      matrix in memory; value and gradient are the same. None: chosen by size.
      With ``axis_name``, blocks go around a ring of devices instead of being
      gathered. Forward-mode derivatives need the dense form,
      ``block_size >= 2 batch``.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    One loss per pair, ``[batch]``: the mean over its two anchors.

  Example:
    >>> import jax.numpy as jnp
    >>> z1 = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> z2 = jnp.array([[0.8, 0.6], [-0.6, 0.8]])
    >>> print(f'{simclr_loss(z1, z2).mean():.4f}')
    0.4247

  References:
    [1] Robinson et al., Contrastive Learning with Hard Negative Samples, 2021.
    [2] Chuang et al., Debiased Contrastive Learning, 2020.
    [3] Chen et al., A Simple Framework for Contrastive Learning, 2020.
  """
  z1, z2 = _checks.embeddings(z1=z1, z2=z2)
  hyperparameters = _nce.read_hyperparameters(
      z1,
      temperature=temperature,
      beta=beta,
      tau_plus=tau_plus,
      positive_weight=positive_weight,
      floor=floor,
      block_size=block_size,
  )
  batch = z1.shape[0]
  _checks.enough_pairs(batch * _devices.axis_size(axis_name))
  if labels is not None:
    labels = _checks.labels('labels', labels, (batch,))
  return _simclr_loss(
      z1,
      z2,
      labels,
      hyperparameters,
      floor=floor,
      axis_name=axis_name,
      block_size=block_size,
      stop_gradient_weights=stop_gradient_weights,
  )


@_compiled
def _simclr_loss(
    z1, z2, labels, hyperparameters, *, floor, axis_name, block_size,
    stop_gradient_weights,
):  # fmt: skip
  scale, beta = hyperparameters.scale, hyperparameters.beta
  batch = z1.shape[0]
  z1, z2 = _vectors.normalize(z1), _vectors.normalize(z2)
  block = _blockwise.choose_block(2 * batch, 2 * batch, block_size)
  if axis_name is None and block is not None:
    positive, negatives = _blockwise.gram_negatives(
        z1,
        z2,
        labels,
        scale=scale,
        beta=beta,
        block=block,
        stop_gradient_weights=stop_gradient_weights,
    )
  else:
    ids = row_ids(labels, batch, axis_name)
    both, other = jnp.concatenate([z1, z2]), jnp.concatenate([z2, z1])
    positive, negatives = partnered_negatives(
        both,
        other,
        both,
        partner_columns=jnp.roll(jnp.arange(2 * batch), batch),
        row_ids=jnp.concatenate([ids, ids]),
        column_ids=jnp.concatenate([ids, ids]),
        scale=scale,
        beta=beta,
        axis_name=axis_name,
        block_size=block_size,
        stop_gradient_weights=stop_gradient_weights,
    )
  losses = _nce.cosine_nce(
      positive, negatives, hyperparameters, floor=floor
  )
  return jnp.mean(losses.reshape(2, batch), axis=0)


def in_batch_loss(
    anchors: jax.Array,
    positives: jax.Array,
    *,
    negatives: jax.Array | None = None,
    temperature: ArrayLike = 0.05,
    beta: ArrayLike = 1.0,
    tau_plus: ArrayLike = 0.0,
    positive_weight: ArrayLike = 1.0,
    floor: str = 'sphere',
    labels: jax.Array | None = None,
    axis_name: str | None = None,
    block_size: int | None = None,
    stop_gradient_weights: bool = False,
) -> jax.Array:
  r"""Computes the loss of two towers: anchor i against other positives.

  This is the loss of :func:`simclr_loss`. The negatives of anchor i are the
  other positives of the global batch and the explicit ``negatives``. For
  retrieval pass queries and documents; for CLIP average this loss and the one
  with the towers exchanged.

  Args:
    anchors: embeddings ``[batch, dim]``.
    positives: embeddings ``[batch, dim]``; row i is the positive of anchor i.
    negatives: further negatives: ``[n, dim]`` for all anchors (with
      ``axis_name``, those of all devices), or ``[batch, n, dim]``, separate for
      each anchor.
    temperature: t > 0. May be traced and learned.
    beta: concentration of the tilt on logits, >= 0. May be traced.
    tau_plus: probability that a negative is a positive, in ``[0, 1)``.
    positive_weight: weight of the positive in the denominator, >= 0; 0 is the
      decoupled loss, which is unbounded below; see :func:`hard_nce_loss`.
    floor: ``'sphere'``, ``'soft'`` or ``'none'``; see :func:`simclr_loss`.
    labels: integers ``[batch]``; rows with the anchor's label are no
      negatives. Explicit negatives always are.
    axis_name: mapped axis over which the batch is split.
    block_size: rows and columns of the similarity tiles; see
      :func:`simclr_loss`.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    One loss per anchor, ``[batch]``.

  Example:
    >>> import jax.numpy as jnp
    >>> queries = documents = jnp.eye(4)
    >>> print(in_batch_loss(queries, documents, temperature=1.0, beta=0.0))
    [0.7436684 0.7436684 0.7436684 0.7436684]
  """
  anchors, positives = _checks.embeddings(
      anchors=anchors, positives=positives
  )
  hyperparameters = _nce.read_hyperparameters(
      anchors,
      temperature=temperature,
      beta=beta,
      tau_plus=tau_plus,
      positive_weight=positive_weight,
      floor=floor,
      block_size=block_size,
  )
  batch = anchors.shape[0]
  shared, own = _read_negatives(negatives, anchors)
  if shared is None and own is None:
    _checks.enough_pairs(batch * _devices.axis_size(axis_name))
  if labels is not None:
    labels = _checks.labels('labels', labels, (batch,))
  return _in_batch_loss(
      anchors,
      positives,
      hyperparameters,
      shared=shared,
      own=own,
      labels=labels,
      floor=floor,
      axis_name=axis_name,
      block_size=block_size,
      stop_gradient_weights=stop_gradient_weights,
  )


@_compiled
def _in_batch_loss(
    anchors, positives, hyperparameters, *, shared, own, labels, floor,
    axis_name, block_size, stop_gradient_weights,
):  # fmt: skip
  scale, beta = hyperparameters.scale, hyperparameters.beta
  batch = anchors.shape[0]
  anchors, positives = map(_vectors.normalize, (anchors, positives))
  if own is not None:
    own = _vectors.inner_products(
        anchors[:, None, :], _vectors.normalize(own)
    ).squeeze(1)
  ids = row_ids(labels, batch, axis_name)
  positive, against = partnered_negatives(
      anchors,
      positives,
      positives,
      partner_columns=jnp.arange(batch),
      row_ids=ids,
      column_ids=ids,
      shared=None if shared is None else _vectors.normalize(shared),
      own=own,
      scale=scale,
      beta=beta,
      axis_name=axis_name,
      block_size=block_size,
      stop_gradient_weights=stop_gradient_weights,
  )
  return _nce.cosine_nce(positive, against, hyperparameters, floor=floor)


def partnered_negatives(
    rows: jax.Array,
    partners: jax.Array,
    columns: jax.Array,
    *,
    partner_columns: jax.Array,
    row_ids: jax.Array,
    column_ids: jax.Array,
    scale: jax.Array,
    beta: jax.Array,
    shared: jax.Array | None = None,
    own: jax.Array | None = None,
    axis_name: str | None = None,
    block_size: int | None = None,
    stop_gradient_weights: bool = False,
) -> tuple[jax.Array, _nce.Negatives]:
  """Computes positive cosines and negatives of rows with partners in columns.

  Columns with the id of the row are no negatives; ``shared`` columns always
  are, and ``own`` contains cosines of further negatives of each row alone.
  ``partner_columns`` count from this device's first column. Other arguments
  are those of :func:`_blockwise.column_negatives`.
  """
  ring = axis_name is not None and block_size is not None
  if axis_name is not None and not ring:
    first = lax.axis_index(axis_name) * columns.shape[0]
    partner_columns = partner_columns + first
    gather = functools.partial(
        lax.all_gather, axis_name=axis_name, tiled=True
    )
    columns, column_ids = gather(columns), gather(column_ids)
    shared = None if shared is None else gather(shared)
  if shared is not None:
    columns = jnp.concatenate([columns, shared])
  block = _blockwise.choose_block(rows.shape[0], columns.shape[0], block_size)
  if ring:
    block = block_size
  if block is not None:
    positive = jnp.sum(rows * partners, axis=-1)
    return positive, _blockwise.column_negatives(
        rows,
        columns,
        scale=scale,
        beta=beta,
        block=block,
        row_ids=row_ids,
        column_ids=column_ids,
        own=own,
        axis_name=axis_name if ring else None,
        stop_gradient_weights=stop_gradient_weights,
    )
  cosines = _vectors.inner_products(rows, columns)
  positive = jnp.take_along_axis(cosines, partner_columns[:, None], axis=1)
  keep = row_ids[:, None] != column_ids[None, :]
  if shared is not None:
    always = ((0, 0), (0, shared.shape[0]))
    keep = jnp.pad(keep, always, constant_values=True)
  if own is not None:
    cosines = jnp.concatenate([cosines, own], axis=1)
    always = ((0, 0), (0, own.shape[1]))
    keep = jnp.pad(keep, always, constant_values=True)
  return positive[:, 0], _nce.dense_negatives(
      cosines, scale, beta, keep, stop_gradient_weights=stop_gradient_weights
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


def _read_negatives(negatives, anchors):
  """Returns explicit negatives as (shared by all anchors, per anchor)."""
  if negatives is None:
    return None, None
  negatives = _checks.floats('negatives', negatives)
  _checks.same_dtype('anchors', anchors, 'negatives', negatives)
  batch, dim = anchors.shape
  if negatives.ndim not in (2, 3) or negatives.shape[-1] != dim:
    raise ValueError(
        f'negatives must have shape [n, {dim}] or [{batch}, n, {dim}] beside '
        f'anchors of shape {anchors.shape}; got {negatives.shape}.'
    )
  if 0 in negatives.shape:
    raise ValueError(
        f'negatives must not be empty; got shape {negatives.shape}. Leave it '
        'out instead.'
    )
  if negatives.ndim == 2:
    return negatives, None
  if negatives.shape[0] != batch:
    raise ValueError(
        'negatives of rank 3 must have one row per anchor; got '
        f'{negatives.shape} beside anchors of shape {anchors.shape}.'
    )
  return None, negatives
