# SPDX-License-Identifier: Apache-2.0
"""Augments with Pillow as hcl_jax.augment does, image by image.

It is what the workers of a data loader would do, and written for speed.
"""

import math
import random

import numpy as np
from PIL import Image
from PIL import ImageEnhance
from PIL import ImageFilter

from hcl_jax import augment


def augment_batch(
    images: np.ndarray, augmentation: augment.Augmentation, rng: random.Random
) -> np.ndarray:
  """Augments uint8 ``[batch, height, width, 3]`` images.

  Returns:
    Float32 ``[batch, size, size, 3]``.
  """
  scale = 1 / (255 * np.float32(augmentation.std))
  offset = np.float32(augmentation.mean) / np.float32(augmentation.std)
  done = []
  for image in images:
    augmented = augment_image(Image.fromarray(image), augmentation, rng)
    done.append(np.asarray(augmented, np.float32) * scale - offset)
  return np.stack(done)


def augment_image(
    image: Image.Image, augmentation: augment.Augmentation, rng: random.Random
) -> Image.Image:
  """Augments one image, without normalizing it."""
  a = augmentation
  # Not resize(box=...), which would look at pixels outside of the box.
  image = image.crop(draw_box(image.size, a, rng))
  image = image.resize((a.size, a.size), Image.Resampling.BILINEAR)
  if rng.random() < a.flip:
    image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
  if rng.random() < a.jitter:
    image = jitter(image, a, rng)
  if rng.random() < a.grayscale:
    image = image.convert('L').convert('RGB')
  if rng.random() < a.blur:
    image = image.filter(gaussian(rng.uniform(*a.blur_sigma), a.blur_kernel))
  return image


def draw_box(size, augmentation, rng):
  """Draws left, top, right and bottom of the crop."""
  columns, rows = size
  log_ratio = [math.log(x) for x in augmentation.ratio]
  for _ in range(10):
    area = columns * rows * rng.uniform(*augmentation.scale)
    ratio = math.exp(rng.uniform(*log_ratio))
    width, height = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
    if 0 < width <= columns and 0 < height <= rows:
      left = rng.randint(0, columns - width)
      top = rng.randint(0, rows - height)
      return left, top, left + width, top + height
  return 0, 0, columns, rows  # for square images


def jitter(image, augmentation, rng):
  a = augmentation
  operations = [
      (adjust(ImageEnhance.Brightness), draw_factor(a.brightness, rng)),
      (adjust(ImageEnhance.Contrast), draw_factor(a.contrast, rng)),
      (adjust(ImageEnhance.Color), draw_factor(a.saturation, rng)),
      (shift_hue, rng.uniform(-a.hue, a.hue)),
  ]
  rng.shuffle(operations)
  for operation, strength in operations:
    image = operation(image, strength)
  return image


def draw_factor(strength, rng):
  return rng.uniform(max(0, 1 - strength), 1 + strength)


def adjust(enhancer):
  return lambda image, factor: enhancer(image).enhance(factor)


def shift_hue(image, shift):
  hsv = np.array(image.convert('HSV'))
  hsv[..., 0] += np.uint8(round(255 * shift) % 256)
  return Image.fromarray(hsv, 'HSV').convert('RGB')


def gaussian(sigma, kernel_size):
  """Returns the exact kernel where Pillow has one of that size, or nearly."""
  if kernel_size not in (3, 5):
    return ImageFilter.GaussianBlur(sigma)
  offsets = range(-(kernel_size // 2), kernel_size // 2 + 1)
  weights = [math.exp(-0.5 * (x / sigma) ** 2) for x in offsets]
  kernel = [a * b for a in weights for b in weights]
  return ImageFilter.Kernel((kernel_size, kernel_size), kernel)
