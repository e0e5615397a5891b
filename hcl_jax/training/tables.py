# SPDX-License-Identifier: Apache-2.0
"""Trains the rows of tables that a batch reads, and leaves the others alone.

A table is a parameter with a row for each of many things, such as tokens, of
which a batch reads a few. A step then costs what the rows read cost, not what
the table does. An optimizer that treats numbers one by one (SGD, Adam) is
applied to the rows read; its averages of the others wait until they are read.
"""

from collections.abc import Sequence
from typing import Any
from typing import Protocol
from typing import TypeGuard

import jax
import jax.numpy as jnp
import optax

from hcl_jax.training import state as state_lib
from hcl_jax.training import task as task_lib

# A tree like parameters: rows of a table that are read, int32 [k], each once
# and sorted, past the end for none; None for what is trained whole.
Rows = Any


class TaskOfTables(task_lib.Task, Protocol):
  """Task whose batches read few rows of large tables.

  Attributes:
    tables: what there is of them; without any, all parameters are trained.
  """

  tables: Sequence[Any]

  def rows_read(self, params: Any, batch: task_lib.Batch) -> Rows:
    """Returns the rows of each table that a batch reads on any device."""
    ...

  def renumbered(self, batch: task_lib.Batch, rows: Rows) -> task_lib.Batch:
    """Returns the batch for tables of these rows only."""
    ...


def has_tables(task: task_lib.Task) -> TypeGuard[TaskOfTables]:
  """Returns whether a task has tables that are trained by rows."""
  return bool(getattr(task, 'tables', None))


def take(
    optimizer: optax.GradientTransformation,
    state: state_lib.TrainState,
    rows: Rows,
) -> state_lib.TrainState:
  """Returns a state whose tables are those of the rows alone, without average.

  Rows past the end are zero.
  """

  def of_rows(x, read):
    if read is None:
      return x
    return jnp.take(x, read, axis=0, mode='fill', fill_value=0)

  params, opt_state = _map(
      optimizer, of_rows, (state.params, state.opt_state), rows=rows
  )
  return state.replace(params=params, opt_state=opt_state, ema_params=None)


def put(
    optimizer: optax.GradientTransformation,
    state: state_lib.TrainState,
    taken: state_lib.TrainState,
    rows: Rows,
) -> state_lib.TrainState:
  """Returns what was taken and trained, with the tables of ``state`` whole."""

  def whole(x, new, read):
    if read is None:
      return new
    return x.at[read].set(
        new, mode='drop', unique_indices=True, indices_are_sorted=True
    )

  params, opt_state = _map(
      optimizer,
      whole,
      (state.params, state.opt_state),
      (taken.params, taken.opt_state),
      rows=rows,
  )
  return taken.replace(
      params=params, opt_state=opt_state, ema_params=state.ema_params
  )


class _Read:
  """Holds rows where a tree would take None for no leaf."""

  def __init__(self, rows):
    self.rows = rows


def _map(optimizer, function, *states, rows):
  """Maps over parameters and what the optimizer has for each of them."""
  params, opt_state = states[0]
  of_params = jax.tree.map(lambda _, x: _Read(x), params, rows)
  of_optimizer = optax.tree.map_params(
      optimizer,
      lambda _, x: x,
      opt_state,
      of_params,
      transform_non_params=lambda _: _Read(None),
  )
  return jax.tree.map(
      lambda read, *x: function(*x, read.rows),
      (of_params, of_optimizer),
      *states,
  )
