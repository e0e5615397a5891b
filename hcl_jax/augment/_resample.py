# SPDX-License-Identifier: Apache-2.0
"""Crops, resizes and blurs by linear maps of rows, then of columns.

Every output row is a weighted sum of a few input rows, its taps. A map is
applied by selecting these rows, or as a matrix product.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

_FEW_TAPS = 3  # with so few, shifts blur faster than products


class Taps(NamedTuple):
  """Linear map from ``inputs`` rows to ``outputs`` rows.

  Attributes:
    index: input rows, int32, ``[taps, outputs]``.
    weights: weights of the input rows, ``[taps, outputs]``.
  """

  index: jax.Array
  weights: jax.Array


def crop(
    image: jax.Array,
    top: ArrayLike,
    left: ArrayLike,
    height: ArrayLike,
    width: ArrayLike,
    *,
    size: int,
    flip: ArrayLike = False,
) -> jax.Array:
  """Crops, resizes to a square and optionally flips left and right.

  Bilinear with antialiasing, as in Pillow: if the crop is larger than the
  result, the triangle filter is wider. Pixels outside the crop are not used.

  Args:
    image: ``[rows, columns, 3]``.
    top: first row of the crop; an integer, like the next three.
    left: first column.
    height: rows of the crop.
    width: columns of the crop.
    size: side of the result.
    flip: whether to flip.

  Returns:
    A planar float32 image, ``[3, size, size]``, on the scale of ``image``.
  """
  rows = crop_taps(top, height, image.shape[0], size)
  columns = crop_taps(left, width, image.shape[1], size, flip)
  mixed = mix_rows(image, matrix(rows, image.shape[0]))
  planes = jnp.transpose(mixed, (2, 0, 1))
  return mix_columns(planes, matrix(columns, image.shape[1]))


def gaussian_blur(
    image: jax.Array, sigma: ArrayLike, *, kernel_size: int, matmul: bool = True
) -> jax.Array:
  """Blurs with a truncated Gaussian; reflects the border (reflect-101).

  Args:
    image: planar, ``[3, height, width]``, sides > ``kernel_size // 2``.
    sigma: standard deviation in pixels, > 0.
    kernel_size: taps per axis, odd.
    matmul: multiply rows by a matrix instead of selecting them; the value is
      the same.
  """
  if not matmul and kernel_size == _FEW_TAPS:
    weights = _gaussian(sigma, kernel_size)
    return _blur_by_shifts(_blur_by_shifts(image, weights, 1), weights, 2)
  _, height, width = image.shape
  rows = blur_taps(sigma, height, kernel_size)
  columns = matrix(blur_taps(sigma, width, kernel_size), width)
  apply = mix_rows if matmul else pick_rows
  rows = matrix(rows, height) if matmul else rows
  image = jax.vmap(apply, in_axes=(0, None))(image, rows)
  return mix_columns(image, columns)


def crop_taps(
    start: ArrayLike,
    length: ArrayLike,
    inputs: int,
    outputs: int,
    flip: ArrayLike = False,
) -> Taps:
  """Returns taps that resize ``length`` rows from ``start`` to ``outputs``."""
  start, length = jnp.float32(start), jnp.float32(length)
  place = jnp.arange(outputs, dtype=jnp.float32)
  place = jnp.where(flip, outputs - 1 - place, place)
  step = length / outputs
  reach = jnp.maximum(step, 1)
  center = start + (place + 0.5) * step
  first = jnp.maximum(jnp.floor(center - reach + 0.5), start)
  # The open interval (center - reach, center + reach) has no more centers.
  taps = math.ceil(2 * max(inputs / outputs, 1))
  row = first[None] + jnp.arange(taps, dtype=jnp.float32)[:, None]
  weights = 1 - jnp.abs(row + 0.5 - center[None]) / reach
  weights = jnp.where((weights > 0) & (row < start + length), weights, 0)
  return Taps(
      index=jnp.minimum(row, inputs - 1).astype(jnp.int32),
      weights=weights / jnp.sum(weights, axis=0, keepdims=True),
  )


def blur_taps(sigma: ArrayLike, size: int, kernel_size: int) -> Taps:
  """Returns taps that blur ``size`` rows."""
  offset = np.arange(kernel_size)[:, None] - kernel_size // 2
  index = _reflect(np.arange(size) + offset, size)
  weights = _gaussian(sigma, kernel_size)[:, None]
  return Taps(
      index=jnp.asarray(index, jnp.int32),
      weights=jnp.broadcast_to(weights, index.shape),
  )


def _gaussian(sigma, kernel_size):
  offset = np.arange(kernel_size) - kernel_size // 2
  weights = jnp.exp(-0.5 * jnp.square(offset.astype(np.float32) / sigma))
  return weights / jnp.sum(weights)


def _reflect(index, size):
  index = np.abs(index)
  return np.minimum(index, 2 * (size - 1) - index)


def _blur_by_shifts(image, weights, axis):
  """Blurs along an axis by a sum of shifted images, and two borders."""
  size, half = image.shape[axis], len(weights) // 2

  def mixed(starts, count):
    return sum(
        weight * jax.lax.slice_in_dim(image, start, start + count, axis=axis)
        for weight, start in zip(weights, starts, strict=True)
    )

  def border(i):
    return mixed(_reflect(np.arange(i - half, i + half + 1), size), 1)

  first = [border(i) for i in range(half)]
  last = [border(i) for i in range(size - half, size)]
  inside = mixed(range(len(weights)), size - 2 * half)
  return jnp.concatenate([*first, inside, *last], axis)


def matrix(taps: Taps, inputs: int) -> jax.Array:
  """Returns the map as a matrix ``[inputs, outputs]`` for the right side."""
  row = jnp.arange(inputs, dtype=jnp.int32)[:, None]
  return sum(
      jnp.where(row == index[None], weights[None], 0)
      for index, weights in zip(*taps, strict=True)
  )


def mix_rows(image: jax.Array, rows: jax.Array) -> jax.Array:
  """Maps ``[inputs, ...]`` to ``[outputs, ...]`` by ``[inputs, outputs]``."""
  return _product('h...,hy->y...', image.astype(jnp.float32), rows)


def pick_rows(rows_in: jax.Array, taps: Taps) -> jax.Array:
  """Maps ``[inputs, n]`` by taps, which is faster where gathers are fast."""
  total = 0.0
  for index, weights in zip(*taps, strict=True):
    picked = rows_in.at[index].get(mode='promise_in_bounds')
    total += weights[:, None] * picked.astype(jnp.float32)
  return total


def mix_columns(image: jax.Array, columns: jax.Array) -> jax.Array:
  """Maps ``[..., inputs]`` to ``[..., outputs]`` by ``[inputs, outputs]``."""
  return _product('...w,wx->...x', image, columns)


def _product(equation, a, b):
  # By default TPUs and GPUs keep fewer bits than a pixel has.
  return jnp.einsum(equation, a, b, precision=jax.lax.Precision.HIGHEST)
