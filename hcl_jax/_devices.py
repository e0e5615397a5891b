# SPDX-License-Identifier: Apache-2.0
"""Helpers for a mapped axis of devices: its size, a ring, varying values."""

from typing import TypeVar

import jax
from jax import lax
import jax.numpy as jnp

_Tree = TypeVar('_Tree')


def axis_size(axis_name: str | None) -> int:
  """Returns the number of devices along the axis; 1 without an axis."""
  return 1 if axis_name is None else lax.axis_size(axis_name)


def axis_index(axis_name: str | None) -> jax.Array | int:
  """Returns the place of this device along the axis; 0 without an axis."""
  return 0 if axis_name is None else lax.axis_index(axis_name)


def scan_ring(step, carry, axis_name):
  """Scans over the devices of a ring, starting with this one."""
  if axis_name is None:
    carry, _ = step(carry, None)
    return carry, None
  return lax.scan(step, carry, length=lax.axis_size(axis_name))


def pass_on(tree, axis_name):
  """Passes arrays to the next device of the ring."""
  if axis_name is None:
    return tree
  size = lax.axis_size(axis_name)
  ring = [(i, (i + 1) % size) for i in range(size)]
  return jax.tree.map(lambda x: lax.ppermute(x, axis_name, ring), tree)


def same_varying(tree: _Tree) -> _Tree:
  """Makes arrays vary over the mesh axes that any of them varies over.

  Inside shard_map(check_vma=True) a replicated hyperparameter that is combined
  with sharded embeddings must vary as they do; its cotangent is then summed
  over the devices. Adding a zero that varies does this.
  """
  zero = sum(_zero(x) for x in jax.tree.leaves(tree))
  return jax.tree.map(lambda x: _add_zero(x, zero), tree)


def varying_as(tree, like):
  """Makes the arrays of a tree vary over the mesh axes of ``like``."""
  return jax.tree.map(lambda x: _add_zero(x, _zero(like)), tree)


def _zero(x):
  return jnp.zeros_like(x, shape=(), dtype=jnp.float32)


def _add_zero(x, zero):
  zero = zero.astype(x.dtype)
  return x | zero if x.dtype == jnp.bool_ else x + zero
