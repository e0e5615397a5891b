# SPDX-License-Identifier: Apache-2.0
"""Builds a tfds data set of images that are numpy arrays already.

The folder holds, for every split, ``SPLIT_images.npy`` (uint8
``[n, height, width, 3]``, or without the last axis for gray ones) and
``SPLIT_labels.npy`` (integers ``[n]``; absent for unlabeled images), and
perhaps ``classes.txt``, whose line i is the name of class i.
"""

from collections.abc import Mapping
import pathlib
from typing import Any

import numpy as np
from PIL import Image
import tensorflow_datasets as tfds

_IMAGES = '_images.npy'
_MAX_CLASSES = 100_000  # each gets a name


class Arrays(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Writes arrays as any tfds data set; keys and ids are as CIFAR's."""

  def __init__(
      self,
      *,
      name: str,
      folder: pathlib.Path,
      source: Mapping[str, Any],
      version: str = '1.0.0',
      config: str | None = None,
      **kwargs,
  ):
    """Reads ``folder`` into the data set ``name[/config]:version``."""
    self.name = name
    self.VERSION = tfds.core.Version(version)
    if config:
      config = tfds.core.BuilderConfig(name=config, version=version)
      self.BUILDER_CONFIGS = [config]
    self._source = source
    self._splits = read_splits(folder)
    self._class_names = _class_names(folder, self._splits)
    super().__init__(config=config, **kwargs)

  def _info(self):
    images, _ = next(iter(self._splits.values()))
    return tfds.core.DatasetInfo(
        builder=self,
        description='Images and labels that came as numpy arrays.',
        features=tfds.features.FeaturesDict({
            'id': tfds.features.Text(),
            'image': tfds.features.Image(
                shape=(*images.shape[1:3], 3), encoding_format='png'
            ),
            'label': tfds.features.ClassLabel(names=self._class_names),
        }),
        supervised_keys=('image', 'label'),
        metadata=tfds.core.MetadataDict(source=self._source),
    )

  def _split_generators(self, dl_manager):
    del dl_manager
    return {
        split: self._generate_examples(split, *arrays)
        for split, arrays in self._splits.items()
    }

  def _generate_examples(self, split, images, labels):
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
      yield i, {
          'id': f'{split}_{i:05d}',
          'image': Image.fromarray(image).convert('RGB'),
          'label': int(label),
      }


def read_splits(
    folder: pathlib.Path,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Returns images and labels of every split of a folder, checked."""
  if not folder.is_dir():
    raise FileNotFoundError(f'there is no folder {folder}.')
  splits = {
      path.name.removesuffix(_IMAGES): _read_split(path)
      for path in sorted(folder.glob(f'*{_IMAGES}'))
  }
  if not splits:
    raise FileNotFoundError(
        f'{folder} must hold train{_IMAGES}, train_labels.npy, test{_IMAGES} '
        'and so on; it holds no such file.'
    )
  sizes = {split: images.shape[1:3] for split, (images, _) in splits.items()}
  if len(set(sizes.values())) > 1:
    raise ValueError(f'images of {folder} must have one size, got {sizes}.')
  return splits


def _read_split(path):
  images = load(path)
  if images.ndim == 4 and images.shape[-1] == 1:
    images = images[..., 0]
  is_color = images.ndim == 4 and images.shape[-1] == 3
  if images.dtype != np.uint8 or not (is_color or images.ndim == 3):
    raise ValueError(
        f'{path} must be uint8 [n, height, width, 3], got {images.dtype} '
        f'{list(images.shape)}.'
    )
  if not images.size:
    raise ValueError(f'{path} holds no image: its shape is {images.shape}.')
  labels_path = path.with_name(path.name.replace(_IMAGES, '_labels.npy'))
  if not labels_path.exists():
    return images, np.full(len(images), -1)
  labels = load(labels_path)
  is_integer = np.issubdtype(labels.dtype, np.integer)
  if not is_integer or labels.shape != (len(images),) or labels.min() < -1:
    raise ValueError(
        f'{labels_path} must be integers [{len(images)}], -1 or more, got '
        f'{labels.dtype} {list(labels.shape)}.'
    )
  if labels.max() >= _MAX_CLASSES:
    raise ValueError(
        f'{labels_path} must have labels below {_MAX_CLASSES}, got '
        f'{labels.max()}; number the classes through.'
    )
  return images, labels


def load(path: pathlib.Path) -> np.ndarray:
  """Opens an array, which is read when it is used.

  Raises:
    ValueError: the file is no plain array.
  """
  try:
    return np.load(path, mmap_mode='r', allow_pickle=False)
  except (ValueError, EOFError) as error:
    raise ValueError(f'{path} is not a plain .npy array: {error}') from error


def _class_names(folder, splits):
  num_classes = 1 + max(int(labels.max()) for _, labels in splits.values())
  path = folder / 'classes.txt'
  if not path.exists():
    return [str(i) for i in range(num_classes)]
  names = path.read_text(encoding='utf-8').splitlines()
  if len(names) < num_classes:
    raise ValueError(
        f'{path} names {len(names)} classes, but the labels go up to '
        f'{num_classes - 1}.'
    )
  return names
