# SPDX-License-Identifier: Apache-2.0
"""A tiny encoder and tiny batches for tests of training."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import schedules
from hcl_jax.images import task as image_tasks
from hcl_jax.models import norm as norms
from hcl_jax.training import task


class Encoder(nn.Module):
  """One dense layer, a norm, and a linear embedding.

  Groups of eight channels are single channels, which 'group' turns into zeros;
  'none' treats rows separately and has a gradient.
  """

  norm: str = 'batch'
  axis_name: str | None = None

  @nn.compact
  def __call__(self, images, *, train):
    x = images.reshape(images.shape[0], -1)
    x = nn.Dense(8)(x)
    if self.norm != 'none':
      make = norms.make(
          self.norm, axis_name=self.axis_name, splits=1, dtype=jnp.float32
      )
      x = make()(x, train=train)
    x = nn.relu(x)
    return x, nn.Dense(4)(x)


def normalize(images):
  return images.astype(jnp.float32) / 255


def augment(keys, images):
  """Brightness by the bits of each row's key: random numbers compile slowly."""
  bits = jax.random.key_data(keys).astype(jnp.float32) / 2.0**32
  gain, offset = bits.T.reshape(2, -1, 1, 1, 1)
  return (0.5 + gain) * (normalize(images) + offset)


def encoder(**knobs):
  return image_tasks.ImageEncoder(Encoder(**knobs), augment, normalize)


def simclr_task(*, norm='batch', cross_device=False, **knobs):
  axis = task.AXIS if cross_device else None
  beta = schedules.constant(1.0)
  return image_tasks.SimCLR(encoder(norm=norm, axis_name=axis), beta, **knobs)


def moco_task(*, norm='batch', **knobs):
  knobs = {'queue_size': 32, 'embedding_dim': 4, 'momentum': 0.9, **knobs}
  return image_tasks.MoCo(encoder(norm=norm), schedules.constant(0.2), **knobs)


def batch(rows, seed=0):
  rng = np.random.default_rng(seed)
  return {
      'image': rng.integers(0, 256, (rows, 4, 4, 3), np.uint8),
      'label': rng.integers(0, 3, rows, np.int32),
      'index': np.arange(seed * rows, (seed + 1) * rows, dtype=np.int32),
  }
