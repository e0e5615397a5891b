# SPDX-License-Identifier: Apache-2.0
"""Applies Flax modules: parameters apart from all other collections."""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

_CALLS = 2**32 - 1  # keys of modules; no row has this number


def init(
    module: nn.Module, key: jax.Array, *inputs: Any, **options: Any
) -> tuple[Any, dict[str, Any]]:
  """Returns parameters, and the other collections, such as statistics."""
  variables = dict(module.init(key, *inputs, **options))
  return variables.pop('params', {}), variables


def train(
    module: nn.Module,
    params: Any,
    state: dict[str, Any],
    *inputs: Any,
    key: jax.Array | None,
) -> tuple[Any, dict[str, Any]]:
  """Applies a module in training, which may change all of its state.

  The key is for what the module draws: dropout and any other stream; None:
  nothing.
  """
  # Linen turns to 'params' for streams that have no key.
  names = () if key is None else ('params', 'dropout')
  keys = () if key is None else jax.random.split(key)
  out, updated = module.apply(
      {'params': params, **state},
      *inputs,
      train=True,
      mutable=list(state),
      rngs=dict(zip(names, keys, strict=True)),
  )
  return out, {**state, **updated}


def keys_of_calls(key: jax.Array, rows: jax.Array, num: int) -> jax.Array:
  """Returns keys for calls of a module on rows in a step, ``[num]``.

  They differ between devices, and from those that ``task.row_keys`` has for
  the rows.
  """
  return jax.random.split(
      jax.random.fold_in(jax.random.fold_in(key, _CALLS), rows[0]), num
  )


def across_devices(state: Any, axis_name: str | None) -> Any:
  """Joins the state that every device has updated for itself.

  Averages floats, as running statistics are; takes the rest of the first
  device.
  """
  if axis_name is None:
    return state

  def join(x):
    if jnp.issubdtype(x.dtype, jnp.floating):
      return jax.lax.pmean(x, axis_name)
    return jax.lax.all_gather(x, axis_name)[0]

  return jax.tree.map(join, state)
