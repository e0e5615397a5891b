# SPDX-License-Identifier: Apache-2.0
"""Stores one step with orbax: host arrays and a record of checksums.

The arrays are nested dicts with string keys, readable without our types.
"""

import asyncio
from collections.abc import Mapping
import dataclasses
import logging
import os
import pathlib
import re
from typing import Any

from absl import logging as absl_logging
from etils import epath
from flax import traverse_util
import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import future as orbax_future

from hcl_jax.runs import checksums

_AT_ONCE = 64  # arrays that are being written


def open_manager(
    directory: epath.Path, policy: ocp.checkpoint_managers.PreservationPolicy
) -> ocp.CheckpointManager:
  """Opens a directory for saving and removes what killed saves left in it."""
  return ocp.CheckpointManager(
      directory,
      options=ocp.CheckpointManagerOptions(
          cleanup_tmp_directories=True, preservation_policy=policy
      ),
      handler_registry=ocp.handlers.create_default_handler_registry(
          state=_arrays_handler()
      ),
  )


def save_args(state: Any, metrics: Mapping[str, float]) -> ocp.args.Composite:
  """Copies a state to the host, as the manager saves it with its record."""
  leaves = checksums.named_leaves(state)
  for leaf in leaves.values():
    if isinstance(leaf, jax.Array):
      leaf.copy_to_host_async()
  # On CPU np.asarray is a view of a buffer that the next step may be given.
  copies = {name: np.array(leaf, order='C') for name, leaf in leaves.items()}
  for name, leaf in copies.items():
    if leaf.dtype.kind in 'OSU':
      raise ValueError(
          f'{name} of the state is a {type(leaves[name]).__name__}; only '
          'arrays and numbers can be saved.'
      )
  return ocp.args.Composite(
      state=ocp.args.PyTreeSave(_nest(state, copies)),
      record=_SaveRecord(copies, metrics),
  )


def read_metrics(directory: epath.Path) -> dict[str, float | None]:
  """Reads the metrics of a step; none where its record is damaged."""
  try:
    return checksums.read_record(directory / 'record')['metrics']
  except checksums.DamagedCheckpoint:
    return {}


def add_metrics(directory: epath.Path, metrics: Mapping[str, float]) -> None:
  """Adds metrics to the record of a step."""
  record = checksums.read_record(directory / 'record')
  record['metrics'] |= checksums.finite_or_none(metrics)
  checksums.write_record(directory / 'record', record)


def read_leaves(
    directory: epath.Path, abstract_state: Any
) -> dict[str, np.ndarray]:
  """Reads and verifies the arrays of a step, by path, to host arrays.

  Raises:
    checksums.StateMismatch: the step holds another model.
    checksums.DamagedCheckpoint: something is missing or altered.
  """
  record = checksums.read_record(directory / 'record')
  wanted = checksums.named_leaves(abstract_state)
  checksums.check_fits(record, wanted)
  empty = {
      name: np.empty(leaf['shape'], leaf['dtype'])
      for name, leaf in record['leaves'].items()
      if 0 in leaf['shape']
  }
  target = _nest(
      abstract_state, {name: empty.get(name, np.zeros(())) for name in wanted}
  )
  stored = checksums.named_leaves(_read_arrays(directory / 'state', target))
  checksums.verify(record, empty | stored)
  return empty | stored


def reason(error: Exception) -> str:
  """Returns why a save failed, in one line."""
  if isinstance(error, OSError):
    return str(error)
  # tensorstore writes a page, with the number of the system's error in it.
  if number := re.search(r"os_error_code='(\d+)'", str(error)):
    return os.strerror(int(number[1]))
  return _first_line(error)


def quiet_orbax() -> None:
  """Drops what orbax logs by absl, except errors without a traceback.

  Its warnings are of no use here: it warns of every wait that was asked for.
  What it logs with a traceback, in each of several threads, it also raises.
  """
  absl_logging.get_absl_logger().addFilter(_errors_of_orbax)


