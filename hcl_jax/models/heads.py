# SPDX-License-Identifier: Apache-2.0
"""Projection heads from features of images to embeddings."""

from collections.abc import Callable

from flax import linen as nn
import jax
import jax.numpy as jnp

# Uniform in +-1/sqrt(fan-in).
fan_in_uniform = nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')


class _Head(nn.Module):
  """Maps features ``[batch, F]`` to embeddings ``[batch, dim]``.

  Attributes:
    norm: constructor of the normalization, if the head has one.
    dim: width of the embedding.
    width: width of the hidden layer, if the head has one; None: as released.
    dtype: dtype of the computation.
  """

  norm: Callable[..., nn.Module]
  dim: int = 128
  width: int | None = None
  dtype: jnp.dtype = jnp.float32


class SimclrHead(_Head):
  """Linear, normalization, ReLU, linear: 2048-512-128 as released."""

  @nn.compact
  def __call__(self, features: jax.Array, *, train: bool) -> jax.Array:
    hidden = _linear(
        features, self.width or 512, self.dtype, 'hidden', use_bias=False
    )
    hidden = nn.relu(self.norm(name='norm')(hidden, train=train))
    return _linear(hidden, self.dim, self.dtype, 'out')


class MocoHead(_Head):
  """Linear, ReLU, linear, as in MoCo-v2: 2048-2048-128, as wide as features."""

  @nn.compact
  def __call__(self, features: jax.Array, *, train: bool) -> jax.Array:
    del train
    width = self.width or features.shape[-1]
    hidden = nn.relu(_linear(features, width, self.dtype, 'hidden'))
    return _linear(hidden, self.dim, self.dtype, 'out')


class LinearHead(_Head):
  """Single linear layer."""

  @nn.compact
  def __call__(self, features: jax.Array, *, train: bool) -> jax.Array:
    del train
    return _linear(features, self.dim, self.dtype, 'out')


def _linear(x, features, dtype, name, use_bias=True):
  """Applies a linear layer with fan_in_uniform weights and bias."""
  bound = x.shape[-1] ** -0.5

  def bias_init(key, shape, dtype=jnp.float32):
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  layer = nn.Dense(
      features,
      use_bias=use_bias,
      dtype=dtype,
      kernel_init=fan_in_uniform,
      bias_init=bias_init,
      name=name,
  )
  return layer(x)
