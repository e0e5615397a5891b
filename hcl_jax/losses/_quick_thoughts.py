# SPDX-License-Identifier: Apache-2.0
"""Quick-thoughts' loss: predicts the sentences next to a sentence."""

from typing import Any
from typing import NamedTuple
import warnings

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hcl_jax import _checks
from hcl_jax import _vectors
from hcl_jax.losses import _nce
from hcl_jax.losses import _perplexity
from hcl_jax.losses import tilting


def quick_thoughts_loss(
    left: jax.Array,
    right: jax.Array,
    *,
    beta: ArrayLike | None = None,
    effective_negatives: ArrayLike | None = None,
    tau_plus: ArrayLike = 0.0,
    window: int = 1,
    self_pair: str = 'zero',
    clip_scale: ArrayLike | None = None,
    stop_gradient_clip: bool = False,
    floor: str = 'none',
    segments: jax.Array | None = None,
    where: jax.Array | None = None,
) -> jax.Array:
  r"""Computes the loss of predicting neighbors among consecutive sentences.

  S = left right^T are raw inner products. Positives of sentence i are
  :math:`P_i = \{j : 0 < |i-j| \le window, g_i = g_j\}`, where g are the
  segments; all others are negatives:

  .. math::
    \ell_i = \frac{1}{|P_i|} \sum_{j \in P_i}
      \log \frac{\sum_{k \in P_i} e^{S_{ik}} + N_{g,i}}{e^{S_{ij}}}

  where Ng is the hard, debiased estimate of :func:`hard_nce_loss` over the
  negatives, with the positives :math:`P_i` in its prior term.
  ``beta=0, tau_plus=0`` is the released softmax cross entropy.

  The authors report that ``tau_plus > 0`` broke their sentence runs: without a
  bound, an anchor with a negative estimate has no gradient. Use
  ``floor='soft'`` with it.

  Args:
    left: embeddings of sentences by the first encoder, ``[batch, dim]``.
    right: embeddings by the second encoder, ``[batch, dim]``.
    beta: concentration, >= 0. May be traced. The scores have no temperature, so
      its hardness grows with the embeddings unless ``clip_scale`` is given.
      None: 0, as released.
    effective_negatives: instead of beta, the share of a sentence's negatives
      that shall count, in (0, 1]: each sentence gets the beta of that
      perplexity, within 1 %, as a constant of the gradient; see
      :func:`beta_for_perplexity`. It means the same for embeddings of every
      size, and a large score changes no other sentence's weights; so it
      excludes ``clip_scale``. The sentence itself counts, with logit 0, for
      ``self_pair='zero'``; what ``where`` drops does not. May be traced.
    tau_plus: probability that a negative is a positive, in ``[0, 1)``.
    window: number of positive sentences on each side.
    self_pair: ``'zero'``: the sentence itself is a negative with logit 0, as in
      the released code; ``'drop'``: it is left out.
    clip_scale: if given, a number c (2 in the paper): weights are
      :math:`e^{\beta c S / \max|S|}`, with the maximum over the batch's
      negatives, instead of :math:`e^{\beta S}`.
    stop_gradient_clip: treat max |S| as a constant. Otherwise one large score
      equalizes all weights, which lowers the loss, and training exploits it.
    floor: ``'none'``, ``'soft'`` or ``'sphere'``; see :func:`simclr_loss`.
      ``'sphere'`` is N e^{-1}, a bound for unit vectors only.
    segments: piece of text of each sentence, integers ``[batch]``; None for one
      piece. Sentences of different pieces are negatives at any distance.
    where: sentences to count, boolean ``[batch]``. Others are neither positives
      nor negatives and may have any value.

  Returns:
    One loss per sentence, ``[batch]``; 0 for a sentence that does not count or
    has no neighbor.

  References:
    Logeswaran and Lee, An Efficient Framework for Learning Sentence
    Representations, 2018; Robinson et al., 2021, section on sentences.
  """
  anchors = _anchors(
      left,
      right,
      beta=beta,
      effective_negatives=effective_negatives,
      tau_plus=tau_plus,
      window=window,
      self_pair=self_pair,
      clip_scale=clip_scale,
      stop_gradient_clip=stop_gradient_clip,
      floor=floor,
      segments=segments,
      where=where,
  )
  soft_floor = jnp.asarray(_nce.SOFT_FLOOR, anchors.gap.dtype)
  losses = anchors.spread + tilting.debiased_loss(
      anchors.gap,
      anchors.log_n,
      anchors.tau_plus,
      excess=anchors.excess,
      floor_gap=anchors.floor_gap,
      soft_floor=soft_floor if floor == 'soft' else None,
  )
  return jnp.where(anchors.num_positives > 0, losses, 0)


