# SPDX-License-Identifier: Apache-2.0
"""Checks hyperparameters of a linear probe and converts them."""

from collections.abc import Sequence
import math
from typing import NamedTuple

import numpy as np

from hcl_jax import _checks


class Rule(NamedTuple):
  """Update rule without the learning rate; hashable."""

  optimizer: str
  momentum: float
  weight_decay: float


def read(
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


def seeds(values: Sequence[int]) -> list[int]:
  """Reads one or more ints >= 0."""
  values = [int(value) for value in values]
  if not values or min(values) < 0:
    raise ValueError(
        f'seeds must be one or more ints >= 0, got {values}.'
    )
  return values
