# SPDX-License-Identifier: Apache-2.0
"""MoCo's queue of past keys and its slowly moving average of an encoder."""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

NO_IMAGE = -1


class Queue(NamedTuple):
  """A ring of past keys.

  Attributes:
    keys: unit vectors ``[size, dim]``.
    index: which image each key is of, ``[size]``; ``NO_IMAGE`` for the random
      keys that fill the queue at first.
    head: where the next key goes, a scalar.
  """

  keys: jax.Array
  index: jax.Array
  head: jax.Array


def init_queue(key: jax.Array, size: int, dim: int) -> Queue:
  """A queue full of random unit vectors, as in MoCo.

  Args:
    key: a JAX key.
    size: number of keys.
    dim: their width.

  Returns:
    The queue.
  """
  return Queue(
      keys=unit(jax.random.normal(key, (size, dim), jnp.float32)),
      index=jnp.full((size,), NO_IMAGE, jnp.int32),
      head=jnp.zeros((), jnp.int32),
  )


def push(queue: Queue, keys: jax.Array, index: jax.Array) -> Queue:
  """Replaces the oldest keys.

  Args:
    queue: the queue.
    keys: new keys ``[batch, dim]``, batch <= size; need not be unit.
    index: which image each is of, ``[batch]``.

  Returns:
    The queue with the new keys in it.
  """
  size, batch = queue.keys.shape[0], keys.shape[0]
  if batch > size:
    raise ValueError(
        f'keys must not outnumber the queue, got {batch} keys for a queue of '
        f'{size}; make the queue larger or the batch smaller.'
    )
  slots = (queue.head + jnp.arange(batch, dtype=jnp.int32)) % size
  return Queue(
      keys=queue.keys.at[slots].set(unit(keys.astype(queue.keys.dtype))),
      index=queue.index.at[slots].set(index.astype(jnp.int32)),
      head=(queue.head + batch) % size,
  )


def of_other_images(queue: Queue, index: jax.Array) -> jax.Array:
  """Which keys are negatives: not an older key of the query's own image.

  A queue longer than the data set holds such keys for every query, and a
  large beta would single them out.

  Args:
    queue: the queue.
    index: which image each query is of, ``[batch]``.

  Returns:
    True where the key may be used, ``[batch, size]``.
  """
  return queue.index[None, :] != index.astype(jnp.int32)[:, None]


def average(old: Any, new: Any, decay: ArrayLike) -> Any:
  r"""The moving average :math:`m\,\theta_{old} + (1 - m)\,\theta_{new}`.

  Args:
    old: a tree of arrays, the average so far.
    new: a tree of the same structure.
    decay: m in [0, 1].

  Returns:
    The new average.
  """

  def leaf(old, new):
    m = jnp.asarray(decay, old.dtype)
    return m * old + (1 - m) * new.astype(old.dtype)

  return jax.tree.map(leaf, old, new)


def unit(x: jax.Array) -> jax.Array:
  """Rows divided by their lengths, as torch's normalize does."""
  norm = jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))
  return x / jnp.maximum(norm, 1e-12)
