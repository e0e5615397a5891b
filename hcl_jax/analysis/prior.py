# SPDX-License-Identifier: Apache-2.0
"""Estimates of the class prior tau_plus, from labels or from positives."""

from typing import Any
from typing import NamedTuple

import numpy as np

from hcl_jax import _checks


class LabelledPrior(NamedTuple):
  """An estimate of tau_plus and its standard error."""

  tau_plus: float
  standard_error: float

  def interval(self, num_errors: float = 1.96) -> tuple[float, float]:
    """The estimate give or take standard errors; by default about 95 %."""
    spread = num_errors * self.standard_error
    return max(self.tau_plus - spread, 0.0), min(self.tau_plus + spread, 1.0)


class MixtureProportion(NamedTuple):
  """An estimate of the share of positives among the unlabelled.

  Attributes:
    share: the estimate.
    upper: what the share exceeds with probability ``delta`` at most, whatever
      the distribution of the negatives.
    threshold: the score from which on the estimate counts.
    coverage: share of the positives from each threshold on, falling, ``[m]``.
    ratio: share of the unlabelled there, over ``coverage``, ``[m]``. The share
      of positives is at most the least value of this curve.
  """

  share: float
  upper: float
  threshold: float
  coverage: np.ndarray
  ratio: np.ndarray


def prior_from_labels(labels: Any) -> LabelledPrior:
  r"""Estimates tau_plus from a random sample of labels.

  .. math::
    \hat\tau^+ = \sum_c \frac{n_c (n_c - 1)}{n (n - 1)}

  the share of pairs with the same label: the unbiased estimate of
  :math:`\sum_c \rho(c)^2`, the probability that a random negative has the
  class of a random anchor. Its variance is that of a U-statistic,

  .. math::
    \frac{2}{n (n - 1)} \bigl(2 (n - 2) \zeta_1 + \zeta_2\bigr), \quad
    \zeta_1 = \sum_c \rho(c)^3 - (\tau^+)^2, \quad
    \zeta_2 = \tau^+ (1 - \tau^+),

  with the moments of rho estimated by U-statistics too, and zeta_1 by 0 at
  least. Of classes of equal size, whose zeta_1 is 0, the standard error is
  therefore somewhat too large.

  Args:
    labels: integers ``[n]``, n >= 3, of rows drawn at random.

  Returns:
    The estimate and its standard error.

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
  return LabelledPrior(float(pairs), float(np.sqrt(variance)))


def mixture_proportion(
    positive_scores: Any,
    unlabelled_scores: Any,
    *,
    delta: float = 0.1,
    gamma: float = 0.01,
) -> MixtureProportion:
  r"""Estimates the share of positives among unlabelled data from scores.

  Best Bin Estimation [1]. Let q_p(c) and q_u(c) be the shares of positive and
  of unlabelled scores that are at least c. As q_u >= alpha q_p for the share
  alpha of positives, every c gives an upper bound q_u / q_p of it, and a tight
  one if hardly any negative scores above c. The estimate is q_u / q_p at

  .. math::
    \hat c = \arg\min_c \; \frac{q_u(c)}{q_p(c)}
      + \frac{1 + \gamma}{q_p(c)} \Bigl(\sqrt{\frac{\log(4/\delta)}{2 n_u}}
      + \sqrt{\frac{\log(4/\delta)}{2 n_p}}\Bigr),

  which weighs purity against the number of positives that are left. ``upper``
  is the least of :math:`(q_u + e_u) / (q_p - e_p)` over c, with e_u and e_p
  the two roots: an upper bound with probability 1 - delta by the inequality of
  Dvoretzky, Kiefer and Wolfowitz [2], for independent scores. Where the
  estimate is above it, as a small share among many unlabelled scores may be,
  the bound is returned for both.

  Two ways to tau_plus: scores of a classifier of one class c against
  unlabelled data, held out from its training, give rho(c), and tau_plus is
  :math:`\sum_c \rho(c)^2`; or the similarities of pairs known to share a class
  against those of random pairs give tau_plus itself. Two views of one image
  will not do as such pairs: they are more alike than images of a class, and the
  estimate is then the share of near-duplicates, which is less.

  Args:
    positive_scores: ``[n_p]``, larger for what looks more positive.
    unlabelled_scores: ``[n_u]``, by the same function.
    delta: probability of the bounds to fail, in (0, 1).
    gamma: > 0; the authors take 0.01.

  Returns:
    The estimate, its bound and the curve that they come from.

  References:
    [1] Garg, Wu, Smola, Balakrishnan and Lipton, Mixture Proportion Estimation
    and PU Learning: A Modern Approach, 2021.
    [2] Massart, The Tight Constant in the Dvoretzky-Kiefer-Wolfowitz
    Inequality, 1990.
  """
  positive = np.sort(_checks.numbers('positive_scores', positive_scores))
  unlabelled = np.sort(
      _checks.numbers('unlabelled_scores', unlabelled_scores)
  )
  _checks.share('delta', delta)
  _checks.positive('gamma', gamma)
  thresholds = np.unique(positive)  # in between, q_u falls and q_p does not
  q_p, q_u = (_share_from(x, thresholds) for x in (positive, unlabelled))
  e_p, e_u = (
      np.sqrt(np.log(4 / delta) / (2 * len(x))) for x in (positive, unlabelled)
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


def _share_from(ordered, thresholds):
  """Share of the numbers that are at least each threshold."""
  return 1 - np.searchsorted(ordered, thresholds, side='left') / len(ordered)
