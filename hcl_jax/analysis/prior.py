# SPDX-License-Identifier: Apache-2.0
"""Estimates of the class prior tau_plus, from labels or known positives."""

from typing import Any
from typing import NamedTuple

import numpy as np

from hcl_jax import _checks


class LabeledPrior(NamedTuple):
  """Estimate of tau_plus and its standard error."""

  tau_plus: float
  standard_error: float

  def interval(self, num_errors: float = 1.96) -> tuple[float, float]:
    """Returns a confidence interval; by default of about 95 %."""
    spread = num_errors * self.standard_error
    return max(self.tau_plus - spread, 0.0), min(self.tau_plus + spread, 1.0)


class MixtureProportion(NamedTuple):
  """Estimate of the share of positives among unlabeled data.

  Attributes:
    share: the estimate.
    upper: upper bound of the share, which fails with probability ``delta`` at
      most, whatever the distribution of the negatives.
    threshold: the score that the estimate is taken at.
    coverage: share of positives that score at least each threshold, falling,
      ``[m]``.
    ratio: the same share of unlabeled data, over ``coverage``, ``[m]``. Up to
      sampling error, the minimum of this curve bounds the share of positives.
  """

  share: float
  upper: float
  threshold: float
  coverage: np.ndarray
  ratio: np.ndarray


def prior_from_labels(labels: Any) -> LabeledPrior:
  r"""Estimates tau_plus from a random sample of labels.

  .. math::
    \hat\tau^+ = \sum_c \frac{n_c (n_c - 1)}{n (n - 1)}

  This share of pairs with the same label is an unbiased estimate of
  :math:`\sum_c \rho(c)^2`, the probability that a random negative has the
  class of a random anchor. Its variance is that of a U-statistic,

  .. math::
    \frac{2}{n (n - 1)} \bigl(2 (n - 2) \zeta_1 + \zeta_2\bigr), \quad
    \zeta_1 = \sum_c \rho(c)^3 - (\tau^+)^2, \quad
    \zeta_2 = \tau^+ (1 - \tau^+),

  with the moments of rho estimated by U-statistics too. Estimates of zeta_1
  below 0 count as 0; so the standard error is somewhat too large for classes of
  equal size, where zeta_1 is 0.

  Args:
    labels: integers ``[n]``, n >= 3, of rows drawn at random.

  Example:
    >>> prior_from_labels([0, 0, 1, 1, 2, 3]).tau_plus
    0.13333333333333333

  References:
    Hoeffding, A Class of Statistics with Asymptotically Normal Distribution,
    1948.
  """
  labels = np.asarray(labels)
  n = labels.size
  labels = _checks.host_labels('labels', labels, n)
  if n < 3:
    raise ValueError(f'labels must have at least 3 entries; got {n}.')
  counts = np.unique(labels, return_counts=True)[1].astype(np.float64)
  pairs = np.sum(counts * (counts - 1)) / (n * (n - 1))
  triples = np.sum(counts * (counts - 1) * (counts - 2))
  by_one = max(triples / (n * (n - 1) * (n - 2)) - pairs**2, 0.0)
  variance = 2 * (2 * (n - 2) * by_one + pairs * (1 - pairs)) / (n * (n - 1))
  return LabeledPrior(float(pairs), float(np.sqrt(variance)))


def mixture_proportion(
    positive_scores: Any,
    unlabeled_scores: Any,
    *,
    delta: float = 0.1,
    gamma: float = 0.01,
) -> MixtureProportion:
  r"""Estimates the share of positives among unlabeled data from scores.

  This is Best Bin Estimation [1]. Let q_p(c) and q_u(c) be the shares of
  positive and of unlabeled scores that are at least c, and alpha the share of
  positives. Since q_u >= alpha q_p, every c gives an upper bound q_u / q_p of
  alpha, which is tight if hardly any negative scores above c. The estimate is
  q_u / q_p at

  .. math::
    \hat c = \arg\min_c \; \frac{q_u(c)}{q_p(c)}
      + \frac{1 + \gamma}{q_p(c)} \Bigl(\sqrt{\frac{\log(4/\delta)}{2 n_u}}
      + \sqrt{\frac{\log(4/\delta)}{2 n_p}}\Bigr),

  which weighs purity against the number of remaining positives. ``upper`` is
  the minimum of :math:`(q_u + e_u) / (q_p - e_p)` over c, where e_u and e_p are
  the two roots. For independent scores it is an upper bound with probability
  1 - delta, by the inequality of Dvoretzky, Kiefer and Wolfowitz [2]. If the
  estimate exceeds it, as it may for a small share among many unlabeled scores,
  the estimate is set to the bound.

  There are two ways to tau_plus. Held-out scores of a classifier of one class c
  against unlabeled data give rho(c), and tau_plus is
  :math:`\sum_c \rho(c)^2`. Or the similarities of pairs known to share a class
  against those of random pairs give tau_plus directly. Two views of one image
  cannot serve as such pairs: they are more similar than images of a class, so
  the estimate would be the share of near-duplicates, which is smaller.

  Args:
    positive_scores: ``[n_p]``, larger for more positive examples.
    unlabeled_scores: ``[n_u]``, of the same scoring function.
    delta: probability that the bound fails, in (0, 1).
    gamma: > 0; the authors use 0.01.

  References:
    [1] Garg, Wu, Smola, Balakrishnan and Lipton, Mixture Proportion Estimation
    and PU Learning: A Modern Approach, 2021.
    [2] Massart, The Tight Constant in the Dvoretzky-Kiefer-Wolfowitz
    Inequality, 1990.
  """
  positive = np.sort(_checks.numbers('positive_scores', positive_scores))
  unlabeled = np.sort(_checks.numbers('unlabeled_scores', unlabeled_scores))
  _checks.share('delta', delta)
  _checks.positive('gamma', gamma)
  thresholds = np.unique(positive)  # between them q_p is constant
  q_p, q_u = (
      1 - np.searchsorted(x, thresholds, side='left') / len(x)
      for x in (positive, unlabeled)
  )
  e_p, e_u = (
      np.sqrt(np.log(4 / delta) / (2 * len(x))) for x in (positive, unlabeled)
  )
  best = np.argmin((q_u + (1 + gamma) * (e_u + e_p)) / q_p)
  bounds = (q_u + e_u)[q_p > e_p] / (q_p - e_p)[q_p > e_p]
  upper = float(bounds.min(initial=1.0))
  return MixtureProportion(
      share=float(min(q_u[best] / q_p[best], upper)),
      upper=upper,
      threshold=float(thresholds[best]),
      coverage=q_p,
      ratio=q_u / q_p,
  )
