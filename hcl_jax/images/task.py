# SPDX-License-Identifier: Apache-2.0
"""Image tasks: SimCLR and MoCo-v2, where an encoder meets a loss."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

import hcl_jax
from hcl_jax import augment
from hcl_jax import models
from hcl_jax import momentum
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import modules
from hcl_jax.training import own_code
from hcl_jax.training import task as task_lib

_OF_HEADS = ('head', 'embedding_dim', 'norm', 'bn_splits', 'dtype')


@dataclasses.dataclass(frozen=True)
class ImageEncoder:
  """Does what both image tasks do with a module.

  Attributes:
    module: images to (features, embeddings), with a ``train`` argument.
    augment: ``(keys [b], images [b, ...]) -> views``.
    normalize: the transform of images that are evaluated.
  """

  module: nn.Module
  augment: Callable[[jax.Array, jax.Array], jax.Array]
  normalize: Callable[[jax.Array], jax.Array]

  def init(self, key: jax.Array, images: jax.Array) -> tuple[Any, Any]:
    """Returns parameters, and the other collections: running statistics."""
    return modules.init(self.module, key, self.normalize(images), train=False)

  def embed(
      self,
      params: Any,
      stats: Any,
      views: jax.Array,
      key: jax.Array | None = None,
  ) -> tuple[jax.Array, Any]:
    """Embeds one view, whose batch statistics are its own.

    The key is for what a module of a user's own draws.
    """
    (_, z), stats = modules.train(self.module, params, stats, views, key=key)
    return z, stats

  def evaluate(
      self,
      params: Any,
      stats: Any,
      images: jax.Array,
      keys: jax.Array | None = None,
  ) -> tuple[Any, Any]:
    """Returns features and embeddings in evaluation mode.

    These are the pooled output before the head and what the head makes of it,
    both ``[b, dim]``; of augmented images if there are keys, one for each. What
    is not used is not computed in a compiled function.
    """
    if keys is None:
      views = self.normalize(images)
    else:
      views = self.augment(keys, images)
    return self.module.apply({'params': params, **stats}, views, train=False)


@dataclasses.dataclass(frozen=True)
class SimCLR:
  """Two views, one encoder, :func:`hcl_jax.simclr_loss` between them.

  The two views are embedded one after the other, so BatchNorm sees them apart
  and its running statistics move twice a step, as in the released code.

  Attributes:
    encoder: the image encoder and its views.
    beta: schedule of the concentration.
    loss_options: further options of the loss by name.
    supervised_negatives: drop negatives of the anchor's class, by labels.
    axis_name: mapped axis of devices, or None.
    effective_negatives: share of the negatives that counts, in place of beta.
  """

  encoder: ImageEncoder
  beta: hcl_jax.schedules.Schedule
  loss_options: dict[str, Any] = dataclasses.field(default_factory=dict)
  supervised_negatives: bool = False
  axis_name: str | None = task_lib.AXIS
  effective_negatives: ArrayLike | None = None

  def init(self, key, batch):
    return self.encoder.init(key, batch['image'])

  def embed(self, params, state, batch, key, rows):
    keys = task_lib.row_keys(key, rows, 2)
    calls = modules.keys_of_calls(key, rows, 2)
    images = batch['image']
    others = batch.get('positive', images)  # of the same class, if asked for
    embeddings = []
    for i, view_of in enumerate((images, others)):
      views = self.encoder.augment(keys[:, i], view_of)
      z, state = self.encoder.embed(params, state, views, calls[i])
      embeddings.append(z)
    state = modules.across_devices(state, self.axis_name)
    return tuple(embeddings), state

  def loss(self, embeddings, state, batch, step):
    return hcl_jax.simclr_loss(
        *embeddings,
        **task_lib.hardness(self.beta, self.effective_negatives, step),
        labels=batch['label'] if self.supervised_negatives else None,
        axis_name=self.axis_name,
        **self.loss_options,
    )

  def update(self, params, state, embeddings, batch):
    return state

  def metrics(self, embeddings, batch, step):
    return task_lib.hardness(self.beta, self.effective_negatives, step)

  def features(self, params, state, batch, keys=None):
    return self.encoder.evaluate(params, state, batch['image'], keys)[0]

  def compared(self, params, state, batch, keys=None):
    return self.encoder.evaluate(params, state, batch['image'], keys)[1]


class Mixing(NamedTuple):
  """Holds MoCHi's N, s and s' and how many of the first steps are without it.

  See :func:`hcl_jax.momentum.mix_hardest`.
  """

  num_hardest: int
  num_mixed: int
  num_with_query: int
  warmup_steps: int = 0


class MoCoState(NamedTuple):
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
    effective_negatives: share of the negatives that counts, in place of beta.
  """

  encoder: ImageEncoder
  beta: hcl_jax.schedules.Schedule
  queue_size: int = 65536
  embedding_dim: int = 128
  momentum: float = 0.999
  mask_own_image: bool = True
  shuffle: bool = True
  mixing: Mixing | None = None
  loss_options: dict[str, Any] = dataclasses.field(default_factory=dict)
  axis_name: str | None = task_lib.AXIS
  effective_negatives: ArrayLike | None = None

  def init(self, key, batch):
    encoder_key, queue_key = jax.random.split(key)
    params, stats = self.encoder.init(encoder_key, batch['image'])
    queue = momentum.init_queue(queue_key, self.queue_size, self.embedding_dim)
    empty = MoCoState(None, None, None, queue)
    return self.with_variables(empty, {'params': params, **stats})

  def embed(self, params, state, batch, key, rows):
    view_key, shuffle_key = jax.random.split(key)
    keys = task_lib.row_keys(view_key, rows, 2 if self.mixing is None else 3)
    views = [self.encoder.augment(keys[:, i], batch['image']) for i in (0, 1)]
    calls = modules.keys_of_calls(key, rows, 2)
    q, stats = self.encoder.embed(params, state.stats, views[0], calls[0])
    k, key_stats = self._embed_keys(state, views[1], shuffle_key, calls[1])
    stats, key_stats = modules.across_devices(
        (stats, key_stats), self.axis_name
    )
    embeddings = q, k
    if self.mixing is not None:
      synthetic = momentum.mix_hardest(
          keys[:, 2],
          q.astype(state.queue.keys.dtype),
          state.queue.keys,
          num_hardest=self.mixing.num_hardest,
          num_mixed=self.mixing.num_mixed,
          num_with_query=self.mixing.num_with_query,
          where=self._negatives(state, batch),
      )
      embeddings += (synthetic.astype(q.dtype),)
    return embeddings, state._replace(stats=stats, key_stats=key_stats)

  def _negatives(self, state, batch):
    """Keys of other images, or None for all keys."""
    if not self.mask_own_image:
      return None
    return momentum.of_other_images(state.queue, batch['index'])

  def _embed_keys(self, state, views, shuffle_key, call_key):
    if not self.shuffle:
      k, stats = self.encoder.embed(
          state.key_params, state.key_stats, views, call_key
      )
      return jax.lax.stop_gradient((k, stats))
    everywhere = self._gather(views)
    order = jax.random.permutation(shuffle_key, everywhere.shape[0])
    k, stats = self.encoder.embed(
        state.key_params,
        state.key_stats,
        self._own_rows(everywhere[order]),
        call_key,
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
        **task_lib.hardness(self.beta, self.effective_negatives, step),
        where=self._negatives(state, batch),
        **self.loss_options,
    )
    if self.mixing is None:
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
    return task_lib.hardness(self.beta, self.effective_negatives, step)

  def variables(self, params, state):
    """Returns the variables of the encoder of queries."""
    return {'params': params, **state.stats}

  def with_variables(self, state, variables):
    """Gives both encoders the same variables."""
    stats = dict(variables)
    params = stats.pop('params')
    # Copies, because a donated buffer must not be given twice.
    key_params, key_stats = jax.tree.map(jnp.copy, (params, stats))
    return params, state._replace(
        stats=stats, key_params=key_params, key_stats=key_stats
    )

  def features(self, params, state, batch, keys=None):
    return self.encoder.evaluate(params, state.stats, batch['image'], keys)[0]

  def compared(self, params, state, batch, keys=None):
    return self.encoder.evaluate(params, state.stats, batch['image'], keys)[1]


