# SPDX-License-Identifier: Apache-2.0
"""Draws small color scenes of scikit-learn's digits and photographs.

A scene is a handwritten digit, colored, stretched, slanted and placed at
random over a darkened crop of a photograph, with one or two fragments of
other digits beside it. Its label is the digit. Train and test share neither
digits (the last fifth, written by other people for the most part, is the
test's) nor regions of the photographs.

Scene i is a function of (split, i) alone and is computed in integers, so
that it is the same on every machine. Positions count 1/256 of a pixel.
"""

import functools

import numpy as np

from hcl_jax.storage import locations

# Of the prepared data set; to be raised with every change of a scene.
VERSION = '1.0.0'
SIZE = 32
SPLITS = ('train', 'test')

_SEED = 20201017
_CHUNK = 512
_DIGIT = 8
_NUM_TRAIN_DIGITS = 1437
# Columns of the photographs; the gap keeps neighboring pixels apart.
_COLUMNS = {'train': (0, 448), 'test': (464, 640)}
_COLORS = np.array(
    [
        [255, 96, 80], [255, 176, 48], [240, 240, 80], [96, 232, 96],
        [80, 224, 240], [144, 160, 255], [248, 128, 240], [248, 248, 248],
    ],
    np.int32,
)  # fmt: skip


def full_name(dataset: str) -> str:
  """Returns a name, if it is ``digit_scenes``, with config and version."""
  name, config, version = locations.parse(dataset)
  if name == 'digit_scenes':
    return f'{name}/{config or "full"}:{version or VERSION}'
  return dataset


