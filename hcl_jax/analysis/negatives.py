# SPDX-License-Identifier: Apache-2.0
"""Negatives of an anchor: weights, effects of beta and tau_plus, galleries."""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from hcl_jax import _checks
from hcl_jax import _vectors
from hcl_jax.analysis import similarities
from hcl_jax.losses import tilting


class Gallery(NamedTuple):
  """Anchors with their hardest and random negatives, as rows of a batch.

  Attributes:
    anchors: rows of the anchors, ``[a]``.
    hardest: rows of the most similar negatives, hardest first, ``[a, k]``.
    hardest_similarities: their cosines to the anchor, ``[a, k]``.
    random: rows of random negatives, without replacement, ``[a, k]``.
    random_similarities: their cosines to the anchor, ``[a, k]``.
  """

  anchors: np.ndarray
  hardest: np.ndarray
  hardest_similarities: np.ndarray
  random: np.ndarray
  random_similarities: np.ndarray


def two_view_logits(
    z1: jax.Array,
    z2: jax.Array,
    *,
    temperature: ArrayLike = 0.5,
    labels: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Computes the logits inside :func:`hcl_jax.simclr_loss`.

  Args:
    z1: first view, ``[batch, dim]``.
    z2: second view; row i is the positive of row i.
    temperature: t > 0.
    labels: integers ``[batch]``; rows with the anchor's label are not
      negatives.

  Returns:
    ``pos_logits [2 batch]``, ``neg_logits [2 batch, 2 batch]`` and the mask
    ``where`` of negatives, as this module and :func:`hcl_jax.hard_nce_loss`
    take them.
  """
  z1, z2 = _checks.embeddings(z1=z1, z2=z2)
  _checks.temperature(temperature)
  batch = z1.shape[0]
  if labels is None:
    ids = jnp.arange(batch)
  else:
    ids = _checks.labels('labels', labels, (batch,))
  both = _vectors.normalize(jnp.concatenate([z1, z2]))
  logits = _vectors.inner_products(both, both) / temperature
  rows = jnp.arange(2 * batch)
  ids = jnp.concatenate([ids, ids])
  return logits[rows, rows - batch], logits, ids[:, None] != ids[None, :]


def negative_weights(
    neg_logits: jax.Array,
    *,
    beta: ArrayLike,
    where: jax.Array | None = None,
) -> jax.Array:
  r"""Computes the probability of each negative under q_beta.

  .. math::
    w_j = e^{\beta s_j} / \sum_k e^{\beta s_k}

  Args:
    neg_logits: ``[..., N]``.
    beta: concentration, >= 0. May be traced.
    where: negatives to count, boolean, broadcastable to ``neg_logits``.

  Returns:
    Weights of the shape of ``neg_logits``; they sum to 1, or to 0 without
    negatives.

  References:
    Robinson et al., Contrastive Learning with Hard Negative Samples, 2021.
  """
  return jnp.exp(_log_weights(*_read(neg_logits, beta, where)))


def effective_negatives(
    neg_logits: jax.Array,
    *,
    beta: ArrayLike,
    order: int = 2,
    where: jax.Array | None = None,
) -> jax.Array:
  r"""Computes the effective number of negatives, a Hill number.

  .. math::
    D_2 = 1 / \sum_j w_j^2, \qquad D_1 = \exp\bigl(-\sum_j w_j \log w_j\bigr)

  Here w are the weights of :func:`negative_weights`. Both numbers are N at
  ``beta=0`` and fall to 1, or to the number of tied hardest negatives, as beta
  grows. The variance of the weighted mean scales with 1 / D_2, which is also
  Kish's effective sample size; D_1, the perplexity, gives more credit to small
  weights.

  Args:
    neg_logits: ``[..., N]``.
    beta: concentration, >= 0. May be traced.
    order: 2 or 1.
    where: negatives to count, boolean, broadcastable to ``neg_logits``.

  Returns:
    One number per anchor, ``[...]``; 0 without negatives.

  Example:
    >>> import jax.numpy as jnp
    >>> logits = jnp.array([0.0, 0.0, 2.0, 2.0])
    >>> [f'{effective_negatives(logits, beta=b):.2f}' for b in (0, 1, 10)]
    ['4.00', '2.53', '2.00']

  References:
    Hill, Diversity and Evenness: A Unifying Notation and Its Consequences,
    1973. Kish, Survey Sampling, 1965.
  """
  _checks.choice('order', order, (1, 2))
  logits, beta, where = _read(neg_logits, beta, where)
  log_weights = _log_weights(logits, beta, where)
  weights = jnp.exp(log_weights)
  finite = jnp.where(weights > 0, log_weights, 0)
  if order == 1:
    log_number = -jnp.sum(weights * finite, axis=-1)
  else:
    log_number = -jnp.log(jnp.sum(weights**2, axis=-1))
  return jnp.where(jnp.any(where, axis=-1), jnp.exp(log_number), 0)


def clamp_fraction(
    pos_logits: jax.Array,
    neg_logits: jax.Array,
    *,
    beta: ArrayLike = 1.0,
    tau_plus: ArrayLike = 0.1,
    log_floor: ArrayLike | None = None,
    where: jax.Array | None = None,
) -> jax.Array:
  r"""Computes the share of anchors with a debiased estimate below its floor.

  .. math::
    \frac{1}{1-\tau^+} \bigl(E_{q_\beta}[e^{s}] - \tau^+ e^{p}\bigr) < e^{f}

  Here f is ``log_floor``; without one the right-hand side is 0. The negatives
  of such an anchor get no gradient.

  Args:
    pos_logits: similarity to the positive over temperature, ``[...]``.
    neg_logits: the same for N negatives, ``[..., N]``.
    beta: concentration, >= 0. May be traced.
    tau_plus: class prior, in ``[0, 1)``; nothing is clamped at 0.
    log_floor: f; ``-1 / temperature`` corresponds to ``floor='sphere'`` of the
      losses on embeddings.
    where: negatives to count, boolean, broadcastable to ``neg_logits``.

  Returns:
    The share among anchors with negatives; 0 if none has any.
  """
  _checks.tau_plus(tau_plus)
  logits, beta, where = _read(neg_logits, beta, where)
  positive = _vectors.upcast(_checks.floats('pos_logits', pos_logits))
  if positive.shape != logits.shape[:-1]:
    raise ValueError(
        'pos_logits must have shape [...] where neg_logits has [..., N]; got '
        f'{positive.shape} and {logits.shape}.'
    )
  if log_floor is not None:
    _checks.number('log_floor', log_floor)
    log_floor = jnp.asarray(log_floor, logits.dtype) - positive
  one = jnp.ones((), logits.dtype)
  peak, log_mean = tilting.tilted_log_mean(logits, one, beta, where)
  clamped = tilting.is_clamped(
      peak - positive + log_mean,
      jnp.asarray(tau_plus, logits.dtype),
      excess=jnp.zeros_like(positive),
      floor_gap=log_floor,
  )
  some = jnp.any(where, axis=-1)
  return jnp.sum(clamped & some) / jnp.maximum(jnp.sum(some), 1)


def sample_negatives(
    key: jax.Array,
    neg_logits: jax.Array,
    *,
    beta: ArrayLike,
    num_samples: int,
    where: jax.Array | None = None,
) -> jax.Array:
  r"""Draws negatives from q_beta.

  .. math::
    \arg\max_j \bigl(\beta s_j + g_j\bigr), \qquad
    g_j \text{ standard Gumbel}

  The draws follow the weights of :func:`negative_weights`. The losses use the
  weights themselves; the mean of :math:`e^{s}` over draws is an unbiased
  estimate of their :math:`E_{q_\beta}[e^s]`.

  Args:
    key: a JAX key.
    neg_logits: ``[..., N]``, every anchor with at least one negative.
    beta: concentration, >= 0. May be traced.
    num_samples: number of draws per anchor, with replacement.
    where: negatives to count, boolean, broadcastable to ``neg_logits``.

  Returns:
    Indices of negatives, ``[..., num_samples]``.

  References:
    Gumbel, Statistical Theory of Extreme Values, 1954; Maddison, Tarlow and
    Minka, A* Sampling, 2014.
  """
  _checks.positive_int('num_samples', num_samples)
  logits, beta, where = _read(neg_logits, beta, where)
  tilted = _log_weights(logits, beta, where)
  shape = num_samples, *tilted.shape[:-1]
  draws = jax.random.categorical(key, tilted, shape=shape)
  return jnp.moveaxis(draws, 0, -1)


def hard_negative_gallery(
    embeddings: Any,
    anchors: Any,
    *,
    k: int = 10,
    ids: Any = None,
    seed: int = 0,
) -> Gallery:
  """Finds the hardest negatives of anchors, and random ones for comparison.

  The paper's qualitative figure shows such a gallery (Robinson et al., 2021,
  appendix). A random negative may also be one of the hardest.

  Args:
    embeddings: the batch, ``[n, dim]``; need not be unit vectors.
    anchors: rows of the batch, integers ``[a]``.
    k: number of negatives of either kind per anchor.
    ids: integers ``[n]``; rows with the anchor's id are not its negatives. The
      index of an image excludes its other views, a class label all rows of the
      class. By default only the anchor itself is excluded.
    seed: seed of the random negatives.

  Example:
    >>> import numpy as np
    >>> rows = np.float32([[1, 0], [1, 0.1], [-1, 0], [0, 1]])
    >>> hard_negative_gallery(rows, [0], k=2).hardest
    array([[1, 3]], dtype=int32)
  """
  _checks.positive_int('k', k)
  units = _checks.units('embeddings', embeddings, rows=2)
  anchors = _read_anchors(anchors, len(units))
  ids = similarities.read_ids('ids', ids, len(units))
  hardest, cosines = similarities.hardest_rows(units, ids, anchors, k)
  rng = np.random.default_rng(seed)
  random = np.stack([
      rng.choice(np.flatnonzero(ids != ids[anchor]), k, replace=False)
      for anchor in anchors
  ]).astype(hardest.dtype)
  return Gallery(
      anchors=anchors,
      hardest=hardest,
      hardest_similarities=cosines,
      random=random,
      random_similarities=np.einsum(
          'ad,akd->ak', units[anchors], units[random]
      ),
  )


def gallery_text(
    gallery: Gallery, items: Sequence[str] | None = None, *, labels: Any = None
) -> str:
  """Formats a gallery as text.

  Each anchor is followed by its hardest and random negatives, with their
  similarities.

  Args:
    gallery: result of :func:`hard_negative_gallery`.
    items: names of the rows of the batch, such as sentences; by default their
      indices.
    labels: integers ``[n]``; a ``*`` marks false negatives, which have the
      anchor's label.
  """
  rows = 1 + max(x.max() for x in (gallery.anchors, *gallery[1::2]))
  if items is None:
    items = [f'#{row}' for row in range(rows)]
  labels = np.arange(len(items)) if labels is None else np.asarray(labels)
  for name, of_rows in (('items', items), ('labels', labels)):
    if len(of_rows) < rows:
      raise ValueError(
          f'{name} must have an entry for every row of the batch, at least '
          f'{rows}; got {len(of_rows)}.'
      )
  lines = []
  for i, anchor in enumerate(gallery.anchors):
    lines.append(items[anchor])
    for kind in ('hardest', 'random'):
      rows = getattr(gallery, kind)[i]
      cosines = getattr(gallery, f'{kind}_similarities')[i]
      lines.append(f'  {kind}')
      for row, cosine in zip(rows, cosines, strict=True):
        mark = '*' if labels[row] == labels[anchor] else ' '
        lines.append(f'  {mark} {cosine:+.3f}  {items[row]}')
  return '\n'.join(lines)


def _read(neg_logits, beta, where):
  logits = _vectors.upcast(_checks.floats('neg_logits', neg_logits))
  if logits.ndim == 0 or logits.shape[-1] == 0:
    raise ValueError(
        'neg_logits must have shape [..., N] with N >= 1 negatives; got '
        f'{logits.shape}.'
    )
  _checks.beta(beta)
  where = jnp.array(True) if where is None else where
  where = _checks.mask('where', where, logits.shape)
  beta = jnp.asarray(beta, logits.dtype)
  return logits, beta, jnp.broadcast_to(where, logits.shape)


def _log_weights(logits, beta, where):
  """Returns log w, -inf outside the mask."""
  # Shifts before it multiplies by beta, so that nothing overflows.
  peak = jnp.max(logits, axis=-1, where=where, initial=-jnp.inf, keepdims=True)
  below = jnp.where(where, logits - jnp.where(jnp.isfinite(peak), peak, 0), 0)
  tilted = jnp.where(where, beta * below, -jnp.inf)
  total = jnp.sum(jnp.exp(tilted), axis=-1, keepdims=True)
  return tilted - jnp.log(jnp.where(total == 0, 1, total))


def _read_anchors(anchors, rows):
  anchors = np.asarray(anchors)
  if anchors.ndim != 1 or not len(anchors) or anchors.dtype.kind not in 'iu':
    raise ValueError(
        'anchors must be rows of the batch, a vector of at least one int; got '
        f'shape {anchors.shape} and dtype {anchors.dtype}.'
    )
  wrong = anchors[(anchors < 0) | (anchors >= rows)]
  if len(wrong):
    raise ValueError(
        f'anchors must be from 0 to {rows - 1}, the rows of the batch; got '
        f'{wrong[0]}.'
    )
  return anchors
