# SPDX-License-Identifier: Apache-2.0
"""Loss of two towers: the other positives of a batch are negatives."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hcl_jax import _checks
from hcl_jax import _devices
from hcl_jax import _vectors
from hcl_jax.losses import _bidirectional
from hcl_jax.losses import _blockwise
from hcl_jax.losses import _columns
from hcl_jax.losses import _margin
from hcl_jax.losses import _mesh
from hcl_jax.losses import _nce
from hcl_jax.losses import _partners
from hcl_jax.losses import _perplexity
from hcl_jax.losses import _positives


def in_batch_loss(
    anchors: jax.Array,
    positives: jax.Array,
    *,
    negatives: jax.Array | None = None,
    where: jax.Array | None = None,
    temperature: ArrayLike = 0.05,
    beta: ArrayLike | None = None,
    effective_negatives: ArrayLike | None = None,
    tau_plus: ArrayLike = 0.0,
    positive_weight: ArrayLike = 1.0,
    margin: ArrayLike | _margin.Margin | None = None,
    floor: str = 'sphere',
    labels: jax.Array | None = None,
    ids: jax.Array | None = None,
    normalize: bool = True,
    bidirectional: bool = False,
    axis_name: str | None = None,
    mesh: _mesh.Mesh | None = None,
    block_size: int | None = None,
    stop_gradient_weights: bool = False,
) -> jax.Array:
  r"""Computes the loss of two towers: anchor i against other positives.

  This is the loss of :func:`simclr_loss`. The negatives of anchor i are the
  other positives of the global batch and the explicit ``negatives``. For
  retrieval pass queries and documents. With ``bidirectional``, positive i also
  looks for anchor i among the other anchors, as in CLIP (:func:`clip_loss`).

  With ``ids``, the positives :math:`P_i` of anchor i are all rows of
  ``positives`` with its id, its own among them, and

  .. math::
    \ell_i = \log\Bigl(w \sum_{p \in P_i} e^{s_{ip}} + N_{g,i}\Bigr)
             - \frac{1}{|P_i|} \sum_{p \in P_i} s_{ip},

  the form of :func:`supcon_loss`, with w = ``positive_weight``. The estimate Ng
  is over all others; its prior term has the mean of :math:`e^s` over
  :math:`P_i` under the tilt. An anchor without negatives has w = 1 and the
  first sum only, which is 0 for one positive. If all ids differ, the loss is
  that without them.

  Args:
    anchors: embeddings ``[batch, dim]``.
    positives: embeddings ``[batch, dim]``; row i is the positive of anchor i.
    negatives: further negatives: ``[n, dim]`` for all anchors (with
      ``axis_name``, those of all devices), or ``[batch, n, dim]``, separate for
      each anchor.
    where: explicit negatives to count, boolean: ``[n]`` or, without
      ``axis_name`` or if they are separate, ``[batch, n]``. Rows that it drops
      may be NaN.
    temperature: t > 0. May be traced and learned.
    beta: concentration of the tilt on logits, >= 0: a scalar, or one for each
      anchor, ``[batch]``; with ``bidirectional`` that of both directions, or
      ``[2 batch]``, anchors first. May be traced. None: 2 t, a hardness beta /
      t of 2; see :func:`simclr_loss`.
    effective_negatives: instead of beta, the share of an anchor's negatives
      that shall count; see :func:`simclr_loss`.
    tau_plus: probability that a negative is a positive, in ``[0, 1)``.
    positive_weight: weight of the positive in the denominator, >= 0; 0 is the
      decoupled loss, which is unbounded below; see :func:`hard_nce_loss`.
    margin: drops negatives from the batch whose cosine exceeds the positive's
      minus this: they are probably positives that nobody marked. Explicit
      negatives stay. An :class:`hcl_jax.Margin` may be relative to the
      positive's cosine or ask other embeddings, a guide (anchors, positives).
      At 0, rounding decides about copies of the positive. May be traced.
    floor: ``'sphere'``, ``'soft'`` or ``'none'``; see :func:`simclr_loss`.
    labels: integers ``[batch]``; rows with the anchor's label are no
      negatives. Explicit negatives always are.
    ids: integers ``[batch]``; rows with the anchor's id are its positives, as
      where a query or a document is in the batch twice. Excludes ``labels``. A
      margin is relative to the anchor's own row and drops no positive.
    normalize: compare by cosines. False: by inner products, which margin is
      about, too, but for a guide's cosines. They have no least value, so that
      ``'sphere'`` is ``'none'``.
    bidirectional: average the losses of anchor i against positives and of
      positive i against anchors. Both directions share one similarity matrix
      (unless it is gathered), so this takes less than two calls. Explicit
      negatives belong to the anchors.
    axis_name: mapped axis over which the batch is split.
    mesh: mesh whose devices share the rows under ``jit``; see
      :func:`simclr_loss`.
    block_size: rows and columns of the similarity tiles; see
      :func:`simclr_loss`. With ``ids``, tiles with positives are visited a
      second time, and reverse-mode derivatives of the gradient need the dense
      form.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    One loss per anchor, ``[batch]``.

  Example:
    >>> import jax.numpy as jnp
    >>> queries = documents = jnp.eye(4)
    >>> print(in_batch_loss(queries, documents, temperature=1.0, beta=0.0))
    [0.7436684 0.7436684 0.7436684 0.7436684]

  References:
    [1] Robinson et al., Contrastive Learning with Hard Negative Samples, 2021.
    [2] Khosla et al., Supervised Contrastive Learning, 2020.
  """
  anchors, positives = _checks.embeddings(
      anchors=anchors, positives=positives
  )
  hyperparameters = _nce.read_hyperparameters(
      anchors,
      anchors.shape[:1],
      *[(2 * anchors.shape[0],)] * bool(bidirectional),
      temperature=temperature,
      beta=beta,
      tau_plus=tau_plus,
      positive_weight=positive_weight,
      effective_negatives=effective_negatives,
      floor=floor,
      block_size=block_size,
  )
  _checks.choice('normalize', normalize, (True, False))
  _checks.choice('bidirectional', bidirectional, (True, False))
  batch = anchors.shape[0]
  shared, own = _read_negatives(negatives, anchors)
  one_mask = axis_name is not None or mesh is not None
  where = _read_where(where, shared, own, batch, one_mask=one_mask)
  columns = batch + (0 if shared is None else shared.shape[0])
  split = _mesh.choose(
      mesh,
      axis_name,
      anchors,
      tiled=_blockwise.choose_block(batch, columns, block_size) is not None,
  )
  if shared is None and own is None:
    _checks.enough_pairs(batch * _devices.axis_size(axis_name))
  if labels is not None:
    labels = _checks.labels('labels', labels, (batch,))
  if ids is not None:
    ids = _checks.labels('ids', ids, (batch,))
    if labels is not None:
      raise ValueError(
          'ids and labels exclude each other: rows with the same one of ids '
          'are positives of each other, those with the same one of labels are '
          'neither positives nor negatives. Leave one out.'
      )
    if not normalize:
      raise ValueError(
          'ids need cosines: with ids, normalize must be True; got '
          f'normalize={normalize}. Scale the embeddings instead, or use '
          'hard_nce_loss on logits.'
      )
  if split is not None and shared is not None:
    if where is not None and where.ndim == 2:
      split = None  # A mask of its own for each row does not go around.
    else:
      shared, where = _divisible(shared, where, split.devices)
  return _mesh.call(
      _in_batch_loss,
      split,
      {
          'anchors': anchors,
          'positives': positives,
          'hyperparameters': _partners.by_pairs(
              hyperparameters, split, batch
          ),
          'margin': _margin.read(
              margin, anchors=anchors, positives=positives
          ),
          'shared': shared,
          'own': own,
          'where': where,
          'labels': labels,
          'ids': ids,
      },
      floor=floor,
      normalize=bool(normalize),
      bidirectional=bool(bidirectional),
      axis_name=axis_name,
      block_size=block_size,
      stop_gradient_weights=stop_gradient_weights,
  )


# Outside jit, JAX would run operation by operation and trace the scans over
# tiles at every call.
@functools.partial(
    jax.jit,
    static_argnames=(
        'floor', 'normalize', 'bidirectional', 'axis_name', 'block_size',
        'stop_gradient_weights',
    ),
)  # fmt: skip
def _in_batch_loss(
    *, anchors, positives, hyperparameters, margin, shared, own, where, labels,
    ids, floor, normalize, bidirectional, axis_name, block_size,
    stop_gradient_weights,
):  # fmt: skip
  batch = anchors.shape[0]
  prepare = _vectors.normalize if normalize else _vectors.upcast
  anchors, positives = map(prepare, (anchors, positives))
  columns, own_where = positives, None
  if own is not None:
    if where is not None:
      own_where = jnp.broadcast_to(where, own.shape[:2])
      own = jnp.where(own_where[:, :, None], own, 0)
    own = _vectors.inner_products(
        anchors[:, None, :], prepare(own)
    ).squeeze(1)
  elif shared is not None:
    if where is not None:
      # A row that no anchor counts must not enter a product: 0 * NaN is NaN.
      where = jnp.atleast_2d(where)
      shared = jnp.where(jnp.any(where, axis=0)[:, None], shared, 0)
      always = ((0, 0), (batch, 0))
      where = jnp.pad(where, always, constant_values=True)
    columns = jnp.concatenate([columns, prepare(shared)])
  grouped = _partners.Grouped(None, prior=True) if ids is not None else None
  ids = _partners.row_ids(labels if ids is None else ids, batch, axis_name)
  directions = (_both_ways if bidirectional else _one_way)(
      _columns.Columns(
          anchors, columns, ids, ids, where if own is None else None
      ),
      positives,
      hyperparameters,
      grouped=grouped,
      margin=margin,
      own=own,
      own_where=own_where,
      axis_name=axis_name,
      block_size=block_size,
      normalized=normalize,
      stop_gradient_weights=stop_gradient_weights,
  )
  if floor == 'sphere' and not normalize:
    floor = 'none'
  loss: Any = _nce.cosine_nce if grouped is None else _positives.nce
  losses = [
      loss(positive, against, hyperparameters, floor=floor)
      for positive, against in directions
  ]
  return sum(losses) / len(losses)


def _one_way(columns, partners, hyperparameters, *, margin, **settings):
  """Computes positive scores and negatives of rows, a list of one pair."""
  if margin is not None and margin.guide is not None:
    rows, others = margin.guide
    margin = dataclasses.replace(margin, guide=(rows, others, others))
  direction = _partners.partnered_negatives(
      columns,
      partners,
      hyperparameters,
      partner_columns=jnp.arange(partners.shape[0]),
      margin=margin,
      **settings,
  )
  return [direction]


def _both_ways(
    columns, partners, hyperparameters, *, grouped, margin, own, own_where,
    axis_name, block_size, **settings,
):  # fmt: skip
  """Computes positives and negatives of rows, and of their partners."""
  batch = partners.shape[0]
  one = hyperparameters.beta
  if one.shape == (batch,):
    one = jnp.tile(one, 2)
  elif one.ndim == 2:
    one = one.T.reshape(-1)
  betas = one.reshape(2, batch) if one.ndim else (one, one)
  given = [hyperparameters._replace(beta=x) for x in betas]
  ids = columns.row_ids
  swapped = _columns.Columns(partners, columns.rows, ids, ids)
  ring = axis_name is not None and block_size is not None
  if grouped is not None or (axis_name is not None and not ring):
    # Several positives have sums of their own. If rows are gathered, a device
    # has those of its anchors and of its positives, and no matrix has all.
    settings |= {'axis_name': axis_name, 'block_size': block_size}
    settings |= {'grouped': grouped}
    forward = _one_way(
        columns, partners, given[0], margin=margin, own=own,
        own_where=own_where, **settings,
    )  # fmt: skip
    if margin is not None and margin.guide is not None:
      margin = dataclasses.replace(margin, guide=margin.guide[::-1])
    backward = _one_way(
        swapped, columns.rows, given[1], margin=margin, **settings
    )
    return forward + backward
  block = _blockwise.choose_block(batch, columns.columns.shape[0], block_size)
  block = block_size if ring else block
  if block is None:
    cosines = _vectors.inner_products(columns.rows, columns.columns)
    positive = jnp.diagonal(cosines)
  else:
    cosines, positive = None, jnp.sum(columns.rows * partners, axis=-1)
  if margin is not None:
    compared = positive
    if margin.guide is not None:
      guide, others = margin.guide
      compared = jnp.sum(guide * others, axis=-1)
      columns = columns._replace(guide_rows=guide, guide_columns=others)
      swapped = swapped._replace(guide_rows=others, guide_columns=guide)
    limits = margin.limits(compared)
    columns = columns._replace(limits=limits)
    swapped = swapped._replace(limits=limits)
  directions = [
      (columns, cosines, {'own': own, 'own_where': own_where}),
      (swapped, None if cosines is None else cosines[:, :batch].T, {}),
  ]
  if hyperparameters.effective_negatives is not None:
    betas = [
        _perplexity.of_columns(
            x,
            fraction=hyperparameters.effective_negatives,
            scale=hyperparameters.scale,
            cosines=scores,
            block=block,
            axis_name=axis_name,
            normalized=settings['normalized'],
            **only,
        )
        for x, scores, only in directions
    ]
    hyperparameters = hyperparameters._replace(effective_negatives=None)
    one = jnp.concatenate(betas)
  if block is not None:
    both = _bidirectional.negatives(
        columns._replace(column_limits=columns.limits),
        scale=hyperparameters.scale,
        beta=one,
        block=block,
        own=own,
        own_where=own_where,
        axis_name=axis_name,
        **settings,
    )
    return [(positive, negatives) for negatives in both]
  assert cosines is not None
  if own is not None:
    return [
        (
            positive,
            _blockwise.negatives_of(
                x, hyperparameters._replace(beta=beta), cosines=scores,
                block=None, **only, **settings,
            ),
        )
        for (x, scores, only), beta in zip(directions, betas, strict=True)
    ]  # fmt: skip
  forward, backward = _bidirectional.dense_negatives(
      cosines,
      _columns.mask_both(columns, swapped, cosines),
      scale=hyperparameters.scale,
      beta=one,
      **settings,
  )
  backward = jax.tree.map(lambda x: x[:batch], backward)
  return [(positive, forward), (positive, backward)]


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


def _divisible(shared, where, devices):
  """Pads explicit negatives to a multiple of the devices, by masked rows."""
  n = shared.shape[0]
  padding = -n % devices
  if padding == 0:
    return shared, where
  where = jnp.ones(n, bool) if where is None else where
  shared = jnp.pad(shared, ((0, padding), (0, 0)))
  return shared, jnp.pad(where, (0, padding))


def _read_where(where, shared, own, batch, *, one_mask):
  """Reads a mask of explicit negatives, ``[n]`` or ``[batch, n]``."""
  if where is None:
    return None
  given = shared if own is None else own
  if given is None:
    raise ValueError(
        'where is about explicit negatives, but negatives is None. Pass '
        'negatives, or use labels for rows of the batch.'
    )
  n = given.shape[-2]
  where = _checks.mask('where', where, (batch, n))
  if where.ndim == 2 and own is None and one_mask:
    raise ValueError(
        f'where must have shape ({n},) for negatives that all devices share; '
        f'got {where.shape}.'
    )
  return jnp.broadcast_to(where, where.shape[:-1] + (n,))
