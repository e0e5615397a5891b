# SPDX-License-Identifier: Apache-2.0
"""Image encoders: a backbone, its pooled features, and a projection head."""

from collections.abc import Callable
import functools

from flax import linen as nn
import jax
import jax.numpy as jnp

from hcl_jax import _checks
from hcl_jax.models import convolution
from hcl_jax.models import heads
from hcl_jax.models import norm as norms
from hcl_jax.models import resnet
from hcl_jax.models import vit


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


_RESNETS = {
    'resnet10': functools.partial(
        resnet.ResNet, resnet.BasicBlock, (1, 1, 1, 1), width=32
    ),
    'resnet18': functools.partial(
        resnet.ResNet, resnet.BasicBlock, (2, 2, 2, 2)
    ),
    'resnet34': functools.partial(
        resnet.ResNet, resnet.BasicBlock, (3, 4, 6, 3)
    ),
    'resnet50': functools.partial(
        resnet.ResNet, resnet.BottleneckBlock, (3, 4, 6, 3)
    ),
}
_TRANSFORMERS = {
    'vit_tiny': functools.partial(
        vit.VisionTransformer, patch=4, width=128, depth=4, heads=4
    ),
    'vit_s16': functools.partial(
        vit.VisionTransformer, patch=16, width=384, depth=12, heads=6
    ),
    'vit_b16': functools.partial(
        vit.VisionTransformer, patch=16, width=768, depth=12, heads=12
    ),
    'vit_l16': functools.partial(
        vit.VisionTransformer, patch=16, width=1024, depth=24, heads=16
    ),
}
NAMES = (*_RESNETS, 'small', *_TRANSFORMERS)
_HEADS = {
    'simclr': heads.SimclrHead,
    'moco': heads.MocoHead,
    'linear': heads.LinearHead,
}
_DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}


class Encoder(nn.Module):
  """Backbone with a projection head.

  Attributes:
    backbone: module from images to features.
    head: module from features to embeddings.
  """

  backbone: nn.Module
  head: nn.Module

  def __call__(
      self, images: jax.Array, *, train: bool
  ) -> tuple[jax.Array, jax.Array]:
    """Encodes images.

    Args:
      images: normalized images ``[batch, height, width, 3]``, float.
      train: normalize by the statistics of the batch and update the running
        ones, collection ``'batch_stats'``; otherwise by the running ones.

    Returns:
      Features ``[batch, F]`` (of the pooled backbone) and embeddings
      ``[batch, embedding_dim]``, both float32 and not normalized.
    """
    if images.ndim != 4 or not jnp.issubdtype(images.dtype, jnp.floating):
      raise ValueError(
          'images must be normalized floats of shape [batch, height, width, '
          f'3]; got {images.dtype} of shape {images.shape}.'
      )
    features = self.backbone(images, train=train)
    embeddings = self.head(features, train=train)
    return features, embeddings.astype(jnp.float32)


def create(
    name: str = 'resnet50',
    *,
    stem: str = 'cifar',
    head: str = 'simclr',
    head_width: int | None = None,
    embedding_dim: int = 128,
    norm: str = 'batch',
    bn_axis_name: str | None = None,
    bn_splits: int = 1,
    dtype: str = 'float32',
    backbone: nn.Module | None = None,
) -> Encoder:
  """Creates an encoder from names, as in configurations.

  Args:
    name: ``'resnet10'`` (half as wide as the others), ``'resnet18'``,
      ``'resnet34'``, ``'resnet50'``, ``'small'``, ``'vit_tiny'`` (patches of 4
      pixels, for small images), ``'vit_s16'``, ``'vit_b16'`` or ``'vit_l16'``.
    stem: ``'cifar'`` for small images (3x3 convolution, stride 1, no pooling),
      ``'strided'`` for small images in a quarter of the time (the same with
      stride 2) or ``'imagenet'`` (7x7, stride 2, max-pooling); ResNets only.
    head: ``'simclr'`` (linear, BatchNorm, ReLU, linear), ``'moco'`` (linear,
      ReLU, linear) or ``'linear'``.
    head_width: hidden width of the head; None: as released, 512 for
      ``'simclr'`` and the width of the features for ``'moco'``.
    embedding_dim: width of the embedding.
    norm: ``'batch'``, or ``'group'``, which treats each image separately; of
      transformers, that of the head alone.
    bn_axis_name: mapped axis whose devices share the statistics of BatchNorm;
      None: each device has its own, as released.
    bn_splits: number of equal parts of a device's batch, each with its own
      statistics, as if on its own device; excludes ``bn_axis_name``.
    dtype: ``'float32'`` or ``'bfloat16'``, dtype of the computation;
      parameters, statistics, features and embeddings are float32.
    backbone: module of your own, called as ``backbone(images, train=...)``,
      instead of that of ``name``.

  Returns:
    A linen module, ``encoder.apply(variables, images, train=...)``.
  """
  _checks.choice('name', name, NAMES)
  _checks.choice('stem', stem, ('cifar', 'strided', 'imagenet'))
  _checks.choice('head', head, tuple(_HEADS))
  _checks.choice('norm', norm, ('batch', 'group'))
  _checks.choice('dtype', dtype, tuple(_DTYPES))
  _check_positive('embedding_dim', embedding_dim)
  _check_positive('bn_splits', bn_splits)
  if head_width is not None:
    _check_positive('head_width', head_width)
  if bn_axis_name is not None and bn_splits > 1:
    raise ValueError(
        'bn_axis_name shares statistics between devices and bn_splits splits '
        f'those of one; got {bn_axis_name!r} and {bn_splits}. Choose one.'
    )
  dtype = _DTYPES[dtype]
  make_norm = norms.make(
      norm, axis_name=bn_axis_name, splits=bn_splits, dtype=dtype
  )
  if backbone is None:
    backbone = _backbone(name, stem, make_norm, dtype)
  return Encoder(
      backbone=backbone,
      head=_HEADS[head](
          norm=make_norm, dim=embedding_dim, width=head_width, dtype=dtype
      ),
  )


def patch_size(name: str) -> int:
  """Returns what must divide height and width of images, in pixels."""
  make = _TRANSFORMERS.get(name)
  return make.keywords['patch'] if make else 1


def _backbone(name, stem, norm, dtype):
  if name in _RESNETS:
    return _RESNETS[name](stem=stem, norm=norm, dtype=dtype)
  if stem != 'cifar':
    raise ValueError(
        f'stem must be \'cifar\' for name={name!r}; got {stem!r}. Only ResNets '
        'have other stems.'
    )
  if name == 'small':
    return SmallCnn(norm=norm, dtype=dtype)
  return _TRANSFORMERS[name](dtype=dtype)


def _check_positive(argument, value):
  if not isinstance(value, int) or isinstance(value, bool) or value < 1:
    raise ValueError(f'{argument} must be an integer >= 1; got {value!r}.')
