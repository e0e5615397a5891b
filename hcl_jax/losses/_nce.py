# SPDX-License-Identifier: Apache-2.0
"""Implements the paper's loss on logits: hard, debiased and plain NCE.

This is the loss of :func:`hcl_jax.simclr_loss` for a small batch, without
blocks, devices, masks or care for rounding:

>>> import jax
>>> import jax.numpy as jnp
>>> import hcl_jax
>>> def dense_loss(z1, z2, temperature, beta, tau_plus):
...   z, batch = jnp.concatenate([z1, z2]), len(z1)
...   z /= jnp.linalg.norm(z, axis=1, keepdims=True)
...   scores = jnp.exp(z @ z.T / temperature)
...   row = jnp.arange(2 * batch)
...   positive = scores[row, (row + batch) % (2 * batch)]
...   is_negative = row[:, None] % batch != row[None, :] % batch
...   weights = jnp.where(is_negative, scores**beta, 0)
...   mean = jnp.sum(weights * scores, axis=1) / jnp.sum(weights, axis=1)
...   debiased = (mean - tau_plus * positive) / (1 - tau_plus)
...   debiased = jnp.maximum(debiased, jnp.exp(-1 / temperature))
...   losses = jnp.log(1 + (2 * batch - 2) * debiased / positive)
...   return jnp.mean(losses.reshape(2, batch), axis=0)
>>> z1, noise = jax.random.normal(jax.random.key(0), (2, 8, 4))
>>> z2 = z1 + noise / 2
>>> for name, beta, tau_plus in (
...     ('standard', 0.0, 0.0), ('debiased', 0.0, 0.1), ('hard', 1.0, 0.1)
... ):
...   given = {'temperature': 0.5, 'beta': beta, 'tau_plus': tau_plus}
...   error = hcl_jax.simclr_loss(z1, z2, **given) - dense_loss(z1, z2, **given)
...   print(name, jnp.max(jnp.abs(error)) < 1e-5)
standard True
debiased True
hard True
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hcl_jax import _checks
from hcl_jax import _vectors
from hcl_jax.losses import _perplexity
from hcl_jax.losses import tilting

FLOORS = ('sphere', 'soft', 'none')
SOFT_FLOOR = 0.5  # r0 of floor='soft': doubles gradients at most
HARDNESS = 2.0  # beta / temperature by default: the paper's for images


class Hyperparameters(NamedTuple):
  """Hyperparameters of a cosine loss as arrays; scale is 1 / temperature."""

  scale: jax.Array
  beta: jax.Array
  tau_plus: jax.Array
  positive_weight: jax.Array
  effective_negatives: jax.Array | None  # a fraction, in place of beta


class Negatives(NamedTuple):
  """Summary of an anchor's negatives: log N and A = scale peak + log_mean."""

  peak: jax.Array
  log_mean: jax.Array
  log_n: jax.Array


