# SPDX-License-Identifier: Apache-2.0
"""Evaluates features of images by kNN and linear probes."""

from collections.abc import Iterator
import functools
from typing import Any
from typing import Protocol
import weakref

import jax
import ml_collections
import numpy as np

from hcl_jax import evaluation
from hcl_jax.images import data as image_data
from hcl_jax.runs import scores as scores_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib


class Rows(Protocol):
  """Images by number, as ``images.Images`` has them."""

  def __len__(self) -> int:
    ...

  def rows(self, indices: np.ndarray) -> np.ndarray:
    """Returns images, uint8 ``[len(indices), height, width, 3]``."""
    ...


class Features:
  """Computes features of whole sets, compiled once.

  Each process computes all of them, on its own devices.
  """

  def __init__(self, config: ml_collections.ConfigDict, task: task_lib.Task):
    self._config = config
    self._devices = jax.local_devices()
    self._plain = step_lib.make_features(task, self._devices)
    self._augmented = step_lib.make_augmented_features(
        task, config.seed, self._devices
    )
    self._state = lambda: None
    self._known = {}

  def __call__(
      self,
      state: state_lib.TrainState,
      images: image_data.Images,
      poll: experiment_lib.Poll = lambda *_: None,
  ) -> np.ndarray:
    """Returns features ``[n, dim]`` in evaluation mode.

    Those of the last state are remembered, because several protocols ask.
    ``poll`` is called before every batch and raises to leave.
    """
    if self._state() is not state:
      self._state, self._known = weakref.ref(state), {}
    if id(images) not in self._known:
      self._known[id(images)] = self.compute(state, images, poll)
    return self._known[id(images)]

  def compute(
      self,
      state: state_lib.TrainState,
      images: Rows,
      poll: experiment_lib.Poll = lambda *_: None,
  ) -> np.ndarray:
    """Returns features as a call does, and remembers nothing."""
    state = state_lib.local(state)
    params = state_lib.evaluated_params(state)
    size = self._rows(self._config.evaluate.batch_size)
    parts = []
    for rows in row_blocks(np.arange(len(images)), size):
      poll(int(rows[0]), len(images), 'images')
      batch = padded({'image': images.rows(rows)}, size)
      out = self._plain(params, state.task_state, batch)
      parts.append(out[: len(rows)])
    return np.concatenate(parts)

  def augmented_epoch(
      self,
      state: state_lib.TrainState,
      images: image_data.Images,
      epoch: int,
      poll: experiment_lib.Poll = lambda *_: None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields features of augmented images and labels, in the epoch's order."""
    state = state_lib.local(state)
    params = state_lib.evaluated_params(state)
    size = self._config.evaluate.linear_batch_size
    rng = np.random.default_rng([self._config.seed, epoch])
    total = self._config.evaluate.linear_epochs * len(images)
    done = epoch * len(images)
    for rows in row_blocks(rng.permutation(len(images)), size):
      poll(done, total, 'images')
      done += len(rows)
      batch = {'image': images.rows(rows), 'index': np.int32(rows)}
      batch = padded(batch, self._rows(size))
      out = self._augmented(params, state.task_state, batch, epoch)
      yield out[: len(rows)], images.labels[rows]

  def _rows(self, size):
    """Returns the next multiple of the number of devices."""
    return size + -size % len(self._devices)


def make(
    config: ml_collections.ConfigDict,
    task: task_lib.Task,
    *,
    bank: image_data.Images,
    test: image_data.Images,
) -> dict[str, experiment_lib.Evaluator]:
  """Makes the evaluators of a configuration, by protocol.

  They learn from the labeled images of ``bank`` and are scored on ``test``.
  """
  features = Features(config, task)

  def cached(protocol, state, poll):
    return evaluate_features(
        protocol,
        (features(state, bank, poll), features(state, test, poll)),
        (bank, test),
        config.evaluate,
        poll,
    ).items()

  def linear_released(state, poll):
    """Probes features of augmented images, new ones in every epoch."""
    result = evaluation.linear_accuracy_from_batches(
        lambda epoch: features.augmented_epoch(state, bank, epoch, poll),
        features(state, test, poll),
        test.labels,
        num_classes=bank.num_classes,
        **_linear_recipe(config.evaluate),
    )
    return _linear_scores('linear_released', result, len(test)).items()

  evaluators = {
      protocol: functools.partial(cached, protocol)
      for protocol in ('knn', 'linear')
  }
  return {**evaluators, 'linear_released': linear_released}


def evaluate_features(
    protocol: str,
    features: tuple[np.ndarray, np.ndarray],
    images: tuple[image_data.Images, image_data.Images],
    config: ml_collections.ConfigDict,
    poll: experiment_lib.Poll = lambda *_: None,
) -> scores_lib.Scores:
  """Scores features by ``'knn'`` or a ``'linear'`` probe.

  Args:
    protocol: one of the two.
    features: of the images to learn from and of those to score.
    images: both sets, for their labels.
    config: ``config.evaluate``.
    poll: called after every epoch of a probe; raises to leave.
  """
  bank, test = images
  data = features[0], bank.labels, features[1], test.labels
  if protocol == 'knn':
    result = evaluation.knn_accuracy(
        *data,
        num_classes=bank.num_classes,
        k=min(config.knn_k, len(bank)),
        temperature=config.knn_temperature,
    )
    return _shares('knn', result, len(test))
  result = evaluation.linear_accuracy(
      *data,
      num_classes=bank.num_classes,
      batch_size=config.linear_batch_size,
      standardize=config.linear_standardize,
      progress=lambda epoch, _: poll(epoch + 1, config.linear_epochs, 'epochs'),
      **_linear_recipe(config),
  )
  return _linear_scores('linear', result, len(test))


def baselines(
    experiment: experiment_lib.Experiment,
    poll: experiment_lib.Poll = lambda *_: None,
) -> dict[str, scores_lib.Scores]:
  """Scores what has learned nothing: raw pixels and a random encoder."""
  config, data = experiment.config.evaluate, experiment.data
  protocols = [p for p in config.protocols if p != 'linear_released']
  images = data.bank, data.test
  pixels = tuple(map(raw_pixels, images))
  of_pixels = {}
  for protocol in protocols:
    of_pixels |= evaluate_features(protocol, pixels, images, config, poll)
  return {
      'raw pixels': of_pixels,
      'random encoder': experiment.evaluate(
          experiment.create_state(), protocols, poll
      ),
  }


def raw_pixels(images: image_data.Images) -> np.ndarray:
  """Returns pixels as features, ``[n, height * width * 3]``."""
  pixels = images.rows(np.arange(len(images)))
  return pixels.reshape(len(pixels), -1).astype(np.float32) / 255


def row_blocks(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
  """Yields so many rows at a time, the last ones perhaps fewer."""
  for start in range(0, len(rows), size):
    yield rows[start : start + size]


def padded(batch: dict[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
  """Returns arrays of so many rows, zeros after their own."""
  return {
      name: np.pad(x, [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1))
      for name, x in batch.items()
  }


def _linear_recipe(config) -> dict[str, Any]:
  return {
      'epochs': config.linear_epochs,
      'optimizer': config.linear_optimizer,
      'learning_rate': config.linear_learning_rate,
      'weight_decay': config.linear_weight_decay,
      'decay_epochs': config.linear_decay_epochs,
      'seeds': config.linear_seeds,
  }


def _linear_scores(protocol, result, rows) -> scores_lib.Scores:
  scores = {name: x for name, x in result.items() if name != 'per_seed'}
  if len(result['per_seed']) > 1:
    for one in result['per_seed']:
      scores[f'top1_seed{one["seed"]}'] = one['top1']
  return _shares(protocol, scores, rows)


def _shares(protocol, scores, rows) -> scores_lib.Scores:
  return {
      f'{protocol}/{name}': scores_lib.share(x, rows)
      for name, x in scores.items()
  }
