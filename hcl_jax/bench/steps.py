# SPDX-License-Identifier: Apache-2.0
"""Builds the train step of an image encoder on random images."""

from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

from absl import flags
import jax
import ml_collections
import numpy as np
import optax

from hcl_jax import command as command_lib
from hcl_jax.bench import options
from hcl_jax.images import config as image_config
from hcl_jax.images import data as image_data
from hcl_jax.images import task as image_tasks
from hcl_jax.training import optimizer as optimizer_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib

NETWORKS = flags.DEFINE_list(
    'networks', [],
    'Encoders, of resnet10, resnet18, resnet50 and small; by default resnet18 '
    'and, in train, resnet50.',
)  # fmt: skip
BATCH = flags.DEFINE_integer('step_batch', 64, 'Images per step.')
STEM = flags.DEFINE_enum(
    'stem', 'cifar', ('cifar', 'strided'),
    'First convolution of ResNets: of stride 1 (cifar) or 2 (strided).',
)  # fmt: skip
_KNOWN = ('resnet10', 'resnet18', 'resnet50', 'small')
_IMAGES = 4096  # random bytes: what they show does not matter here


class Setting(NamedTuple):
  """Holds what a network is trained by and on.

  Attributes:
    config: the released configuration with this network and batch.
    task: model, views and loss.
    optimizer: the released one.
    batches: of random images, without end.
  """

  config: ml_collections.ConfigDict
  task: task_lib.Task
  optimizer: optax.GradientTransformation
  batches: Iterator[dict[str, np.ndarray]]


def prepare(network: str, batch: int) -> Setting:
  """Makes the setting of a network with so many images per step."""
  config = config_for(network, batch)
  return Setting(
      config,
      image_tasks.create(config, total_steps=1000, steps_per_epoch=100),
      optimizer_lib.create(
          config.optimizer, lambda _: config.optimizer.learning_rate
      ),
      image_data.batches(
          random_images(),
          seed=0,
          batch_size=batch,
          first_step=0,
          num_steps=10**9,
      ),
  )


def config_for(network: str, batch: int) -> ml_collections.ConfigDict:
  """Returns the released configuration with another encoder and batch."""
  config = image_config.simclr()
  config.model.name = network
  if network != 'small':
    config.model.stem = STEM.value
  config.data.batch_size = batch
  return config


def random_images() -> image_data.Images:
  rng = np.random.default_rng(0)
  shape = (_IMAGES, 32, 32, 3)
  return image_data.Images(
      rng.integers(0, 256, shape, np.uint8), np.zeros(_IMAGES, np.int32)
  )


class Step:
  """Takes a train step on the same batch whenever it is called.

  Args:
    task: model, views and loss.
    optimizer: the optimizer.
    batch: rows of all devices.

  Attributes:
    state: the train state after the last call.
  """

  def __init__(
      self,
      task: task_lib.Task,
      optimizer: optax.GradientTransformation,
      batch: dict[str, np.ndarray],
  ):
    rules = step_lib.Rules(task, optimizer, seed=0)
    self._take = step_lib.make_step(
        lambda _: rules, devices=jax.local_devices()
    )
    self._batch = batch
    state = state_lib.create(
        task, optimizer, {'image': batch['image'][:1]}, seed=0
    )
    self.state = jax.device_put(state, state_lib.replicated())

  def __call__(self) -> Any:
    """Takes one step; returns its metrics when they are there."""
    self.state, metrics = self._take({}, self.state, self._batch)
    return jax.block_until_ready(metrics)


def read_networks(default: list[str]) -> list[str]:
  """Returns the networks of the flag, or the default."""
  for name in NETWORKS.value:
    if name not in _KNOWN:
      known = ', '.join(_KNOWN)
      raise command_lib.UsageError(
          f'--networks must be among {known}; got {name!r}.'
      )
  return NETWORKS.value or default


def check_batch(flag: flags.FlagHolder) -> None:
  """Raises UsageError unless a batch has negatives and fits the devices."""
  options.at_least(flag, 2)
  devices = jax.local_device_count()
  if flag.value % devices:
    raise command_lib.UsageError(
        f'--{flag.name} must be a multiple of {devices} devices, got '
        f'{flag.value}.'
    )