def _errors_of_orbax(record: logging.LogRecord) -> bool:
  inside = 'orbax' in pathlib.PurePath(record.pathname).parts
  return not inside or record.levelno >= logging.ERROR and not record.exc_info


def _nest(state: Any, leaves: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """Nests leaves in dicts, without the empty ones, which orbax refuses."""
  flat = {}
  paths, _ = jax.tree_util.tree_flatten_with_path(state)
  for (path, _), leaf in zip(paths, leaves.values(), strict=True):
    if leaf.size:
      keys = (jax.tree_util.keystr((k,), simple=True) for k in path)
      flat[tuple(keys) or ('state',)] = leaf
  return traverse_util.unflatten_dict(flat)


def _read_arrays(
    directory: epath.Path, target: dict[str, Any]
) -> dict[str, Any]:
  restore_args = jax.tree.map(
      lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target
  )
  try:
    # Not the Checkpointer: its barrier would hang where one process fails.
    return _arrays_handler().restore(
        directory,
        args=ocp.args.PyTreeRestore(item=target, restore_args=restore_args),
    )
  except (MemoryError, PermissionError):
    raise
  except Exception as error:  # Damaged bytes surface as any of them.
    raise checksums.DamagedCheckpoint(_first_line(error)) from error


def _first_line(error: Exception) -> str:
  line = (str(error).strip().splitlines() or [''])[0][:200]
  return f'{type(error).__name__}: {line}'


def _arrays_handler() -> ocp.PyTreeCheckpointHandler:
  return ocp.PyTreeCheckpointHandler(
      type_handler_registry=ocp.type_handlers.create_type_handler_registry(
          (np.ndarray, _HostArrays())
      )
  )


class _HostArrays(ocp.type_handlers.NumpyHandler):
  """Reads and writes all arrays to the end, also where one of them fails.

  Orbax leaves the others alone where one of several fails, and these complain
  into a closed event loop. A call of its own for each array avoids that, at the
  price of a thread for each that is being written.
  """

  async def serialize(self, values, infos, args=None):
    start = super().serialize
    args = args or [ocp.SaveArgs()] * len(values)

    async def write():
      requests = list(zip(values, infos, args, strict=True))
      for first in range(0, len(requests), _AT_ONCE):
        started: list[orbax_future.Future] = []
        for value, info, arg in requests[first : first + _AT_ONCE]:
          started += await start([value], [info], [arg])
        errors = []
        for future in started:
          try:
            future.result()
          except Exception as error:
            errors.append(error)
        if errors:
          raise errors[0]

    return _in_background(write(), 'arrays')

  async def deserialize(self, infos, args=None):
    read = super().deserialize
    args = args or [ocp.RestoreArgs()] * len(infos)
    results = await asyncio.gather(
        *(read([info], [arg]) for info, arg in zip(infos, args, strict=True)),
        return_exceptions=True,
    )
    for result in results:
      if isinstance(result, BaseException):
        raise result
    return [array for (array,) in results]


def _in_background(write, name: str) -> list[orbax_future.Future]:
  future = orbax_future.CommitFutureAwaitingContractedSignals(write, name=name)
  return [future]


class _RecordHandler(ocp.AsyncCheckpointHandler):
  """Computes and writes the record in the background."""

  async def async_save(self, directory, args):
    async def write():
      if jax.process_index() == 0:
        record = checksums.make_record(args.leaves, args.metrics)
        checksums.write_record(directory, record)

    return _in_background(write(), 'record')

  def save(self, directory, args):
    raise NotImplementedError('records are saved by async_save.')

  def restore(self, directory, args=None):
    return checksums.read_record(directory)


@ocp.args.register_with_handler(_RecordHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _SaveRecord(ocp.args.CheckpointArgs):
  leaves: Mapping[str, np.ndarray]
  metrics: Mapping[str, float]