def quick_thoughts_clamp_fraction(
    left: jax.Array, right: jax.Array, **options: Any
) -> jax.Array:
  r"""Computes the share of anchors with an estimate Ng below its floor.

  The floor is N e^{-1} with ``floor='sphere'`` and 0 otherwise. With
  ``floor='none'`` such anchors have no loss from their negatives and no
  gradient; ``'soft'`` gives them both. At ``tau_plus=0`` the share is 0.

  Args:
    left: see :func:`quick_thoughts_loss`.
    right: see :func:`quick_thoughts_loss`.
    **options: keyword arguments of :func:`quick_thoughts_loss`.

  Returns:
    A share of the sentences that have a neighbor, from 0 to 1.

  Example:
    >>> import jax.numpy as jnp
    >>> z = 4 * jnp.repeat(jnp.eye(4), 2, axis=0)  # like one neighbor only
    >>> [float(quick_thoughts_clamp_fraction(z, z, tau_plus=tau_plus))
    ...  for tau_plus in (0.0, 0.5)]
    [0.0, 1.0]
  """
  anchors = _anchors(left, right, **options)
  clamped = tilting.is_clamped(
      anchors.gap,
      anchors.tau_plus,
      excess=anchors.excess,
      floor_gap=anchors.floor_gap,
  )
  counted = anchors.num_positives > 0
  clamped &= counted & (anchors.log_n > -jnp.inf)
  return jnp.sum(clamped) / jnp.maximum(jnp.sum(counted), 1)


class _Anchors(NamedTuple):
  """Terms of the loss of each sentence, ``[batch]`` except tau_plus.

  a = log sum_{P_i} e^S takes the place of a single positive's logit.
  """

  num_positives: jax.Array
  spread: jax.Array  # a - mean_{P_i} S
  gap: jax.Array  # A - a
  excess: jax.Array  # B - a
  log_n: jax.Array
  floor_gap: jax.Array | None
  tau_plus: jax.Array


def _anchors(
    left: jax.Array,
    right: jax.Array,
    *,
    beta: ArrayLike | None = None,
    effective_negatives: ArrayLike | None = None,
    tau_plus: ArrayLike = 0.0,
    window: int = 1,
    self_pair: str = 'zero',
    clip_scale: ArrayLike | None = None,
    stop_gradient_clip: bool = False,
    floor: str = 'none',
    segments: jax.Array | None = None,
    where: jax.Array | None = None,
) -> _Anchors:
  """Checks arguments and computes the terms of the loss from all pairs."""
  left, right = _checks.embeddings(left=left, right=right)
  _nce.check_hardness(beta, effective_negatives)
  beta = 0.0 if beta is None else beta
  _checks.beta(beta)
  if effective_negatives is not None and clip_scale is not None:
    raise ValueError(
        'clip_scale and effective_negatives exclude each other; got '
        f'clip_scale={clip_scale} and effective_negatives='
        f'{effective_negatives}. Leave one out.'
    )
  _checks.tau_plus(tau_plus)
  _checks.positive_int('window', window)
  _checks.choice('self_pair', self_pair, ('zero', 'drop'))
  _checks.choice('floor', floor, _nce.FLOORS)
  batch = left.shape[0]
  if batch < 2 * window + 1:
    raise ValueError(
        f'left and right must have at least 2 * window + 1 = {2 * window + 1} '
        f'sentences; got shape {left.shape}.'
    )
  if floor == 'sphere':
    warnings.warn(
        "floor='sphere' bounds only unit embeddings; quick_thoughts_loss does "
        "not normalize. Use floor='soft'.",
        stacklevel=3,
    )
  counted = jnp.ones((batch,), bool)
  if where is not None:
    counted = _checks.mask('where', where, (batch,))
    counted = jnp.broadcast_to(counted, (batch,))
    left, right = (jnp.where(counted[:, None], x, 0) for x in (left, right))
  scores = _vectors.inner_products(*map(_vectors.upcast, (left, right)))

  row = jnp.arange(batch)
  distance = jnp.abs(row[:, None] - row[None, :])
  near = distance <= window
  if segments is not None:
    segments = _checks.labels('segments', segments, (batch,))
    near &= segments[:, None] == segments[None, :]
  pairs = counted[:, None] & counted[None, :]
  positives = pairs & near & (distance > 0)
  negatives = pairs & ~near
  if self_pair == 'zero':
    scores = jnp.where(distance == 0, 0, scores)
    negatives |= pairs & (distance == 0)

  one = jnp.ones((), scores.dtype)
  beta, tau_plus = (jnp.asarray(x, scores.dtype) for x in (beta, tau_plus))
  if clip_scale is not None:
    _checks.positive('clip_scale', clip_scale)
    clip = jnp.asarray(clip_scale, scores.dtype)
    beta = tilting.clipped_beta(
        beta, scores, clip, negatives, stop_gradient_clip
    )
  elif effective_negatives is not None:
    beta = _perplexity.beta_for_perplexity(
        scores, effective_negatives, where=negatives
    )
  peak, log_mean = tilting.tilted_log_mean(
      scores, one, jnp.zeros_like(beta), positives
  )
  _, log_tilted = tilting.tilted_log_mean(scores, one, beta, positives)
  num_positives = jnp.sum(positives, axis=1, dtype=scores.dtype)
  # a, relative to the peak.
  log_sum = log_mean + jnp.log(jnp.maximum(num_positives, 1))
  above = jnp.where(positives, scores - peak[:, None], 0)
  against = _nce.dense_negatives(scores, one, beta, negatives)
  return _Anchors(
      num_positives=num_positives,
      spread=log_sum - jnp.sum(above, axis=1) / jnp.maximum(num_positives, 1),
      gap=against.peak - (peak + log_sum) + against.log_mean,
      excess=log_tilted - log_sum,
      log_n=against.log_n,
      floor_gap=-1 - (peak + log_sum) if floor == 'sphere' else None,
      tau_plus=tau_plus,
  )
