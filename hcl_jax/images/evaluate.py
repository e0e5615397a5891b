# SPDX-License-Identifier: Apache-2.0
"""Evaluation protocols on the features of a train state."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import ml_collections
import numpy as np

from hcl_jax import evaluation
from hcl_jax.images import data as image_data
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib


class Reader:
  """Computes features of whole sets, compiled once.

  Each process reads out everything, on its own devices.

  Args:
    config: the whole configuration.
    task: has the features.
    bank: labeled images that kNN and linear probes learn of.
    test: labeled images that they are scored on.
    poll: called before every batch; raises to leave early.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: task_lib.Task,
      *,
      bank: image_data.Images,
      test: image_data.Images,
      poll: Callable[[], None] = lambda: None,
  ):
    self._config, self._bank, self._test = config, bank, test
    self._poll = poll
    self._devices = jax.local_device_count()
    self._plain = step_lib.make_features(task)
    self._augmented = step_lib.make_augmented_features(task, config.seed)

  def evaluate(
      self, state: state_lib.TrainState, protocols: tuple[str, ...]
  ) -> experiment_lib.Scores:
    """Scores by ``protocol/measure``, between 0 and 1."""
    state = state_lib.local(state)
    bank, test = self._bank, self._test
    config = self._config.evaluate
    test_features = self.features(state, test)
    cached = tuple(p for p in protocols if p != 'linear_released')
    scores = {}
    if cached:
      bank_features = self.features(state, bank)
      scores |= evaluate_features(
          (bank_features, test_features), (bank, test), config, cached
      )
    if 'linear_released' in protocols:
      scores |= self._linear_released(state, test_features)
    return scores

  def features(
      self, state: state_lib.TrainState, images: image_data.Images
  ) -> np.ndarray:
    """Features ``[n, dim]`` in evaluation mode."""
    state = state_lib.local(state)
    params, size = state_lib.evaluated_params(state), self._batch_size()
    parts = []
    for rows in _row_blocks(np.arange(len(images)), size):
      self._poll()
      batch = self._padded({'image': images.rows(rows)}, size)
      out = self._plain(params, state.task_state, batch)
      parts.append(_joined(out)[: len(rows)])
    return np.concatenate(parts)

  def _linear_released(self, state, test_features) -> experiment_lib.Scores:
    """The readout on augmented images, new ones in every epoch."""
    config, bank = self._config.evaluate, self._bank
    size = config.linear_batch_size
    size += -size % self._devices
    params = state_lib.evaluated_params(state)

    def epoch_batches(epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
      rng = np.random.default_rng([self._config.seed, epoch])
      order = rng.permutation(len(bank))
      for rows in _row_blocks(order, config.linear_batch_size):
        self._poll()
        batch = {'image': bank.rows(rows), 'index': np.int32(rows)}
        out = self._augmented(
            params, state.task_state, self._padded(batch, size), epoch
        )
        yield _joined(out)[: len(rows)], bank.labels[rows]

    result = evaluation.linear_accuracy_from_batches(
        epoch_batches,
        test_features,
        self._test.labels,
        num_classes=bank.num_classes,
        **_linear_recipe(config),
    )
    return _linear_scores('linear_released', result)

  def _batch_size(self) -> int:
    size = self._config.evaluate.batch_size
    return size + -size % self._devices

  def _padded(self, batch: dict[str, np.ndarray], size: int) -> Any:
    batch = {
        name: np.pad(x, [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1))
        for name, x in batch.items()
    }
    return step_lib.split_rows(batch, self._devices)


def evaluate_features(
    features: tuple[np.ndarray, np.ndarray],
    images: tuple[image_data.Images, image_data.Images],
    config: ml_collections.ConfigDict,
    protocols: tuple[str, ...],
) -> experiment_lib.Scores:
  """Scores cached features by kNN and a linear readout.

  Args:
    features: of the images to learn from and of those to score.
    images: both sets, for their labels.
    config: ``config.evaluate``.
    protocols: of ``'knn'`` and ``'linear'``.

  Returns:
    Scores by ``protocol/measure``, between 0 and 1.
  """
  bank, test = images
  data = features[0], bank.labels, features[1], test.labels
  scores = {}
  if 'knn' in protocols:
    result = evaluation.knn_accuracy(
        *data,
        num_classes=bank.num_classes,
        k=config.knn_k,
        temperature=config.knn_temperature,
    )
    scores |= {f'knn/{name}': value for name, value in result.items()}
  if 'linear' in protocols:
    result = evaluation.linear_accuracy(
        *data,
        num_classes=bank.num_classes,
        batch_size=config.linear_batch_size,
        standardize=config.linear_standardize,
        **_linear_recipe(config),
    )
    scores |= _linear_scores('linear', result)
  return scores


def raw_pixels(images: image_data.Images) -> np.ndarray:
  """Pixels as features, ``[n, height * width * 3]``."""
  pixels = images.rows(np.arange(len(images)))
  return pixels.reshape(len(pixels), -1).astype(np.float32) / 255


def _linear_recipe(config) -> dict[str, Any]:
  return {
      'epochs': config.linear_epochs,
      'optimizer': config.linear_optimizer,
      'learning_rate': config.linear_learning_rate,
      'weight_decay': config.linear_weight_decay,
      'decay_epochs': config.linear_decay_epochs,
      'seeds': config.linear_seeds,
  }


def _linear_scores(protocol, result) -> experiment_lib.Scores:
  scores = {f'{protocol}/{name}': result[name] for name in ('top1', 'top5')}
  if len(result['per_seed']) > 1:
    for one in result['per_seed']:
      scores[f'{protocol}/top1_seed{one["seed"]}'] = one['top1']
  return scores


def _row_blocks(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
  for start in range(0, len(rows), size):
    yield rows[start : start + size]


def _joined(x: jax.Array) -> np.ndarray:
  """Merges the axes of devices and rows."""
  return np.asarray(x).reshape(-1, x.shape[-1])
