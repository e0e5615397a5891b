# SPDX-License-Identifier: Apache-2.0
"""What the analysis asks of its arguments beyond what the losses do."""

from typing import Any

import numpy as np

from hcl_jax.losses import _arguments
from hcl_jax.losses import _cosine


def units(name: str, array: Any, *, rows: int = 1) -> np.ndarray:
  """Reads finite embeddings ``[n, dim]``, n >= rows, as unit rows.

  A row of zeros stays one, and so has similarity 0 to everything.
  """
  array = _arguments.matrix(name, array)
  if len(array) < rows:
    raise ValueError(
        f'{name} must have at least {rows} rows; got shape {array.shape}.'
    )
  _refuse_non_finite(name, np.asarray(array))
  return np.asarray(_cosine.normalize(array))


def labels(name: str, array: Any, rows: int) -> np.ndarray:
  """Reads one integer for each of the rows."""
  return np.asarray(_arguments.labels(name, array, (rows,)))


def numbers(name: str, array: Any, *, least: int = 1) -> np.ndarray:
  """Reads a vector of at least so many finite numbers, as float64."""
  try:
    array = np.asarray(array, np.float64)
  except (TypeError, ValueError):
    raise ValueError(
        f'{name} must be a sequence of numbers; got {array!r}.'
    ) from None
  if array.ndim != 1 or len(array) < least:
    raise ValueError(
        f'{name} must have rank 1 and at least {least} entries; got shape '
        f'{array.shape}.'
    )
  _refuse_non_finite(name, array)
  return array


def share(name: str, value: Any) -> None:
  """Accepts a number strictly between 0 and 1."""
  _arguments.number(name, value)
  if not 0 < value < 1:
    raise ValueError(f'{name} must be in (0, 1), got {value}.')


def _refuse_non_finite(name, array):
  wrong = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1))
  if len(wrong):
    raise ValueError(
        f'{name} must be finite; {len(wrong)} of {len(array)} rows are not, '
        f'the first of them row {wrong[0]}. Leave them out, or mend what made '
        'them.'
    )
