# SPDX-License-Identifier: Apache-2.0
"""SimCLR: two views of an image, negatives from the other images."""

import dataclasses
from typing import Any

import hcl_jax
from hcl_jax.images import encoder as image_encoder
from hcl_jax.training import task


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
  """

  encoder: image_encoder.ImageEncoder
  beta: hcl_jax.schedules.Schedule
  loss_options: dict[str, Any] = dataclasses.field(default_factory=dict)
  supervised_negatives: bool = False
  axis_name: str | None = task.AXIS

  def init(self, key, batch):
    return self.encoder.init(key, batch['image'])

  def embed(self, params, state, batch, key, rows):
    keys = task.row_keys(key, rows, 2)
    images = batch['image']
    others = batch.get('positive', images)  # of the same class, if asked for
    embeddings = []
    for view_keys, view_of in ((keys[:, 0], images), (keys[:, 1], others)):
      views = self.encoder.augment(view_keys, view_of)
      z, state = self.encoder.embed(params, state, views)
      embeddings.append(z)
    state = image_encoder.across_devices(state, self.axis_name)
    return tuple(embeddings), state

  def loss(self, embeddings, state, batch, step):
    return hcl_jax.simclr_loss(
        *embeddings,
        beta=self.beta(step),
        labels=batch['label'] if self.supervised_negatives else None,
        axis_name=self.axis_name,
        **self.loss_options,
    )

  def update(self, params, state, embeddings, batch):
    return state

  def metrics(self, embeddings, batch, step):
    return {'beta': self.beta(step)}

  def features(self, params, state, batch, keys=None):
    return self.encoder.evaluate(params, state, batch['image'], keys)[0]

  def compared(self, params, state, batch, keys=None):
    return self.encoder.evaluate(params, state, batch['image'], keys)[1]
