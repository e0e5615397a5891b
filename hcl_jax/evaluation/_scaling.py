# SPDX-License-Identifier: Apache-2.0
"""Standardizes features to mean 0 and standard deviation 1."""

from collections.abc import Callable
import functools
from typing import Any

import jax
import numpy as np

_ROWS = 4096
_FLOOR = 1e-3


def standardizer(features: np.ndarray) -> Callable[[Any], jax.Array]:
  """Returns a function that standardizes as these features need, on device."""
  mean, deviation = _moments(features)
  return functools.partial(_scale, mean=mean, deviation=deviation)


@jax.jit
def _scale(features, mean, deviation):
  return (features - mean) / deviation


def _moments(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns mean and standard deviation of each feature, float32 ``[1, F]``.

  Deviations are at least a thousandth of their root mean square, so that a
  nearly constant feature is not scaled up to the size of the others.

  Args:
    features: ``[n, F]`` in float32.

  Returns:
    Mean and deviation; the deviation is never 0.
  """
  blocks = [features[i : i + _ROWS] for i in range(0, len(features), _ROWS)]
  total, squares = np.zeros((2, features.shape[1]))
  for block in blocks:
    total += np.sum(block, axis=0, dtype=np.float64)
  mean = total / len(features)
  for block in blocks:
    squares += np.sum((block - mean[None]) ** 2, axis=0)
  deviation = np.sqrt(squares / len(features))
  floor = _FLOOR * np.sqrt(np.mean(deviation**2)) or 1.0
  deviation = np.maximum(deviation, floor)
  return mean[None].astype(np.float32), deviation[None].astype(np.float32)
