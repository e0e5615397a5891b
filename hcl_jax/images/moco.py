# SPDX-License-Identifier: Apache-2.0
"""MoCo-v2: a momentum encoder of keys, negatives from a queue of past keys."""

import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

import hcl_jax
from hcl_jax import momentum
from hcl_jax.images import encoder as image_encoder
from hcl_jax.training import task


class Mixing(NamedTuple):
  """Holds MoCHi's options, see :func:`hcl_jax.momentum.mix_hardest`.

  Attributes:
    num_hardest: N, how many of the nearest keys are mixed.
    num_mixed: s, mixtures of two of them.
    num_with_query: s', mixtures of one and the query.
    warmup_steps: the first so many steps are without.
  """

  num_hardest: int
  num_mixed: int
  num_with_query: int
  warmup_steps: int = 0


class State(NamedTuple):
  """Holds what MoCo carries beside the query encoder's parameters."""

  stats: Any
  key_params: Any
  key_stats: Any
  queue: momentum.Queue


@dataclasses.dataclass(frozen=True)
class MoCo:
  r"""Queries by the encoder, keys by its moving average.

  The key encoder is :math:`\theta_k \leftarrow m \theta_k + (1-m) \theta_q`
  after every step, which is before the keys of the next one. Keys are embedded
  in shuffled order, so that BatchNorm (of a device, or of one of its
  ``bn_splits``) does not see a query and its key among the same neighbors.

  Attributes:
    encoder: the image encoder and its views.
    beta: schedule of the concentration.
    queue_size: number of past keys.
    embedding_dim: their width.
    momentum: m.
    mask_own_image: drop older keys of the query's own image.
    shuffle: whether keys are shuffled.
    mixing: synthetic negatives as of MoCHi, or None.
    loss_options: further options of :func:`hcl_jax.moco_loss` by name.
    axis_name: mapped axis of devices, or None.
  """

  encoder: image_encoder.ImageEncoder
  beta: hcl_jax.schedules.Schedule
  queue_size: int = 65536
  embedding_dim: int = 128
  momentum: float = 0.999
  mask_own_image: bool = True
  shuffle: bool = True
  mixing: Mixing | None = None
  loss_options: dict[str, Any] = dataclasses.field(default_factory=dict)
  axis_name: str | None = task.AXIS

  def init(self, key, batch):
    encoder_key, queue_key = jax.random.split(key)
    params, stats = self.encoder.init(encoder_key, batch['image'])
    queue = momentum.init_queue(
        queue_key, self.queue_size, self.embedding_dim
    )
    # Copies, because a donated buffer must not be given twice.
    copies = jax.tree.map(jnp.copy, (params, stats))
    return params, State(stats, *copies, queue)

  def embed(self, params, state, batch, key, rows):
    view_key, shuffle_key = jax.random.split(key)
    keys = task.row_keys(view_key, rows, 2 if self.mixing is None else 3)
    views = [self.encoder.augment(keys[:, i], batch['image']) for i in (0, 1)]
    q, stats = self.encoder.embed(params, state.stats, views[0])
    k, key_stats = self._embed_keys(state, views[1], shuffle_key)
    stats, key_stats = image_encoder.across_devices(
        (stats, key_stats), self.axis_name
    )
    embeddings = q, k
    if self.mixing is not None:
      embeddings += (self._mix(state, q, batch, keys[:, 2]),)
    return embeddings, state._replace(stats=stats, key_stats=key_stats)

  def _mix(self, state, q, batch, keys):
    return momentum.mix_hardest(
        keys,
        q.astype(state.queue.keys.dtype),
        state.queue.keys,
        num_hardest=self.mixing.num_hardest,
        num_mixed=self.mixing.num_mixed,
        num_with_query=self.mixing.num_with_query,
        where=self._negatives(state, batch),
    ).astype(q.dtype)

  def _negatives(self, state, batch):
    """Keys of other images, or None for all keys."""
    if not self.mask_own_image:
      return None
    return momentum.of_other_images(state.queue, batch['index'])

  def _embed_keys(self, state, views, shuffle_key):
    if not self.shuffle:
      k, stats = self.encoder.embed(state.key_params, state.key_stats, views)
      return jax.lax.stop_gradient((k, stats))
    everywhere = self._gather(views)
    order = jax.random.permutation(shuffle_key, everywhere.shape[0])
    k, stats = self.encoder.embed(
        state.key_params, state.key_stats, self._own_rows(everywhere[order])
    )
    k = self._own_rows(self._gather(k)[jnp.argsort(order)])
    return jax.lax.stop_gradient((k, stats))

  def _gather(self, x):
    if self.axis_name is None:
      return x
    return jax.lax.all_gather(x, self.axis_name, tiled=True)

  def _own_rows(self, x):
    if self.axis_name is None:
      return x
    rows = x.shape[0] // jax.lax.axis_size(self.axis_name)
    start = jax.lax.axis_index(self.axis_name) * rows
    return jax.lax.dynamic_slice_in_dim(x, start, rows)

  def loss(self, embeddings, state, batch, step):
    q, k, *synthetic = embeddings
    loss = functools.partial(
        hcl_jax.moco_loss,
        q,
        k,
        state.queue.keys,
        beta=self.beta(step),
        where=self._negatives(state, batch),
        **self.loss_options,
    )
    if not synthetic:
      return loss()
    mixes = step >= self.mixing.warmup_steps
    return jnp.where(mixes, loss(extra=synthetic[0]), loss())

  def update(self, params, state, embeddings, batch):
    keys, index = self._gather(embeddings[1]), self._gather(batch['index'])
    return state._replace(
        key_params=momentum.average(state.key_params, params, self.momentum),
        queue=momentum.push(state.queue, keys, index),
    )

  def metrics(self, embeddings, batch, step):
    return {'beta': self.beta(step)}

  def features(self, params, state, batch, keys=None):
    return self.encoder.evaluate(params, state.stats, batch['image'], keys)[0]

  def compared(self, params, state, batch, keys=None):
    return self.encoder.evaluate(params, state.stats, batch['image'], keys)[1]
