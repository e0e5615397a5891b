# SPDX-License-Identifier: Apache-2.0
"""Splits rows into blocks of one size and joins them again."""

import jax
import jax.numpy as jnp


def even_block(n: int, block: int) -> int:
  """Returns the smallest block that covers n in as many steps as ``block``."""
  steps = -(-n // block)
  return -(-n // steps)


def split(x: jax.Array, block: int, fill=0) -> jax.Array:
  """Splits ``[n, ...]`` into ``[k, block, ...]``, padded with ``fill``."""
  k = -(-x.shape[0] // block)
  padding = [(0, k * block - x.shape[0])] + [(0, 0)] * (x.ndim - 1)
  x = jnp.pad(x, padding, constant_values=fill)
  return x.reshape(k, block, *x.shape[1:])


def join(x: jax.Array, n: int) -> jax.Array:
  """Joins blocks ``[k, block, ...]`` to ``[n, ...]``, without padding."""
  return x.reshape(-1, *x.shape[2:])[:n]
