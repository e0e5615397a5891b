# SPDX-License-Identifier: Apache-2.0
"""Quick-thoughts: sentences against their neighbors, the others negatives."""

import dataclasses
from typing import Any

from flax import linen as nn
import jax.numpy as jnp
from jax.typing import ArrayLike

import hcl_jax
from hcl_jax.models import gru
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import modules
from hcl_jax.training import own_code
from hcl_jax.training import task


@dataclasses.dataclass(frozen=True)
class QuickThoughts:
  r"""Two encoders f and g, and :func:`hcl_jax.quick_thoughts_loss` on both.

  The loss of a batch is the mean over its sentences. What is evaluated of a
  sentence x is :math:`[f(x) / |f(x)|, g(x) / |g(x)|]`. A batch is a
  ``SentenceBatch`` and belongs to one device.

  Attributes:
    module: the encoders.
    beta: schedule of the concentration.
    loss_options: further options of the loss by name.
    effective_negatives: share of the negatives that counts, in place of beta.
  """

  module: nn.Module
  beta: hcl_jax.schedules.Schedule
  loss_options: dict[str, Any] = dataclasses.field(default_factory=dict)
  effective_negatives: ArrayLike | None = None

  def init(self, key, batch):
    return modules.init(self.module, key, batch, train=False)

  def embed(self, params, state, batch, key, rows):
    del rows  # Sentences have no random views.
    return modules.train(self.module, params, state, batch, key=key)

  def loss(self, embeddings, state, batch, step):
    losses = hcl_jax.quick_thoughts_loss(
        *embeddings, **self._arguments(batch, step)
    )
    return jnp.mean(losses, where=batch.index >= 0)

  def _arguments(self, batch, step):
    return {
        **self._hardness(step),
        'segments': batch.segment,
        'where': batch.index >= 0,
        **self.loss_options,
    }

  def _hardness(self, step):
    return task.hardness(self.beta, self.effective_negatives, step)

  def update(self, params, state, embeddings, batch):
    return state

  def metrics(self, embeddings, batch, step):
    share = hcl_jax.quick_thoughts_clamp_fraction(
        *embeddings, **self._arguments(batch, step)
    )
    return {**self._hardness(step), 'clamp_fraction': share}

  def features(self, params, state, batch, keys=None):
    towers = self.compared(params, state, batch, keys)
    return jnp.concatenate([_unit(z) for z in towers], axis=-1)

  def compared(self, params, state, batch, keys=None):
    del keys  # sentences are not augmented
    return self.module.apply({'params': params, **state}, batch, train=False)


def create(
    config: fields_lib.Config,
    *,
    vocabulary_size: int,
    total_steps: int,
    steps_per_epoch: int,
) -> task.Task:
  """Makes the task that a configuration describes, for a run of some steps."""
  loss = config.loss
  options = {
      name: loss[name]
      for name in (
          'tau_plus', 'window', 'self_pair', 'stop_gradient_clip', 'floor'
      )
  }  # fmt: skip
  # A share of the negatives has no beta to clip.
  clips = loss.effective_negatives is None and loss.clip_scale
  return QuickThoughts(
      module=create_encoders(config, vocabulary_size),
      beta=config_lib.beta_schedule(loss, total_steps, steps_per_epoch),
      loss_options={**options, 'clip_scale': clips or None},
      effective_negatives=loss.effective_negatives,
  )


def create_encoders(
    config: fields_lib.Config, vocabulary_size: int
) -> nn.Module:
  """Makes both encoders, for so many words."""
  if not own_code.named(config):
    return gru.SentenceEncoders(vocabulary_size, **config.model)
  left, right = (
      own_code.create(config, _rows_of_output, vocabulary_size=vocabulary_size)
      for _ in range(2)
  )
  return gru.Towers(left, right)


def _rows_of_output(batch):
  return {'embeddings': len(batch.index)}


def _unit(z):
  """Scales rows to length one; 0 stays 0."""
  length = jnp.linalg.norm(z, axis=-1, keepdims=True)
  return z / jnp.where(length == 0, 1, length)
