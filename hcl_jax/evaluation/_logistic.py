# SPDX-License-Identifier: Apache-2.0
"""Fits logistic regressions of two classes to many selections of rows."""

from collections.abc import Sequence
import warnings

import numpy as np

# Of the gradient, relative to the largest feature. The first one is near the
# rounding of float32; the second one is enough where progress has stopped.
_TOLERANCE = 1e-7
_LEAST_TOLERANCE = 1e-5
_ITERATIONS = 500
# After so many iterations a new curvature pays off; with hundreds of features
# it costs as much as about ten iterations.
_RENEW_AFTER = 8
_JITTER = 1e-6
_LINE_TOLERANCE = 0.01
_LINE_ITERATIONS = 20


def fit_paths(
    features: np.ndarray,
    is_positive: np.ndarray,
    is_fitted: np.ndarray,
    cs: Sequence[float],
) -> np.ndarray:
  r"""Fits each selection of rows with each C, in float32.

  For a selection of n rows, with s = 1 or -1, minimizes

  .. math::
    \frac{|w|^2}{2 C n} + \frac1n \sum_i \log(1 + e^{-s_i w x_i})

  The minimum for one C starts at that for the previous C. Conjugate gradients
  (Polak and Ribiere) are preconditioned by the Hessian. Its data term

  .. math::
    \frac1n \sum_i p_i (1 - p_i) x_i x_i^T

  is the mean over selections at an earlier point, often of another C, because
  computing it takes as long as many steps. All selections are fitted together,
  because folds of a data set have most rows in common: one mean curvature fits
  all of them, and the three products of a step read the features once for all.
  At a solution no entry of the gradient exceeds 1e-7 of the largest feature, or
  it is as small as float32 allows.

  Args:
    features: x, float32 ``[n, F]``; add a column of ones for an intercept. Its
      weight is penalized like the others.
    is_positive: where s is 1, ``[n]``.
    is_fitted: rows of each selection, at least one, boolean ``[K, n]``.
    cs: values of C, preferably in ascending order.

  Returns:
    Weights, float32 ``[K, len(cs), F]``.
  """
  signed = np.where(is_positive, np.float32(1), np.float32(-1))[:, None]
  problems = _Problems(features * signed, is_fitted)
  return np.stack([problems.solve(c) for c in cs], axis=1)


class _Problems:
  """Rows s x, their weights in each problem, and each problem's solution."""

  def __init__(self, rows, is_fitted):
    self._rows = rows
    self._scale = np.abs(rows).max()
    self._counts = is_fitted.sum(axis=1)
    # Weights of rows.
    self._shares = (is_fitted / self._counts[:, None]).astype(np.float32)
    self._weights = np.zeros((len(is_fitted), rows.shape[1]), np.float32)
    self._margins = np.zeros(is_fitted.shape, np.float32)
    self._renew_curvature()

  def solve(self, c):
    """Returns weights at the minima with this C."""
    ridges = (1 / (c * self._counts)).astype(np.float32)[:, None]
    todo = np.arange(len(ridges))  # unsolved problems
    gradients = self._gradients(todo, ridges)
    before, steps, directions = (np.empty_like(gradients) for _ in range(3))
    last = sizes = np.full(len(ridges), np.inf)
    precondition = None
    for iteration in range(_ITERATIONS):
      sizes = np.abs(gradients[todo]).max(axis=1) / self._scale
      going = sizes > _TOLERANCE
      if iteration and iteration % _RENEW_AFTER == 0:
        going &= (sizes <= last[todo] / 2) | (sizes > _LEAST_TOLERANCE)
        last[todo] = sizes
        self._renew_curvature()
        precondition = None
      todo = todo[going]
      if not len(todo):
        return self._weights.copy()
      restarts = precondition is None
      if precondition is None:
        precondition = self._preconditioner(ridges)
      gradient = gradients[todo]
      step = precondition(gradient)
      direction = -step
      if not restarts:
        turn = _dots(step, gradient - before[todo])
        turn /= _dots(steps[todo], before[todo])
        direction += np.maximum(turn, 0) * directions[todo]
      before[todo], steps[todo], directions[todo] = gradient, step, direction
      self._go(todo, direction, ridges)
      gradients[todo] = self._gradients(todo, ridges)
    warnings.warn(
        f'logistic regression stopped after {_ITERATIONS} iterations with a '
        f'gradient of {sizes.max():.1g} of the largest feature.',
        stacklevel=2,
    )
    return self._weights.copy()

  def _gradients(self, todo, ridges):
    wrong = _wrong(self._margins[todo]) * self._shares[todo]
    return ridges[todo] * self._weights[todo] - wrong @ self._rows

  def _go(self, todo, directions, ridges):
    """Minimizes along lines by Newton's method within brackets."""
    along = directions @ self._rows.T
    margins, shares = self._margins[todo], self._shares[todo]
    linear = ridges[todo] * _dots(self._weights[todo], directions)
    quadratic = ridges[todo] * _dots(directions, directions)
    at, low = np.zeros((2, len(todo), 1), np.float32)
    high = np.full_like(low, np.inf)
    first = None
    for _ in range(_LINE_ITERATIONS):
      wrong = _wrong(margins + at * along)
      gains = wrong * along * shares
      slopes = linear + at * quadratic - gains.sum(axis=1, keepdims=True)
      if first is None:
        first = np.abs(slopes)
      elif np.all(np.abs(slopes) <= _LINE_TOLERANCE * first):
        break
      low, high = np.where(slopes < 0, at, low), np.where(slopes < 0, high, at)
      at = at - slopes / (quadratic + _dots(gains, (1 - wrong) * along))
      halfway = np.where(np.isfinite(high), (low + high) / 2, 2 * low)
      at = np.where((low < at) & (at < high), at, halfway)
    self._weights[todo] += at * directions
    # Rounding errors of margins + step would accumulate.
    self._margins[todo] = self._weights[todo] @ self._rows.T

  def _renew_curvature(self):
    from scipy import linalg

    wrong = _wrong(self._margins)
    root = np.sqrt(np.mean(wrong * (1 - wrong) * self._shares, axis=0))
    # The lower triangle; transposed, the rows are in the order of BLAS.
    (syrk,) = linalg.get_blas_funcs(('syrk',), dtype=np.float32)
    self._curvature = syrk(1.0, (root[:, None] * self._rows).T, lower=1)

  def _preconditioner(self, ridges):
    from scipy import linalg

    hessian = self._curvature.astype(np.float64)
    # Rounding may make it indefinite if features are linearly dependent.
    ridge = np.mean(ridges) + _JITTER * np.trace(hessian)
    hessian[np.diag_indices_from(hessian)] += ridge
    factor = linalg.cho_factor(hessian, lower=True, overwrite_a=True)
    return lambda x: linalg.cho_solve(factor, x.T).T.astype(np.float32)


def _wrong(margins):
  """Returns the probability of the wrong class, 1 / (1 + e^m)."""
  with np.errstate(over='ignore'):  # 1 / inf is correct
    return 1 / (1 + np.exp(margins))


def _dots(x, y):
  """Returns inner products of rows as a column."""
  return np.einsum('kn,kn->k', x, y)[:, None]
