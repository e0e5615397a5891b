# SPDX-License-Identifier: Apache-2.0
"""Collects images that are at hand: arrays, or images of differing sizes."""

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from hcl_jax.images import data as image_data
from hcl_jax.images import fitting

_WANTED = 'a PIL image or a uint8 array [height, width, 3] or [height, width]'


def collect(data: Any) -> dict[str, image_data.Images]:
  """Makes ``Images`` of all splits.

  Args:
    data: images: a uint8 array ``[n, height, width, 3]``, or 1 for gray; or an
      iterable of PIL images or uint8 arrays ``[height, width, 3]`` or
      ``[height, width]``, of any sizes, which become squares of one size as
      those of a folder do. With labels: a pair of images and integers, -1 for
      none, or an iterable of pairs of an image and its label. A tenth of the
      images, drawn at random, is the split ``'test'``, the others are
      ``'train'``. A dict from splits to such images sets the splits itself.

  Raises:
    TypeError: a split is none of these.
    ValueError: a split is empty, or its labels do not fit.
  """
  has_splits = isinstance(data, Mapping)
  named = data.items() if has_splits else [('train', data)]
  splits = {
      split: _read_split(f'data[{split!r}]' if has_splits else 'data', given)
      for split, given in named
  }
  lists = [x for x, _ in splits.values() if isinstance(x, list)]
  size = fitting.common_size(image.size for images in lists for image in images)
  most = max([-1, *(int(labels.max()) for _, labels in splits.values())])
  names = tuple(map(str, range(most + 1)))  # the same classes in all splits
  arrays = {
      split: (_fit(images, size), labels)
      for split, (images, labels) in splits.items()
  }
  if not has_splits:
    arrays = _hold_out(*arrays['train'])
  return {
      split: image_data.Images(images, labels, names)
      for split, (images, labels) in arrays.items()
  }


def fit_each(
    name: str, images: Iterable[Any], size: tuple[int, int]
) -> np.ndarray:
  """Returns images as an array of one size, (width, height).

  They are PIL images or uint8 arrays ``[height, width, 3]`` or ``[height,
  width]``; one that is as large already is left as it is.

  Raises:
    TypeError: one of them is no such image; the message has its name.
  """
  given = [_read_image(f'{name}[{i}]', x) for i, x in enumerate(images)]
  return np.stack([np.asarray(fitting.fit(x, size)) for x in given])


def _hold_out(images, labels):
  """Returns images and labels of two splits."""
  order = np.random.default_rng(0).permutation(len(images))
  count = max(len(images) // 10, 1)
  rows = {'train': np.sort(order[count:]), 'test': np.sort(order[:count])}
  return {split: (images[x], labels[x]) for split, x in rows.items()}


def _read_split(name, given):
  """Returns an array or a list of PIL images, and their labels."""
  labels = None
  # Not two images, nor two pairs of an image and its label.
  if (
      isinstance(given, tuple)
      and len(given) == 2
      and not isinstance(given[0], tuple)
      and not _is_image(given[0])
  ):
    given, labels = given
  if isinstance(given, np.ndarray):
    given = _read_array(name, given)
  else:
    given, own = _read_images(name, given)
    labels = own if labels is None else labels
  if not len(given):
    raise ValueError(f'{name} has no image.')
  return given, _read_labels(name, labels, len(given))


def _read_array(name, array):
  """Returns images of one size, with three colors."""
  is_gray = array.ndim == 4 and array.shape[-1] == 1
  is_color = array.ndim == 4 and array.shape[-1] == 3
  if array.dtype != np.uint8 or not (is_gray or is_color) or 0 in array.shape:
    raise ValueError(
        f'{name} must be uint8 images [n, height, width, 3], got '
        f'{array.dtype} {list(array.shape)}.'
    )
  return np.repeat(array, 3, axis=-1) if is_gray else array


def _read_images(name, given):
  """Returns PIL images, and labels if all are pairs with one."""
  is_other = isinstance(given, (str, bytes, Mapping))
  if is_other or not isinstance(given, Iterable):
    raise TypeError(
        f'{name} must be a uint8 array [n, height, width, 3] or an iterable of '
        f'images, got {type(given).__name__}.'
    )
  images, labels = [], []
  for number, item in enumerate(given):
    if isinstance(item, (tuple, list)) and len(item) == 2:
      item, label = item
      labels.append(label)
    images.append(_read_image(f'{name}[{number}]', item))
  if labels and len(labels) < len(images):
    raise TypeError(
        f'{name} must have a label for each image or for none, got '
        f'{len(labels)} for {len(images)} images.'
    )
  return images, labels or None


def _read_image(name, image):
  if isinstance(image, Image.Image):
    return image
  if not _is_image(image) or image.dtype != np.uint8:
    kind = type(image).__name__
    if isinstance(image, np.ndarray):
      kind = f'{image.dtype} {list(image.shape)}'
    raise TypeError(f'{name} must be {_WANTED}, got {kind}.')
  return Image.fromarray(image[..., 0] if image.shape[2:] == (1,) else image)


def _is_image(item):
  """Returns whether something has the form of one image."""
  if isinstance(item, Image.Image):
    return True
  is_array = isinstance(item, np.ndarray)
  return is_array and (
      item.ndim == 2 or (item.ndim == 3 and item.shape[-1] in (1, 3))
  )


def _read_labels(name, labels, count):
  if labels is None:
    return np.full(count, -1)
  labels = np.asarray(labels)
  is_integer = np.issubdtype(labels.dtype, np.integer)
  if not is_integer or labels.shape != (count,) or labels.min() < -1:
    raise ValueError(
        f'labels of {name} must be integers [{count}], -1 or more, got '
        f'{labels.dtype} {list(labels.shape)}.'
    )
  return labels


def _fit(images, size):
  if isinstance(images, np.ndarray):
    return images
  return np.stack([np.asarray(fitting.fit(x, (size, size))) for x in images])
