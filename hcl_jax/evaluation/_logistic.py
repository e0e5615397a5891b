# SPDX-License-Identifier: Apache-2.0
"""Logistic regression of two classes, for one C after the other."""

from collections.abc import Sequence
import warnings

import numpy as np

# Of the gradient, beside the largest feature. The first is near the rounding of
# float32, so that the second must do where there is no progress any more.
_TOLERANCE = 1e-7
_LEAST_TOLERANCE = 1e-5
_ITERATIONS = 500
# By then the curvature is worth computing anew, which costs as much as some
# ten iterations of hundreds of features.
_RENEW_AFTER = 8
_JITTER = 1e-6
_LINE_TOLERANCE = 0.01
_LINE_ITERATIONS = 20


def fit_path(
    features: np.ndarray, is_positive: np.ndarray, cs: Sequence[float]
) -> np.ndarray:
  r"""The minimum for each C, found from the one before, in float32.

  .. math::
    \frac{|w|^2}{2 C n} + \frac1n \sum_i \log(1 + e^{-s_i w x_i})

  with s = 1 or -1. The way is that of conjugate gradients (Polak and Ribiere),
  preconditioned by the Hessian, whose part of the data

  .. math::
    \frac1n \sum_i p_i (1 - p_i) x_i x_i^T

  is kept from an earlier point, often that of another C: it takes as long to
  compute as many steps, which take three products with the features. At a
  solution no entry of the gradient is above 1e-7 of the largest feature, or as
  small as float32 lets it be.

  Args:
    features: x, float32 ``[n, F]``; a column of ones is an intercept, which is
      penalised as any other.
    is_positive: where s is 1, ``[n]``.
    cs: values of C, best in ascending order.

  Returns:
    Weights, float32 ``[len(cs), F]``.
  """
  signed = np.where(is_positive, np.float32(1), np.float32(-1))[:, None]
  problem = _Problem(features * signed)
  return np.stack([problem.solve(1 / (c * len(features))) for c in cs])


class _Problem:
  """Rows s x, and where the solution stands."""

  def __init__(self, rows):
    self._rows = rows
    self._scale = np.abs(rows).max()
    self._weights = np.zeros(rows.shape[1], np.float32)
    self._margins = np.zeros(len(rows), np.float32)
    self._renew_curvature()

  def solve(self, ridge):
    """Weights at the minimum with this factor of |w|^2 / 2."""
    precondition = self._preconditioner(ridge)
    gradient, direction = self._gradient(ridge), None
    before = square = None
    last = np.inf
    for iteration in range(_ITERATIONS):
      size = np.abs(gradient).max() / self._scale
      if size <= _TOLERANCE:
        return self._weights.copy()
      if iteration and iteration % _RENEW_AFTER == 0:
        if last / 2 < size <= _LEAST_TOLERANCE:
          return self._weights.copy()
        last, direction = size, None
        self._renew_curvature()
        precondition = self._preconditioner(ridge)
      step = precondition(gradient)
      if direction is None:
        direction = -step
      else:
        turn = step @ (gradient - before) / square
        direction = max(turn, 0) * direction - step
      before, square = gradient, step @ gradient
      self._go(direction, ridge)
      gradient = self._gradient(ridge)
    warnings.warn(
        f'logistic regression stopped after {_ITERATIONS} iterations with a '
        f'gradient of {size:.1g} of the largest feature.',
        stacklevel=2,
    )
    return self._weights.copy()

  def _gradient(self, ridge):
    wrong = _sigmoid(-self._margins)
    return ridge * self._weights - wrong @ self._rows / len(wrong)

  def _go(self, direction, ridge):
    """To the least value along a line, by Newton's method in a bracket."""
    along = self._rows @ direction
    linear = ridge * (self._weights @ direction)
    quadratic = ridge * (direction @ direction)
    low, high, at = 0.0, np.inf, 0.0
    first = None
    for _ in range(_LINE_ITERATIONS):
      wrong = _sigmoid(-(self._margins + np.float32(at) * along))
      slope = linear + at * quadratic - np.mean(wrong * along)
      first = abs(slope) if first is None else first
      if abs(slope) <= _LINE_TOLERANCE * first and at:
        break
      low, high = (at, high) if slope < 0 else (low, at)
      at -= slope / (quadratic + np.mean(wrong * (1 - wrong) * along**2))
      if not low < at < high:
        at = (low + high) / 2 if high < np.inf else 2 * low
    self._weights += np.float32(at) * direction
    # Not margins plus a step along the line, whose rounding would add up.
    self._margins = self._rows @ self._weights

  def _renew_curvature(self):
    from scipy.linalg import blas

    wrong = _sigmoid(-self._margins)
    root = np.sqrt(wrong * (1 - wrong) / len(wrong))
    # The lower triangle; the transpose is in the order that BLAS wants.
    self._curvature = blas.ssyrk(1.0, (root[:, None] * self._rows).T, lower=1)

  def _preconditioner(self, ridge):
    from scipy import linalg

    hessian = self._curvature.astype(np.float64)
    # Rounding may leave it indefinite, where features depend on each other.
    ridge += _JITTER * np.trace(hessian)
    hessian[np.diag_indices_from(hessian)] += ridge
    factor = linalg.cho_factor(hessian, lower=True, overwrite_a=True)
    return lambda x: linalg.cho_solve(factor, x).astype(np.float32)


def _sigmoid(x):
  from scipy import special

  return special.expit(x)
