# SPDX-License-Identifier: Apache-2.0
"""What a configuration stands for: data, lengths, task and optimizer."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import jax
import ml_collections
import numpy as np
import optax

from hcl_jax.images import config as image_config
from hcl_jax.images import data as image_data
from hcl_jax.images import evaluate as readout
from hcl_jax.images import task as image_tasks
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import optimizer as optimizer_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib


def parts_of(
    config: ml_collections.ConfigDict, total_steps: int, steps_per_epoch: int
) -> dict[str, Any]:
  """The parts of an experiment that numbers which may be traced enter.

  Args:
    config: the whole configuration.
    total_steps: length of the run.
    steps_per_epoch: steps of an epoch.

  Returns:
    ``task``, ``learning_rate`` and ``optimizer``.
  """
  schedule = optimizer_lib.learning_rate(
      config.optimizer, total_steps, steps_per_epoch
  )
  return {
      'task': image_tasks.create(
          config, total_steps=total_steps, steps_per_epoch=steps_per_epoch
      ),
      'learning_rate': schedule,
      'optimizer': optimizer_lib.create(config.optimizer, schedule),
  }


class Experiment(NamedTuple):
  """All that a run on images needs; making one has checked all that can be.

  Attributes:
    config: the configuration.
    train: images to train on.
    bank: labelled images that kNN and the linear readout learn from.
    test: labelled images that they are scored on.
    steps_per_epoch: full batches of ``train``.
    total_steps: length of the run.
    task: model, views and loss.
    learning_rate: by step.
    optimizer: with that learning rate.
    make_parts: as :func:`parts_of`, makes some of the parts anew.
  """

  config: ml_collections.ConfigDict
  train: image_data.Images
  bank: image_data.Images
  test: image_data.Images
  steps_per_epoch: int
  total_steps: int
  task: task_lib.Task
  learning_rate: optax.Schedule
  optimizer: optax.GradientTransformation
  make_parts: Callable[..., dict[str, Any]] = parts_of

  unit = 'images'
  score = image_config.SCORE

  @property
  def rows_per_step(self) -> int:
    return self.config.data.batch_size

  @property
  def protocols(self) -> tuple[str, ...]:
    return tuple(self.config.evaluate.protocols)

  @property
  def devices(self) -> list[jax.Device]:
    """Those that rows of this process go to."""
    return jax.local_devices()

  def create_state(self) -> state_lib.TrainState:
    """The state before the first step, on every device of every process."""
    rows = {'image': self.train.rows(np.zeros(1, np.int32))}
    state = self.rules().create_state(rows)
    return state_lib.replicate(state, state_lib.all_devices())

  def rules(self) -> step_lib.Rules:
    return step_lib.configured_rules(self.task, self.optimizer, self.config)

  def make_step(self) -> step_lib.Step:
    """The function that trains on one batch, with knobs as arguments."""
    return step_lib.make_step(
        lambda knobs: self.with_knobs(knobs).rules(),
        knobs=config_lib.hyperparameters(self.config),
        microbatch_size=self.config.train.microbatch_size or None,
        devices=state_lib.all_devices(),
    )

  def with_knobs(self, knobs: step_lib.Knobs) -> 'Experiment':
    """The experiment with other, perhaps traced, values of some fields."""
    config = fields_lib.with_values(self.config, knobs)
    parts = self.make_parts(config, self.total_steps, self.steps_per_epoch)
    return self._replace(config=config, **parts)

  def batches(
      self, first_step: int, num_steps: int
  ) -> Iterator[dict[str, np.ndarray]]:
    """This process's rows of batches first_step, first_step + 1, ..."""
    return image_data.batches(
        self.train,
        seed=self.config.seed,
        batch_size=self.config.data.batch_size,
        first_step=first_step,
        num_steps=num_steps,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        true_label_positives=self.config.data.true_label_positives,
    )

  def reader(self, poll: Callable[[], None] = lambda: None) -> readout.Reader:
    """What evaluates; ``poll`` is called on the way and may raise."""
    return readout.Reader(
        self.config, self.task, bank=self.bank, test=self.test, poll=poll
    )

  def summary(self) -> str:
    """One line on what was trained and how it is scored."""
    config = self.config
    return (
        f'{config.data.name}: {self.total_steps} steps of '
        f'{config.data.batch_size} images, seed {config.seed}; '
        f'{len(self.test)} test images'
    )


def prepare(
    config: ml_collections.ConfigDict, *, to_train: bool = True
) -> Experiment:
  """Opens the data of a checked configuration; writes nothing of a run."""
  if to_train:
    image_config.check_devices(config, jax.device_count())
  splits = _load(config.data)
  train = splits[config.data.train_split]
  image_config.check_batch(config, len(train))
  per_epoch = image_data.steps_per_epoch(len(train), config.data.batch_size)
  total = config.train.steps or config.train.epochs * per_epoch
  labels = {name: images.labels for name, images in splits.items()}
  image_config.check_labels(config, labels)
  return Experiment(
      config=config,
      train=train,
      bank=splits[config.data.bank_split],
      test=splits[config.data.test_split],
      steps_per_epoch=per_epoch,
      total_steps=total,
      **parts_of(config, total, per_epoch),
  )


def _load(data) -> dict[str, image_data.Images]:
  """Each split once, whatever it is used for."""
  return {
      split: image_data.load(
          data.name,
          split,
          data_dir=data.dir or None,
          max_bytes_in_memory=int(data.max_gib_in_memory * 2**30),
      )
      for split in {data.train_split, data.bank_split, data.test_split}
  }