def hard_nce_loss(
    pos_logits: jax.Array,
    neg_logits: jax.Array,
    *,
    beta: ArrayLike | None = None,
    effective_negatives: ArrayLike | None = None,
    tau_plus: ArrayLike = 0.1,
    positive_weight: ArrayLike = 1.0,
    log_floor: ArrayLike | None = None,
    soft_floor: ArrayLike | None = None,
    where: jax.Array | None = None,
    stop_gradient_weights: bool = False,
) -> jax.Array:
  r"""Computes the contrastive loss with negatives tilted toward the anchor.

  .. math::
    \ell = \frac1M \sum_m \log\Bigl(w + \frac{N_g}{e^{p_m}}\Bigr), \qquad
    N_g = \frac{N}{1-\tau^+} \bigl(E_{q_\beta}[e^{s}]
          - \tau^+ E_{q_\beta^+}[e^{p}]\bigr)

  where :math:`q_\beta` weights negative j by :math:`e^{\beta s_j}` and
  :math:`q_\beta^+` weights positive m by :math:`e^{\beta p_m}`. ``beta=0`` is
  the debiased loss [2]; with ``tau_plus=0`` too, it is InfoNCE. The bracket is
  an estimate and may be negative: Ng is at least 0, or bounded by
  ``log_floor``, or continued smoothly by ``soft_floor``. An anchor without
  negatives (see ``where``) has loss 0 and gradient 0. The weight w of the
  positive in the denominator is 1 in InfoNCE; w = 0 is the decoupled loss [3]
  (with ``beta > 0``, DHN-NCE [4]), and between them lies HN-NCE [5].

  Args:
    pos_logits: similarity to the positive divided by the temperature,
      ``[...]``, or to M positives, ``[..., M]``.
    neg_logits: the same for N negatives, ``[..., N]``.
    beta: concentration of the tilt, >= 0; larger is harder. May be traced. A
      scalar, or one for each anchor, ``[...]``. None: 1, which for logits
      cosine / t is a hardness beta / t of 1 / t; give 2 t for that of
      :func:`simclr_loss`.
    effective_negatives: instead of beta, the share of the negatives that shall
      count, in (0, 1]: each anchor gets the beta of that perplexity, see
      :func:`beta_for_perplexity`. It means the same for logits of every size.
    tau_plus: probability that a negative has the anchor's class, in
      ``[0, 1)``. May be traced; at 0 the floors have no effect.
    positive_weight: w >= 0. May be traced. At 0 the loss is unbounded below,
      and -inf where the estimate Ng is 0: use a floor with ``tau_plus``.
    log_floor: lower bound of log(Ng / N); use ``-1 / temperature`` for unit
      vectors.
    soft_floor: r0 in (0, 1). Where r = tau_plus E+ / E- exceeds r0, the factor
      1 - r becomes (1 - r0)^2 / (1 - 2 r0 + r), which is positive and has a
      gradient. Excludes ``log_floor``.
    where: negatives to count, boolean, broadcastable to ``neg_logits``. Logits
      that it drops may be NaN or infinite.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    One loss per anchor, ``[...]``, in float32 at least.

  Example:
    >>> import jax.numpy as jnp
    >>> hard_nce_loss(jnp.zeros(2), jnp.zeros((2, 3)), tau_plus=0.0)
    Array([1.3862944, 1.3862944], dtype=float32)

  References:
    [1] Robinson et al., Contrastive Learning with Hard Negative Samples, 2021.
    [2] Chuang et al., Debiased Contrastive Learning, 2020.
    [3] Yeh et al., Decoupled Contrastive Learning, 2022.
    [4] Koleilat et al., MedCLIP-SAM, 2024.
    [5] Radenovic et al., Filtering, Distillation, and Hard Negatives for
      Vision-Language Pre-Training, 2023.
  """
  pos, neg = _read_logits(pos_logits, neg_logits)
  check_hardness(beta, effective_negatives)
  beta = 1.0 if beta is None else beta
  _checks.beta(beta, neg.shape[:-1])
  _checks.tau_plus(tau_plus)
  _checks.positive_weight(positive_weight)
  if soft_floor is not None:
    _checks.soft_floor(soft_floor)
    if log_floor is not None:
      raise ValueError(
          'log_floor and soft_floor exclude each other; got '
          f'log_floor={log_floor} and soft_floor={soft_floor}. Choose one.'
      )
  if where is not None:
    where = _checks.mask('where', where, neg.shape)
  if effective_negatives is not None:
    beta = _perplexity.beta_for_perplexity(
        neg, effective_negatives, where=where
    )
  beta, tau_plus = (jnp.asarray(x, neg.dtype) for x in (beta, tau_plus))
  one = jnp.ones((), neg.dtype)
  negatives = dense_negatives(
      neg, one, beta, where, stop_gradient_weights=stop_gradient_weights
  )
  if log_floor is not None:
    _checks.number('log_floor', log_floor)
    floor_gap = jnp.asarray(log_floor, neg.dtype) - pos
  else:
    floor_gap = None
  losses = nce(
      pos,
      Negatives(*(x[..., None] for x in negatives)),
      scale=one,
      tau_plus=tau_plus,
      excess=_tilted_excess(pos, one, beta, stop_gradient_weights),
      floor_gap=floor_gap,
      soft_floor=soft_floor,
      positive_weight=positive_weight,
  )
  return jnp.mean(losses, axis=-1)


def debiased_nce_loss(
    pos_logits: jax.Array,
    neg_logits: jax.Array,
    *,
    tau_plus: ArrayLike = 0.1,
    log_floor: ArrayLike | None = None,
    soft_floor: ArrayLike | None = None,
    where: jax.Array | None = None,
) -> jax.Array:
  r"""Computes InfoNCE, corrected for negatives that have the anchor's class.

  This is :func:`hard_nce_loss` at ``beta=0``: negatives have equal weights,

  .. math::
    N_g = \frac{N}{1-\tau^+} \Bigl(\frac1N \sum_j e^{s_j}
          - \tau^+ \frac1M \sum_m e^{p_m}\Bigr).

  Args:
    pos_logits: ``[...]`` or ``[..., M]``.
    neg_logits: ``[..., N]``.
    tau_plus: probability that a negative has the anchor's class.
    log_floor: see :func:`hard_nce_loss`.
    soft_floor: see :func:`hard_nce_loss`.
    where: negatives to count, broadcastable to ``neg_logits``.

  Returns:
    One loss per anchor, ``[...]``.

  References:
    Chuang et al., Debiased Contrastive Learning, 2020.
  """
  return hard_nce_loss(
      pos_logits,
      neg_logits,
      beta=0.0,
      tau_plus=tau_plus,
      log_floor=log_floor,
      soft_floor=soft_floor,
      where=where,
  )


