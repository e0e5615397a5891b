# SPDX-License-Identifier: Apache-2.0
"""Batches in an order that is a function of (seed, step) alone."""

from collections.abc import Iterator
import functools

import numpy as np

from hcl_jax.images import data as images_lib
from hcl_jax.storage import records

Batch = dict[str, np.ndarray]

_READ_THREADS = 8


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
  """Full batches of an epoch; the rest of its permutation is dropped."""
  if batch_size < 1:
    raise ValueError(f'batch_size must be at least 1, got {batch_size}.')
  if batch_size > num_examples:
    raise ValueError(
        f'batch_size must be at most the number of images, {num_examples}, '
        f'got {batch_size}.'
    )
  return num_examples // batch_size


def batches(
    images: images_lib.Images,
    *,
    seed: int,
    batch_size: int,
    first_step: int,
    num_steps: int,
    process_index: int = 0,
    process_count: int = 1,
    true_label_positives: bool = False,
) -> Iterator[Batch]:
  """This process's rows of batches first_step, first_step + 1, ...

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
  steps_per_epoch(images.num_examples, batch_size)
  _check_steps(seed, first_step, num_steps)
  rows = _local_rows(batch_size, process_index, process_count)
  partners = _Classes(images.labels) if true_label_positives else None
  permutation = functools.lru_cache(maxsize=2)(
      lambda epoch: _permutation(images.num_examples, seed, epoch)
  )

  def make(step: int) -> Batch:
    index = _batch_indices(permutation, images.num_examples, batch_size, step)
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
    return records.map_ahead(make, steps)
  return _read_with_grain(make, steps)


def _permutation(num_examples, seed, epoch):
  rng = np.random.default_rng([seed, epoch])
  return rng.permutation(num_examples).astype(np.int32)


def _batch_indices(permutation, num_examples, batch_size, step):
  epoch, number = divmod(step, num_examples // batch_size)
  return permutation(epoch)[number * batch_size : (number + 1) * batch_size]


class _Classes:
  """The rows of each class."""

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
    """For every row of index, a row of its class."""
    label = self._labels[index]
    place = (rng.random(len(index)) * self._counts[label]).astype(np.int64)
    return self._rows[self._starts[label] + place]


def _read_with_grain(make, steps):
  """make(step) for every step, read ahead in grain's threads."""
  import grain  # Only streamed sets need it.

  dataset = grain.MapDataset.range(steps.start, steps.stop).map(make)
  options = grain.ReadOptions(
      num_threads=_READ_THREADS, prefetch_buffer_size=_READ_THREADS
  )
  return iter(dataset.to_iter_dataset(options))


def _check_steps(seed, first_step, num_steps):
  for name, value in (
      ('seed', seed), ('first_step', first_step), ('num_steps', num_steps)
  ):  # fmt: skip
    if value < 0:
      raise ValueError(f'{name} must be 0 or more, got {value}.')


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
