# SPDX-License-Identifier: Apache-2.0
"""MoCo's queue of past keys and moving average of an encoder."""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

NO_IMAGE = -1


class Queue(NamedTuple):
  """Ring buffer of past keys.

  Attributes:
    keys: unit vectors ``[size, dim]``.
    index: image of each key, ``[size]``; ``NO_IMAGE`` for the random keys that
      fill the queue at first.
    head: slot of the next key, a scalar.
  """

  keys: jax.Array
  index: jax.Array
  head: jax.Array


def init_queue(key: jax.Array, size: int, dim: int) -> Queue:
  """Returns a queue full of random unit vectors, as in MoCo."""
  return Queue(
      keys=unit(jax.random.normal(key, (size, dim), jnp.float32)),
      index=jnp.full((size,), NO_IMAGE, jnp.int32),
      head=jnp.zeros((), jnp.int32),
  )


def push(queue: Queue, keys: jax.Array, index: jax.Array) -> Queue:
  """Replaces the oldest keys of the queue.

  Args:
    queue: the queue.
    keys: new keys ``[batch, dim]``, batch <= size; need not be unit vectors.
    index: image of each key, ``[batch]``.
  """
  size, batch = queue.keys.shape[0], keys.shape[0]
  if batch > size:
    raise ValueError(
        f'keys must not outnumber the queue; got {batch} keys for a queue of '
        f'{size}. Make the queue larger or the batch smaller.'
    )
  slots = (queue.head + jnp.arange(batch, dtype=jnp.int32)) % size
  return Queue(
      keys=queue.keys.at[slots].set(unit(keys.astype(queue.keys.dtype))),
      index=queue.index.at[slots].set(index.astype(jnp.int32)),
      head=(queue.head + batch) % size,
  )


def of_other_images(queue: Queue, index: jax.Array) -> jax.Array:
  """Returns a mask of the keys that are not of the query's own image.

  A queue longer than the data set contains a key of every query's own image,
  and a large beta would put most weight on it. With the image of each query,
  ``[batch]``, the mask is ``[batch, size]``.
  """
  return queue.index[None, :] != index.astype(jnp.int32)[:, None]


def mix_hardest(
    keys: jax.Array,
    queries: jax.Array,
    queue: jax.Array,
    *,
    num_hardest: int,
    num_mixed: int,
    num_with_query: int,
    where: jax.Array | None = None,
) -> jax.Array:
  r"""Mixes the hardest negatives of each query into new ones, as MoCHi does.

  With n and n' drawn uniformly from the keys nearest to the query q,

  .. math::
    h = \frac{\alpha n + (1 - \alpha) n'}{\|\cdot\|}, \quad
    \alpha \sim U(0, 1), \qquad
    h' = \frac{\gamma q + (1 - \gamma) n}{\|\cdot\|}, \quad
    \gamma \sim U(0, 1/2)

  No gradient flows into the mixtures.

  Args:
    keys: one JAX key per query, ``[batch]``.
    queries: ``[batch, dim]``; need not be unit vectors.
    queue: past keys, unit vectors ``[K, dim]``.
    num_hardest: number of nearest keys to mix, at most K.
    num_mixed: number of h per query.
    num_with_query: number of h' per query.
    where: keys that may be used, ``[batch, K]``; a query with fewer of them
      than ``num_hardest`` mixes others too.

  Returns:
    Unit vectors ``[batch, num_mixed + num_with_query, dim]``, for the argument
    ``extra`` of :func:`hcl_jax.moco_loss`.

  References:
    Kalantidis et al., Hard Negative Mixing for Contrastive Learning, 2020.
  """
  if not 1 <= num_hardest <= queue.shape[0]:
    raise ValueError(
        f'num_hardest must be from 1 to {queue.shape[0]}, the length of the '
        f'queue; got {num_hardest}.'
    )
  if min(num_mixed, num_with_query) < 0 or num_mixed + num_with_query < 1:
    raise ValueError(
        'num_mixed and num_with_query must not be negative and not both 0; '
        f'got {num_mixed} and {num_with_query}.'
    )
  queue = jax.lax.stop_gradient(jnp.asarray(queue))
  queries = jax.lax.stop_gradient(unit(queries))
  similarities = queries @ queue.T
  if where is not None:
    similarities = jnp.where(where, similarities, -2)  # below any cosine
  _, hardest = jax.lax.top_k(similarities, num_hardest)

  def of_query(key, query, rows):
    first, second, alpha, gamma, third = jax.random.split(key, 5)

    def draw(key, number):
      return queue[jax.random.choice(key, rows, (number,))]

    def mix(share, x, y):
      return share[:, None] * x + (1 - share)[:, None] * y

    alphas = jax.random.uniform(alpha, (num_mixed,))
    mixed = mix(alphas, draw(first, num_mixed), draw(second, num_mixed))
    gammas = jax.random.uniform(gamma, (num_with_query,), maxval=0.5)
    with_query = mix(gammas, query[None, :], draw(third, num_with_query))
    return unit(jnp.concatenate([mixed, with_query]))

  return jax.vmap(of_query)(keys, queries, hardest)


def average(old: Any, new: Any, decay: ArrayLike) -> Any:
  r"""Returns the average :math:`m\,\theta_{old} + (1 - m)\,\theta_{new}`.

  Both are trees of arrays; ``decay`` is m in [0, 1].
  """

  def leaf(old, new):
    m = jnp.asarray(decay, old.dtype)
    return m * old + (1 - m) * new.astype(old.dtype)

  return jax.tree.map(leaf, old, new)


def unit(x: jax.Array) -> jax.Array:
  """Divides rows by their lengths, as torch's normalize does."""
  norm = jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))
  return x / jnp.maximum(norm, 1e-12)
