# SPDX-License-Identifier: Apache-2.0
"""Quick-thoughts: a sentence against its neighbours in the text."""

import warnings

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hcl_jax.losses import _arguments
from hcl_jax.losses import _cosine
from hcl_jax.losses import _nce
from hcl_jax.losses import _tilting


def quick_thoughts_loss(
    left: jax.Array,
    right: jax.Array,
    *,
    beta: ArrayLike = 0.0,
    tau_plus: ArrayLike = 0.0,
    window: int = 1,
    self_pair: str = 'zero',
    clip_scale: ArrayLike | None = None,
    floor: str = 'none',
    where: jax.Array | None = None,
) -> jax.Array:
  r"""Predicts a sentence's neighbours among a batch of consecutive sentences.

  With raw inner products S = left right^T, the positives
  :math:`P_i = \{j : 0 < |i-j| \le window\}` and all others as negatives,

  .. math::
    \ell_i = \frac{1}{|P_i|} \sum_{j \in P_i}
      \log \frac{\sum_{k \in P_i} e^{S_{ik}} + N_{g,i}}{e^{S_{ij}}}

  where Ng is the hard, debiased estimate of :func:`hard_nce_loss` over the
  negatives, with the positives of :math:`P_i` in its prior term.
  ``beta=0, tau_plus=0`` is the released softmax cross entropy.

  The authors report that ``tau_plus > 0`` broke their sentence runs: without a
  bound, an anchor whose estimate turns negative gets no gradient. Use
  ``floor='soft'`` there.

  Args:
    left: embeddings by the one encoder, ``[batch, dim]``, row i sentence i.
    right: embeddings by the other, ``[batch, dim]``.
    beta: concentration, >= 0. May be traced.
    tau_plus: probability that a negative is a positive, in ``[0, 1)``.
    window: how many sentences on each side are positives.
    self_pair: ``'zero'``: the sentence itself is a negative with logit 0, as
      released; ``'drop'``: it is left out.
    clip_scale: with a number c (the paper uses 2) the weights are
      :math:`e^{\beta c S / \max|S|}`, the maximum over the batch's negatives,
      instead of :math:`e^{\beta S}`.
    floor: ``'none'``, ``'soft'`` or ``'sphere'``; see :func:`simclr_loss`.
      ``'sphere'`` is N e^{-1} and bounds nothing here unless the embeddings
      have length one.
    where: sentences to count, boolean ``[batch]``. The others are nobody's
      positive or negative, and may hold anything.

  Returns:
    One loss per sentence, ``[batch]``; 0 for one that does not count or has no
    neighbour.

  References:
    Logeswaran and Lee, An Efficient Framework for Learning Sentence
    Representations, 2018; Robinson et al., 2021, section on sentences.
  """
  left, right = _arguments.embeddings(left=left, right=right)
  _arguments.beta(beta)
  _arguments.tau_plus(tau_plus)
  _arguments.positive_int('window', window)
  _arguments.choice('self_pair', self_pair, ('zero', 'drop'))
  _arguments.choice('floor', floor, _nce.FLOORS)
  batch = left.shape[0]
  if batch < 2 * window + 1:
    raise ValueError(
        f'left and right must hold at least 2 * window + 1 = {2 * window + 1} '
        f'sentences; got shape {left.shape}.'
    )
  if floor == 'sphere':
    warnings.warn(
        "floor='sphere' bounds only unit embeddings; quick_thoughts_loss does "
        "not normalise. Use floor='soft'.",
        stacklevel=2,
    )
  counted = jnp.ones((batch,), bool)
  if where is not None:
    counted = _arguments.mask('where', where, (batch,))
    counted = jnp.broadcast_to(counted, (batch,))
    left, right = (jnp.where(counted[:, None], x, 0) for x in (left, right))
  scores = _cosine.inner_products(_cosine.upcast(left), _cosine.upcast(right))

  row = jnp.arange(batch)
  distance = jnp.abs(row[:, None] - row[None, :])
  pairs = counted[:, None] & counted[None, :]
  positives = pairs & (distance > 0) & (distance <= window)
  negatives = pairs & (distance > window)
  if self_pair == 'zero':
    scores = jnp.where(distance == 0, 0, scores)
    negatives |= pairs & (distance == 0)

  one = jnp.ones((), scores.dtype)
  beta, tau_plus = (jnp.asarray(x, scores.dtype) for x in (beta, tau_plus))
  if clip_scale is not None:
    _arguments.positive('clip_scale', clip_scale)
    clip = jnp.asarray(clip_scale, scores.dtype)
    beta = _tilting.clipped_beta(beta, scores, clip, negatives)
  peak, log_mean = _tilting.tilted_log_mean(
      scores, one, jnp.zeros_like(beta), positives
  )
  _, log_tilted = _tilting.tilted_log_mean(scores, one, beta, positives)
  num_positives = jnp.sum(positives, axis=1, dtype=scores.dtype)
  # log sum_{P_i} e^S, about the peak; it stands where a single positive would.
  log_sum = log_mean + jnp.log(jnp.maximum(num_positives, 1))
  above = jnp.where(positives, scores - peak[:, None], 0)
  spread = log_sum - jnp.sum(above, axis=1) / jnp.maximum(num_positives, 1)
  against = _nce.dense_negatives(scores, one, beta, negatives)
  losses = spread + _nce.nce(
      peak + log_sum,
      against,
      scale=one,
      tau_plus=tau_plus,
      excess=log_tilted - log_sum,
      floor_gap=-1 - (peak + log_sum) if floor == 'sphere' else None,
      soft_floor=_nce.SOFT_FLOOR if floor == 'soft' else None,
  )
  return jnp.where(num_positives > 0, losses, 0)