def nce_loss(
    pos_logits: jax.Array,
    neg_logits: jax.Array,
    *,
    where: jax.Array | None = None,
) -> jax.Array:
  r"""Computes InfoNCE, the cross entropy of the positive among N negatives.

  This is :func:`hard_nce_loss` at ``beta=0, tau_plus=0``; with M positives, the
  mean of :math:`\log(1 + \sum_j e^{s_j - p_m})`.

  Args:
    pos_logits: ``[...]`` or ``[..., M]``.
    neg_logits: ``[..., N]``.
    where: negatives to count, broadcastable to ``neg_logits``.

  Returns:
    One loss per anchor, ``[...]``.

  References:
    van den Oord et al., Representation Learning with Contrastive Predictive
    Coding, 2018.
  """
  return hard_nce_loss(
      pos_logits, neg_logits, beta=0.0, tau_plus=0.0, where=where
  )


def clipped_beta(
    beta: ArrayLike,
    neg_logits: jax.Array,
    *,
    clip_scale: ArrayLike = 2.0,
    where: jax.Array | None = None,
) -> jax.Array:
  r"""Rescales beta to the logits: the paper's trick for embeddings of any size.

  .. math::
    \beta' = \beta \, c / \max |s|

  so that the tilts :math:`e^{\beta' s}` stay within :math:`e^{\pm c\beta}` for
  logits of any size. The maximum is over all given logits, and the gradient
  flows through it. All-zero logits give 0. Pass the result as ``beta`` to
  :func:`hard_nce_loss`.

  Args:
    beta: concentration, >= 0.
    neg_logits: logits of a batch's negatives, of any shape.
    clip_scale: c; the paper uses 2.
    where: logits to count, broadcastable to ``neg_logits``.

  Returns:
    A scalar.

  References:
    Robinson et al., 2021, appendix on graph representations.
  """
  logits = _vectors.upcast(_checks.floats('neg_logits', neg_logits))
  _checks.beta(beta)
  _checks.positive('clip_scale', clip_scale)
  if where is not None:
    where = _checks.mask('where', where, logits.shape)
  return tilting.clipped_beta(
      jnp.asarray(beta, logits.dtype),
      logits,
      jnp.asarray(clip_scale, logits.dtype),
      where,
  )


def dense_negatives(
    scores: jax.Array,
    scale: jax.Array,
    beta: jax.Array,
    where: jax.Array | None = None,
    *,
    stop_gradient_weights: bool = False,
) -> Negatives:
  """Summarizes scores ``[..., N]`` that are in memory."""
  peak, log_mean = tilting.tilted_log_mean(
      scores, scale, beta, where, stop_gradient_weights=stop_gradient_weights
  )
  if where is None:
    n = jnp.full(peak.shape, scores.shape[-1], scores.dtype)
  else:
    where = jnp.broadcast_to(where, scores.shape)
    n = jnp.sum(where, axis=-1, dtype=scores.dtype)
  return Negatives(peak, log_mean, jnp.log(n))


def nce(
    positive: jax.Array,
    negatives: Negatives,
    *,
    scale: jax.Array,
    tau_plus: jax.Array,
    excess: jax.Array | None = None,
    floor_gap: jax.Array | None = None,
    soft_floor: ArrayLike | None = None,
    positive_weight: ArrayLike = 1.0,
) -> jax.Array:
  """Computes the loss of positives, given by score, against their negatives."""
  gap = scale * (negatives.peak - positive) + negatives.log_mean
  if soft_floor is not None:
    soft_floor = jnp.asarray(soft_floor, gap.dtype)
  return tilting.debiased_loss(
      gap,
      negatives.log_n,
      tau_plus,
      excess=excess,
      floor_gap=floor_gap,
      soft_floor=soft_floor,
      positive_weight=positive_weight,
  )