def draw(split: str, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns scenes first to last - 1 of ``'train'`` or ``'test'``.

  Images are uint8 ``[last - first, 32, 32, 3]``, labels int32.
  """
  chunks = [
      _draw_chunk(split, range(start, min(start + _CHUNK, last)))
      for start in range(first, last, _CHUNK)
  ]
  images, labels = zip(*chunks, strict=True)
  return np.concatenate(images), np.concatenate(labels)


def _draw_chunk(split, numbers):
  digits, labels = _digits(split)
  dice = _Dice(split, numbers)
  scenes = _backgrounds(split, dice)
  for is_second in (False, True):
    scenes = _add_fragment(scenes, digits, dice, is_second)
  chosen = dice.roll(len(digits))
  width = dice.between(14 * 256, 22 * 256)
  height = dice.between(16 * 256, 24 * 256)
  alpha = _stretch(
      digits[chosen],
      left=dice.between(0, SIZE * 256 - width),
      top=dice.between(0, SIZE * 256 - height),
      width=width,
      height=height,
      slant=dice.between(-48, 48),
  )
  scenes = _paint(scenes, alpha, _COLORS[dice.roll(len(_COLORS))])
  return scenes.astype(np.uint8), labels[chosen]


class _Dice:
  """Independent rolls for each scene, the n-th roll a function of n."""

  def __init__(self, split, numbers):
    which = SPLITS.index(split)
    self._draws = np.stack([
        np.random.default_rng([_SEED, which, number]).integers(
            2**31, size=32, dtype=np.int64
        )
        for number in numbers
    ])
    self._next = 0

  def roll(self, sides):
    """Returns an integer in [0, sides) for each; sides may be an array."""
    draws = self._draws[:, self._next]
    self._next += 1
    return draws % sides

  def between(self, low, high):
    """Returns an integer in [low, high) for each scene."""
    return low + self.roll(high - low)


def _backgrounds(split, dice):
  """Returns darkened crops of the photographs, int32 [n, 32, 32, 3]."""
  photos = _photos(split)
  _, rows, columns, _ = photos.shape
  which = dice.roll(len(photos))
  # Crops on a coarse grid, and dark: many scenes share a background, so that
  # it tells little about which scene this is. A brighter one is what a
  # contrastive encoder learns instead of the digit.
  top = dice.roll((rows - SIZE) // SIZE + 1) * SIZE
  left = dice.roll((columns - SIZE) // SIZE + 1) * SIZE
  grid = np.arange(SIZE)
  crops = photos[
      which[:, None, None],
      (top[:, None] + grid)[:, :, None],
      (left[:, None] + grid)[:, None, :],
  ]
  return 8 + crops // 4


def _add_fragment(scenes, digits, dice, is_second):
  """Paints a quarter of some digit near a corner; the second is optional."""
  pieces = digits[dice.roll(len(digits))]
  row, column = np.divmod(dice.roll(4), 2)
  halves = np.arange(_DIGIT) // (_DIGIT // 2)
  in_row = halves[None, :, None] == row[:, None, None]
  in_column = halves[None, None, :] == column[:, None, None]
  pieces = np.where(in_row & in_column, pieces, 0)
  size = dice.between(11 * 256, 15 * 256)
  # Where the quarter has its center.
  y, x = (24 * 256 * v for v in np.divmod(dice.roll(4), 2))
  x, y = x + dice.roll(8 * 256), y + dice.roll(8 * 256)
  alpha = _stretch(
      pieces,
      left=x - size // 4 - column * size // 2,
      top=y - size // 4 - row * size // 2,
      width=size,
      height=size,
      slant=np.zeros_like(size),
  )
  colors = _COLORS[dice.roll(len(_COLORS))] * 3 // 8
  if is_second:
    alpha = alpha * dice.roll(2)[:, None, None]
  return _paint(scenes, alpha, colors)


def _stretch(digits, *, left, top, width, height, slant):
  """Stretches digits [n, 8, 8] over scenes, bilinearly.

  Args:
    digits: strokes from 0 to 256.
    left, top, width, height: the rectangle that the 8x8 cells cover.
    slant: shift of the columns from row to row, in 1/256.

  Returns:
    Coverage of each pixel, 0 to 256, int64 ``[n, 32, 32]``.
  """
  centers = np.arange(SIZE) * 256 + 128
  x = (centers - left[:, None]) * (_DIGIT * 256) // width[:, None] - 128
  y = (centers - top[:, None]) * (_DIGIT * 256) // height[:, None] - 128
  middle = (_DIGIT - 1) * 128
  x = x[:, None, :] + slant[:, None, None] * (y - middle)[:, :, None] // 256
  y = np.broadcast_to(y[:, :, None], x.shape)
  # A frame of zeros, and coordinates that stop inside it.
  framed = np.pad(digits, ((0, 0), (1, 1), (1, 1)))
  x, y = (np.clip(v + 256, 0, (_DIGIT + 1) * 256 - 1) for v in (x, y))
  n = np.arange(len(digits))[:, None, None]
  column, row, right, below = x >> 8, y >> 8, x & 255, y & 255
  upper = framed[n, row, column] * (256 - right)
  upper += framed[n, row, column + 1] * right
  lower = framed[n, row + 1, column] * (256 - right)
  lower += framed[n, row + 1, column + 1] * right
  return (upper * (256 - below) + lower * below) >> 16


def _paint(scenes, alpha, colors):
  alpha = alpha[..., None].astype(np.int32)
  return scenes + ((colors[:, None, None, :] - scenes) * alpha >> 8)


@functools.cache
def _digits(split):
  """Returns strokes 0 to 256, int64 [n, 8, 8], and labels of digits."""
  from sklearn import datasets  # Slow to import, and only drawing needs it.

  digits = datasets.load_digits()
  part = slice(0, _NUM_TRAIN_DIGITS)
  if split == 'test':
    part = slice(_NUM_TRAIN_DIGITS, None)
  strokes = np.minimum(digits.images[part].astype(np.int64) * 24, 256)
  return strokes, digits.target[part].astype(np.int32)


@functools.cache
def _photos(split):
  """Returns a split's part of the photos, int32 [2, rows, columns, 3]."""
  from sklearn import datasets

  first, last = _COLUMNS[split]
  photos = np.stack(datasets.load_sample_images().images)
  return photos[:, :, first:last].astype(np.int32)
