# SPDX-License-Identifier: Apache-2.0
"""Augments batches, with the released parameters as defaults."""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import _checks
from hcl_jax.augment import _color
from hcl_jax.augment import _resample
from hcl_jax.augment import _sampling

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2023, 0.1994, 0.2010)


class _Draws(NamedTuple):
  """Parameters of one image; booleans tell whether an operation applies."""

  crop: _sampling.Crop
  flip: jax.Array
  jitter: jax.Array
  adjustments: _sampling.Jitter
  grayscale: jax.Array
  blur: jax.Array
  sigma: jax.Array


@dataclasses.dataclass(frozen=True)
class Augmentation:
  """SimCLR's augmentations of a batch, for use inside a compiled step.

  The order is: random resized crop, flip, color jitter, grayscale, blur,
  normalization. Nothing is rounded to bytes in between. The defaults are those
  of the paper's released code. An operation of probability 0 is not compiled;
  the random numbers of the others do not change.

  A row of the result depends only on its own key and image, not on the rest of
  the batch or the number of devices. For any settings, each key gives 32
  uniform numbers: 22 for the crop (as in :func:`sample_crop`), 5 for the jitter
  (as in :func:`sample_jitter`), and one each for flip, jitter, grayscale, blur
  and sigma.

  Attributes:
    size: side of the result.
    scale: minimum and maximum area of the crop, relative to the image.
    ratio: minimum and maximum width / height of the crop, before resizing.
    flip: probability of a horizontal flip.
    jitter: probability of the color jitter.
    brightness: maximum change of the brightness factor from 1.
    contrast: maximum change of the contrast factor from 1.
    saturation: maximum change of the saturation factor from 1.
    hue: maximum shift of the hue, a fraction of the circle, at most 0.5.
    grayscale: probability of grayscale.
    blur: probability of the blur.
    blur_kernel: taps of the blur, odd; about a tenth of ``size``.
    blur_sigma: minimum and maximum standard deviation of the blur.
    mean: mean of each channel, to subtract; pixels are in [0, 1].
    std: standard deviation of each channel, to divide by.

  Example:
    >>> import jax, numpy as np
    >>> augmentation = Augmentation(size=8)
    >>> keys = jax.random.split(jax.random.key(0), 2)
    >>> augmentation(keys, np.zeros((2, 16, 16, 3), np.uint8)).shape
    (2, 8, 8, 3)
  """

  size: int = 32
  scale: tuple[float, float] = (0.08, 1.0)
  ratio: tuple[float, float] = (3 / 4, 4 / 3)
  flip: float = 0.5
  jitter: float = 0.8
  brightness: float = 0.4
  contrast: float = 0.4
  saturation: float = 0.4
  hue: float = 0.1
  grayscale: float = 0.2
  blur: float = 0.5
  blur_kernel: int = 3
  blur_sigma: tuple[float, float] = (0.1, 2.0)
  mean: tuple[float, float, float] = CIFAR10_MEAN
  std: tuple[float, float, float] = CIFAR10_STD

  def __post_init__(self):
    # Tuples, because the value must be hashable.
    read = {
        name: _checks.bounds(name, getattr(self, name))
        for name in ('scale', 'ratio', 'blur_sigma')
    }
    read['mean'], read['std'] = _checks.statistics(self.mean, self.std)
    for name, value in read.items():
      object.__setattr__(self, name, value)
    _checks.size(self.size)
    _checks.kernel(self.blur_kernel, self.size if self.blur else math.inf)
    _checks.within('scale', self.scale[1], 1)
    for name in ('flip', 'jitter', 'grayscale', 'blur'):
      _checks.within(name, getattr(self, name), 1)
    for name in ('brightness', 'contrast', 'saturation'):
      _checks.within(name, getattr(self, name))
    _checks.within('hue', self.hue, 0.5)

  def __call__(self, keys: jax.Array, images: jax.Array) -> jax.Array:
    """Augments every image by its own key.

    Maps typed PRNG keys ``[batch]`` and uint8 ``[batch, height, width, 3]`` to
    normalized images, float32 ``[batch, size, size, 3]``.
    """
    images = _checks.images(images, 4)
    _checks.keys(keys, images.shape[0])
    return self._augment(keys, images)

  @functools.partial(jax.jit, static_argnums=0)
  def _augment(self, keys, images):
    draw = functools.partial(self._draw, shape=images.shape[1:3])
    planes = jax.lax.platform_dependent(
        jax.vmap(draw)(keys),
        images,
        cpu=self._one_by_one,
        default=self._at_once,
    )
    return _normalize(jnp.moveaxis(planes, 1, -1), self.mean, self.std)

  def _draw(self, key, shape):
    # One draw for all: each call of the generator takes compile time.
    uniform = jax.random.uniform(key, (32,))
    low, high = self.blur_sigma
    return _Draws(
        crop=_sampling.choose_crop(
            uniform[:22], shape, scale=self.scale, ratio=self.ratio
        ),
        adjustments=_sampling.choose_jitter(
            uniform[22:27],
            brightness=self.brightness,
            contrast=self.contrast,
            saturation=self.saturation,
            hue=self.hue,
        ),
        flip=uniform[27] < self.flip,
        jitter=uniform[28] < self.jitter,
        grayscale=uniform[29] < self.grayscale,
        blur=uniform[30] < self.blur,
        sigma=low + (high - low) * uniform[31],
    )

  def _at_once(self, draws, images):
    """Augments on accelerators: batched products, both sides of branches."""

    def one(draws, image):
      cropped = _resample.crop(
          image, *draws.crop, size=self.size, flip=draws.flip
      )
      return self._recolor(draws, cropped / 255, matmul=True)

    return jax.vmap(one)(draws, images)

  def _one_by_one(self, draws, images):
    """Augments on CPUs: a loop in place, with real branches."""
    planes = self._crop_planes(draws, images)
    if not (self.jitter or self.grayscale or self.blur):
      return planes

    def step(i, flat):
      image, own = jax.tree.map(
          lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False),
          (flat, draws),
      )
      image = self._recolor(own, image, matmul=False)
      return jax.lax.dynamic_update_index_in_dim(flat, image, i, 0)

    # Flat planes: XLA:CPU vectorizes the last axis, so it must be long.
    flat = planes.reshape(*planes.shape[:2], -1)
    flat = jax.lax.fori_loop(0, len(flat), step, flat)
    return flat.reshape(planes.shape)

  def _crop_planes(self, draws, images):
    """Crops in few passes that vectorize: selects rows, then multiplies."""
    batch, height, width, _ = images.shape
    crop = draws.crop
    taps = functools.partial(_resample.crop_taps, outputs=self.size)
    rows = jax.vmap(functools.partial(taps, inputs=height))(
        crop.top, crop.height
    )
    columns = jax.vmap(functools.partial(taps, inputs=width))(
        crop.left, crop.width, flip=draws.flip
    )
    rows, columns = _materialize((rows, columns))
    lines = images.reshape(batch, height, -1)
    planes = [
        jax.vmap(_resample.pick_rows)(lines[:, :, channel::3], rows)
        for channel in range(3)
    ]
    planes = jnp.concatenate(planes, axis=1)
    matrix = functools.partial(_resample.matrix, inputs=width)
    columns = jax.vmap(matrix)(columns) * np.float32(1 / 255)
    planes = jax.vmap(_resample.mix_columns)(planes, columns)
    return planes.reshape(batch, 3, self.size, self.size)

  def _recolor(self, draws, image, *, matmul):
    """Applies everything between crop and normalization to one image."""
    if self.jitter:
      image = _maybe(
          draws.jitter, _color.jitter_color, image, *draws.adjustments
      )
    if self.grayscale:
      image = _maybe(draws.grayscale, _color.to_grayscale, image)
    if self.blur:
      blur = functools.partial(self._blur, matmul=matmul)
      image = _maybe(draws.blur, blur, image, draws.sigma)
    return image

  def _blur(self, image, sigma, *, matmul):
    blurred = _resample.gaussian_blur(
        image.reshape(3, self.size, self.size),
        sigma,
        kernel_size=self.blur_kernel,
        matmul=matmul,
    )
    return blurred.reshape(image.shape)


