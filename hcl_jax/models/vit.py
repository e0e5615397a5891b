# SPDX-License-Identifier: Apache-2.0
"""Vision transformers with fixed positions, for images of any size."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

_xavier_uniform = nn.initializers.xavier_uniform()


class Block(nn.Module):
  """Self-attention and a perceptron, each after a norm and with a shortcut.

  Attributes:
    heads: number of attention heads.
    dtype: dtype of the computation; the softmax is in float32.
  """

  heads: int
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(
      self, x: jax.Array, mask: jax.Array | None = None
  ) -> jax.Array:
    """Maps tokens ``[batch, tokens, width]`` to the same shape.

    A mask ``[batch, 1, 1 or tokens, tokens]`` says what each may attend to;
    None: all.
    """
    width = x.shape[-1]
    attend = nn.MultiHeadDotProductAttention(
        self.heads,
        dtype=self.dtype,
        kernel_init=_xavier_uniform,
        force_fp32_for_softmax=True,
        name='attention',
    )
    x = x + attend(_norm(self.dtype, 'norm1')(x), mask=mask)
    y = _norm(self.dtype, 'norm2')(x)
    y = nn.gelu(_linear(4 * width, self.dtype, 'hidden')(y))
    return x + _linear(width, self.dtype, 'out')(y)


class VisionTransformer(nn.Module):
  """Transformer on patches of images, with the mean of its last tokens.

  Positions are sines and cosines, which are no parameters, so the image may
  have any size that the patch divides.

  Attributes:
    patch: height and width of a patch in pixels.
    width: width of a token.
    depth: number of blocks.
    heads: number of attention heads.
    dtype: dtype of the computation.

  References:
    Dosovitskiy et al., An Image is Worth 16x16 Words, 2021.
    Beyer, Zhai and Kolesnikov, Better plain ViT baselines for ImageNet-1k,
    2022.
  """

  patch: int
  width: int
  depth: int
  heads: int
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
    """Maps ``[batch, height, width, 3]`` to float32 features ``[batch, F]``."""
    del train  # nothing differs
    patches = _cut(images, self.patch)
    batch, *grid = patches.shape[:3]
    x = _linear(self.width, self.dtype, 'patches')(patches)
    x = x + positions(*grid, self.width)[None].astype(self.dtype)
    x = x.reshape(batch, -1, self.width)
    for index in range(self.depth):
      x = Block(self.heads, self.dtype, name=f'block{index + 1}')(x)
    x = _norm(self.dtype, 'norm')(x)
    return jnp.mean(x, axis=1, dtype=jnp.float32)


def positions(height: int, width: int, dim: int) -> np.ndarray:
  """Returns sines and cosines of the places of a grid.

  A fourth of the ``dim`` numbers, which must be a multiple of 4, is each of the
  sines and cosines of columns and the sines and cosines of rows, with periods
  from 2 pi to 20,000 pi.

  Returns:
    float32 ``[height, width, dim]``.
  """
  scale = 10_000.0 ** -np.linspace(0, 1, dim // 4)
  angles = np.stack(np.mgrid[:height, :width][::-1])[..., None] * scale
  waves = [f(x) for x in angles for f in (np.sin, np.cos)]
  return np.concatenate(waves, axis=-1).astype(np.float32)


def _cut(images, patch):
  """Returns the pixels of patches, ``[batch, rows, columns, patch^2 * 3]``."""
  batch, height, width, channels = images.shape
  if height % patch or width % patch:
    raise ValueError(
        f'images must have a height and width that the patch of {patch} pixels '
        f'divides; got {height} x {width}.'
    )
  grid = height // patch, width // patch
  x = images.reshape(batch, grid[0], patch, grid[1], patch, channels)
  return jnp.moveaxis(x, 3, 2).reshape(batch, *grid, -1)


def _norm(dtype, name):
  return nn.LayerNorm(epsilon=1e-6, dtype=dtype, name=name)


def _linear(features, dtype, name):
  return nn.Dense(features, dtype=dtype, kernel_init=_xavier_uniform, name=name)
