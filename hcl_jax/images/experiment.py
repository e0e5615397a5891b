# SPDX-License-Identifier: Apache-2.0
"""Makes the experiment that a configuration of images describes."""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import functools
import sys
from typing import Any
from typing import NamedTuple

import jax
import ml_collections
import numpy as np

from hcl_jax.images import collecting
from hcl_jax.images import config as image_config
from hcl_jax.images import data as image_data
from hcl_jax.images import encode
from hcl_jax.images import evaluate
from hcl_jax.images import inspect
from hcl_jax.images import task as image_tasks
from hcl_jax.runs import processes
from hcl_jax.storage import sources
from hcl_jax.training import config as config_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import own_code
from hcl_jax.training import task as task_lib


class Data(NamedTuple):
  """Holds the images of an experiment.

  Attributes:
    train: images to train on.
    bank: labeled images that kNN and linear probes learn from.
    test: labeled images that they are scored on.
  """

  train: image_data.Images
  bank: image_data.Images
  test: image_data.Images


def prepare(
    config: ml_collections.ConfigDict,
    *,
    to_train: bool = True,
    like: experiment_lib.Experiment | None = None,
    data: Any = None,
) -> experiment_lib.Experiment:
  """Opens the data of a checked configuration, or those of ``like``.

  A run on images without any label is not scored.

  Args:
    config: the whole configuration.
    to_train: as in ``domains.make_experiment``.
    like: likewise.
    data: images at hand, as ``collecting.collect`` takes them.
  """
  if to_train:
    image_config.check_devices(config, jax.device_count())
  if like:
    found = like.data
  else:
    found = _load(config.data) if data is None else _collect(config.data, data)
  image_config.check_batch(config, len(found.train))
  labels = {
      getattr(config.data, f'{part}_split'): images.labels
      for part, images in found._asdict().items()
  }
  has_labels = any(np.any(x >= 0) for x in labels.values())
  if to_train and image_config.is_scored(config) and not has_labels:
    if processes.is_first() and not like:
      print(
          f'{config.data.name} has no labels: it is not scored by kNN or '
          'linear probes.',
          file=sys.stderr,
      )
    config = image_config.without_scores(config)
  image_config.check_labels(config, labels)
  experiment = from_images(config, found)
  if like:
    return dataclasses.replace(experiment, inputs=like.inputs)
  if data is None:
    return experiment
  arrays = (x for part in found for x in (part.array, part.labels))
  return dataclasses.replace(
      experiment,
      inputs={**experiment.inputs, 'data_digest': sources.digest(arrays)},
  )


def from_images(
    config: ml_collections.ConfigDict,
    data: Data,
    make_task: Callable[..., task_lib.Task] = image_tasks.create,
) -> experiment_lib.Experiment:
  """Makes the experiment of a checked configuration on images at hand.

  Its ``data.name`` is only a name.

  Raises:
    ValueError: the encoder does not take the images.
  """
  example = data.train.rows(np.zeros(1, np.int32))
  image_config.check_size(config, example.shape[1:])
  if own_code.named(config):
    image_tasks.check_encoder(config, example.shape[1:])
  size = config.data.batch_size
  per_epoch = image_data.steps_per_epoch(len(data.train), size)
  total = config_lib.total_steps(config, per_epoch)
  make_task = functools.partial(
      make_task, total_steps=total, steps_per_epoch=per_epoch
  )
  return experiment_lib.Experiment(
      config=config,
      make_task=make_task,
      example={'image': example},
      batches=functools.partial(_batches, config, data.train),
      evaluators=evaluate.make(
          config, make_task(config), bank=data.bank, test=data.test
      ),
      protocols=tuple(config.evaluate.protocols),
      score=image_config.SCORE,
      steps_per_epoch=per_epoch,
      rows_per_step=size,
      unit='images',
      summary=(
          f'{config.data.name}: {total} steps of {size} images, seed '
          f'{config.seed}; {len(data.test)} test images'
      ),
      sample=inspect.sample,
      data=data,
      num_scored=len(data.test),
      inputs=encode.inputs(data.train),
  )


def _batches(config, images, first_step, num_steps):
  """Yields this process's rows of batches."""
  return image_data.batches(
      images,
      seed=config.seed,
      batch_size=config.data.batch_size,
      first_step=first_step,
      num_steps=num_steps,
      process_index=jax.process_index(),
      process_count=jax.process_count(),
      true_label_positives=config.data.true_label_positives,
  )


def _collect(data, given) -> Data:
  """Takes the splits of a configuration from images at hand."""
  splits = collecting.collect(given)
  names = data.train_split, data.bank_split, data.test_split
  if not isinstance(given, Mapping):
    names = 'train', 'train', 'test'
  for name in names:
    if name not in splits:
      raise ValueError(
          f'data has no split {name!r}, only {", ".join(map(repr, splits))}; '
          'give it, or set config.data.train_split, bank_split and test_split.'
      )
  return Data(*(splits[name] for name in names))


def _load(data) -> Data:
  """Loads each split once, whatever it is used for."""
  names = data.train_split, data.bank_split, data.test_split
  splits = {
      split: image_data.load(
          data.name,
          split,
          data_dir=data.dir or None,
          max_bytes_in_memory=int(data.max_gib_in_memory * 2**30),
      )
      for split in dict.fromkeys(names)
  }
  return Data(*(splits[name] for name in names))
