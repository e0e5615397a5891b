# SPDX-License-Identifier: Apache-2.0
"""CLIP's loss of images and texts, with plain or hard negatives."""

import jax
from jax.typing import ArrayLike

from hcl_jax import _checks
from hcl_jax import _vectors
from hcl_jax.losses import _in_batch
from hcl_jax.losses import _margin
from hcl_jax.losses import _mesh


def clip_loss(
    image_embeddings: jax.Array,
    text_embeddings: jax.Array,
    *,
    logit_scale: ArrayLike,
    beta: ArrayLike | None = None,
    effective_negatives: ArrayLike | None = None,
    tau_plus: ArrayLike = 0.0,
    positive_weight: ArrayLike = 1.0,
    margin: ArrayLike | _margin.Margin | None = None,
    floor: str = 'sphere',
    labels: jax.Array | None = None,
    axis_name: str | None = None,
    mesh: _mesh.Mesh | None = None,
    block_size: int | None = None,
    stop_gradient_weights: bool = False,
) -> jax.Array:
  r"""Computes CLIP's loss: images among texts, and texts among images.

  With logits :math:`s_{ij}`, ``logit_scale`` times the cosine of image i and
  text j, the loss of pair i is

  .. math::
    \ell_i = -\frac12 \log \frac{e^{s_{ii}}}{\sum_j e^{s_{ij}}}
             -\frac12 \log \frac{e^{s_{ii}}}{\sum_j e^{s_{ji}}}.

  ``beta=0`` (with ``tau_plus=0``) is this cross entropy; more weights hard
  negatives in both directions. It is :func:`in_batch_loss` with
  ``bidirectional=True`` and ``temperature = 1 / logit_scale``: one similarity
  matrix serves both directions. See :func:`simclr_loss` on gradients with
  ``axis_name``.

  Args:
    image_embeddings: ``[batch, dim]``; need not be unit vectors.
    text_embeddings: ``[batch, dim]``; row i belongs to image i.
    logit_scale: factor of the cosines, > 0. May be traced and learned. It is
      the factor itself: if you learn its logarithm t', pass ``jnp.exp(t')``.
    beta: concentration of the tilt on logits, >= 0: a scalar, one for each
      pair, ``[batch]``, or ``[2 batch]``, images first. May be traced. None:
      0, CLIP.
    effective_negatives: instead of beta, the share of an anchor's negatives
      that shall count; see :func:`simclr_loss`.
    tau_plus: probability that a negative is a positive, in ``[0, 1)``.
    positive_weight: weight of the positive in the denominator, >= 0; see
      :func:`hard_nce_loss`.
    margin: drops negatives whose cosine exceeds the positive's minus this; see
      :func:`in_batch_loss`. A guide is (images, texts).
    floor: ``'sphere'``, ``'soft'`` or ``'none'``; see :func:`simclr_loss`.
    labels: integers ``[batch]``; rows with the anchor's label, such as copies
      of a caption, are no negatives.
    axis_name: mapped axis over which the batch is split.
    mesh: mesh whose devices share the rows under ``jit``; see
      :func:`simclr_loss`.
    block_size: rows and columns of the similarity tiles; see
      :func:`simclr_loss`.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    One loss per pair, ``[batch]``: the mean of its two directions.

  Example:
    >>> import jax.numpy as jnp
    >>> images = texts = jnp.eye(4)
    >>> print(f'{clip_loss(images, texts, logit_scale=1.0).mean():.4f}')
    0.7437

  References:
    [1] Radford et al., Learning Transferable Visual Models From Natural
      Language Supervision, 2021.
    [2] Robinson et al., Contrastive Learning with Hard Negative Samples, 2021.
  """
  image_embeddings, text_embeddings = _checks.embeddings(
      image_embeddings=image_embeddings, text_embeddings=text_embeddings
  )
  _checks.logit_scale(logit_scale)
  if isinstance(logit_scale, jax.Array):
    dtype = _vectors.compute_dtype(image_embeddings.dtype)
    logit_scale = logit_scale.astype(dtype)
  if beta is None and effective_negatives is None:
    beta = 0.0
  if margin is not None:
    margin = _margin.read(
        margin,
        image_embeddings=image_embeddings,
        text_embeddings=text_embeddings,
    )
  return _in_batch.in_batch_loss(
      image_embeddings,
      text_embeddings,
      temperature=1 / logit_scale,
      beta=beta,
      effective_negatives=effective_negatives,
      tau_plus=tau_plus,
      positive_weight=positive_weight,
      margin=margin,
      floor=floor,
      labels=labels,
      bidirectional=True,
      axis_name=axis_name,
      mesh=mesh,
      block_size=block_size,
      stop_gradient_weights=stop_gradient_weights,
  )
