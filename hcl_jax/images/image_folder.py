# SPDX-License-Identifier: Apache-2.0
"""Builds a tfds data set of a folder of images."""

from collections.abc import Mapping
import os
import pathlib
from typing import Any

import numpy as np
from PIL import Image
from PIL import ImageOps
import tensorflow_datasets as tfds

from hcl_jax.images import layout as layout_lib
from hcl_jax.storage import records

_NUM_NAMED = 20


class UnreadableImagesError(ValueError):
  """Raised for files that look like images and cannot be read."""


class ImageFolder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Images of a folder, made square and of one size.

  Attributes:
    unreadable: files that were left out, with the reason.
  """

  def __init__(
      self,
      *,
      name: str,
      layout: layout_lib.Layout,
      image_size: int,
      source: Mapping[str, Any],
      skip_unreadable: bool = False,
      config: str | None = None,
      **kwargs,
  ):
    """Reads the files of a layout into the data set ``name[/config]``."""
    self.name = name
    self.VERSION = tfds.core.Version('1.0.0')
    if config:
      config = tfds.core.BuilderConfig(name=config, version='1.0.0')
      self.BUILDER_CONFIGS = [config]
    self._layout = layout
    self._image_size = image_size
    self._source = source
    self._skip_unreadable = skip_unreadable
    self.unreadable: list[str] = []
    super().__init__(config=config, **kwargs)

  def download_and_prepare(self, **kwargs):
    """Writes the data set, and prints which files were left out."""
    super().download_and_prepare(**kwargs)
    if self.unreadable:
      print('Left out ' + _name_files(self.unreadable) + '.')

  def _info(self):
    shape = self._image_size, self._image_size, 3
    features = {
        'id': tfds.features.Text(),
        'image': tfds.features.Image(shape=shape, encoding_format='png'),
    }
    names = self._layout.class_names
    if names:
      features['label'] = tfds.features.ClassLabel(names=names)
    return tfds.core.DatasetInfo(
        builder=self,
        description='The images of a folder, scaled and cropped to squares.',
        features=tfds.features.FeaturesDict(features),
        supervised_keys=('image', 'label') if names else None,
        metadata=tfds.core.MetadataDict(source=self._source),
    )

  def _split_generators(self, dl_manager):
    del dl_manager
    return {
        split: self._generate_examples(files)
        for split, files in self._layout.splits.items()
    }

  def _generate_examples(self, files):
    classes = {name: i for i, name in enumerate(self._layout.class_names)}
    num_threads = os.cpu_count() or 1
    images = records.map_ahead(
        self._read, files, num_threads=num_threads, num_ahead=4 * num_threads
    )
    readable = False
    for file, image in zip(files, images, strict=True):
      if image is None:
        continue
      readable = True
      example = {'id': file.key, 'image': image}
      if classes:
        example['label'] = classes.get(file.class_name, -1)
      yield file.key, example
    if self.unreadable and not (self._skip_unreadable and readable):
      raise UnreadableImagesError(_name_files(self.unreadable))

  def _read(self, file):
    try:
      return read_square(file.path, self._image_size)
    except (OSError, ValueError, SyntaxError, MemoryError,
            Image.DecompressionBombError) as error:  # fmt: skip
      self.unreadable.append(f'{file.path} ({error})')
      return None


def _name_files(files: list[str]) -> str:
  """Returns one line that counts files and names the first of them."""
  named = '; '.join(sorted(files)[:_NUM_NAMED])
  more = ' and others' if len(files) > _NUM_NAMED else ''
  return f'{len(files)} unreadable image files: {named}{more}'


def read_square(path: pathlib.Path, size: int) -> Image.Image:
  """Returns the middle square of an image file, size x size, RGB, upright.

  The shorter side is scaled to ``size`` (bicubic, antialiased) and the longer
  one cropped to it.
  """
  with Image.open(path) as image:
    # JPEG can be decoded at a fraction of its size; twice the result's is
    # enough for the filter.
    image.draft('RGB', (2 * size, 2 * size))
    image = _to_rgb(ImageOps.exif_transpose(image))
    if image.size == (size, size):
      return image
    return ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)


def _to_rgb(image):
  if image.mode.startswith('I;16'):
    # Pillow would clip 16 bits to 8 instead of scaling them.
    image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
  return image.convert('RGB')
