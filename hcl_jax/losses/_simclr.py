# SPDX-License-Identifier: Apache-2.0
"""SimCLR's loss: negatives from two views of a batch."""

import dataclasses
import functools
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hcl_jax import _checks
from hcl_jax import _devices
from hcl_jax import _vectors
from hcl_jax.losses import _blockwise
from hcl_jax.losses import _columns
from hcl_jax.losses import _gram
from hcl_jax.losses import _margin
from hcl_jax.losses import _mesh
from hcl_jax.losses import _nce
from hcl_jax.losses import _partners
from hcl_jax.losses import _positives


def simclr_loss(
    z1: jax.Array,
    z2: jax.Array,
    *,
    temperature: ArrayLike = 0.5,
    beta: ArrayLike | None = None,
    effective_negatives: ArrayLike | None = None,
    tau_plus: ArrayLike = 0.1,
    positive_weight: ArrayLike = 1.0,
    margin: ArrayLike | _margin.Margin | None = None,
    floor: str = 'sphere',
    labels: jax.Array | None = None,
    axis_name: str | None = None,
    mesh: _mesh.Mesh | None = None,
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
    beta: concentration of the tilt on logits, >= 0: a scalar, one for each
      pair, ``[batch]``, or one for each anchor, ``[2 batch]``, first views
      first. May be traced. Weights are e^{(beta / t) cosine}, so beta / t is
      the hardness: 1 to 9 works, more is rarely better. None: 2 t, a hardness
      of 2 at every temperature, learned or not.
    effective_negatives: instead of beta, the share of an anchor's negatives
      that shall count, in (0, 1]: beta is chosen for each anchor such that the
      perplexity of its weights is this share of N, within 1 %. It means the
      same at every temperature; 0.7 to 0.95 is a safe choice. Takes two more
      passes over the similarities, of half a product each in tiles, and a third
      where the perplexity falls too steeply with beta. May be traced.
    tau_plus: probability that a negative has the anchor's class, in
      ``[0, 1)``. May be traced.
    positive_weight: weight w >= 0 of the positive in the denominator:
      log(w + Ng / e^{s+}). 0 is the decoupled loss, which is unbounded below;
      see :func:`hard_nce_loss`. May be traced.
    margin: drops negatives whose cosine exceeds the positive's minus this, a
      number or an :class:`hcl_jax.Margin`; see :func:`in_batch_loss`. A guide
      is (z1, z2).
    floor: lower bound of the estimate Ng. ``'sphere'``: N e^{-1/t}, its minimum
      for unit vectors; ``'soft'``: a smooth positive continuation; ``'none'``:
      0.
    labels: integers ``[batch]``; if given, embeddings of the anchor's class are
      no negatives.
    axis_name: mapped axis over which the batch is split; negatives come from
      the global batch.
    mesh: under ``jit`` with sharded arrays, the mesh whose devices share the
      rows, each doing its part; no ``axis_name`` then. None: that of the
      embeddings' sharding or of ``jax.set_mesh``, if the loss is tiled. Give
      it where the function that is compiled only closes over sharded arrays.
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
      z1.shape[:1],
      (2 * z1.shape[0],),
      temperature=temperature,
      beta=beta,
      tau_plus=tau_plus,
      positive_weight=positive_weight,
      effective_negatives=effective_negatives,
      floor=floor,
      block_size=block_size,
  )
  batch = z1.shape[0]
  block = _blockwise.choose_block(2 * batch, 2 * batch, block_size)
  split = _mesh.choose(mesh, axis_name, z1, tiled=block is not None)
  _checks.enough_pairs(batch * _devices.axis_size(axis_name))
  if labels is not None:
    labels = _checks.labels('labels', labels, (batch,))
  return _mesh.call(
      _simclr_loss,
      split,
      {
          'z1': z1,
          'z2': z2,
          'labels': labels,
          'hyperparameters': _partners.by_pairs(
              hyperparameters, split, batch
          ),
          'margin': _margin.read(margin, z1=z1, z2=z2),
      },
      floor=floor,
      axis_name=axis_name,
      block_size=block_size,
      stop_gradient_weights=stop_gradient_weights,
  )


