# SPDX-License-Identifier: Apache-2.0
"""Reads the records of a prepared data set, at random and in threads."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
import io
import json
import os
import pathlib
import tempfile
from typing import Any
from typing import TypeVar
import zipfile

from absl import logging
import numpy as np
from PIL import Image

_CHUNK = 512
# A folder beside the records; safe to delete.
_CACHE = 'hcl_jax_cache'

Item = TypeVar('Item')
Result = TypeVar('Result')


class DamagedData(OSError):
  """Raised when a file of a data set is missing, cut off or altered."""


class Records:
  """Reads the images of a split of a prepared data set.

  Attributes:
    image_shape: (height, width, 3).
    class_names: names of the classes; empty without labels.
  """

  def __init__(self, directory: pathlib.Path, split: str):
    """Opens ``directory`` (``data_dir/name[/config]/version``)."""
    builder = open_builder(directory)
    self._directory, self._split = directory, split
    self._image, self._label = _keys(builder.info)
    features = builder.info.features
    self.image_shape = _image_shape(features[self._image])
    self.class_names: tuple[str, ...] = ()
    if self._label:
      self.class_names = tuple(features[self._label].names)
    import tensorflow_datasets as tfds

    self._source = open_split(
        builder, split, decoders={self._image: tfds.decode.SkipDecoding()}
    )

  def __len__(self) -> int:
    return len(self._source)

  def images(self, indices: Sequence[int]) -> np.ndarray:
    """Reads images, uint8 ``[len(indices), height, width, 3]``."""
    images = np.empty((len(indices), *self.image_shape), np.uint8)
    self._read_images(indices, images)
    return images

  def all_images(self) -> tuple[np.ndarray, np.ndarray]:
    """Reads all images, uint8 ``[n, height, width, 3]``, and labels."""
    shape = len(self), *self.image_shape
    images = self._cached('images', shape, np.uint8, self._read_images)
    return images, self.all_labels()

  def all_labels(self) -> np.ndarray:
    """Reads all labels, int32 ``[n]``, -1 for none."""
    if not self._label:
      return np.full(len(self), -1, np.int32)
    shape = (len(self),)
    return self._cached('labels', shape, np.int32, self._read_labels)

  def _read_images(self, rows: Sequence[int], out: np.ndarray) -> None:
    for i, record in enumerate(self._source.__getitems__(rows)):
      try:
        image = _decode(record[self._image])
      except (OSError, ValueError, SyntaxError) as error:
        raise _damaged(self._directory, self._directory, error) from error
      out[i] = image

  def _read_labels(self, rows: Sequence[int], out: np.ndarray) -> None:
    records = self._source.__getitems__(rows)
    out[:] = [record[self._label] for record in records]

  def _cached(self, kind, shape, dtype, read) -> np.ndarray:
    """Reads all rows, kept in a file unless the split is a part of one."""
    is_whole = '[' not in self._split
    path = self._directory / _CACHE / f'{self._split}_{kind}.npz'
    array = _load(path) if is_whole else None
    if array is not None and array.shape == shape:
      return array
    array = np.empty(shape, dtype)
    Image.preinit()  # Not safe to be left to the threads.
    chunks = [
        range(first, min(first + _CHUNK, len(self)))
        for first in range(0, len(self), _CHUNK)
    ]
    parts = [array[rows.start : rows.stop] for rows in chunks]
    with futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
      for _ in pool.map(read, chunks, parts):
        pass
    if is_whole:
      _save(path, array)
    return array


def map_ahead(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    num_threads: int = 1,
    num_ahead: int = 3,
) -> Iterator[Result]:
  """Yields ``function(item)`` in order, computed ahead in threads.

  At most ``num_ahead`` results wait to be taken. Closing the iterator (or
  dropping it) ends the threads; an exception in the function reaches the caller
  at the item's turn.
  """
  pending = collections.deque()
  with futures.ThreadPoolExecutor(num_threads) as pool:
    try:
      for item in items:
        pending.append(pool.submit(function, item))
        if len(pending) > num_ahead:
          yield pending.popleft().result()
      while pending:
        yield pending.popleft().result()
    finally:
      for future in pending:
        future.cancel()


def open_builder(directory: pathlib.Path) -> Any:
  """Opens the tfds builder of a prepared data set; checks its format."""
  check_format(directory)
  import tensorflow_datasets as tfds  # Half a second, so only when needed.

  try:
    return tfds.builder_from_directory(directory)
  except Exception as error:  # Damaged files surface as any of them.
    raise _damaged(directory, directory, error) from error


def open_split(builder: Any, split: str, **options: Any) -> 'Source':
  """Opens the records of a split; raises ValueError if there is none such."""
  try:
    return Source(builder, split, builder.as_data_source(split, **options))
  except (ValueError, KeyError, AssertionError) as error:
    raise ValueError(
        f'{builder.info.full_name} has the splits '
        f'{", ".join(builder.info.splits)}, to be used as in '
        f"'train[:90%]' or 'train+test'; got {split!r}."
    ) from error


class Source:
  """Reads records of a split by number; DamagedData names a bad file."""

  def __init__(self, builder: Any, split: str, source: Any):
    self._builder, self._split, self._source = builder, split, source

  def __len__(self) -> int:
    return len(self._source)

  def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
    try:
      return self._read(rows)
    except MemoryError:
      raise
    except Exception as error:  # Damaged bytes surface as any of them.
      file = self._file_of(self._first_unreadable(rows))
      directory = pathlib.Path(self._builder.data_path)
      raise _damaged(file, directory, error) from error

  def _read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
    records = self._source.__getitems__([int(row) for row in rows])
    # What a file has lost of its end is read as if it were empty.
    if any(all(x is None for x in record.values()) for record in records):
      raise EOFError('a record is empty')
    return records

  def _first_unreadable(self, rows: Sequence[int]) -> int:
    for row in rows:
      try:
        self._read([row])
      except Exception:
        return row
    return rows[-1]

  def _file_of(self, row: int) -> str:
    files = self._builder.info.splits[self._split].file_instructions
    ends = np.cumsum([file.take for file in files])
    return files[np.searchsorted(ends, row, side='right')].filename


def check_format(directory: pathlib.Path) -> None:
  """Raises ValueError unless a prepared data set is in array_record files."""
  path = directory / 'dataset_info.json'
  try:
    found = json.loads(path.read_text()).get('fileFormat', 'tfrecord')
  except (ValueError, AttributeError) as error:
    raise _damaged(path, directory, error) from error
  if found != 'array_record':
    raise ValueError(
        f'{directory} holds {found} files, which have no random access; '
        'prepare the data set once more, in array_record, with python -m '
        'hcl_jax.prepare and another --data_dir.'
    )


def check_features(info: Any) -> None:
  """Raises ValueError unless a data set has images that Records can read."""
  image, _ = _keys(info)
  _image_shape(info.features[image])


def _keys(info: Any) -> tuple[str, str | None]:
  """Returns the names of the image and the label feature, or None."""
  import tensorflow_datasets as tfds

  images = _of_kind(info, tfds.features.Image)
  labels = _of_kind(info, tfds.features.ClassLabel)
  if not images:
    raise ValueError(
        f'{info.full_name} has no images, only {", ".join(info.features)}.'
    )
  image = 'image' if 'image' in images else images[0]
  label = 'label' if 'label' in labels else next(iter(labels), None)
  return image, label


def _of_kind(info: Any, kind: type) -> list[str]:
  return [k for k, v in info.features.items() if isinstance(v, kind)]


def _image_shape(feature: Any) -> tuple[int, int, int]:
  height, width, _ = feature.shape
  if feature.np_dtype != np.uint8 or not (height and width):
    raise ValueError(
        f'images must be uint8 and of one size, got {feature}; save them to '
        'a folder and prepare that with python -m hcl_jax.prepare '
        '--dataset=NAME --images=FOLDER --image_size=SIZE.'
    )
  return height, width, 3


def _decode(encoded: bytes) -> np.ndarray:
  with Image.open(io.BytesIO(encoded)) as image:
    return np.asarray(image if image.mode == 'RGB' else image.convert('RGB'))


def _damaged(
    path: str | os.PathLike, directory: pathlib.Path, error: Exception
) -> DamagedData:
  line = (str(error).strip().splitlines() or [''])[0][:200]
  return DamagedData(
      f'{path} is damaged ({line}); delete {directory} and prepare the data '
      'set once more.'
  )


def _load(path: pathlib.Path) -> np.ndarray | None:
  """Reads an array; returns None if it is absent or damaged."""
  if not path.is_file():
    return None
  try:
    # numpy leaves a damaged file open.
    with open(path, 'rb') as raw, np.load(raw, allow_pickle=False) as file:
      return file['array']
  except (
      OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile
  ) as error:  # fmt: skip
    logging.warning('%s is damaged (%s) and made anew.', path, error)
    return None


def _save(path: pathlib.Path, array: np.ndarray) -> None:
  """Writes an array in one rename, or nothing where that is not possible."""
  try:
    path.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
      np.savez(file, array=array)  # unlike npy, with a checksum
    os.replace(file.name, path)
  except OSError:
    pass
