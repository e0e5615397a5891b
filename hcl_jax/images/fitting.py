# SPDX-License-Identifier: Apache-2.0
"""Fits images of any size and mode to one size."""

from collections.abc import Iterable
import pathlib

import numpy as np
from PIL import Image
from PIL import ImageOps

# What Pillow raises for a file that is no image, or a damaged one.
UNREADABLE = (
    OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError
)  # fmt: skip

_LARGEST = 256  # by default


def common_size(sizes: Iterable[tuple[int, int]]) -> int:
  """Returns the side of squares that suit images of some (width, height).

  It is 256, or the smallest side of all images if that is less.
  """
  return min([_LARGEST, *map(min, sizes)])


def read(path: pathlib.Path, size: tuple[int, int]) -> Image.Image:
  """Returns the middle of an image file, as :func:`fit` does."""
  with Image.open(path) as image:
    # JPEG can be decoded at a fraction of its size; twice the result's is
    # enough for the filter.
    image.draft('RGB', (2 * size[0], 2 * size[1]))
    return fit(image, size)


def fit(image: Image.Image, size: tuple[int, int]) -> Image.Image:
  """Returns the middle of an image, (width, height), RGB, upright.

  It is scaled until one side fits (bicubic, antialiased), and the other is
  cropped.
  """
  image = _to_rgb(ImageOps.exif_transpose(image))
  if image.size == size:
    return image
  return ImageOps.fit(image, size, Image.Resampling.BICUBIC)


def _to_rgb(image):
  if image.mode.startswith('I;16'):
    # Pillow would clip 16 bits to 8 instead of scaling them.
    image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
  return image.convert('RGB')
