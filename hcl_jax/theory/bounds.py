# SPDX-License-Identifier: Apache-2.0
r"""Quantities of the paper's theorems, computed on a finite sample.

The sample is the distribution p: anchors x are its rows, equally likely; a
positive x+ is any row with the anchor's label, including the anchor; negatives
are the rows with other labels. Logits are cos / t, as in the losses. The
theorems put f on a sphere of radius r, where logits are r^2 cos, so here
r^2 = 1 / t (the paper writes r = 1 / t). All pairs are held in memory.

Reference: Robinson et al., Contrastive Learning with Hard Negative Samples,
2021.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from hcl_jax import _checks
from hcl_jax import _vectors
from hcl_jax.analysis import negatives
from hcl_jax.losses import tilting

_ROUNDING = 1e-5  # rounding error of a loss in float32


class BetaCurve(NamedTuple):
  """Objective against beta, and its limit.

  Attributes:
    betas: ``[n]``.
    losses: L(f, q_beta^-) at each beta, ``[n]``.
    limit: L*(f), the supremum over all distributions of negatives.
  """

  betas: np.ndarray
  losses: np.ndarray
  limit: float


class LimitingLoss(NamedTuple):
  """Parts of L_inf*, with f on a sphere of squared radius 1 / t.

  Attributes:
    alignment: L_align = E |f(x) - f(x+)|^2 / 2.
    uniformity: L_unif* = E max_{x-} f(x)^T f(x-).
    squared_radius: 1 / t.
  """

  alignment: float
  uniformity: float
  squared_radius: float

  @property
  def loss(self) -> float:
    """L_inf* = L_align + L_unif* - 1/t."""
    return self.alignment + self.uniformity - self.squared_radius


class VarianceCurve(NamedTuple):
  """Variance of the one-positive estimate against alignment, ``[n]`` each.

  Attributes:
    alignment: L_align.
    variance: variance of e^{f(x)^T f(v)} for v drawn from q_beta^+, averaged
      over anchors.
    bound: upper bound of the variance from the lemma's proof.
  """

  alignment: np.ndarray
  variance: np.ndarray
  bound: np.ndarray


def tilted_loss(
    embeddings: Any,
    labels: Any,
    *,
    beta: ArrayLike,
    temperature: float = 0.5,
    num_negatives: float = 1.0,
) -> float:
  r"""Computes the objective with true negatives drawn from q_beta^-.

  .. math::
    L(f, q) = E_{x, x^+} \Bigl[-\log \frac{e^{f(x)^\top f(x^+)}}
      {e^{f(x)^\top f(x^+)} + Q\, E_{x^- \sim q} [e^{f(x)^\top f(x^-)}]}\Bigr]

  Args:
    embeddings: ``[n, dim]``; need not be unit vectors.
    labels: integers ``[n]``, of at least two classes.
    beta: concentration, >= 0.
    temperature: t > 0.
    num_negatives: Q > 0.
  """
  _checks.beta(beta)
  sample = _Sample(embeddings, labels, temperature, num_negatives)
  return float(sample.loss(beta))


def worst_case_loss(
    embeddings: Any,
    labels: Any,
    *,
    temperature: float = 0.5,
    num_negatives: float = 1.0,
) -> float:
  r"""Computes the objective with the hardest true negatives.

  .. math::
    L^*(f) = \sup_q L(f, q) = E_{x, x^+} \log\Bigl(1 +
      Q\, e^{\max_{x^-} f(x)^\top f(x^-) - f(x)^\top f(x^+)}\Bigr)

  Arguments are those of :func:`tilted_loss`.
  """
  sample = _Sample(embeddings, labels, temperature, num_negatives)
  return float(sample.worst_loss())


def convergence_in_beta(
    embeddings: Any,
    labels: Any,
    *,
    betas: Sequence[float],
    temperature: float = 0.5,
    num_negatives: float = 1.0,
) -> BetaCurve:
  """Computes :func:`tilted_loss` at each beta, and :func:`worst_case_loss`.

  Proposition 1 of the paper: L(f, q_beta^-) rises to L*(f) as beta grows.
  ``betas`` are >= 0; the other arguments are those of :func:`tilted_loss`.
  """
  betas = _checks.numbers('betas', betas)
  for beta in betas:
    _checks.beta(beta)
  sample = _Sample(embeddings, labels, temperature, num_negatives)
  return BetaCurve(
      betas=betas,
      losses=np.array([float(sample.loss(beta)) for beta in betas]),
      limit=float(sample.worst_loss()),
  )


def limiting_worst_case_loss(
    embeddings: Any, labels: Any, *, temperature: float = 0.5
) -> LimitingLoss:
  r"""Computes the limit of L*(f) for many negatives, and its two parts.

  .. math::
    L_\infty^*(f) = E_{x, x^+} \log \frac{\max_{x^-} e^{f(x)^\top f(x^-)}}
      {e^{f(x)^\top f(x^+)}} = L_{align}(f) + L_{unif}^*(f) - 1/t

  Arguments are those of :func:`tilted_loss`. ``loss`` of the result is the
  limit.
  """
  sample = _Sample(embeddings, labels, temperature)
  return LimitingLoss(
      alignment=float(sample.alignment()),
      uniformity=float(jnp.mean(sample.scale * sample.largest())),
      squared_radius=float(sample.scale),
  )


def least_limiting_loss(
    packing_value: float, *, temperature: float = 0.5
) -> float:
  r"""Computes the smallest L_inf* of any embedding.

  .. math::
    \inf_f L_\infty^*(f) = -\frac{1}{2t}
      \max_v \sum_c \rho(c) \min_{c' \ne c} \|v_c - v_{c'}\|^2

  with v on the unit sphere.

  Args:
    packing_value: the maximum, such as ``value`` of
      :func:`hcl_jax.theory.ball_packing`. If a better packing exists, the
      infimum is smaller.
    temperature: t > 0.
  """
  _checks.temperature(temperature)
  return -packing_value / (2 * temperature)


def risk_bound(
    excess_loss: float,
    *,
    separation: float,
    num_classes: int,
    temperature: float = 0.5,
    bound: str = 'derived',
) -> float:
  r"""Computes the generalization theorem's bound on the risk of 1-NN.

  Let classes have equal size, eps be the excess of L_inf* over its infimum, xi
  the smallest distance between optimal points on the sphere of radius r, and

  .. math::
    s^2 = \xi^2 - 2 |C| (1 + r) \sqrt{\varepsilon} .

  The paper's proof bounds the risk by
  :math:`2 \varepsilon / \delta^2 + 2 \varepsilon / (s - \delta)^2` for all
  delta. The best choice, s / 2, gives

  .. math::
    P(\hat h(x) \ne c) \le 16\, \varepsilon / s^2 .

  The paper prints :math:`8\, \varepsilon / s^4` instead, which is smaller if
  s^2 > 1/2. Both are of order eps. The earlier steps of the proof are taken as
  printed, including the one to s, where a lemma has sqrt(eps) for a quantity
  that the proof bounds by sqrt(2 eps).

  Args:
    excess_loss: eps >= 0: ``limiting_worst_case_loss(...).loss`` minus
      :func:`least_limiting_loss`.
    separation: xi on the unit sphere, in (0, 2], such as
      ``2 * sin(packing.angle / 2)``.
    num_classes: number of classes.
    temperature: t > 0; r^2 = 1 / t, and xi is scaled by r.
    bound: ``'derived'`` or ``'printed'``.

  Returns:
    The bound; 1 where the theorem says nothing, that is, for eps > 1 or
    s^2 <= 0.
  """
  _checks.choice('bound', bound, ('derived', 'printed'))
  _checks.positive_int('num_classes', num_classes)
  _checks.temperature(temperature)
  _checks.number('excess_loss', excess_loss)
  _checks.positive('separation', separation)
  if excess_loss < -_ROUNDING:
    raise ValueError(
        f'excess_loss must be >= 0, got {excess_loss}; compute it with a '
        'better packing.'
    )
  excess_loss = max(excess_loss, 0.0)
  radius = temperature**-0.5
  loss = 2 * num_classes * (1 + radius) * excess_loss**0.5
  squared = (radius * separation) ** 2 - loss
  if excess_loss > 1 or squared <= 0:
    return 1.0
  if bound == 'printed':
    return min(8 * excess_loss / squared**2, 1.0)
  return min(16 * excess_loss / squared, 1.0)


def one_positive_variance(
    embeddings: Any,
    labels: Any,
    *,
    beta: float = 1.0,
    temperature: float = 0.5,
) -> VarianceCurve:
  r"""Computes the variance of the one-positive estimate of E_{q_beta^+}[e^s].

  .. math::
    E_x \operatorname{Var}_{v \sim q_\beta^+} (e^{f(x)^\top f(v)})
      \le r^2 e^{(2 + 4 \beta) r^2} L_{align}(f)

  The paper's lemma has O(L_align) on the right-hand side. The constant comes
  from its proof: on the sphere of radius r the exponential has slope e^{r^2} at
  most, the inner product with f(x) has slope r, and q_beta^+ is at most
  e^{2 beta r^2} p^+. As in the lemma, the variance is conditional on the
  anchor.

  Args:
    embeddings: ``[n, dim]``.
    labels: integers ``[n]``.
    beta: concentration, >= 0.
    temperature: t > 0; r^2 = 1 / t.

  Returns:
    A curve of one point: alignment, variance and bound, ``[1]`` each.
  """
  _checks.beta(beta)
  sample = _Sample(embeddings, labels, temperature, classes=1)
  alignment = float(sample.alignment())
  scale = float(sample.scale)
  log_bound = (2 + 4 * beta) * scale
  bound = scale * np.exp(min(log_bound, 700.0)) * alignment  # no inf * 0
  variance = float(sample.positive_variance(beta))
  return VarianceCurve(*(np.array([x]) for x in (alignment, variance, bound)))


def variance_against_alignment(
    centers: Any,
    *,
    spreads: Sequence[float],
    num_rows: int = 100,
    beta: float = 1.0,
    temperature: float = 0.5,
    seed: int = 0,
) -> VarianceCurve:
  """Computes :func:`one_positive_variance` of classes with growing spread.

  Rows of a class are its center plus normal noise, scaled to unit length.

  Args:
    centers: centers of the classes, ``[num_classes, dim]``.
    spreads: standard deviations of the noise in each dimension, >= 0.
    num_rows: rows per class.
    beta: concentration, >= 0.
    temperature: t > 0.
    seed: seed of the noise, which all spreads share up to its scale.
  """
  _checks.positive_int('num_rows', num_rows)
  spreads = _checks.numbers('spreads', spreads)
  centers = _checks.units('centers', centers)
  labels = np.repeat(np.arange(len(centers)), num_rows)
  noise = np.random.default_rng(seed).normal(
      size=(len(labels), centers.shape[1])
  )
  measured = [
      one_positive_variance(
          np.float32(centers[labels] + spread * noise),
          labels,
          beta=beta,
          temperature=temperature,
      )
      for spread in spreads
  ]
  return VarianceCurve(*map(np.concatenate, zip(*measured, strict=True)))


class _Sample:
  """Cosines of all pairs, and which of them have the same label."""

  def __init__(
      self, embeddings, labels, temperature, num_negatives=1.0, *, classes=2
  ):
    _checks.temperature(temperature)
    _checks.positive('num_negatives', num_negatives)
    units = _checks.units('embeddings', embeddings)
    labels = _checks.host_labels('labels', labels, len(units))
    if len(np.unique(labels)) < classes:
      raise ValueError(
          'labels must be of at least two classes, otherwise there are no '
          f'negatives; got only {labels[0]}.'
      )
    self.scale = jnp.asarray(1 / temperature, units.dtype)
    self.num_negatives = jnp.float32(num_negatives)
    self.cosines = _vectors.inner_products(units, units)
    self.same = jnp.asarray(labels[:, None] == labels[None, :])

  def loss(self, beta):
    peak, log_mean = _tilted(self.cosines, self.scale, beta, ~self.same)
    return self._mean_loss(peak, log_mean)

  def worst_loss(self):
    peak = self.largest()
    return self._mean_loss(peak, jnp.zeros_like(peak))

  def largest(self):
    return jnp.max(jnp.where(self.same, -jnp.inf, self.cosines), axis=1)

  def alignment(self):
    squares = jnp.maximum(2 * (1 - self.cosines), 0)  # cosines may round up
    return self.scale * self._mean_over_same(squares) / 2

  def positive_variance(self, beta):
    logits = self.scale * self.cosines
    weights = negatives.negative_weights(logits, beta=beta, where=self.same)
    weights = np.asarray(weights, np.float64)
    # In float64, because e^s overflows float32 at a small temperature.
    values = np.exp(np.asarray(logits, np.float64))
    mean = np.sum(weights * values, axis=1, keepdims=True)
    return np.mean(np.sum(weights * (values - mean) ** 2, axis=1))

  def _mean_loss(self, peak, log_mean):
    gap = self.scale * (peak[:, None] - self.cosines) + log_mean[:, None]
    losses = jax.nn.softplus(gap + jnp.log(self.num_negatives))
    return self._mean_over_same(losses)

  def _mean_over_same(self, values):
    return jnp.mean(jnp.mean(values, axis=1, where=self.same))


@jax.jit
def _tilted(cosines, scale, beta, where):
  beta = jnp.asarray(beta, cosines.dtype)
  return tilting.tilted_log_mean(cosines, scale, beta, where)
