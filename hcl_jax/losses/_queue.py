# SPDX-License-Identifier: Apache-2.0
"""MoCo's loss: negatives from a queue of past keys."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hcl_jax import _checks
from hcl_jax import _vectors
from hcl_jax.losses import _blockwise
from hcl_jax.losses import _columns
from hcl_jax.losses import _margin
from hcl_jax.losses import _mesh
from hcl_jax.losses import _nce


def moco_loss(
    queries: jax.Array,
    keys: jax.Array,
    queue: jax.Array,
    *,
    temperature: ArrayLike = 0.2,
    beta: ArrayLike | None = None,
    effective_negatives: ArrayLike | None = None,
    tau_plus: ArrayLike = 0.0,
    positive_weight: ArrayLike = 1.0,
    margin: ArrayLike | _margin.Margin | None = None,
    floor: str = 'sphere',
    where: jax.Array | None = None,
    extra: jax.Array | None = None,
    axis_name: str | None = None,
    mesh: _mesh.Mesh | None = None,
    block_size: int | None = None,
    stop_gradient_weights: bool = False,
) -> jax.Array:
  r"""Computes MoCo's loss with hard, debiased or plain negatives.

  This is the loss of :func:`simclr_loss`, with key i as the positive of query i
  and the K keys of the queue as its negatives. MoCo stops gradients into keys
  and queue: wrap them in ``jax.lax.stop_gradient``, or differentiate with
  respect to the queries only.

  On several devices, the batch is split and the queue is either replicated or
  split too. If each device holds the whole queue, leave ``axis_name`` out: no
  device needs another. If each holds a part of it, give ``axis_name``: the
  negatives of every query are the keys of all parts. A replicated queue with
  ``axis_name`` would count each key once for every device. Average gradients
  as for :func:`simclr_loss`.

  Args:
    queries: embeddings ``[batch, dim]``; need not be unit vectors.
    keys: embeddings ``[batch, dim]``; row i is the positive of query i.
    queue: past keys ``[K, dim]``; with ``axis_name``, this device's.
    temperature: t > 0. May be traced and learned.
    beta: concentration of the tilt on logits, >= 0: a scalar, or one for each
      query, ``[batch]``. May be traced. None: 2 t, a hardness beta / t of 2;
      see :func:`simclr_loss`. The paper has 1 for MoCo: ``beta=0.2``.
    effective_negatives: instead of beta, the share of a query's keys that shall
      count; see :func:`simclr_loss`.
    tau_plus: probability that a key of the queue has the query's class.
    positive_weight: weight of the positive in the denominator, >= 0; 0 is the
      decoupled loss, which is unbounded below; see :func:`hard_nce_loss`.
    margin: drops keys of the queue whose cosine exceeds the positive's minus
      this; see :func:`in_batch_loss`. A guide is (queries, keys, queue).
    floor: ``'sphere'``, ``'soft'`` or ``'none'``; see :func:`simclr_loss`.
    where: keys to count, boolean, ``[K]`` or, without ``axis_name``,
      ``[batch, K]``. Use it for a queue that is not full yet (dropped rows may
      be NaN) and to drop keys of the query's own image, on which a large beta
      would put most weight: ``queue_index[None, :] != index[:, None]``.
    extra: further negatives of each query, ``[batch, n, dim]``, for example
      from :func:`hcl_jax.momentum.mix_hardest`. They always count.
    axis_name: mapped axis over which the batch and the queue are split. Parts
      of the queue have the same length.
    mesh: mesh whose devices share the queries under ``jit``, each with the
      whole queue; see :func:`simclr_loss`.
    block_size: queries and keys of a similarity tile. Tiles avoid the
      ``[batch, K]`` matrix in memory. None: chosen by size. With ``axis_name``,
      blocks of the queue go around a ring of devices instead of being gathered.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    One loss per query, ``[batch]``; 0 for a query without keys to count.

  Example:
    >>> import jax.numpy as jnp
    >>> q, k = jnp.array([[1.0, 0.0]]), jnp.array([[0.8, 0.6]])
    >>> cosines = jnp.array([0.5, 0.0, -0.5, 0.1])
    >>> queue = jnp.stack([cosines, jnp.sqrt(1 - cosines**2)], axis=1)
    >>> print(f'{moco_loss(q, k, queue)[0]:.4f}')
    0.4049

  References:
    He et al., Momentum Contrast for Unsupervised Visual Representation
    Learning, 2020; Robinson et al., 2021, appendix on MoCo.
  """
  queries, keys = _checks.embeddings(queries=queries, keys=keys)
  queue = _checks.matrix('queue', queue)
  _checks.same_width('queries', queries, 'queue', queue)
  _checks.same_dtype('queries', queries, 'queue', queue)
  hyperparameters = _nce.read_hyperparameters(
      queries,
      queries.shape[:1],
      temperature=temperature,
      beta=beta,
      tau_plus=tau_plus,
      positive_weight=positive_weight,
      effective_negatives=effective_negatives,
      floor=floor,
      block_size=block_size,
  )
  shape = queries.shape[0], queue.shape[0]
  if where is not None:
    where = _checks.mask('where', where, shape)
    if where.ndim == 2 and axis_name is not None:
      raise ValueError(
          f'where must have shape ({shape[1]},), one for each key of this '
          f"device's part of the queue, with axis_name={axis_name!r}; got "
          f'{where.shape}.'
      )
    where = jnp.atleast_2d(where)
    where = jnp.broadcast_to(where, (where.shape[0], shape[1]))
  if extra is not None:
    extra = _read_extra(extra, queries)
  margin = _margin.read(margin, queries=queries, keys=keys, queue=queue)
  tiled = _blockwise.choose_block(*shape, block_size) is not None
  split = _mesh.choose(mesh, axis_name, queries, tiled=tiled)
  rows: dict[str, Any] = {
      'queries': queries,
      'keys': keys,
      'hyperparameters': hyperparameters,
      'margin': margin,
      'extra': extra,
  }
  whole: dict[str, Any] = {'queue': queue}
  (whole if where is None or where.shape[0] == 1 else rows)['where'] = where
  if split is not None and margin is not None and margin.guide is not None:
    rows['margin'] = dataclasses.replace(margin, guide=margin.guide[:2])
    whole['guide_of_queue'] = margin.guide[2]
  return _mesh.call(
      _moco_loss if split is None else _with_whole_queue,
      split,
      rows,
      whole,
      floor=floor,
      axis_name=axis_name,
      block_size=block_size,
      stop_gradient_weights=stop_gradient_weights,
  )


def _with_whole_queue(*, axis_name, margin, guide_of_queue=None, **given):
  """Computes the loss of a device's queries against the queue of a mesh."""
  del axis_name  # No query needs another device.
  if guide_of_queue is not None:
    guide = *margin.guide, guide_of_queue
    margin = dataclasses.replace(margin, guide=guide)
  return _moco_loss(margin=margin, axis_name=None, **given)


