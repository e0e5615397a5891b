# SPDX-License-Identifier: Apache-2.0
"""Projection heads from features of images to embeddings."""

from collections.abc import Callable

from flax import linen as nn
import jax
import jax.numpy as jnp

# Uniform in +-1/sqrt(fan-in).
fan_in_uniform = nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')


class SimclrHead(nn.Module):
  """Linear, normalization, ReLU, linear: 2048-512-128 as released.

  Attributes:
    norm: constructor of the normalization.
    dim: width of the embedding.
    width: width of the hidden layer; None: 512.
    dtype: dtype of the computation.
  """

  norm: Callable[..., nn.Module]
  dim: int = 128
  width: int | None = None
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, features: jax.Array, *, train: bool) -> jax.Array:
    """Maps ``[batch, F]`` to ``[batch, dim]``."""
    hidden = _linear(
        features, self.width or 512, self.dtype, 'hidden', use_bias=False
    )
    hidden = nn.relu(self.norm(name='norm')(hidden, train=train))
    return _linear(hidden, self.dim, self.dtype, 'out')


class MocoHead(nn.Module):
  """Linear, ReLU, linear, as in MoCo-v2: 2048-2048-128.

  Attributes:
    norm: not used.
    dim: width of the embedding.
    width: width of the hidden layer; None: that of the features.
    dtype: dtype of the computation.
  """

  norm: Callable[..., nn.Module]
  dim: int = 128
  width: int | None = None
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, features: jax.Array, *, train: bool) -> jax.Array:
    """Maps ``[batch, F]`` to ``[batch, dim]``."""
    del train
    width = self.width or features.shape[-1]
    hidden = nn.relu(_linear(features, width, self.dtype, 'hidden'))
    return _linear(hidden, self.dim, self.dtype, 'out')


class LinearHead(nn.Module):
  """Single linear layer.

  Attributes:
    norm: not used.
    dim: width of the embedding.
    width: not used.
    dtype: dtype of the computation.
  """

  norm: Callable[..., nn.Module]
  dim: int = 128
  width: int | None = None
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, features: jax.Array, *, train: bool) -> jax.Array:
    """Maps ``[batch, F]`` to ``[batch, dim]``."""
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
