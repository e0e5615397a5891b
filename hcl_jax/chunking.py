# SPDX-License-Identifier: Apache-2.0
"""Exact gradients of large batches, in the memory of a chunk.

A contrastive loss lets all rows meet, so gradients of parts of a batch do not
add up to that of the batch. They do once the loss has been differentiated by
the embeddings, which are small: the rest is a sum over rows.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from hcl_jax import _checks


class Parts(NamedTuple):
  """Holds the three passes over a batch, to be compiled or mapped.

  Attributes:
    embed: ``(params, state, chunk, *rest) -> (embeddings, state)``.
    differentiate: ``(params, embeddings, batch, *rest) -> (value, grads,
      cotangents)``; embeddings and cotangents are lists over chunks, the
      gradient is that of the loss by parameters at fixed embeddings.
    backpropagate: ``(grads, params, state, chunk, cotangents, *rest) ->
      grads``, to which it adds those of a chunk.
  """

  embed: Callable[..., Any]
  differentiate: Callable[..., Any]
  backpropagate: Callable[..., Any]


def chunked_value_and_grad(
    embed_fn: Callable[..., Any],
    loss_fn: Callable[..., Any],
    chunk_size: int,
    *,
    axis_name: str | None = None,
    scan: bool = True,
    has_aux: bool = False,
    has_state: bool = False,
) -> Callable[..., Any]:
  """Makes value and gradient of a loss over a batch that is embedded in chunks.

  Embeds the batch chunk by chunk, differentiates the loss by all embeddings,
  then embeds each chunk again and adds up its gradient [1]. The result is that
  of ``jax.value_and_grad`` of ``loss_fn(params, embed_fn(params, batch),
  batch)``, up to rounding, with the activations of one chunk in memory, for one
  more forward pass. This needs an ``embed_fn`` that treats rows separately:
  batch statistics are those of a chunk.

  An embedding is computed twice and must come out the same. Random numbers that
  depend on keys in the batch, one per row, do so. A key among ``rest`` is the
  same for all chunks.

  Inside a mapped axis, ``loss_fn`` takes the mean over the rows of its device,
  with negatives from all devices by the ``axis_name`` of the loss. Give the
  same ``axis_name`` here, and value and gradient are averages over devices:
  those of the global batch, alike on each device, under ``pmap``, ``vmap`` and
  ``shard_map`` with or without ``check_vma``. Under ``jit`` with sharded arrays
  (data parallel, FSDP) leave it out; a chunk has rows of all devices.

  Args:
    embed_fn: ``(params, chunk, *rest) -> embeddings``, a tree of arrays with
      one row for each row of the chunk.
    loss_fn: ``(params, embeddings, batch, *rest) -> loss``, a scalar of all
      embeddings, in the order of the batch. It may depend on the parameters,
      such as a learned temperature.
    chunk_size: rows that are embedded at a time, >= 1. If it does not divide
      the rows of the batch, the last chunk is smaller, and compiled separately.
    axis_name: mapped axis over which the batch is split.
    scan: loop by ``lax.scan``, in one program. Otherwise in Python over three
      compiled functions, because XLA runs convolutions inside a compiled loop
      many times slower on a CPU. Call that outside ``jit``: inside, chunks are
      unrolled, and XLA chooses their order and the memory (on a CPU, that of
      the whole batch or more). Values and gradients agree.
    has_aux: ``loss_fn`` returns ``(loss, aux)``.
    has_state: ``embed_fn`` is ``(params, state, chunk, *rest) -> (embeddings,
      state)``. The state, such as running statistics, goes from chunk to chunk.
      It must not change embeddings: they are recomputed with the first one.

  Returns:
    ``(params, batch, *rest) -> (value, grads)``. ``batch`` is a tree of arrays
    with the same number of rows, of which only floating-point embeddings are
    differentiated; ``rest`` goes to both functions as it is. Both are compiled
    once, so what changes between calls must be an argument. With ``has_aux``,
    value is ``(value, aux)``. With ``has_state``: ``(params, state, batch,
    *rest) -> (value, grads, state)``. Aux and state are each device's own.

  Example:
    >>> import hcl_jax, jax, jax.numpy as jnp
    >>> def embed(params, pairs):  # two towers
    ...   return pairs['query'] @ params['q'], pairs['document'] @ params['d']
    >>> def loss(params, embeddings, pairs):  # with a learned temperature
    ...   t = jnp.exp(params['log_t'])
    ...   return hcl_jax.in_batch_loss(*embeddings, temperature=t).mean()
    >>> params = {'q': jnp.eye(4), 'd': jnp.eye(4), 'log_t': jnp.zeros(())}
    >>> pairs = {'query': jnp.eye(4), 'document': jnp.eye(4)}
    >>> value, grads = chunked_value_and_grad(embed, loss, 2)(params, pairs)
    >>> print(f"{value:.4f} {grads['log_t']:.4f}")
    0.7437 0.5246

  References:
    [1] Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory
      Limited Setup, 2021.
  """
  _checks.positive_int('chunk_size', chunk_size)
  parts = make_parts(
      _checked_embed(embed_fn, axis_name, has_state=has_state),
      _checked_loss(loss_fn, has_aux=has_aux),
      join=_interleave,
      has_aux=has_aux,
  )
  if scan:
    run = jax.jit(functools.partial(_scan_chunks, parts, chunk_size))
  else:
    parts = Parts(
        jax.jit(parts.embed),
        jax.jit(parts.differentiate),
        jax.jit(_after(parts.backpropagate), donate_argnums=0),
    )
    run = functools.partial(_loop_over_chunks, parts, chunk_size)

  def call(params, state, batch, *rest):
    _check_rows(batch)
    if axis_name is None:
      return run(params, state, batch, *rest)
    # Gradients of a replicated parameter would be summed at every chunk.
    params, state = _varying((params, state), axis_name)
    value, grads, state = run(params, state, batch, *rest)
    value, aux = value if has_aux else (value, None)
    value, grads = jax.tree.map(
        lambda x: lax.pmean(x, axis_name), (value, grads)
    )
    return (value, aux) if has_aux else value, grads, state

  def call_without_state(params, batch, *rest):
    return call(params, None, batch, *rest)[:2]

  return call if has_state else call_without_state


def concatenate(chunks: Sequence[Any]) -> Any:
  """Joins trees of arrays, one after the other."""
  return jax.tree.map(lambda *x: jnp.concatenate(x), *chunks)


def make_parts(
    embed_fn: Callable[..., Any],
    loss_fn: Callable[..., Any],
    *,
    join: Callable[[Sequence[Any]], Any] = concatenate,
    has_aux: bool = False,
) -> Parts:
  """Makes the three passes of :func:`chunked_value_and_grad`.

  Args:
    embed_fn: ``(params, state, chunk, *rest) -> (embeddings, state)``.
    loss_fn: ``(params, embeddings, batch, *rest) -> loss``.
    join: makes embeddings of the batch from those of its chunks.
    has_aux: ``loss_fn`` returns ``(loss, aux)``, which is the value.
  """
  def differentiate(params, embeddings, batch, *rest):
    def loss(params, floats):
      chunks = [_with_floats(*x) for x in zip(embeddings, floats, strict=True)]
      return loss_fn(params, join(chunks), batch, *rest)

    value, (grads, cotangents) = jax.value_and_grad(
        loss, argnums=(0, 1), has_aux=has_aux
    )(params, [_floats(chunk) for chunk in embeddings])
    return value, grads, cotangents

  def backpropagate(grads, params, state, chunk, cotangents, *rest):
    def embed(params):
      return _floats(embed_fn(params, state, chunk, *rest)[0])

    _, transpose = jax.vjp(embed, params)
    return jax.tree.map(jnp.add, grads, transpose(cotangents)[0])

  return Parts(embed_fn, differentiate, backpropagate)


def run_parts(
    parts: Parts,
    params: Any,
    state: Any,
    chunks: Sequence[Any],
    batch: Any,
    *rest: Any,
) -> tuple[Any, Any, Any, list[Any]]:
  """Runs the three passes in a Python loop.

  Args:
    parts: see :class:`Parts`.
    params: the parameters.
    state: given to the first chunk, and to all of them the second time.
    chunks: parts of the batch, for the encoder.
    batch: what the loss takes.
    *rest: given to all parts.

  Returns:
    Value, gradient, the last state, and a list of embeddings.
  """
  embeddings, new = [], state
  for chunk in chunks:
    z, new = parts.embed(params, new, chunk, *rest)
    embeddings.append(z)
  value, grads, cotangents = parts.differentiate(
      params, embeddings, batch, *rest
  )
  for chunk, cotangent in zip(chunks, cotangents, strict=True):
    grads = parts.backpropagate(grads, params, state, chunk, cotangent, *rest)
  return value, grads, new, embeddings


def _loop_over_chunks(parts, size, params, state, batch, *rest):
  head, tail = _cut(batch, size)
  chunks = [_take(head, i) for i in range(_count(head))]
  if tail is not None:
    chunks.append(tail)
  return run_parts(parts, params, state, chunks, batch, *rest)[:3]


def _scan_chunks(parts, size, params, state, batch, *rest):
  head, tail = _cut(batch, size)
  numbers = jnp.arange(_count(head))

  def embed(state, i):
    z, state = parts.embed(params, state, _take(head, i), *rest)
    return state, z

  new, stacked = lax.scan(embed, state, numbers)
  embeddings = [jax.tree.map(lambda x: _merge(jnp.swapaxes(x, 0, 1)), stacked)]
  if tail is not None:
    z, new = parts.embed(params, new, tail, *rest)
    embeddings.append(z)
  value, grads, cotangents = parts.differentiate(
      params, embeddings, batch, *rest
  )
  pairs = head, _cut(cotangents[0], size)[0]

  def backpropagate(grads, i):
    pair = _take(pairs, i)
    return parts.backpropagate(grads, params, state, *pair, *rest), None

  grads, _ = lax.scan(backpropagate, grads, numbers)
  if tail is not None:
    grads = parts.backpropagate(
        grads, params, state, tail, cotangents[1], *rest
    )
  return value, grads, new


def _cut(tree, size):
  """Returns chunks ``[size, count, ...]`` and what is left, or None.

  A chunk takes every count-th row. So it has rows of all devices if these share
  the batch, and none has to send its rows to another.
  """
  rows = jax.tree.leaves(tree)[0].shape[0]
  size = min(size, rows)
  whole = rows - rows % size
  head = jax.tree.map(
      lambda x: x[:whole].reshape(size, whole // size, *x.shape[1:]), tree
  )
  tail = jax.tree.map(lambda x: x[whole:], tree) if whole < rows else None
  return head, tail


def _count(head):
  return jax.tree.leaves(head)[0].shape[1]


def _take(head, i):
  if isinstance(i, int):
    return jax.tree.map(lambda x: x[:, i], head)
  return jax.tree.map(
      lambda x: lax.dynamic_index_in_dim(x, i, axis=1, keepdims=False), head
  )


def _interleave(chunks):
  """Joins embeddings in the order of the rows that ``_cut`` was given."""
  sizes = [jax.tree.leaves(chunk)[0].shape[0] for chunk in chunks]
  equal = sizes.count(sizes[0])  # all but one that is left
  head = jax.tree.map(
      lambda *x: _merge(jnp.stack(x, axis=1)), *chunks[:equal]
  )
  return concatenate([head, *chunks[equal:]])


def _merge(x):
  return x.reshape(-1, *x.shape[2:])


def _floats(tree):
  return [x for x in jax.tree.leaves(tree) if _is_float(x)]


def _with_floats(tree, floats):
  """Replaces the floating-point leaves of a tree."""
  left = iter(floats)
  return jax.tree.map(lambda x: next(left) if _is_float(x) else x, tree)


def _is_float(x):
  return jnp.issubdtype(x.dtype, jnp.inexact)


def _after(backpropagate):
  """Makes chunks wait for each other if they are unrolled in one program.

  Otherwise XLA would find that embeddings are computed twice, and keep the
  activations of all chunks instead.
  """

  def call(grads, params, state, chunk, cotangents, *rest):
    grads, params, chunk, cotangents = lax.optimization_barrier(
        (grads, params, chunk, cotangents)
    )
    return backpropagate(grads, params, state, chunk, cotangents, *rest)

  return call


def _varying(tree, axis_name):
  """Makes numbers vary over the axis, for shard_map(check_vma=True)."""
  zero = jnp.zeros_like(lax.axis_index(axis_name))

  def vary(x):
    if not jnp.issubdtype(jnp.result_type(x), jnp.number):
      return x
    return x + zero.astype(jnp.result_type(x))

  return jax.tree.map(vary, tree)


def _checked_embed(embed_fn, axis_name, *, has_state):
  """Returns a function with a state, which checks what it returns."""

  def embed(params, state, chunk, *rest):
    if has_state:
      made = embed_fn(params, state, chunk, *rest)
      if not isinstance(made, tuple) or len(made) != 2:
        raise ValueError(
            'embed_fn must return (embeddings, state) with has_state=True; got '
            f'{_describe(made)}.'
        )
      embeddings, state = made
      if axis_name is not None:
        state = _varying(state, axis_name)
    else:
      embeddings = embed_fn(params, chunk, *rest)
    _check_embeddings(embeddings, jax.tree.leaves(chunk)[0].shape[0])
    return embeddings, state

  return embed


def _checked_loss(loss_fn, *, has_aux):
  """Returns the loss, which checks what it returns."""

  def loss(params, embeddings, batch, *rest):
    made = value = loss_fn(params, embeddings, batch, *rest)
    if has_aux:
      if not isinstance(made, tuple) or len(made) != 2:
        raise ValueError(
            'loss_fn must return (loss, aux) with has_aux=True; got '
            f'{_describe(made)}.'
        )
      value = made[0]
    if getattr(value, 'shape', None) != ():
      raise ValueError(
          f'loss_fn must return a scalar; got {_describe(value)}. Take the '
          'mean over rows, or set has_aux=True for (loss, aux).'
      )
    return made

  return loss


def _check_rows(batch):
  """Raises a ValueError unless all arrays have the same number of rows."""
  leaves = jax.tree_util.tree_leaves_with_path(batch)
  if not leaves:
    raise ValueError(f'batch must have at least one array; got {batch!r}.')
  first = None
  for path, leaf in leaves:
    shape = np.shape(leaf)
    name = f'batch{jax.tree_util.keystr(path)}'
    if not shape or not shape[0]:
      raise ValueError(
          f'batch must be arrays with one or more rows; {name} has shape '
          f'{shape}. Pass what does not go by rows after the batch.'
      )
    first = first or (name, shape)
    if shape[0] != first[1][0]:
      raise ValueError(
          'batch must be arrays with the same number of rows; '
          f'{first[0]} has shape {first[1]} and {name} has shape {shape}. Pass '
          'what does not go by rows after the batch.'
      )


def _check_embeddings(embeddings, rows):
  """Raises a ValueError unless there is an embedding for each row."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(embeddings):
    if np.shape(leaf)[:1] != (rows,):
      raise ValueError(
          f'embed_fn must return arrays with the {rows} rows of its chunk; '
          f'embeddings{jax.tree_util.keystr(path)} has shape '
          f'{np.shape(leaf)}. Return what is not by rows as state, with '
          'has_state=True.'
      )
  if not _floats(embeddings):
    raise ValueError(
        'embed_fn must return at least one floating-point array; got '
        f'{_describe(embeddings)}.'
    )


def _describe(made):
  """Formats what a function returned for an error."""
  if hasattr(made, 'shape'):
    return f'shape {made.shape}'
  return type(made).__name__
