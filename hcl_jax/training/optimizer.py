# SPDX-License-Identifier: Apache-2.0
"""Makes optimizers and learning rates of optax's parts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hcl_jax.training import fields as fields_lib


def learning_rate(
    config: fields_lib.Config, total_steps: int, steps_per_epoch: int
) -> optax.Schedule:
  """Makes a linear warm-up, then a constant rate or a cosine.

  ``config`` is ``config.optimizer``, here and in :func:`create`.
  """
  peak, last = config.learning_rate, config.final_learning_rate
  warmup = round(config.warmup_epochs * steps_per_epoch)
  rest = max(total_steps - warmup, 1)
  after = {
      'constant': lambda: optax.constant_schedule(peak),
      'cosine': lambda: optax.cosine_decay_schedule(peak, rest, last / peak),
  }[config.schedule]()
  if not warmup:
    return after
  # The first step already moves, by 1/warmup of the peak.
  ramp = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
  return optax.join_schedules([ramp, after], [warmup])


def create(
    config: fields_lib.Config, schedule: optax.Schedule
) -> optax.GradientTransformation:
  """Makes the optimizer named in the configuration, behind clipping."""
  optimizer = OPTIMIZERS[config.name](config, schedule)
  if config.clip_norm:
    clip = optax.clip_by_global_norm(config.clip_norm)
    optimizer = optax.chain(clip, optimizer)
  if config.get('clip_each_norm'):
    optimizer = optax.chain(_clip_each(config.clip_each_norm), optimizer)
  return optimizer


def _clip_each(norm):
  """Bounds the norm of the gradient of each variable by itself."""

  def clip(gradient):
    size = jnp.sqrt(jnp.sum(gradient * gradient))
    return gradient * (norm / jnp.maximum(size, norm))

  return optax.stateless(lambda updates, _: jax.tree.map(clip, updates))


def _adam(config, schedule):
  """Adam with L2 in the gradient (coupled), as in the released code."""
  return optax.chain(
      _coupled_decay(config), optax.adam(schedule, config.b1, config.b2)
  )


def _adamw(config, schedule):
  return optax.adamw(
      schedule,
      config.b1,
      config.b2,
      weight_decay=config.weight_decay,
      mask=_decayed(config),
  )


def _sgd(config, schedule):
  return optax.chain(
      _coupled_decay(config), optax.sgd(schedule, config.momentum or None)
  )


def _lars(config, schedule):
  return optax.lars(
      schedule,
      weight_decay=config.weight_decay,
      weight_decay_mask=_decayed(config),
      trust_ratio_mask=_matrices,
      momentum=config.momentum,
  )


OPTIMIZERS = {'adam': _adam, 'adamw': _adamw, 'sgd': _sgd, 'lars': _lars}


def _coupled_decay(config):
  if not config.weight_decay:
    return optax.identity()
  return optax.add_decayed_weights(config.weight_decay, _decayed(config))


def _decayed(config) -> Callable[[Any], Any]:
  return _everything if config.decay_vectors else _matrices


def _everything(params):
  return jax.tree.map(lambda _: True, params)


def _matrices(params):
  """Neither biases nor the scales and shifts of normalization."""
  return jax.tree.map(lambda x: x.ndim > 1, params)
