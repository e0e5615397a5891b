# SPDX-License-Identifier: Apache-2.0
"""Residual networks for small and large images."""

from collections.abc import Callable

from flax import linen as nn
import jax
import jax.numpy as jnp

from hcl_jax.models import convolution
from hcl_jax.models import heads


class _Block(nn.Module):
  """Convolutions with a shortcut.

  Attributes:
    width: channels of the 3x3 convolutions.
    stride: stride of the first of them.
    norm: constructor of the normalization.
    dtype: dtype of the computation.
  """

  width: int
  stride: int
  norm: Callable[..., nn.Module]
  dtype: jnp.dtype = jnp.float32


class BasicBlock(_Block):
  """Two 3x3 convolutions with a shortcut."""

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    """Maps ``[batch, height, width, in]`` to ``[batch, ., ., width]``."""
    y = _conv(self, self.width, 3, self.stride, 'conv1')(x)
    y = nn.relu(self.norm(name='norm1')(y, train=train))
    y = _conv(self, self.width, 3, 1, 'conv2')(y)
    y = self.norm(name='norm2')(y, train=train)
    return nn.relu(y + _shortcut(self, x, y, train))


class BottleneckBlock(_Block):
  """1x1, 3x3 and 1x1 convolutions with a shortcut.

  The 3x3 convolution has the stride ("v1.5").
  """

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    """Maps ``[batch, height, width, in]`` to ``[batch, ., ., 4 * width]``."""
    y = _conv(self, self.width, 1, 1, 'conv1')(x)
    y = nn.relu(self.norm(name='norm1')(y, train=train))
    y = _conv(self, self.width, 3, self.stride, 'conv2')(y)
    y = nn.relu(self.norm(name='norm2')(y, train=train))
    y = _conv(self, 4 * self.width, 1, 1, 'conv3')(y)
    y = self.norm(name='norm3')(y, train=train)
    return nn.relu(y + _shortcut(self, x, y, train))


def _conv(block, features, size, stride, name):
  return convolution.Conv(features, size, stride, dtype=block.dtype, name=name)


def _shortcut(block, x, y, train):
  """Returns x, or a projection of x if the block changes the shape."""
  if x.shape == y.shape:
    return x
  x = _conv(block, y.shape[-1], 1, block.stride, 'shortcut_conv')(x)
  return block.norm(name='shortcut_norm')(x, train=train)


class ResNet(nn.Module):
  """Residual network with global average pooling.

  The first block of every stage but the first halves the resolution and
  doubles the channels.

  Attributes:
    block: :class:`BasicBlock` or :class:`BottleneckBlock`.
    stages: number of blocks of each stage.
    stem: ``'cifar'``: 3x3 convolution of stride 1; ``'strided'``: of stride 2;
      ``'imagenet'``: 7x7 convolution of stride 2 and 3x3 max-pooling of
      stride 2.
    norm: constructor of the normalization.
    width: channels of the stem and of the first stage's convolutions.
    dtype: dtype of the computation.
  """

  block: type[nn.Module]
  stages: tuple[int, ...]
  stem: str
  norm: Callable[..., nn.Module]
  width: int = 64
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
    """Maps ``[batch, height, width, 3]`` to float32 features ``[batch, F]``."""
    x = self._stem(images, train)
    for stage, num_blocks in enumerate(self.stages):
      for index in range(num_blocks):
        block = self.block(
            width=self.width * 2**stage,
            stride=2 if stage > 0 and index == 0 else 1,
            norm=self.norm,
            dtype=self.dtype,
            name=f'stage{stage + 1}_block{index + 1}',
        )
        x = block(x, train=train)
    return pool(x)

  def _stem(self, images, train):
    large = self.stem == 'imagenet'
    # The released code replaces the stem after initializing the network, so
    # only this convolution has the framework's default initialization.
    conv = convolution.Conv(
        self.width,
        size=7 if large else 3,
        stride=1 if self.stem == 'cifar' else 2,
        kernel_init=(
            convolution.he_normal_fan_out if large else heads.fan_in_uniform
        ),
        dtype=self.dtype,
        name='stem_conv',
    )
    x = nn.relu(self.norm(name='stem_norm')(conv(images), train=train))
    if large:
      x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
    return x


def pool(x: jax.Array) -> jax.Array:
  """Averages ``[batch, height, width, F]`` to ``[batch, F]``, in float32."""
  return jnp.mean(x.astype(jnp.float32), axis=(1, 2))
