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


def visit_ring(step, carry, visiting, axis_name):
  """Calls a function with the arrays of each device of a ring.

  Arrays are passed on while the step computes with them: n - 1 times.

  Args:
    step: ``(carry, visiting) -> carry``.
    carry: initial carry.
    visiting: arrays of this device, the first to be visited.
    axis_name: mapped axis; None: there is only this device.

  Returns:
    The carry after the last device.
  """
  if axis_size(axis_name) == 1:
    return step(carry, visiting)
  step = jax.jit(step)  # traced once

  def ring_step(state, _):
    carry, visiting = state
    return (step(carry, visiting), pass_on(visiting, axis_name)), None

  length = axis_size(axis_name) - 1
  (carry, visiting), _ = lax.scan(ring_step, (carry, visiting), length=length)
  return step(carry, visiting)


def accumulate_ring(step, add, carry, visiting, axis_name):
  """Calls a function with the arrays of each device, and sums for them.

  A sum follows its arrays one step behind: it is on its way while the device
  that it goes to computes what to add. Arrays are passed on n - 1 times, sums
  n times, the last time home.

  Args:
    step: ``(carry, visiting) -> (carry, parts)`` with a part of the sums.
    add: ``(sums, parts, visiting) -> sums``.
    carry: initial carry.
    visiting: arrays of this device, the first to be visited.
    axis_name: mapped axis; None: there is only this device.

  Returns:
    The carry after the last device, and the sums for this device's arrays.
  """
  devices = axis_size(axis_name)
  if devices == 1:
    return step(carry, visiting)
  step = jax.jit(step)  # traced once

  def ring_step(state, _):
    carry, visiting, sums = state
    following, sums = pass_on((visiting, sums), axis_name)
    carry, parts = step(carry, visiting)
    return (carry, following, add(sums, parts, visiting)), None

  following = pass_on(visiting, axis_name)
  state = step(carry, visiting)
  state = state[0], following, state[1]
  if devices > 2:
    state, _ = lax.scan(ring_step, state, length=devices - 2)
  carry, visiting, sums = state
  sums = pass_on(sums, axis_name)
  carry, parts = step(carry, visiting)
  return carry, pass_on(add(sums, parts, visiting), axis_name)


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
