# SPDX-License-Identifier: Apache-2.0
"""Says what the train step asks of a task."""

from typing import Any
from typing import Protocol
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hcl_jax import schedules

AXIS = 'batch'  # the mapped axis of devices

# A tree of arrays whose rows go together, as the room makes it.
Batch: TypeAlias = Any


class Task(Protocol):
  """Joins a model, its views and its loss, as pure functions of rows.

  All functions take the rows of one device. ``embed`` treats rows alike (up to
  BatchNorm), so a batch may be embedded in chunks; only ``loss`` lets rows
  meet, across devices too. ``state`` is a tree of everything that is neither
  parameter nor optimizer: running statistics, a momentum encoder, a queue. It
  is the same on every device. Where it is more than further collections of the
  encoder, the task has ``variables(params, state)`` and ``with_variables(state,
  variables)``; see the functions of these names. Where the loss reads other
  entries of a batch than 'label' and 'index', ``read_by_loss`` names them.

  A task whose batches read few rows of large tables may train those alone; see
  :mod:`hcl_jax.training.tables`.
  """

  def init(self, key: jax.Array, batch: Batch) -> tuple[Any, Any]:
    """Returns initial parameters and state."""
    ...

  def embed(
      self,
      params: Any,
      state: Any,
      batch: Batch,
      key: jax.Array,
      rows: jax.Array,
  ) -> tuple[Any, Any]:
    """Augments and embeds rows.

    Args:
      params: the parameters, which are differentiated.
      state: see above.
      batch: arrays of the rows, ``[b, ...]``.
      key: the key of the step, the same on every device.
      rows: which rows of the global batch these are, ``[b]``. Random numbers
        depend on ``key`` and the row, not on the number of devices.

    Returns:
      Embeddings, a tree of ``[b, ...]``, and the new state.
    """
    ...

  def loss(
      self, embeddings: Any, state: Any, batch: Batch, step: jax.Array
  ) -> jax.Array:
    """Returns one loss per row, ``[b]``, or their mean, ``[]``.

    Rows meet those of the whole global batch.
    """
    ...

  def update(
      self, params: Any, state: Any, embeddings: Any, batch: Batch
  ) -> Any:
    """Returns the state after the optimizer has made new ``params``."""
    ...

  def metrics(
      self, embeddings: Any, batch: Batch, step: jax.Array
  ) -> dict[str, jax.Array]:
    """Returns numbers worth logging beside the loss, alike on all devices."""
    ...

  def features(
      self,
      params: Any,
      state: Any,
      batch: Batch,
      keys: jax.Array | None = None,
  ) -> jax.Array:
    """Returns what is evaluated, ``[b, dim]``, in evaluation mode.

    With ``keys [b]``, of augmented rows.
    """
    ...

  def compared(
      self,
      params: Any,
      state: Any,
      batch: Batch,
      keys: jax.Array | None = None,
  ) -> Any:
    """Returns what the loss compares, in evaluation mode, to look at.

    With ``keys [b]``, of augmented rows.
    """
    ...


def variables(task: Task, params: Any, state: Any) -> dict[str, Any]:
  """Returns the variables of the encoder, ``'params'`` and other collections.

  Flax's ``module.apply`` takes them.
  """
  own = getattr(task, 'variables', None)
  return own(params, state) if own else {'params': params, **state}


def with_variables(
    task: Task, state: Any, variables: dict[str, Any]
) -> tuple[Any, Any]:
  """Returns parameters and state with other variables of the encoder."""
  own = getattr(task, 'with_variables', None)
  if own:
    return own(state, variables)
  others = dict(variables)
  return others.pop('params'), {**state, **others}


def hardness(
    beta: schedules.Schedule,
    effective_negatives: ArrayLike | None,
    step: ArrayLike,
) -> dict[str, jax.Array]:
  """Returns how hard negatives are, as an argument of a loss and a metric.

  This is beta of the step, or the share of the negatives that counts if there
  is one.
  """
  if effective_negatives is None:
    return {'beta': beta(step)}
  return {'effective_negatives': jnp.asarray(effective_negatives, jnp.float32)}


def row_keys(key: jax.Array, rows: jax.Array, num: int) -> jax.Array:
  """Returns independent keys ``[b, num]`` for rows of the global batch."""

  def of_row(row):
    return jax.random.split(jax.random.fold_in(key, row), num)

  return jax.vmap(of_row)(rows)
