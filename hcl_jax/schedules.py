# SPDX-License-Identifier: Apache-2.0
"""Schedules of beta: functions of a step, which may be traced.

Each returns a function ``step -> beta``, as optax schedules do. Beta is an
array, so one compilation of the train step serves the whole run. The initial
beta may be traced too, so one compilation serves many runs.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from hcl_jax import _checks

Schedule = Callable[[ArrayLike], jax.Array]

_RELEASED_POINTS = 9


def constant(beta: ArrayLike) -> Schedule:
  """Returns the schedule that has the same beta, >= 0, at every step."""
  return _staircase(beta, np.ones(1), [])


def anneal(
    beta: ArrayLike, total_steps: int, num_changes: int, direction: str = 'down'
) -> Schedule:
  r"""Anneals beta as in the paper: in equal stairs of equal length.

  Downwards, stair i of l is :math:`\beta (1 - (i-1)/l)` and covers the steps
  from :math:`(i-1) T/l` to :math:`i T/l`; the last one is beta / l, never 0.
  Upwards, the stairs come in reverse order. Later steps stay on the last stair.

  Args:
    beta: largest beta.
    total_steps: T, length of the run.
    num_changes: l, number of stairs.
    direction: ``'down'`` or ``'up'``.

  Example:
    >>> schedule = anneal(2.0, total_steps=100, num_changes=4)
    >>> [float(schedule(step)) for step in (0, 24, 25, 99)]
    [2.0, 2.0, 1.5, 0.5]

  References:
    Robinson et al., 2021, appendix, "Annealing beta method".
  """
  _checks.positive_int('total_steps', total_steps)
  _checks.positive_int('num_changes', num_changes)
  _checks.choice('direction', direction, ('down', 'up'))
  shares = np.arange(num_changes, 0, -1) / num_changes
  starts = -(-np.arange(1, num_changes) * total_steps // num_changes)
  if direction == 'up':
    shares = shares[::-1]
  return _staircase(beta, shares, starts)


def released(
    beta: ArrayLike, total_epochs: int, steps_per_epoch: int
) -> Schedule:
  """Anneals beta as the paper's released code does: nine points down to 0.

  After every ninth of the epochs (rounded down), beta becomes the next of the
  nine points ``linspace(beta, 0, 9)``, starting with beta itself again. The
  released code fails for runs of fewer than nine epochs and for some longer
  ones (10, 17, 20, 50); here a ninth is at least one epoch, and the last
  point, 0, stays in effect.

  Example:
    >>> schedule = released(8.0, total_epochs=400, steps_per_epoch=1)
    >>> [float(schedule(epoch)) for epoch in (0, 87, 88, 395, 396)]
    [8.0, 8.0, 7.0, 1.0, 0.0]
  """
  _checks.positive_int('total_epochs', total_epochs)
  _checks.positive_int('steps_per_epoch', steps_per_epoch)
  every = max(total_epochs // _RELEASED_POINTS, 1) * steps_per_epoch
  shares = np.linspace(1, 0, _RELEASED_POINTS)
  return _staircase(beta, shares, every * np.arange(2, _RELEASED_POINTS + 1))


def _staircase(beta, shares, starts) -> Schedule:
  """Returns beta * shares[k] from the k-th start on; k = 0 before the first."""
  _checks.beta(beta)
  if isinstance(beta, jax.Array):
    values = beta.astype(jnp.float32) * shares.astype(np.float32)
  else:
    values = np.asarray(beta * shares, np.float32)
  starts = np.asarray(starts, np.int32)

  def schedule(step: ArrayLike) -> jax.Array:
    step = jnp.asarray(step)
    stair = jnp.searchsorted(starts.astype(step.dtype), step, side='right')
    return jnp.asarray(values)[stair]

  return schedule