def create(
    config: fields_lib.Config,
    *,
    total_steps: int,
    steps_per_epoch: int,
    axis_name: str | None = task_lib.AXIS,
) -> task_lib.Task:
  """Makes the task that a configuration describes, for a run of some steps."""
  beta = config_lib.beta_schedule(config.loss, total_steps, steps_per_epoch)
  options = {
      name: config.loss[name]
      for name in ('temperature', 'tau_plus', 'floor', 'stop_gradient_weights')
  }
  options['block_size'] = config.loss.block_size or None
  encoder = create_encoder(config, axis_name)
  if config.task == 'moco':
    return MoCo(
        encoder,
        beta,
        embedding_dim=config.model.embedding_dim,
        loss_options=options,
        mixing=_mixing(config.mochi, steps_per_epoch),
        axis_name=axis_name,
        effective_negatives=config.loss.effective_negatives,
        **config.moco,
    )
  return SimCLR(
      encoder,
      beta,
      loss_options=options,
      supervised_negatives=config.loss.supervised_negatives,
      axis_name=axis_name,
      effective_negatives=config.loss.effective_negatives,
  )


def create_encoder(
    config: fields_lib.Config, axis_name: str | None = task_lib.AXIS
) -> ImageEncoder:
  """Makes the encoder with its views."""
  options = dict(config.model)
  across, own = options.pop('cross_device_bn'), options.pop('encoder')
  if own:  # its configuration may have further fields
    options = {name: options[name] for name in _OF_HEADS}
    options['backbone'] = own_code.create(config, _rows_of_features)
  options['head_width'] = config.model.head_width or None
  normalize = functools.partial(
      augment.normalize,
      mean=config.augment.mean,
      std=config.augment.std,
      size=config.evaluate.image_size or None,
  )
  return ImageEncoder(
      module=models.create(
          bn_axis_name=axis_name if across else None, **options
      ),
      augment=_augmentation(config.augment),
      normalize=normalize,
  )


def check_encoder(
    config: fields_lib.Config, image_shape: tuple[int, ...]
) -> None:
  """Raises a ValueError unless an own backbone takes images of this shape."""
  encoder = create_encoder(config)
  images = jax.ShapeDtypeStruct((2, *image_shape), jnp.uint8)
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2))
  own_code.check(
      encoder.module.backbone,
      (jax.eval_shape(encoder.normalize, images),),
      (jax.eval_shape(encoder.augment, keys, images),),
      task_lib.AXIS,
  )


def _rows_of_features(images):
  return {'features': images.shape[0]}


def _mixing(config, steps_per_epoch):
  """Returns MoCHi's options, or None where no key is mixed."""
  if not config.num_hardest:
    return None
  return Mixing(
      num_hardest=config.num_hardest,
      num_mixed=config.num_mixed,
      num_with_query=config.num_with_query,
      warmup_steps=round(config.warmup_epochs * steps_per_epoch),
  )


def _augmentation(config):
  try:
    return augment.Augmentation(**config)
  except ValueError as error:
    raise ValueError(f'config.augment: {error}') from error
