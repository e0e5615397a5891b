# SPDX-License-Identifier: Apache-2.0
"""Linear probe: the accuracy of a linear classifier on frozen features."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import functools
import math
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hcl_jax import _checks
from hcl_jax import _vectors
from hcl_jax.evaluation import accuracy

Progress = Callable[[int, float], None]

_ROWS = 4096
_FLOOR = 1e-3


class _Rule(NamedTuple):
  """Update rule without the learning rate; hashable."""

  optimizer: str
  momentum: float
  weight_decay: float


def linear_accuracy(
    train_features: Any,
    train_labels: Any,
    test_features: Any,
    test_labels: Any,
    *,
    num_classes: int,
    epochs: int = 100,
    batch_size: int = 512,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-6,
    optimizer: str = 'adam',
    momentum: float = 0.9,
    decay_epochs: Sequence[int] = (),
    standardize: bool = True,
    seeds: Sequence[int] = (0,),
    progress: Progress | None = None,
) -> dict[str, Any]:
  """Computes the accuracy of a linear classifier trained on cached features.

  The defaults are the released optimizer on standardized features. Adam changes
  a weight by little more than the learning rate per step, so on raw features
  the run may end far from the optimum, the further the smaller the features:
  the result would compare encoders by the scale of their features. The
  released protocol is ``standardize=False``. With standardized features, use
  about 2000 steps in all: raise ``epochs`` or ``learning_rate`` for a small
  training set.

  MoCo's protocol is ``optimizer='sgd', learning_rate=30, weight_decay=0,
  batch_size=256, decay_epochs=(60, 80), standardize=False``.

  Args:
    train_features: features of the training set, not normalized, ``[m, F]``.
    train_labels: classes of the training set, ``[m]``, without unlabeled rows.
    test_features: ``[n, F]``.
    test_labels: ``[n]``.
    num_classes: number of classes.
    epochs: passes over the training set, each in a new order.
    batch_size: rows per batch; the last batch of an epoch may be smaller.
    learning_rate: learning rate of the first epoch.
    weight_decay: coupled L2 penalty, on weights and bias.
    optimizer: ``'adam'`` or ``'sgd'``.
    momentum: momentum of ``'sgd'``.
    decay_epochs: epochs at which the learning rate is divided by 10.
    standardize: shift and scale each feature to mean 0 and deviation 1 on the
      training set.
    seeds: one classifier per seed, which determines its initial weights and the
      order of the rows.
    progress: called after each epoch with its number, from 0, and the mean
      training loss over rows and seeds.

  Returns:
    ``top1`` and ``top5``, means over seeds from 0 to 1, and ``per_seed``, a
    list of ``{'seed', 'top1', 'top5', 'train_loss'}``. Accuracies are those of
    the last epoch, not of the best one. With five classes or fewer there is no
    ``top5``, which would be 1.
  """
  rule, rates = _read_rule(
      epochs=epochs,
      learning_rate=learning_rate,
      weight_decay=weight_decay,
      optimizer=optimizer,
      momentum=momentum,
      decay_epochs=decay_epochs,
  )
  _checks.positive_int('batch_size', batch_size)
  train = _read('train', train_features, train_labels, num_classes)
  test = _read('test', test_features, test_labels, num_classes, train[0])
  if standardize:
    scale = _standardizer(train[0])
    train, test = (scale(train[0]), train[1]), (scale(test[0]), test[1])
  seeds = _read_seeds(seeds)
  features, labels = map(jnp.asarray, train)

  def run_epoch(states, epoch):
    pairs = [
        _run_epoch(
            rule, state, features, labels,
            order=_order(seed, epoch, len(labels), batch_size),
            learning_rate=rates[epoch],
        )
        for state, seed in zip(states, seeds, strict=True)
    ]  # fmt: skip
    states, totals = zip(*pairs, strict=True)
    return states, np.float64(jax.device_get(totals)) / len(labels)

  return _train(
      run_epoch,
      test,
      rule=rule,
      seeds=seeds,
      epochs=epochs,
      num_classes=num_classes,
      progress=progress,
  )


def linear_accuracy_from_batches(
    epoch_batches: Callable[[int], Iterable[tuple[Any, Any]]],
    test_features: Any,
    test_labels: Any,
    *,
    num_classes: int,
    epochs: int = 100,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-6,
    optimizer: str = 'adam',
    momentum: float = 0.9,
    decay_epochs: Sequence[int] = (),
    standardize_as: Any | None = None,
    seeds: Sequence[int] = (0,),
    progress: Progress | None = None,
) -> dict[str, Any]:
  """Computes the accuracy of a linear classifier trained on new batches.

  Use it for the released protocol, which augments the training images again in
  each epoch, and for features that do not fit on the device. Arguments that are
  not listed here, and the result, are those of :func:`linear_accuracy`.

  Args:
    epoch_batches: function of the epoch, from 0, that returns an iterable of
      batches ``(features [b, F], labels [b])``. Features may be on a device;
      batches may differ in size, best with the largest one first.
    test_features: ``[n, F]``.
    test_labels: ``[n]``.
    num_classes: number of classes.
    standardize_as: features ``[m, F]``, for example of the training images
      without augmentation, whose mean and deviation standardize batches and
      test set; None: raw features, as released.
    seeds: one classifier per seed. All get the same batches, so that the
      encoder runs once; only their initial weights differ.
  """
  rule, rates = _read_rule(
      epochs=epochs,
      learning_rate=learning_rate,
      weight_decay=weight_decay,
      optimizer=optimizer,
      momentum=momentum,
      decay_epochs=decay_epochs,
  )
  test = _read('test', test_features, test_labels, num_classes)
  seeds = _read_seeds(seeds)
  width = test[0].shape[1]
  scale = jnp.asarray
  if standardize_as is not None:
    scale = _standardizer(
        _checks.features('standardize_as', standardize_as, width)
    )
  padded = 0

  def run_epoch(states, epoch):
    nonlocal padded
    totals, rows = [], 0
    for features, labels in epoch_batches(epoch):
      features, labels = _read_batch(features, labels, width, num_classes)
      rows += len(labels)
      padded = max(padded, len(labels))
      features, labels = _pad(scale(features), labels, padded)
      pairs = [_step(rule, x, features, labels, rates[epoch]) for x in states]
      states, sums = zip(*pairs, strict=True)
      totals.append(sums)
    if not rows:
      raise ValueError(f'epoch_batches({epoch}) must yield one batch or more.')
    return states, np.float64(jax.device_get(totals)).sum(axis=0) / rows

  test = scale(test[0]), test[1]
  return _train(
      run_epoch,
      test,
      rule=rule,
      seeds=seeds,
      epochs=epochs,
      num_classes=num_classes,
      progress=progress,
  )


def _train(run_epoch, test, *, rule, seeds, epochs, num_classes, progress):
  """Trains one head per seed, epoch by epoch, and scores them at the end."""
  features, labels = test
  width = features.shape[1]
  states = [_init(rule, seed, width, num_classes) for seed in seeds]
  losses = np.full(len(seeds), np.nan)
  for epoch in range(epochs):
    states, losses = run_epoch(states, epoch)
    if not np.all(np.isfinite(losses)):
      raise ValueError(
          f'The training loss of epoch {epoch} is {losses.max()}. Lower '
          'learning_rate, or look for NaN in the features of the batches.'
      )
    if progress is not None:
      progress(epoch, float(losses.mean()))
  features = jnp.asarray(features)
  results = [
      accuracy.top_accuracies(np.asarray(_logits(params, features)), labels)
      for params, _ in states
  ]
  return {
      name: float(np.mean([result[name] for result in results]))
      for name in results[0]
  } | {
      'per_seed': [
          {'seed': seed, **result, 'train_loss': float(loss)}
          for seed, result, loss in zip(seeds, results, losses, strict=True)
      ]
  }


def _read(split, features, labels, num_classes, like=None):
  _checks.positive_int('num_classes', num_classes)
  width = None if like is None else like.shape[1]
  features = _checks.features(f'{split}_features', features, width)
  name = f'{split}_labels'
  return features, _checks.classes(name, labels, len(features), num_classes)


def _read_batch(features, labels, width, num_classes):
  """Reads a batch; features stay on their device and are not checked."""
  features = jnp.asarray(features, jnp.float32)
  if features.ndim != 2 or features.shape[1] != width or not len(features):
    raise ValueError(
        f'epoch_batches must yield one or more rows of {width} features, as '
        f'in test_features; got shape {features.shape}.'
    )
  return features, _checks.classes(
      'The labels of epoch_batches', labels, len(features), num_classes
  )


def _standardizer(features: np.ndarray) -> Callable[[Any], jax.Array]:
  """Returns a function that standardizes as these features need, on device.

  Deviations are at least a thousandth of their root mean square, so that a
  nearly constant feature is not scaled up to the size of the others.
  """
  blocks = [features[i : i + _ROWS] for i in range(0, len(features), _ROWS)]
  total, squares = np.zeros((2, features.shape[1]))
  for block in blocks:
    total += np.sum(block, axis=0, dtype=np.float64)
  mean = total / len(features)
  for block in blocks:
    squares += np.sum((block - mean[None]) ** 2, axis=0)
  deviation = np.sqrt(squares / len(features))
  floor = _FLOOR * np.sqrt(np.mean(deviation**2)) or 1.0
  return functools.partial(
      _scale,
      mean=mean[None].astype(np.float32),
      deviation=np.maximum(deviation, floor)[None].astype(np.float32),
  )


@jax.jit
def _scale(features, mean, deviation):
  return (features - mean) / deviation


def _pad(features, labels, rows):
  missing = rows - len(labels)
  if not missing:
    return features, labels
  return (
      jnp.pad(features, ((0, missing), (0, 0))),
      np.pad(labels, (0, missing), constant_values=-1),
  )


def _order(seed: int, epoch: int, rows: int, batch_size: int) -> np.ndarray:
  """Returns rows of each batch of an epoch ``[steps, b]``, padded with -1."""
  rng = np.random.default_rng((seed, 1, epoch))
  size = min(batch_size, rows)
  steps = -(-rows // size)
  order = np.full(steps * size, -1, np.int32)
  order[:rows] = rng.permutation(rows)
  return order.reshape(steps, size)


def _read_rule(
    *, epochs, learning_rate, weight_decay, optimizer, momentum, decay_epochs
):
  """Returns the update rule and learning rates of the epochs ``[epochs]``."""
  _checks.positive_int('epochs', epochs)
  _checks.positive('learning_rate', learning_rate)
  _checks.choice('optimizer', optimizer, ('adam', 'sgd'))
  for name, value, end in (
      ('weight_decay', weight_decay, math.inf), ('momentum', momentum, 1)
  ):  # fmt: skip
    _checks.number(name, value)
    if not 0 <= value < end:
      raise ValueError(f'{name} must be in [0, {end}), got {value}.')
  drops = np.sum(
      np.arange(epochs)[:, None] >= np.asarray(decay_epochs, int)[None, :],
      axis=1,
  )
  rule = _Rule(optimizer, float(momentum), float(weight_decay))
  return rule, np.asarray(learning_rate * 0.1**drops, np.float32)


def _read_seeds(values):
  values = [int(value) for value in values]
  if not values or min(values) < 0:
    raise ValueError(f'seeds must be one or more ints >= 0, got {values}.')
  return values


def _init(rule, seed, num_features, num_classes):
  """Returns weights and bias uniform in +-1/sqrt(F), and optimizer state."""
  rng = np.random.default_rng((seed, 0))
  bound = num_features**-0.5
  draw = functools.partial(rng.uniform, -bound, bound)
  params = {
      'weights': jnp.asarray(draw((num_features, num_classes)), jnp.float32),
      'bias': jnp.asarray(draw(num_classes), jnp.float32),
  }
  return params, _transform(rule).init(params)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _run_epoch(rule, state, features, labels, *, order, learning_rate):
  """Updates the state from one epoch of features that are on the device.

  The order has the rows of each batch, ``[steps, b]``; -1 is padding. Returns
  the new state and the sum of the losses, each before its update.
  """

  def body(state, rows):
    batch_labels = jnp.where(rows < 0, -1, labels[rows])
    return _update(rule, state, features[rows], batch_labels, learning_rate)

  state, sums = jax.lax.scan(body, state, order)
  return state, jnp.sum(sums)


def _update(rule, state, features, labels, learning_rate):
  """Updates the state from one batch, features ``[b, F]`` and labels ``[b]``.

  Rows of label -1 are padding and do not count. Returns the new state and the
  sum of the batch's losses.
  """
  params, opt_state = state
  grad_fn = jax.value_and_grad(_mean_loss, has_aux=True)
  (_, total), grads = grad_fn(params, features, labels)
  updates, opt_state = _transform(rule).update(grads, opt_state, params)
  params = jax.tree.map(lambda p, u: p - learning_rate * u, params, updates)
  return (params, opt_state), total


_step = jax.jit(_update, static_argnums=0, donate_argnums=1)


def _mean_loss(params, features, labels):
  """Returns mean and sum of the cross entropy over rows without padding."""
  losses = optax.softmax_cross_entropy_with_integer_labels(
      _logits(params, features), jnp.maximum(labels, 0)
  )
  total = jnp.sum(losses, where=labels >= 0)
  return total / jnp.sum(labels >= 0), total


def _logits(params, features):
  products = _vectors.product(features, params['weights'])
  return products + params['bias'][None, :]


def _transform(rule: _Rule) -> optax.GradientTransformation:
  """Returns the optimizer; decay is part of the gradient, also of the bias."""
  direction = {
      'adam': optax.scale_by_adam(),
      'sgd': optax.trace(rule.momentum),
  }[rule.optimizer]
  return optax.chain(optax.add_decayed_weights(rule.weight_decay), direction)
