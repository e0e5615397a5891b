# SPDX-License-Identifier: Apache-2.0
"""Labelled images of a prepared data set, in memory or streamed."""

from collections.abc import Sequence
import os
import pathlib

import numpy as np

from hcl_jax.images import scenes
from hcl_jax.storage import locations
from hcl_jax.storage import records as records_lib


class Images:
  """A split of a data set.

  Attributes:
    labels: int32 ``[num_examples]``, -1 for none.
    class_names: names of the classes.
    image_shape: (height, width, 3).
    array: all images, uint8 ``[num_examples, height, width, 3]``, or None
      where they are read from files when asked for.
  """

  def __init__(
      self,
      images: 'np.ndarray | records_lib.Records',
      labels: np.ndarray | None = None,
      class_names: Sequence[str] = (),
  ):
    """Images in memory, uint8 ``[n, height, width, 3]``, or open records."""
    self._records = None if isinstance(images, np.ndarray) else images
    self.array = images if self._records is None else None
    self.image_shape = _image_shape(images)
    if labels is None:
      labels = np.full(len(images), -1)
    self.labels = np.asarray(labels, np.int32)
    self.class_names = tuple(class_names)
    if self.labels.shape != (len(images),):
      raise ValueError(
          f'labels must be one for each of {len(images)} images, got shape '
          f'{self.labels.shape}.'
      )

  @property
  def num_examples(self) -> int:
    return len(self.labels)

  @property
  def num_classes(self) -> int:
    if self.class_names:
      return len(self.class_names)
    return int(self.labels.max(initial=-1)) + 1

  @property
  def in_memory(self) -> bool:
    return self.array is not None

  def __len__(self) -> int:
    return self.num_examples

  def rows(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
    """Images of the given rows, uint8 ``[len(indices), height, width, 3]``."""
    if self.array is not None:
      return self.array[np.asarray(indices)]
    return self._records.images(indices)


def load(
    name: str,
    split: str,
    *,
    data_dir: str | os.PathLike | None = None,
    max_bytes_in_memory: int = 4 * 2**30,
) -> Images:
  """Opens a split of a prepared data set; never uses the network.

  Args:
    name: ``'name[/config][:version]'``. ``'digit_scenes'`` is prepared at its
      first use, any other by ``python -m hcl_jax.prepare``.
    split: as in tfds: ``'train'``, ``'train+unlabelled'``, ``'train[:90%]'``.
    data_dir: folder of prepared data sets; None for the default of tfds
      ($TFDS_DATA_DIR or ~/tensorflow_datasets).
    max_bytes_in_memory: a split whose pixels take more is streamed.

  Returns:
    The split's images and labels, in the order of the prepared files.

  Raises:
    FileNotFoundError: the data set is not prepared; the message says how to.
    OSError: a file of it is damaged; the message names it.
    ValueError: the name, the split or the kind of data set is unsuitable.
  """
  directory = _prepared(name, locations.data_dir(data_dir))
  records = records_lib.Records(directory, split)
  num_bytes = len(records) * int(np.prod(records.image_shape))
  if num_bytes <= max_bytes_in_memory:
    images, labels = records.all_images()
  else:
    images, labels = records, records.all_labels()
  return Images(images, labels, records.class_names)


def _prepared(name, directory) -> pathlib.Path:
  if locations.parse(name)[0] == 'digit_scenes':
    return _prepared_digit_scenes(name, directory)
  return locations.require(name, directory)


def _prepared_digit_scenes(name, directory):
  """Finds this version of digit_scenes, or prepares it."""
  _, config, version = locations.parse(name)
  config, version = config or 'full', version or scenes.VERSION
  full_name = f'digit_scenes/{config}:{version}'
  found = locations.find(full_name, directory)
  if found is None:
    _prepare_digit_scenes(config, version, directory)
    found = locations.require(full_name, directory)
  return found


def _prepare_digit_scenes(config, version, directory):
  from hcl_jax.images import digit_scenes as builder

  configs = [c.name for c in builder.DigitScenes.BUILDER_CONFIGS]
  if config not in configs or version != scenes.VERSION:
    raise ValueError(
        f'digit_scenes has the configs {", ".join(configs)} and the version '
        f'{scenes.VERSION}; got {config}, {version}.'
    )
  drawing = builder.DigitScenes(
      data_dir=directory, config=config, file_format='array_record'
  )
  try:
    drawing.download_and_prepare()
  except OSError:
    # Another process may have finished first; its copy is as good.
    if not drawing.is_prepared():
      raise


def _image_shape(images):
  if not isinstance(images, np.ndarray):
    return images.image_shape
  if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
    raise ValueError(
        'images must be uint8 [n, height, width, 3], got '
        f'{images.dtype} {list(images.shape)}.'
    )
  return images.shape[1:]
