# SPDX-License-Identifier: Apache-2.0
"""Draws parameters of the augmentations of one image."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_TRIES = 10

# Every order of brightness (0), contrast (1), saturation (2) and hue (3).
ORDERS = np.array(list(itertools.permutations(range(4))), np.int32)


class Crop(NamedTuple):
  """Box in pixels: integers as float32."""

  top: jax.Array
  left: jax.Array
  height: jax.Array
  width: jax.Array


class Jitter(NamedTuple):
  """Arguments of :func:`hcl_jax.augment.jitter_color`."""

  order: jax.Array
  strengths: jax.Array


def sample_crop(
    key: jax.Array,
    shape: tuple[int, int],
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Crop:
  """Draws the box of a random resized crop.

  The area, relative to the image, is uniform in ``scale``; the logarithm of
  width / height is uniform in that of ``ratio``; sides are rounded. The first
  of ten such draws that fits gets a uniform position. If none fits, the box is
  the largest center crop within ``ratio``. ``shape`` is height and width of the
  image.
  """
  draws = jax.random.uniform(key, (2 * _TRIES + 2,))
  return choose_crop(draws, shape, scale=scale, ratio=ratio)


def choose_crop(draws, shape, *, scale, ratio) -> Crop:
  """Converts the uniform draws of :func:`sample_crop`, ``[22]``, to a box."""
  rows, columns = shape
  area = rows * columns * _between(scale, draws[:_TRIES])
  aspect = jnp.exp(_between(np.log(ratio), draws[_TRIES:-2]))
  widths = jnp.round(jnp.sqrt(area * aspect))
  heights = jnp.round(jnp.sqrt(area / aspect))
  fits = (0 < widths) & (widths <= columns) & (0 < heights) & (heights <= rows)
  first = jnp.argmax(fits)
  height, width = _center(shape, ratio)
  height = jnp.where(fits[first], heights[first], height)
  width = jnp.where(fits[first], widths[first], width)
  none = ~fits[first]
  return Crop(
      top=_place(rows - height, draws[-2], none),
      left=_place(columns - width, draws[-1], none),
      height=height,
      width=width,
  )


def sample_jitter(
    key: jax.Array,
    *,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
) -> Jitter:
  """Draws independent uniform strengths of the adjustments, and their order.

  The factor of brightness is in [max(0, 1 - brightness), 1 + brightness], and
  those of contrast and saturation likewise; the shift of the hue is in
  [-hue, hue]. The order is one of 24 with equal probability.
  """
  draws = jax.random.uniform(key, (5,))
  return choose_jitter(
      draws,
      brightness=brightness,
      contrast=contrast,
      saturation=saturation,
      hue=hue,
  )


def choose_jitter(draws, *, brightness, contrast, saturation, hue) -> Jitter:
  """Converts the uniform draws of :func:`sample_jitter`, ``[5]``."""
  ranges = [(max(0, 1 - x), 1 + x) for x in (brightness, contrast, saturation)]
  low, high = np.transpose([*ranges, (-hue, hue)])
  order = jnp.minimum(jnp.int32(24 * draws[4]), 23)
  return Jitter(jnp.asarray(ORDERS)[order], _between((low, high), draws[:4]))


def _between(bounds, draws):
  low, high = np.float32(bounds[0]), np.float32(bounds[1])
  return low + (high - low) * draws


def _center(shape, ratio):
  """Returns the sides of the largest crop with width / height in ratio."""
  rows, columns = shape
  if columns < rows * ratio[0]:
    return float(round(columns / ratio[0])), float(columns)
  if columns > rows * ratio[1]:
    return float(rows), float(round(rows * ratio[1]))
  return float(rows), float(columns)


def _place(space, draw, center):
  """Returns an integer from 0 to space, or the middle."""
  # The product may round up to space + 1.
  drawn = jnp.minimum(jnp.floor((space + 1) * draw), space)
  return jnp.where(center, jnp.floor(space / 2), drawn)