def normalize(
    images: jax.Array,
    mean: tuple[float, float, float] = CIFAR10_MEAN,
    std: tuple[float, float, float] = CIFAR10_STD,
    *,
    size: int | None = None,
) -> jax.Array:
  """Converts bytes to normalized floats, as for test images.

  Args:
    images: uint8, ``[..., height, width, 3]``.
    mean: mean of each channel, to subtract; pixels are in [0, 1].
    std: standard deviation of each channel, to divide by.
    size: side to resize to first, as :class:`Augmentation` resizes crops; None:
      keep the size.

  Returns:
    Images of the same shape, or ``[..., size, size, 3]``, float32.
  """
  mean, std = _checks.statistics(mean, std)
  images = _checks.images(images).astype(jnp.float32) / 255
  if size is not None:
    _checks.size(size)
    shape = (*images.shape[:-3], size, size, 3)
    images = jax.image.resize(images, shape, 'linear', antialias=True)
  return _normalize(images, mean, std)


def _normalize(images, mean, std):
  shape = (1,) * (images.ndim - 1) + (3,)
  mean, std = (np.float32(x).reshape(shape) for x in (mean, std))
  return (images - mean) * (1 / std)


def _maybe(condition, operation, image, *args):
  return jax.lax.cond(
      condition, operation, lambda image, *_: image, image, *args
  )


def _materialize(tree):
  """Keeps XLA:CPU from computing ``tree`` again for every pixel.

  A loop ends a fusion; this one has no iterations, but the compiler cannot know
  that. XLA:CPU removes ``jax.lax.optimization_barrier`` before it fuses.
  """
  count = jnp.abs(jax.tree.leaves(tree)[0].ravel()[0]).astype(jnp.int32)
  return jax.lax.while_loop(
      lambda state: state[0] < 0,
      lambda state: (state[0] + 1, jax.tree.map(jnp.negative, state[1])),
      (count, tree),
  )[1]
