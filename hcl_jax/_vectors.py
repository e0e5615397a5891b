# SPDX-License-Identifier: Apache-2.0
"""Computes unit vectors and inner products at full float32 precision."""

import jax
from jax import lax
from jax.lax import stop_gradient
import jax.numpy as jnp

_LARGE = 2.0**64  # a power of two: multiplying by it rounds nothing


def compute_dtype(dtype: jnp.dtype) -> jnp.dtype:
  """Returns float64 for float64, and float32 for everything less precise."""
  return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def upcast(array: jax.Array) -> jax.Array:
  """Casts half precision to float32; keeps float32 and float64."""
  return array.astype(compute_dtype(array.dtype))


def normalize(embeddings: jax.Array) -> jax.Array:
  """Scales rows to length one; a zero row stays zero.

  A zero row has no direction. Its gradient passes unscaled, so that an encoder
  that starts at zero can leave it. Subnormal entries, below 1.2e-38 in float32,
  are zero on most processors.

  Dividing by the largest entry first avoids overflow and underflow in the sum
  of squares at any scale of the row.
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
  """Returns ``rows @ columns.T`` over the last axis of both.

  By default a TPU rounds the inputs of a float32 product to bfloat16, which at
  small temperatures changes logits by 1 and more.
  """
  return product(rows, jnp.swapaxes(columns, -1, -2))


def product(left: jax.Array, right: jax.Array) -> jax.Array:
  """Returns ``left @ right`` at full precision."""
  return jnp.matmul(left, right, precision=lax.Precision.HIGHEST)