# Outside jit, JAX would run operation by operation and trace the scans over
# tiles at every call.
@functools.partial(
    jax.jit,
    static_argnames=(
        'floor', 'axis_name', 'block_size', 'stop_gradient_weights'
    ),
)  # fmt: skip
def _simclr_loss(
    *, z1, z2, labels, hyperparameters, margin, floor, axis_name, block_size,
    stop_gradient_weights,
):  # fmt: skip
  positive, negatives = two_views(
      z1,
      z2,
      labels,
      hyperparameters,
      margin=margin,
      axis_name=axis_name,
      block_size=block_size,
      stop_gradient_weights=stop_gradient_weights,
  )
  losses = _nce.cosine_nce(
      positive, negatives, hyperparameters, floor=floor
  )
  return jnp.mean(losses.reshape(2, -1), axis=0)


def two_views(
    z1: jax.Array,
    z2: jax.Array,
    labels: jax.Array | None,
    hyperparameters: _nce.Hyperparameters,
    *,
    margin: _margin.Margin | None = None,
    grouped: bool = False,
    axis_name: Any = None,
    block_size: int | None = None,
    stop_gradient_weights: bool = False,
) -> tuple[Any, _nce.Negatives]:
  """Computes positives and negatives of the rows of z1, then of z2.

  Arguments are those of :func:`simclr_loss`. ``grouped``: the positives are all
  others of the label, as :class:`_positives.Positives`; otherwise, the cosine
  of the other view.
  """
  batch = z1.shape[0]
  z1, z2 = _vectors.normalize(z1), _vectors.normalize(z2)
  beta = hyperparameters.beta
  if beta.shape == (batch,):
    hyperparameters = hyperparameters._replace(beta=jnp.tile(beta, 2))
  elif beta.ndim == 2:
    hyperparameters = hyperparameters._replace(beta=beta.T.reshape(-1))
  columns = 2 * batch * _devices.axis_size(axis_name)
  block = _blockwise.choose_block(2 * batch, columns, block_size)
  ring = axis_name is not None and block_size is not None
  if block is not None and not ring:
    limits = guide = None
    if margin is not None:
      guide = margin.guide
      positive = jnp.sum(jnp.multiply(*(guide or (z1, z2))), axis=-1)
      limits = jnp.tile(margin.limits(positive), 2)
    ids = jnp.tile(_partners.row_ids(labels, batch, axis_name), 2)
    both, _ = _both(z1, z2)
    positive, negatives = _gram.negatives(
        z1,
        z2,
        labels,
        scale=hyperparameters.scale,
        beta=hyperparameters.beta,
        block=block,
        limits=limits,
        guide=guide,
        effective_negatives=hyperparameters.effective_negatives,
        axis_name=axis_name,
        stop_gradient_weights=stop_gradient_weights,
    )
    scale = hyperparameters.scale
    if grouped and axis_name is not None:
      first = 2 * batch * lax.axis_index(axis_name)
      positive = _positives.positives_of(
          _columns.gathered(_columns.Columns(both, both, ids, ids), axis_name),
          scale=scale,
          beta=None,
          cosines=None,
          block=block,
          own=jnp.arange(2 * batch) + first,
      )
    elif grouped:
      positive = _positives.positives_among(both, ids, scale=scale, block=block)
    return positive, negatives
  ids = _partners.row_ids(labels, batch, axis_name)
  both, other = _both(z1, z2)
  if margin is not None and margin.guide is not None:
    guide, partners = _both(*margin.guide)
    margin = dataclasses.replace(margin, guide=(guide, partners, guide))
  own = jnp.arange(2 * batch)
  return _partners.partnered_negatives(
      _columns.Columns(
          both, both, jnp.concatenate([ids, ids]), jnp.concatenate([ids, ids])
      ),
      other,
      hyperparameters,
      partner_columns=jnp.roll(own, batch),
      grouped=_partners.Grouped(own) if grouped else None,
      margin=margin,
      axis_name=axis_name,
      block_size=block_size,
      stop_gradient_weights=stop_gradient_weights,
  )


def _both(z1, z2):
  """Returns rows of both views, and the other view of each."""
  return jnp.concatenate([z1, z2]), jnp.concatenate([z2, z1])