@functools.partial(
    jax.jit,
    static_argnames=(
        'floor', 'axis_name', 'block_size', 'stop_gradient_weights'
    ),
)  # fmt: skip
def _moco_loss(
    *, queries, keys, queue, hyperparameters, margin, where, extra, floor,
    axis_name, block_size, stop_gradient_weights,
):  # fmt: skip
  if where is not None:
    # A key that no query counts must not enter a product: 0 * NaN is NaN.
    queue = jnp.where(jnp.any(where, axis=0)[:, None], queue, 0)
  queries, keys, queue = map(_vectors.normalize, (queries, keys, queue))
  own = None
  if extra is not None:
    own = _vectors.inner_products(
        queries[:, None, :], _vectors.normalize(extra)
    ).squeeze(1)
  positive = jnp.sum(queries * keys, axis=-1)
  columns = _columns.Columns(queries, queue, where=where)
  if margin is not None:
    columns = margin.limit(columns, positive)
  ring = axis_name is not None and block_size is not None
  if axis_name is not None and not ring:
    columns = _columns.gathered(columns, axis_name)
  block = block_size
  if not ring:
    block = _blockwise.choose_block(
        queries.shape[0], columns.columns.shape[0], block_size
    )
  negatives = _blockwise.negatives_of(
      columns,
      hyperparameters,
      cosines=(
          None if block else _vectors.inner_products(queries, columns.columns)
      ),
      block=block,
      own=own,
      axis_name=axis_name if ring else None,
      stop_gradient_weights=stop_gradient_weights,
  )
  return _nce.cosine_nce(positive, negatives, hyperparameters, floor=floor)


def _read_extra(extra, queries):
  extra = _checks.floats('extra', extra)
  _checks.same_dtype('queries', queries, 'extra', extra)
  batch, dim = queries.shape
  if extra.ndim != 3 or extra.shape[::2] != (batch, dim) or not extra.size:
    raise ValueError(
        f'extra must have shape [{batch}, n, {dim}] with n >= 1 beside queries '
        f'of shape {queries.shape}; got {extra.shape}.'
    )
  return extra
