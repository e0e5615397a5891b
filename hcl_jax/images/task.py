# SPDX-License-Identifier: Apache-2.0
"""Image tasks by configuration."""

import functools

import ml_collections

from hcl_jax import augment
from hcl_jax import models
from hcl_jax.images import encoder as image_encoder
from hcl_jax.images import moco
from hcl_jax.images import simclr
from hcl_jax.training import annealing
from hcl_jax.training import task


def create(
    config: ml_collections.ConfigDict,
    *,
    total_steps: int,
    steps_per_epoch: int,
    axis_name: str | None = task.AXIS,
) -> task.Task:
  """Makes the task that a configuration describes.

  Args:
    config: the whole configuration.
    total_steps: length of the run, for schedules.
    steps_per_epoch: steps of an epoch.
    axis_name: mapped axis of devices, or None.

  Returns:
    The task.
  """
  beta = annealing.beta_schedule(config.loss, total_steps, steps_per_epoch)
  options = {
      name: config.loss[name]
      for name in ('temperature', 'tau_plus', 'floor', 'stop_gradient_weights')
  }
  options['block_size'] = config.loss.block_size or None
  encoder = create_encoder(config, axis_name)
  if config.task == 'moco':
    return moco.MoCo(
        encoder,
        beta,
        embedding_dim=config.model.embedding_dim,
        loss_options=options,
        mixing=_mixing(config.mochi, steps_per_epoch),
        axis_name=axis_name,
        **config.moco,
    )
  return simclr.SimCLR(
      encoder,
      beta,
      loss_options=options,
      supervised_negatives=config.loss.supervised_negatives,
      axis_name=axis_name,
  )


def create_encoder(
    config: ml_collections.ConfigDict, axis_name: str | None = task.AXIS
) -> image_encoder.ImageEncoder:
  """Makes the encoder with its views."""
  options = dict(config.model)
  across = options.pop('cross_device_bn')
  options['head_width'] = options['head_width'] or None
  normalize = functools.partial(
      augment.normalize,
      mean=config.augment.mean,
      std=config.augment.std,
      size=config.evaluate.image_size or None,
  )
  return image_encoder.ImageEncoder(
      module=models.create(
          bn_axis_name=axis_name if across else None, **options
      ),
      augment=_augmentation(config.augment),
      normalize=normalize,
  )


def _mixing(config, steps_per_epoch):
  """Returns MoCHi's options, or None where no key is mixed."""
  if not config.num_hardest:
    return None
  return moco.Mixing(
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
