# SPDX-License-Identifier: Apache-2.0
"""The checks that augmentations make of their settings, images and keys."""

import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp

from hcl_jax.losses import _arguments


def images(array: Any, rank: int | None = None) -> jax.Array:
  """Reads uint8 images, ``[..., 3]``."""
  array = jnp.asarray(array)
  if array.dtype != jnp.uint8:
    raise ValueError(
        f'images must be uint8, 0 to 255; got dtype {array.dtype}.'
    )
  right_rank = array.ndim == (rank or array.ndim)
  if not right_rank or array.shape[-1:] != (3,) or 0 in array.shape:
    expected = '[batch, height, width, 3]' if rank else '[..., 3]'
    raise ValueError(
        f'images must have shape {expected}, not empty; got {array.shape}.'
    )
  return array


def keys(array: Any, batch: int) -> None:
  got = type(array).__name__
  if isinstance(array, jax.Array):
    typed = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    if typed and array.shape == (batch,):
      return
    got = f'shape {array.shape} of dtype {array.dtype}'
  raise ValueError(
      f'keys must be {batch} typed PRNG keys, one per image, as of '
      f'jax.random.split(jax.random.key(0), {batch}); got {got}.'
  )


def size(value: Any) -> None:
  _arguments.positive_int('size', value)


def kernel(value: Any, side: float) -> None:
  """Odd, and reflected no more than once at each border."""
  _arguments.positive_int('blur_kernel', value)
  if value % 2 == 0 or value // 2 >= side:
    raise ValueError(
        f'blur_kernel must be odd and less than twice size ({side}), got '
        f'{value}.'
    )


def within(name: str, value: Any, most: float = math.inf) -> None:
  number(name, value)
  if not 0 <= value <= most:
    raise ValueError(f'{name} must be in [0, {most:g}], got {value}.')


def bounds(name: str, values: Any) -> tuple[float, float]:
  """Reads the least and the greatest of something positive."""
  least, greatest = several(name, values, 2, 'the least and the greatest')
  if not 0 < least <= greatest:
    raise ValueError(
        f'{name} must be two numbers > 0, the least one first; got '
        f'{(least, greatest)}.'
    )
  return least, greatest


def statistics(mean: Any, std: Any) -> tuple[tuple[float, ...], ...]:
  """Reads mean and standard deviation of the three channels."""
  mean = several('mean', mean, 3, 'one per channel')
  std = several('std', std, 3, 'one per channel')
  if min(std) <= 0:
    raise ValueError(f'std must be three numbers > 0, got {std}.')
  return mean, std


def several(name: str, values: Any, count: int, what: str) -> tuple[float, ...]:
  try:
    values = tuple(values)
  except TypeError:
    values = (values,)
  if len(values) != count:
    raise ValueError(f'{name} must be {count} numbers, {what}; got {values}.')
  for value in values:
    number(name, value)
  return values


def number(name: str, value: Any) -> None:
  """Of Python's: it must be known when the step is compiled."""
  if isinstance(value, bool) or not isinstance(value, numbers.Real):
    raise ValueError(f'{name} must be a number, got {value!r}.')
  if not math.isfinite(value):
    raise ValueError(f'{name} must be finite, got {value}.')
