# SPDX-License-Identifier: Apache-2.0
"""Loads images of a prepared data set, in memory or streamed, and batches."""

from collections.abc import Iterator
from collections.abc import Sequence
import functools
import os

import numpy as np

from hcl_jax.images import digit_scenes
from hcl_jax.storage import locations
from hcl_jax.storage import records as records_lib

Batch = dict[str, np.ndarray]

_READ_THREADS = 8


class Images:
  """Images and labels of a split of a data set.

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
    """Takes images in memory, uint8 ``[n, height, width, 3]``, or records."""
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
    """Returns images of rows, uint8 ``[len(indices), height, width, 3]``."""
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
  """Loads a split of a prepared data set; never uses the network.

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
  root = locations.data_dir(data_dir)
  full_name = digit_scenes.full_name(name)
  can_be_drawn = full_name.startswith('digit_scenes/')
  if can_be_drawn and locations.find(full_name, root) is None:
    _prepare_digit_scenes(full_name, root)
  records = records_lib.Records(locations.require(full_name, root), split)
  num_bytes = len(records) * int(np.prod(records.image_shape))
  if num_bytes <= max_bytes_in_memory:
    images, labels = records.all_images()
  else:
    images, labels = records, records.all_labels()
  return Images(images, labels, records.class_names)


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
  """Returns the full batches of an epoch; the rest of it is dropped."""
  if batch_size < 1:
    raise ValueError(f'batch_size must be at least 1, got {batch_size}.')
  if batch_size > num_examples:
    raise ValueError(
        f'batch_size must be at most the number of images, {num_examples}, '
        f'got {batch_size}.'
    )
  return num_examples // batch_size


def batches(
    images: Images,
    *,
    seed: int,
    batch_size: int,
    first_step: int,
    num_steps: int,
    process_index: int = 0,
    process_count: int = 1,
    true_label_positives: bool = False,
) -> Iterator[Batch]:
  """Yields this process's rows of batches first_step, first_step + 1, ...

  Every epoch goes through a new permutation of the images and drops its
  incomplete last batch. Batches are made ahead in threads; closing the
  iterator (or dropping it) ends them.

  Args:
    images: the data.
    seed: >= 0; with the step it determines the batch.
    batch_size: rows over all processes.
    first_step: number of the first batch; any step costs the same.
    num_steps: number of batches.
    process_index: number of this process.
    process_count: number of processes; their rows in order are the batch that
      a single process would get.
    true_label_positives: give every row a second image, drawn uniformly from
      the images of its class (itself included).

  Returns:
    Batches: ``image`` uint8 ``[b, height, width, 3]``, ``label`` int32
    ``[b]`` (-1 for none), ``index`` int32 ``[b]``, the row in the split, and
    with true_label_positives ``positive``, of the shape of ``image``, where
    b = batch_size / process_count.
  """
  per_epoch = steps_per_epoch(images.num_examples, batch_size)
  for name, value in (
      ('seed', seed), ('first_step', first_step), ('num_steps', num_steps)
  ):  # fmt: skip
    if value < 0:
      raise ValueError(f'{name} must be 0 or more, got {value}.')
  rows = _local_rows(batch_size, process_index, process_count)
  partners = _Classes(images.labels) if true_label_positives else None

  @functools.lru_cache(maxsize=2)
  def permutation(epoch: int) -> np.ndarray:
    rng = np.random.default_rng([seed, epoch])
    return rng.permutation(images.num_examples).astype(np.int32)

  def make(step: int) -> Batch:
    epoch, number = divmod(step, per_epoch)
    index = permutation(epoch)[number * batch_size : (number + 1) * batch_size]
    batch = {
        'image': images.rows(index[rows]),
        'label': images.labels[index[rows]],
        'index': index[rows],
    }
    if partners:
      positive = partners.draw(index, np.random.default_rng([seed, step, 1]))
      batch['positive'] = images.rows(positive[rows])
    return batch

  steps = range(first_step, first_step + num_steps)
  if images.in_memory:
    return records_lib.map_ahead(make, steps)
  return _read_with_grain(make, steps)


def _prepare_digit_scenes(full_name, directory):
  from hcl_jax.images import prepare  # Slow to import, and seldom needed.

  _, config, version = locations.parse(full_name)
  configs = [c.name for c in prepare.DigitScenes.BUILDER_CONFIGS]
  if config not in configs or version != digit_scenes.VERSION:
    raise ValueError(
        f'digit_scenes has the configs {", ".join(configs)} and the version '
        f'{digit_scenes.VERSION}; got {config}, {version}.'
    )
  drawing = prepare.DigitScenes(
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


class _Classes:
  """Finds rows of each class."""

  def __init__(self, labels):
    if labels.min() < 0:
      raise ValueError(
          'true_label_positives needs a label for every image, but '
          f'{np.sum(labels < 0)} of {len(labels)} have none.'
      )
    self._labels = labels
    self._rows = np.argsort(labels, kind='stable').astype(np.int32)
    self._counts = np.bincount(labels)
    self._starts = np.cumsum(self._counts) - self._counts

  def draw(self, index, rng):
    """Returns a row of its class for every row of index."""
    label = self._labels[index]
    place = (rng.random(len(index)) * self._counts[label]).astype(np.int64)
    return self._rows[self._starts[label] + place]


def _read_with_grain(make, steps):
  """Yields make(step) for every step, read ahead in grain's threads."""
  import grain  # Only streamed sets need it.

  dataset = grain.MapDataset.range(steps.start, steps.stop).map(make)
  options = grain.ReadOptions(
      num_threads=_READ_THREADS, prefetch_buffer_size=_READ_THREADS
  )
  return iter(dataset.to_iter_dataset(options))


def _local_rows(batch_size, process_index, process_count):
  if not 0 <= process_index < process_count:
    raise ValueError(
        f'process_index must be one of {process_count} processes, got '
        f'{process_index}.'
    )
  if batch_size % process_count:
    raise ValueError(
        f'batch_size must be a multiple of the number of processes, '
        f'{process_count}, got {batch_size}.'
    )
  local = batch_size // process_count
  return slice(process_index * local, (process_index + 1) * local)
