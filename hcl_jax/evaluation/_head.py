# SPDX-License-Identifier: Apache-2.0
"""Linear classifier: its hyperparameters, and steps of its training."""

from collections.abc import Sequence
import functools
import math
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax

from hcl_jax import _checks
from hcl_jax import _vectors

State = tuple[dict[str, jax.Array], optax.OptState]


class Rule(NamedTuple):
  """Update rule without the learning rate; hashable."""

  optimizer: str
  momentum: float
  weight_decay: float


def read_rule(
    *,
    epochs: int,
    learning_rate: float,
    weight_decay: float,
    optimizer: str,
    momentum: float,
    decay_epochs: Sequence[int],
) -> tuple[Rule, np.ndarray]:
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
  rule = Rule(optimizer, float(momentum), float(weight_decay))
  return rule, np.asarray(learning_rate * 0.1**drops, np.float32)


def read_seeds(values: Sequence[int]) -> list[int]:
  """Reads one or more ints >= 0."""
  values = [int(value) for value in values]
  if not values or min(values) < 0:
    raise ValueError(
        f'seeds must be one or more ints >= 0, got {values}.'
    )
  return values


def init(
    rule: Rule, seed: int, num_features: int, num_classes: int
) -> State:
  """Returns weights and bias uniform in +-1/sqrt(F), and optimizer state."""
  rng = np.random.default_rng((seed, 0))
  bound = num_features**-0.5
  draw = functools.partial(rng.uniform, -bound, bound)
  params = {
      'weights': jnp.asarray(draw((num_features, num_classes)), jnp.float32),
      'bias': jnp.asarray(draw(num_classes), jnp.float32),
  }
  return params, _transform(rule).init(params)


def scores(state: State, features: Any) -> np.ndarray:
  """Returns logits ``[n, classes]``."""
  return np.asarray(_logits(state[0], jnp.asarray(features)))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def step(rule, state, features, labels, learning_rate):
  """Updates the state from one batch, features ``[b, F]`` and labels ``[b]``.

  Rows of label -1 are padding and do not count. Returns the new state and the
  sum of the batch's losses.
  """
  return _step(rule, state, features, labels, learning_rate)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def epoch(rule, state, features, labels, *, order, learning_rate):
  """Updates the state from one epoch of features that are on the device.

  The order has the rows of each batch, ``[steps, b]``; -1 is padding. Returns
  the new state and the sum of the losses, each before its update.
  """

  def body(state, rows):
    batch_labels = jnp.where(rows < 0, -1, labels[rows])
    return _step(rule, state, features[rows], batch_labels, learning_rate)

  state, sums = lax.scan(body, state, order)
  return state, jnp.sum(sums)


def _step(rule, state, features, labels, learning_rate):
  params, opt_state = state
  grad_fn = jax.value_and_grad(_mean_loss, has_aux=True)
  (_, total), grads = grad_fn(params, features, labels)
  updates, opt_state = _transform(rule).update(grads, opt_state, params)
  params = jax.tree.map(lambda p, u: p - learning_rate * u, params, updates)
  return (params, opt_state), total


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


def _transform(rule: Rule) -> optax.GradientTransformation:
  """Returns the optimizer; decay is part of the gradient, also of the bias."""
  direction = {
      'adam': optax.scale_by_adam(),
      'sgd': optax.trace(rule.momentum),
  }[rule.optimizer]
  return optax.chain(optax.add_decayed_weights(rule.weight_decay), direction)
