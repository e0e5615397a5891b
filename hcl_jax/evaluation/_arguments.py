# SPDX-License-Identifier: Apache-2.0
"""How evaluations read features and labels, which stay on the host.

Unlike a loss, an evaluation runs once on concrete values, so these are looked
at: a NaN or an unlabelled row would otherwise pass for a low accuracy.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

_ROWS = 4096


def features(name: str, array: Any, width: int | None = None) -> np.ndarray:
  """Reads a non-empty, finite float array ``[n, F]`` as float32.

  Args:
    name: of the argument, for the message.
    array: the features, on the host or on a device.
    width: F, where it is known.

  Returns:
    The features on the host, without a copy where they are float32 already.
  """
  array = np.asarray(array)
  if not jnp.issubdtype(array.dtype, jnp.floating):
    raise ValueError(
        f'{name} must be a floating-point array; got dtype {array.dtype}. '
        'Cast it first.'
    )
  if array.ndim != 2 or 0 in array.shape:
    raise ValueError(
        f'{name} must be a non-empty array [rows, features]; got shape '
        f'{array.shape}.'
    )
  if width is not None and array.shape[1] != width:
    raise ValueError(
        f'{name} must have {width} features per row, as the others have; got '
        f'shape {array.shape}.'
    )
  with np.errstate(over='ignore'):
    array = array.astype(np.float32, copy=False)
  _check_finite(name, array)
  return array


def labels(name: str, array: Any, rows: int, num_classes: int) -> np.ndarray:
  """Reads one class of ``range(num_classes)`` per row as int32 ``[rows]``."""
  array = np.asarray(array)
  if array.dtype.kind not in 'iu' or array.shape != (rows,):
    raise ValueError(
        f'{name} must be {rows} integers, one per row of features; got dtype '
        f'{array.dtype} and shape {array.shape}.'
    )
  wrong = np.flatnonzero((array < 0) | (array >= num_classes))
  if wrong.size:
    raise ValueError(
        f'{name} must lie between 0 and num_classes - 1 = {num_classes - 1}; '
        f'got {array[wrong[0]]} in row {wrong[0]}, and {wrong.size} such rows '
        'in all. Leave out unlabelled rows (label -1).'
    )
  return array.astype(np.int32)


def _check_finite(name: str, array: np.ndarray) -> None:
  # In blocks, so that the mask of a large bank is never held.
  for start in range(0, len(array), _ROWS):
    finite = np.isfinite(array[start : start + _ROWS]).all(axis=1)
    if not finite.all():
      raise ValueError(
          f'{name} must be finite in float32; row {start + finite.argmin()} '
          'holds NaN or infinity.'
      )
