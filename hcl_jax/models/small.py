# SPDX-License-Identifier: Apache-2.0
"""Small convolutional encoder that trains in minutes on a CPU."""

from collections.abc import Callable

from flax import linen as nn
import jax
import jax.numpy as jnp

from hcl_jax.models import convolution
from hcl_jax.models import resnet


class SmallCnn(nn.Module):
  """Strided 3x3 convolutions, each with normalization and ReLU.

  Attributes:
    norm: constructor of the normalization.
    widths: channels of the convolutions; each halves the resolution.
    dtype: dtype of the computation.
  """

  norm: Callable[..., nn.Module]
  widths: tuple[int, ...] = (32, 64, 128, 256)
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
    """Maps ``[batch, height, width, 3]`` to float32 features ``[batch, F]``."""
    x = images
    for index, width in enumerate(self.widths):
      conv = convolution.Conv(
          width, 3, stride=2, dtype=self.dtype, name=f'conv{index + 1}'
      )
      norm = self.norm(name=f'norm{index + 1}')
      x = nn.relu(norm(conv(x), train=train))
    return resnet.pool(x)
