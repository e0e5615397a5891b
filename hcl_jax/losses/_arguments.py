# SPDX-License-Identifier: Apache-2.0
"""The checks every loss makes of its arguments, and how they are read.

Only shapes, dtypes and Python numbers are looked at: a traced value is never
inspected, so no check costs anything inside a compiled step.
"""

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_LARGEST = float(np.finfo(np.float32).max)  # more would be infinite
_SMALLEST = float(np.finfo(np.float32).tiny)  # processors take less for 0


def embeddings(**arrays: Any) -> list[jax.Array]:
  """Reads ``[batch, dim]`` embeddings of one shape and one float dtype."""
  read = [matrix(name, array) for name, array in arrays.items()]
  names, first = list(arrays), read[0]
  for name, array in zip(names[1:], read[1:], strict=True):
    if array.shape != first.shape:
      raise ValueError(
          f'{names[0]} and {name} must have the same shape, row i of one '
          f'belonging to row i of the other; got {first.shape} and '
          f'{array.shape}.'
      )
    same_dtype(names[0], first, name, array)
  return read


def matrix(name: str, array: Any) -> jax.Array:
  """Reads a non-empty ``[rows, dim]`` float array."""
  array = floats(name, array)
  if array.ndim != 2:
    raise ValueError(
        f'{name} must have rank 2, [rows, dim]; got shape {array.shape}.'
    )
  if 0 in array.shape:
    raise ValueError(
        f'{name} must have at least one row and one column; got shape '
        f'{array.shape}.'
    )
  return array


def floats(name: str, array: Any) -> jax.Array:
  """Reads a real floating-point array."""
  array = _array(name, array, 'a floating-point array')
  if not jnp.issubdtype(array.dtype, jnp.floating):
    raise ValueError(
        f'{name} must be a floating-point array; got dtype {array.dtype}. '
        'Cast it first.'
    )
  return array


def same_dtype(
    name: str, array: jax.Array, other_name: str, other: jax.Array
) -> None:
  if array.dtype != other.dtype:
    raise ValueError(
        f'{name} and {other_name} must have the same dtype; got {array.dtype} '
        f'and {other.dtype}. Cast one of them.'
    )


def same_width(
    name: str, array: jax.Array, other_name: str, other: jax.Array
) -> None:
  if array.shape[-1] != other.shape[-1]:
    raise ValueError(
        f'{name} and {other_name} must have the same last dimension; got '
        f'shapes {array.shape} and {other.shape}.'
    )


def enough_pairs(pairs: int, what: str = 'pairs') -> None:
  if pairs < 2:
    raise ValueError(
        f'An in-batch loss needs at least 2 {what} in the global batch, or '
        f'there are 0 negatives; got {pairs}.'
    )


def labels(name: str, array: Any, shape: tuple[int, ...]) -> jax.Array:
  """Reads one integer per example."""
  array = _array(name, array, 'an integer array')
  if not jnp.issubdtype(array.dtype, jnp.integer):
    raise ValueError(
        f'{name} must be an integer array; got dtype {array.dtype}.'
    )
  if array.shape != shape:
    raise ValueError(
        f'{name} must have shape {shape}, one per example; got {array.shape}.'
    )
  return array


def mask(name: str, array: Any, shape: tuple[int, ...]) -> jax.Array:
  """Reads a boolean mask that broadcasts to ``shape``; True means keep."""
  array = _array(name, array, 'a boolean array')
  if array.dtype != jnp.bool_:
    raise ValueError(
        f'{name} must be a boolean array, True where an entry counts; got '
        f'dtype {array.dtype}.'
    )
  try:
    fits = np.broadcast_shapes(array.shape, shape) == shape
  except ValueError:
    fits = False
  if not fits:
    raise ValueError(
        f'{name} must broadcast to shape {shape}; got shape {array.shape}.'
    )
  return array


def number(name: str, value: Any) -> None:
  """Accepts a finite Python number or a scalar array, traced or not."""
  if not _known(value):
    _scalar_array(name, value)
    return
  exact = value.item() if isinstance(value, np.generic) else value
  if not abs(exact) <= _LARGEST:  # so that NaN is refused too
    raise ValueError(f'{name} must be finite, got {value}.')


def temperature(value: Any) -> None:
  number('temperature', value)
  if _known(value) and not value > 0:
    raise ValueError(f'temperature must be > 0, got {value}.')
  if _known(value) and value < _SMALLEST:
    raise ValueError(
        f'temperature must be at least {_SMALLEST:.4g}, got {value}; anything '
        'smaller is 0 in float32.'
    )


def beta(value: Any) -> None:
  number('beta', value)
  if _known(value) and value < 0:
    raise ValueError(
        f'beta must be >= 0, got {value}; 0 weighs all negatives alike.'
    )


def tau_plus(value: Any) -> None:
  number('tau_plus', value)
  if _known(value) and not 0 <= value < 1:
    raise ValueError(
        f'tau_plus must be in [0, 1), got {value}; it is the probability that '
        "a negative has the anchor's class."
    )


def soft_floor(value: Any) -> None:
  number('soft_floor', value)
  if _known(value) and not 0 < value < 1:
    raise ValueError(f'soft_floor must be in (0, 1), got {value}.')


def positive(name: str, value: Any) -> None:
  number(name, value)
  if _known(value) and not value > 0:
    raise ValueError(f'{name} must be > 0, got {value}.')


def positive_int(name: str, value: Any) -> None:
  if isinstance(value, bool) or not isinstance(value, numbers.Integral):
    raise ValueError(f'{name} must be a whole number, got {value!r}.')
  if value < 1:
    raise ValueError(f'{name} must be >= 1, got {value}.')


def choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
  # Whether an array is among them has no answer.
  if getattr(value, 'ndim', 0) or value not in allowed:
    raise ValueError(
        f'{name} must be one of {", ".join(map(repr, allowed))}; got '
        f'{value!r}.'
    )


def _scalar_array(name, value):
  dtype = getattr(value, 'dtype', None)
  kinds = jnp.integer, jnp.floating
  if dtype is None or not any(jnp.issubdtype(dtype, kind) for kind in kinds):
    raise ValueError(f'{name} must be a real number, got {value!r}.')
  if value.shape != ():
    raise ValueError(
        f'{name} must be a scalar; got shape {value.shape}. Use jax.vmap '
        'to evaluate several.'
    )


def _array(name, value, what):
  try:
    return jnp.asarray(value)
  except (TypeError, ValueError, OverflowError) as error:
    raise ValueError(
        f'{name} must be {what}; got {type(value).__name__}: {error}'
    ) from None


def _known(value: Any) -> bool:
  known = int, float, np.integer, np.floating
  return isinstance(value, known) and not isinstance(value, bool)
