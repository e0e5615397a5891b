# SPDX-License-Identifier: Apache-2.0
"""Unit vectors and inner products at full float32 precision."""

import jax
from jax import lax
from jax.lax import stop_gradient
import jax.numpy as jnp

_LARGE = 2.0**64  # a power of two: multiplying by it rounds nothing


def compute_dtype(dtype: jnp.dtype) -> jnp.dtype:
  """float64 for itself, float32 for everything less precise."""
  return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def upcast(array: jax.Array) -> jax.Array:
  """Casts half precision to float32; float32 and float64 stay."""
  return array.astype(compute_dtype(array.dtype))


def normalize(embeddings: jax.Array) -> jax.Array:
  """Scales rows to length one; a zero row is left as it is.

  A zero row has no direction. Its gradient is that of the row itself, unscaled,
  so that an encoder that begins with zeros can leave them. Entries too small
  for a normal number, below 1.2e-38 in float32, are zeros to most processors.

  Dividing by the largest entry first keeps the sum of squares away from
  overflow and underflow, whatever the scale of the row.
  """
  embeddings = upcast(embeddings)
  largest = jnp.max(jnp.abs(embeddings), axis=-1, keepdims=True)
  largest = stop_gradient(largest)
  # XLA divides by multiplying with 1 / largest, which must be a normal number.
  shrink = jnp.where(largest > _LARGE, 1 / _LARGE, 1).astype(largest.dtype)
  is_zero = largest == 0
  scaled = (embeddings * shrink) / jnp.where(is_zero, 1, largest * shrink)
  squares = jnp.sum(scaled**2, axis=-1, keepdims=True)
  return scaled * lax.rsqrt(jnp.where(is_zero, 1, squares))


def inner_products(rows: jax.Array, columns: jax.Array) -> jax.Array:
  """``rows @ columns.T`` over the last axis of both.

  On a TPU a float32 product rounds its inputs to bfloat16 unless told not to,
  which at small temperatures is an error of whole units in the logits.
  """
  return jnp.matmul(
      rows, jnp.swapaxes(columns, -1, -2), precision=lax.Precision.HIGHEST
  )


def product(left: jax.Array, right: jax.Array) -> jax.Array:
  """``left @ right`` at full precision."""
  return jnp.matmul(left, right, precision=lax.Precision.HIGHEST)
