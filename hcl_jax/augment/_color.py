# SPDX-License-Identifier: Apache-2.0
"""Color operations on one planar image with values in [0, 1].

An image is ``[3, ...]``: red, green and blue planes of the same shape, because
compilers vectorize long planes better than pixels.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601


def adjust_brightness(image: jax.Array, factor: ArrayLike) -> jax.Array:
  """Scales the image; 0 is black and 1 changes nothing."""
  return _clip(factor * image)


def adjust_contrast(image: jax.Array, factor: ArrayLike) -> jax.Array:
  """Interpolates between the mean luma (0) and the image (1), and beyond."""
  return _blend(image, jnp.mean(_luma(image)), factor)


def adjust_saturation(image: jax.Array, factor: ArrayLike) -> jax.Array:
  """Interpolates between the luma (0) and the image (1), and beyond."""
  return _blend(image, _luma(image)[None], factor)


def adjust_hue(image: jax.Array, shift: ArrayLike) -> jax.Array:
  r"""Shifts every hue by a fraction of the circle; keeps value and saturation.

  With value v and chroma c, a channel whose hue is n sixths of the circle is

  .. math::
    v - \mathrm{clip}(d(6 h, n) - 1, 0, 1) \, c

  at hue h, with d the distance on a circle of length 6. Hue and distance are
  multiples of c: no division, and no special case for gray pixels. The shift
  must be in [-0.5, 0.5].
  """
  red, green, blue = image
  value = _maximum(_maximum(red, green), blue)
  chroma = value - _minimum(_minimum(red, green), blue)
  hue = jnp.where(
      value == red,
      green - blue,
      jnp.where(
          value == green, blue - red + 2 * chroma, red - green + 4 * chroma
      ),
  )
  hue = hue + 6 * shift * chroma

  def channel(n):
    distance = jnp.abs(hue - n * chroma)
    distance = _minimum(distance, jnp.abs(distance - 6 * chroma))
    return value - _minimum(_maximum(distance - chroma, 0.0), chroma)

  return jnp.stack([channel(0), channel(2), channel(4)])


def to_grayscale(image: jax.Array) -> jax.Array:
  """Returns the luma as all three channels."""
  return jnp.stack([_luma(image)] * 3)


def jitter_color(
    image: jax.Array, order: jax.Array, strengths: jax.Array
) -> jax.Array:
  """Applies the four adjustments one after another.

  Args:
    image: planar, ``[3, ...]``.
    order: permutation of 0 to 3, ``[4]``: the adjustments in order; 0 is
      brightness, 1 contrast, 2 saturation and 3 hue.
    strengths: factors of brightness, contrast and saturation, and shift of the
      hue, ``[4]``; not in the order of ``order``.
  """
  # Each of the four switches ends a fusion. XLA:CPU would otherwise fuse so
  # much that it computes every pixel several times. One switch over all 24
  # orders takes longer to compile and to run.
  for i in range(4):
    image = jax.lax.switch(order[i], _ADJUSTMENTS, image, strengths)
  return image


_ADJUSTMENTS = (
    lambda image, strengths: adjust_brightness(image, strengths[0]),
    lambda image, strengths: adjust_contrast(image, strengths[1]),
    lambda image, strengths: adjust_saturation(image, strengths[2]),
    lambda image, strengths: adjust_hue(image, strengths[3]),
)


def _luma(image):
  return sum(weight * plane for weight, plane in zip(_LUMA, image, strict=True))


def _blend(image, other, factor):
  return _clip(factor * image + (1 - factor) * other)


def _clip(image):
  return _minimum(_maximum(image, 0.0), 1.0)


# jnp.maximum propagates NaN, which takes XLA:CPU several instructions.
def _maximum(a, b):
  return jnp.where(a > b, a, b)


def _minimum(a, b):
  return jnp.where(a < b, a, b)
