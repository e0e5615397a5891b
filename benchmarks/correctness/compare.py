# SPDX-License-Identifier: Apache-2.0
"""Runs an implementation on the cases and measures its errors."""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

import ml_dtypes
import numpy as np

from benchmarks.correctness import cases
from benchmarks.correctness import oracle

# Below this a loss is small: its error is divided by this.
_SMALL_LOSS = 0.1
# Below this share of the largest gradient that there can be, a gradient is.
_SMALL_GRADIENT = 0.1
_ULP = 2.0**-24
# Roundings of float32 that a right implementation may pile up.
_ROUNDINGS = 32
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)

# (z1, z2, setting) -> loss and gradients in z1 and z2, in the inputs' dtype.
Run = Callable[[np.ndarray, np.ndarray, oracle.Setting], tuple[Any, Any]]


class Implementation(NamedTuple):
  """A loss to measure.

  Attributes:
    name: as the table has it.
    package: the distribution that it comes from.
    definition: what its documentation says that it computes.
    run: computes value and gradients.
    settings: pairs of ``beta`` and ``tau_plus``.
    takes_unit_rows: whether it leaves normalization to the caller.
    has_value: whether its value is the loss rather than a surrogate of it.
    labels: classes of pairs, by batch size, for losses that take them.
    why: what is to say of it where it is not right.
  """

  name: str
  package: str
  definition: oracle.Definition
  run: Run
  settings: Sequence[tuple[float, float]] = ((0.0, 0.0),)
  takes_unit_rows: bool = False
  has_value: bool = True
  labels: Callable[[int], tuple[int, ...]] | None = None
  why: str = ''


class Measured(NamedTuple):
  """Errors of an implementation on a case at a setting.

  Attributes:
    implementation: its name.
    case: the case's name.
    is_ordinary: whether the case is.
    dtype: of the inputs.
    setting: hyperparameters.
    value_error: relative error of the loss; NaN where it is not finite.
    gradient_error: relative error of the gradient, by norm.
    tolerance: what rounding explains.
    error: what it raised, if it did.
    zero_gradient: largest entry of the gradient in rows of zeros.
  """

  implementation: str
  case: str
  is_ordinary: bool
  dtype: str
  setting: oracle.Setting
  value_error: float
  gradient_error: float
  tolerance: float
  error: str = ''
  zero_gradient: float | None = None

  @property
  def worst(self) -> float:
    """Returns the larger error; NaN where any is."""
    return float(np.max([self.value_error, self.gradient_error]))


def errors(
    exact: oracle.Exact,
    value: float,
    gradient: np.ndarray,
    *,
    rows: np.ndarray,
    temperature: float,
) -> tuple[float, float]:
  """Returns the relative errors of a loss and its gradient.

  Args:
    exact: the oracle's.
    value: the loss.
    gradient: in the rows.
    rows: the inputs.
    temperature: what similarities were divided by.

  Returns:
    ``|L - L*| / max(|L*|, .1)`` and ``||g - g*|| / max(||g*||, .1 G)``,
    where ``G`` is the size that gradients of a batch have: one for each of
    ``n`` rows, of ``1 / (t n norm)``. NaN where the implementation's is not
    finite; rows of zeros do not count.
  """
  rows = rows.astype(np.float64)
  defined = ~np.isnan(exact.gradient).any(axis=1)
  value_error = abs(value - exact.value) / max(abs(exact.value), _SMALL_LOSS)
  norms = np.linalg.norm(rows[defined], axis=1)
  norms = norms[norms > 0]
  largest = np.sqrt(np.mean(norms**-2.0) / len(rows)) / temperature
  true = exact.gradient[defined]
  size = max(np.linalg.norm(true), _SMALL_GRADIENT * largest)
  difference = gradient[defined].astype(np.float64) / size - true / size
  gradient_error = np.linalg.norm(difference)
  if not np.isfinite(value_error):
    value_error = np.nan
  if not np.isfinite(gradient).all() or not np.isfinite(gradient_error):
    gradient_error = np.nan
  return float(value_error), float(gradient_error)


def tolerance(setting: oracle.Setting, batch: int) -> float:
  """Returns the error that rounding to float32 explains.

  Rounding a cosine by an ulp moves a logit by an ulp over the temperature, and
  weights of hard negatives by beta times that; the debiased difference
  magnifies it by up to N tau_plus / (1 - tau_plus).
  """
  t, beta, tau_plus = setting
  count = 2 * batch - 2
  debiasing = 1 + count * tau_plus / (1 - tau_plus)
  return _ROUNDINGS * _ULP * (1 + (1 + beta) / t) * debiasing


def measure(
    implementation: Implementation, temperatures: Sequence[float]
) -> list[Measured]:
  """Runs an implementation on every case that it can take.

  Args:
    implementation: what to measure.
    temperatures: the grid.

  Returns:
    Errors, in the order of cases and settings.
  """
  grid = [
      *((case, FLOAT32) for case in cases.ordinary()),
      *((case, FLOAT32) for case in cases.degenerate()),
      *((case, _BFLOAT16) for case in cases.ordinary()[-2:]),
  ]
  results = []
  for case, dtype in grid:
    if implementation.takes_unit_rows:
      if case.has_scale:
        continue
      case = cases.unit(case)
    case = cases.rounded(case, dtype)
    for t in temperatures:
      for beta, tau_plus in implementation.settings:
        setting = oracle.Setting(t, beta, tau_plus)
        results.append(_measure_one(implementation, case, dtype, setting))
  return results


def _measure_one(implementation, case, dtype, setting):
  batch = len(case.z1)
  labels = implementation.labels and implementation.labels(batch)
  exact = _exact(
      implementation.definition,
      case.rows.tobytes(),
      case.rows.shape,
      setting,
      not implementation.takes_unit_rows,
      labels,
  )
  error, zero_gradient = '', None
  try:
    value, grads = implementation.run(
        case.z1.astype(dtype), case.z2.astype(dtype), setting
    )
    value = float(value)
    gradient = np.concatenate([np.asarray(g, np.float64) for g in grads])
  except Exception as raised:  # Whatever a library raises is its outcome.
    error = f'{type(raised).__name__}: {str(raised).splitlines()[0][:100]}'
    value, gradient = np.nan, np.full(exact.gradient.shape, np.nan)
  value_error, gradient_error = errors(
      exact, value, gradient, rows=case.rows, temperature=setting.temperature
  )
  if not implementation.has_value:
    value_error = 0.0
  zeros = np.isnan(exact.gradient).any(axis=1)
  if zeros.any() and not error:
    zero_gradient = float(np.abs(gradient[zeros]).max())
  return Measured(
      implementation.name,
      case.name,
      case.is_ordinary,
      str(dtype),
      setting,
      value_error,
      gradient_error,
      tolerance(setting, batch),
      error,
      zero_gradient,
  )


@functools.cache
def _exact(definition, numbers, shape, setting, normalize, labels):
  rows = np.frombuffer(numbers, np.float32).reshape(shape)
  return oracle.evaluate(
      definition, rows, setting, normalize=normalize, labels=labels
  )