def cosine_nce(
    positive: jax.Array,
    negatives: Negatives,
    hyperparameters: Hyperparameters,
    *,
    floor: str,
) -> jax.Array:
  """Computes :func:`nce` of cosines; ``floor`` is one of ``FLOORS``."""
  scale = hyperparameters.scale
  return nce(
      positive,
      negatives,
      scale=scale,
      tau_plus=hyperparameters.tau_plus,
      positive_weight=hyperparameters.positive_weight,
      # log(Ng / N) >= -1/t, the minimum for unit vectors.
      floor_gap=-scale * (1 + positive) if floor == 'sphere' else None,
      soft_floor=SOFT_FLOOR if floor == 'soft' else None,
  )


def read_hyperparameters(
    like: jax.Array,
    *beta_shapes: tuple[int, ...],
    temperature: ArrayLike,
    beta: ArrayLike | None,
    tau_plus: ArrayLike,
    positive_weight: ArrayLike,
    effective_negatives: ArrayLike | None,
    floor: str,
    block_size: int | None,
) -> Hyperparameters:
  """Checks hyperparameters of a cosine loss and converts them to arrays.

  Args:
    like: embeddings, whose dtype decides that of the arrays.
    *beta_shapes: shapes that a beta with one number per anchor may have.
    temperature: see :func:`simclr_loss`, as for all of the following.
    beta: a scalar or an array of one of the shapes; None: ``HARDNESS`` times
      the temperature.
    tau_plus: a scalar.
    positive_weight: a scalar.
    effective_negatives: a scalar or None; not with a beta of the caller's.
    floor: one of ``FLOORS``.
    block_size: a positive int or None.

  Returns:
    The hyperparameters that may be traced.
  """
  _checks.temperature(temperature)
  check_hardness(beta, effective_negatives)
  if beta is not None:
    _checks.beta(beta, *beta_shapes)
  _checks.tau_plus(tau_plus)
  _checks.positive_weight(positive_weight)
  _checks.choice('floor', floor, FLOORS)
  if block_size is not None:
    _checks.positive_int('block_size', block_size)
  dtype = _vectors.compute_dtype(like.dtype)
  if isinstance(temperature, jax.Array):
    temperature = temperature.astype(dtype)
  if beta is None:
    beta = HARDNESS * jnp.asarray(temperature, dtype)
  fraction = effective_negatives
  return Hyperparameters(
      scale=jnp.asarray(1 / temperature, dtype),
      beta=jnp.asarray(beta, dtype),
      tau_plus=jnp.asarray(tau_plus, dtype),
      positive_weight=jnp.asarray(positive_weight, dtype),
      effective_negatives=(
          None if fraction is None else jnp.asarray(fraction, dtype)
      ),
  )


def check_hardness(
    beta: ArrayLike | None, effective_negatives: ArrayLike | None
) -> None:
  """Checks that at most one of beta and effective_negatives is given."""
  if effective_negatives is None:
    return
  _checks.fraction('effective_negatives', effective_negatives)
  if beta is not None:
    raise ValueError(
        'beta and effective_negatives exclude each other; got beta='
        f'{beta} and effective_negatives={effective_negatives}. Leave one out.'
    )


def _read_logits(pos_logits, neg_logits):
  """Reads and upcasts logits; positives get an axis M if they have none."""
  pos = _checks.floats('pos_logits', pos_logits)
  neg = _checks.floats('neg_logits', neg_logits)
  _checks.same_dtype('pos_logits', pos, 'neg_logits', neg)
  if neg.ndim == 0 or neg.shape[-1] == 0:
    raise ValueError(
        'neg_logits must have shape [..., N] with N >= 1 negatives; got '
        f'{neg.shape}.'
    )
  given = pos.shape
  if given == neg.shape[:-1]:
    pos = pos[..., None]
  if pos.shape[:-1] != neg.shape[:-1] or pos.shape[-1] == 0:
    raise ValueError(
        'pos_logits must have shape [...] or [..., M] where neg_logits has '
        f'[..., N]; got {given} and {neg.shape}.'
    )
  return _vectors.upcast(pos), _vectors.upcast(neg)


def _tilted_excess(pos, scale, beta, stop_gradient_weights):
  """Returns B - p_m, with B the positives' tilted log-mean."""
  if pos.shape[-1] == 1:
    return None
  peak, log_mean = tilting.tilted_log_mean(
      pos, scale, beta, stop_gradient_weights=stop_gradient_weights
  )
  return scale * (peak[..., None] - pos) + log_mean[..., None]
