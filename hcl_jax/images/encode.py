# SPDX-License-Identifier: Apache-2.0
"""Embeds new images by the encoder of a run."""

from collections.abc import Mapping
from collections.abc import Sequence
import os
import pathlib
from typing import Any

import ml_collections
import numpy as np

from hcl_jax.images import arrays
from hcl_jax.images import collecting
from hcl_jax.images import data as image_data
from hcl_jax.images import evaluate
from hcl_jax.images import fitting
from hcl_jax.images import image_folder
from hcl_jax.images import task as image_tasks
from hcl_jax.storage import records
from hcl_jax.training import encoder as encoder_lib
from hcl_jax.training import state as state_lib

# What encoders of two runs must have in common, of ``inputs``.
MUST_AGREE = ()


def inputs(images: image_data.Images) -> dict[str, Any]:
  """Returns what must be known of images to embed others."""
  return {'image_shape': list(images.image_shape)}


def make(
    config: ml_collections.ConfigDict, inputs: Mapping[str, Any]
) -> encoder_lib.Parts:
  """Makes the encoder of a configuration, without its parameters.

  It takes images of the size of the run, an array, uint8 ``[n, height, width,
  3]``, or lists, which are scaled and cropped to that size: of paths of files,
  or of PIL images and uint8 arrays ``[height, width, 3]`` of any sizes.
  """
  task = image_tasks.create(config, total_steps=1, steps_per_epoch=1)
  shape = tuple(inputs['image_shape'])
  features = evaluate.Features(config, task)

  def embed(
      state: state_lib.TrainState,
      rows: Any,
      progress: encoder_lib.ShowProgress,
  ) -> np.ndarray:
    images = _read_rows(rows, shape)
    found = features.compute(state, images, lambda done, *_: progress(done))
    progress(len(images))
    return found

  return encoder_lib.Parts(
      task=task,
      module=task.encoder.module,
      example={'image': np.zeros((1, *shape), np.uint8)},
      inputs=inputs,
      embed=embed,
      read=_read,
      unit='images',
  )


class Files:
  """Image files, read when they are asked for.

  Args:
    paths: the files.
    shape: (height, width, 3) that they are scaled and cropped to.
  """

  def __init__(
      self, paths: Sequence[str | os.PathLike], shape: tuple[int, int, int]
  ):
    self._paths = [pathlib.Path(path) for path in paths]
    self._size = shape[1], shape[0]

  def __len__(self) -> int:
    return len(self._paths)

  def rows(self, indices: np.ndarray) -> np.ndarray:
    """Reads images, uint8 ``[len(indices), height, width, 3]``.

    Raises:
      ValueError: a file cannot be read; the message names it.
    """
    paths = [self._paths[i] for i in indices]
    threads = os.cpu_count() or 1
    return np.stack(
        list(
            records.map_ahead(
                self._read, paths, num_threads=threads, num_ahead=4 * threads
            )
        )
    )

  def _read(self, path):
    try:
      return np.asarray(fitting.read(path, self._size))
    except fitting.UNREADABLE as error:
      raise ValueError(f'{path} cannot be read as an image: {error}') from error


def _read_rows(rows, shape):
  """Returns images to embed, as ``Images`` or :class:`Files`."""
  if isinstance(rows, (str, os.PathLike)):
    rows = [rows]
  if isinstance(rows, Sequence):
    if not rows:
      raise ValueError('rows must be one image or more, got none.')
    if all(isinstance(x, (str, os.PathLike)) for x in rows):
      return Files(rows, shape)
    size = shape[1], shape[0]
    return image_data.Images(collecting.fit_each('rows', rows, size))
  images = np.asarray(rows)
  if images.dtype != np.uint8 or images.shape[1:] != shape or not len(images):
    raise ValueError(
        f'rows must be uint8 images [n, {", ".join(map(str, shape))}], as the '
        'run was trained on, or a list of images or paths, which are brought '
        f'to that size; got {images.dtype} {list(images.shape)}.'
    )
  return image_data.Images(images)


def _read(path):
  """Returns images of a file or folder, and their names."""
  if not path.exists():
    raise FileNotFoundError(f'there is no file or folder {path}.')
  if path.suffix == '.npy':
    images = arrays.load(path)
    return images, [str(i) for i in range(len(images))]
  if path.is_file():
    return [path], [path.name]
  files = image_folder.find_images(path)
  if not files:
    raise FileNotFoundError(f'{path} holds no images.')
  return files, [x.relative_to(path).as_posix() for x in files]
