# SPDX-License-Identifier: Apache-2.0
"""Makes the experiment that a configuration of images describes."""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
import ml_collections
import numpy as np

from hcl_jax.images import config as image_config
from hcl_jax.images import data as image_data
from hcl_jax.images import encode
from hcl_jax.images import evaluate
from hcl_jax.images import inspect
from hcl_jax.images import task as image_tasks
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
) -> experiment_lib.Experiment:
  """Opens the data of a checked configuration, or those of ``like``.

  ``domains.make_experiment`` says more.
  """
  if to_train:
    image_config.check_devices(config, jax.device_count())
  data = like.data if like else _load(config.data)
  image_config.check_batch(config, len(data.train))
  labels = {
      getattr(config.data, f'{part}_split'): images.labels
      for part, images in data._asdict().items()
  }
  image_config.check_labels(config, labels)
  return from_images(config, data)


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
