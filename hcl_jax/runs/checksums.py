# SPDX-License-Identifier: Apache-2.0
"""Records dtype, shape and CRC-32 of every leaf beside a checkpoint.

The record is one JSON file. It carries the metrics of the step too, and a
checksum of itself, so that a flipped bit in it is not taken for another model.
"""

from collections.abc import Mapping
import json
import math
from typing import Any
import zlib

from etils import epath
import jax
import numpy as np

_FILE = 'record.json'
_SHOWN = 3


class DamagedCheckpoint(RuntimeError):
  """Raised when files of a checkpoint are missing, unreadable or altered."""


class StateMismatch(ValueError):
  """Raised when a checkpoint holds another model."""


def named_leaves(tree: Any) -> dict[str, Any]:
  """Maps paths, such as ``opt_state/0/mu/kernel``, to leaves in their order."""
  pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
  leaves = {
      jax.tree_util.keystr(path, simple=True, separator='/') or 'state': leaf
      for path, leaf in pairs
  }
  if len(leaves) < len(pairs):
    raise ValueError(
        'two leaves of the state have the same path when its keys are joined '
        'by "/"; rename one of them.'
    )
  return leaves


def make_record(
    leaves: Mapping[str, np.ndarray], metrics: Mapping[str, Any] | None
) -> dict[str, Any]:
  """Computes the record of arrays by path, and metrics of their step.

  It is ``{'leaves': {path: {'dtype', 'shape', 'crc32'}}, 'metrics': {...}}``.
  """
  return {
      'leaves': {
          name: _signature(leaf) | {'crc32': _crc32(leaf)}
          for name, leaf in leaves.items()
      },
      'metrics': finite_or_none(metrics or {}),
  }


def finite_or_none(metrics: Mapping[str, Any]) -> dict[str, float | None]:
  """Returns metrics as JSON can hold them: None for those not finite."""
  return {
      name: float(value) if math.isfinite(value) else None
      for name, value in metrics.items()
  }


def write_record(directory: epath.Path, record: dict[str, Any]) -> None:
  """Writes or replaces the record of a step, in one rename."""
  text = json.dumps(
      {'record': record, 'crc32': _crc32_of_json(record)}, sort_keys=True
  )
  temporary = directory / f'{_FILE}.tmp'
  temporary.write_text(text)
  temporary.replace(directory / _FILE)


def read_record(directory: epath.Path) -> dict[str, Any]:
  """Reads a record; raises DamagedCheckpoint if it is missing or altered."""
  try:
    outer = json.loads((directory / _FILE).read_text())
    if outer['crc32'] == _crc32_of_json(outer['record']):
      return outer['record']
  except FileNotFoundError:
    raise DamagedCheckpoint(f'its {_FILE} is missing') from None
  except (ValueError, KeyError, TypeError):
    pass
  raise DamagedCheckpoint(f'its {_FILE} is altered')


def verify(record: dict[str, Any], leaves: Mapping[str, np.ndarray]) -> None:
  """Raises DamagedCheckpoint, naming the first leaf that was altered."""
  for name, leaf in leaves.items():
    if record['leaves'][name]['crc32'] != _crc32(leaf):
      raise DamagedCheckpoint(f'the checksum of {name} does not match')


def check_fits(
    record: dict[str, Any], abstract_leaves: Mapping[str, Any]
) -> None:
  """Raises StateMismatch, naming leaves that are absent or differ in shape."""
  wanted = {name: _signature(leaf) for name, leaf in abstract_leaves.items()}
  saved = record['leaves']
  problems = []
  for name in wanted | saved:
    here, there = _describe(wanted.get(name)), _describe(saved.get(name))
    if here != there:
      problems.append(f'{name} is {there} in the checkpoint and {here} here')
  if problems:
    more = len(problems) - _SHOWN
    raise StateMismatch(
        'the checkpoint holds another model: '
        + '; '.join(problems[:_SHOWN])
        + (f'; and {more} more leaves' if more > 0 else '')
        + '. Use the configuration of that run or another workdir.'
    )


def _signature(leaf: Any) -> dict[str, Any]:
  leaf = leaf if hasattr(leaf, 'dtype') else np.asarray(leaf)
  return {'dtype': str(leaf.dtype), 'shape': list(leaf.shape)}


def _describe(signature: Mapping[str, Any] | None) -> str:
  return f'{signature["dtype"]}{signature["shape"]}' if signature else 'absent'


def _crc32(leaf: np.ndarray) -> int:
  return zlib.crc32(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)


def _crc32_of_json(record: dict[str, Any]) -> int:
  return zlib.crc32(json.dumps(record, sort_keys=True).encode())
