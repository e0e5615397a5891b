# SPDX-License-Identifier: Apache-2.0
"""Keeps the directory of a run: its configuration and versions.

``config.json`` holds the whole configuration, sorted, and the number of its
``format``; ``versions.json`` a list with one entry for every start;
``inputs.json`` what must be known of the data to embed new rows. Each is
written at once or not at all.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import datetime
import fcntl
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import sys
import types
from typing import Any

from absl import logging
import jax
import ml_collections

import hcl_jax
from hcl_jax.storage import locations

_CONFIG = 'config.json'
_MAX_NAMED = 4
_VERSIONS = 'versions.json'
_INPUTS = 'inputs.json'
# A file without the number has format 1.
_FORMAT = 1
_FORMAT_FIELD = 'format'
_CHECKPOINTS = 'checkpoints'
_LOCK = '.lock'
_PACKAGES = (
    'jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy',
)  # fmt: skip
_ABSENT = '(absent)'


class WorkdirError(ValueError):
  """Raised when a run cannot use a directory."""


class ConfigMismatch(WorkdirError):
  """Raised when a workdir holds a run with another configuration.

  Attributes:
    differences: ``(old, new)`` by the name of the field.
  """

  def __init__(self, workdir: pathlib.Path, differences: Mapping[str, Any]):
    self.differences = dict(differences)
    fields = '; '.join(
        f'{name} was {old!r} and is {new!r}'
        for name, (old, new) in self.differences.items()
    )
    super().__init__(
        f'{workdir} holds a run with another configuration: {fields}. Use '
        'another workdir for this one, or the old values to continue.'
    )


@contextlib.contextmanager
def lock(workdir: str | os.PathLike) -> Iterator[None]:
  """Locks a directory, so that no other process trains in it.

  The lock ends with the block, or with the process, however that ends. Where
  the file system has no locks there is a warning instead. The directory is made
  if it does not exist.

  Raises:
    WorkdirError: another process has the lock, or it cannot be written.
  """
  workdir = _local(workdir).absolute()
  with _writing(workdir):
    _refuse_a_file(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    file = open(workdir / _LOCK, 'ab+', buffering=0)
  with file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      file.seek(0)
      holder = file.read().decode(errors='replace').strip() or 'unknown'
      raise WorkdirError(
          f'another process ({holder}) is at work in {workdir}; stop it, or '
          'use another workdir.'
      ) from None
    except OSError as error:
      logging.warning(
          '%s: no lock can be had (%s), so nothing keeps a second process from '
          'writing there.', workdir, error,
      )  # fmt: skip
    with _writing(workdir):
      file.truncate(0)
      file.write(f'process {os.getpid()} on {platform.node()}\n'.encode())
    yield


def open_run(
    workdir: str | os.PathLike,
    config: ml_collections.ConfigDict,
    *,
    may_change: Sequence[str] = (),
    may_appear: Mapping[str, Any] = types.MappingProxyType({}),
    inputs: Mapping[str, Any] | None = None,
) -> pathlib.Path:
  """Begins a run in a directory, or continues the one that is there.

  Args:
    workdir: made if it does not exist; files of others are left alone.
    config: the whole configuration.
    may_change: fields, such as ``train.log_every_steps``, or groups of fields,
      such as ``evaluate``, that a continued run may change. Then the new
      values replace the old ones in ``config.json``, and ``versions.json`` says
      so.
    may_appear: fields that runs of an earlier version lack, with the value that
      they had in effect; ``...`` for one that follows from other fields.
    inputs: what must be known of the data to embed new rows; None: nothing.

  Returns:
    The directory. Its sub-directory for checkpoints is ``checkpoints``.

  Raises:
    ConfigMismatch: another configuration is there; nothing was written.
    WorkdirError: the directory, or the configuration there, cannot be used.
  """
  workdir = _local(workdir).absolute()
  _refuse_a_file(workdir)
  new = plain(config.to_dict(), 'config')
  if _FORMAT_FIELD in new:
    raise ValueError(
        f'config.{_FORMAT_FIELD} is the name of what {_CONFIG} records itself; '
        'rename that field.'
    )
  changed = _changes(workdir, new)
  refused = {
      name: pair for name, pair in changed.items()
      if not _covered(name, may_change)
      and not (
          pair[0] == _ABSENT
          and name in may_appear
          and may_appear[name] in (..., pair[1])
      )
  }  # fmt: skip
  if refused:
    raise ConfigMismatch(workdir, refused)
  check_inputs(workdir, inputs)
  if jax.process_index() == 0:
    history = _read_history(workdir) + [_versions(changed)]
    with _writing(workdir):
      workdir.mkdir(parents=True, exist_ok=True)
      _write(workdir / _CONFIG, {_FORMAT_FIELD: _FORMAT, **new})
      _write(workdir / _VERSIONS, history)
      if inputs is not None:
        _write(workdir / _INPUTS, plain(inputs, 'inputs'))
  return workdir


def find_run(workdir: str | os.PathLike) -> pathlib.Path:
  """Returns the absolute path of a run that this or another process began.

  Raises:
    WorkdirError: the run is not there.
  """
  workdir = _local(workdir).absolute()
  if not (workdir / _CONFIG).is_file():
    raise WorkdirError(
        f'workdir must be a directory that all processes see, but process '
        f'{jax.process_index()} finds no {_CONFIG} in {workdir}.'
    )
  return workdir


def read_inputs(workdir: str | os.PathLike) -> dict[str, Any] | None:
  """Reads what must be known of the data to embed new rows.

  None for a run of an earlier version, which did not record it.

  Raises:
    WorkdirError: the file is damaged.
  """
  return _read_object(_local(workdir) / _INPUTS)


def check_inputs(
    workdir: str | os.PathLike, inputs: Mapping[str, Any] | None
) -> None:
  """Raises a WorkdirError if the data of a run are no longer the same."""
  old = read_inputs(workdir)
  if old is None or inputs is None:
    return
  new = plain(inputs, 'inputs')
  names = [x for x in {**old, **new} if old.get(x) != new.get(x)]
  if names:
    raise WorkdirError(
        f'the data of the run in {workdir} have changed since it began: '
        f'{", ".join(names)} of {_INPUTS}. Use another workdir for these data, '
        'or the old data to continue.'
    )


def load_config(workdir: str | os.PathLike) -> ml_collections.ConfigDict:
  """Reads the configuration of a run; sequences come back as tuples.

  Raises:
    FileNotFoundError: there is no run.
    WorkdirError: its ``config.json`` cannot be read, or is of a later version
      of hcl_jax.
  """
  path = _local(workdir)
  saved = _read_config(path)
  if saved is None:
    below = sorted(str(x.parent) for x in path.glob(f'*/{_CONFIG}'))
    others = ', ...' if len(below) > _MAX_NAMED else ''
    remedy = (
        f'There are runs below it: {", ".join(below[:_MAX_NAMED])}{others}.'
        if below
        else 'Give the workdir of a training run.'
    )
    raise FileNotFoundError(
        f'there is no run in {workdir}: it has no {_CONFIG}. {remedy}'
    )
  return ml_collections.ConfigDict(_with_tuples(saved))


def _local(workdir: str | os.PathLike) -> pathlib.Path:
  """Refuses gs:// and others, which pathlib would make a local folder."""
  try:
    locations.check_local('workdir', workdir)
  except ValueError as error:
    raise WorkdirError(str(error)) from None
  return pathlib.Path(workdir)


@contextlib.contextmanager
def _writing(workdir: pathlib.Path) -> Iterator[None]:
  """Raises a WorkdirError for an OSError of the block."""
  try:
    yield
  except OSError as error:
    raise WorkdirError(
        f'workdir {workdir} cannot be written: {error}.'
    ) from error


def _refuse_a_file(workdir: pathlib.Path) -> None:
  if workdir.exists() and not workdir.is_dir():
    raise WorkdirError(f'workdir must be a directory, but {workdir} is a file.')


def _changes(
    workdir: pathlib.Path, new: dict[str, Any]
) -> dict[str, tuple[Any, Any]]:
  """Compares a configuration with that of the run in the directory, if any."""
  saved = _read_config(workdir)
  if saved is not None:
    old, new = _flat(saved), _flat(new)
    return {
        name: (old.get(name, _ABSENT), new.get(name, _ABSENT))
        for name in sorted(old.keys() | new.keys())
        if name not in old or name not in new or not _same(old[name], new[name])
    }
  checkpoints = workdir / _CHECKPOINTS
  if checkpoints.is_dir() and any(checkpoints.iterdir()):
    raise WorkdirError(
        f'{workdir} holds checkpoints but no {_CONFIG}, so what they belong to '
        'is not known; use another workdir.'
    )
  return {}


def _read_object(path: pathlib.Path) -> dict[str, Any] | None:
  """Reads a JSON object; None if there is no such file."""
  try:
    saved = json.loads(path.read_text(encoding='utf-8'))
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (ValueError, OSError, RecursionError) as error:
    raise WorkdirError(f'{path} cannot be read: {error}.') from error
  if not isinstance(saved, dict):
    raise WorkdirError(f'{path} cannot be read: it is not a JSON object.')
  return saved


def _read_config(workdir: pathlib.Path) -> dict[str, Any] | None:
  path = workdir / _CONFIG
  saved = _read_object(path)
  if saved is None:
    return None
  found = saved.pop(_FORMAT_FIELD, _FORMAT)
  if not isinstance(found, int) or isinstance(found, bool) or found < 1:
    raise WorkdirError(
        f'{path} cannot be read: its {_FORMAT_FIELD} is {found!r}, and not a '
        'number from 1.'
    )
  if found > _FORMAT:
    raise WorkdirError(
        f'{path} has format {found}, but hcl_jax {hcl_jax.__version__} knows '
        f'formats up to {_FORMAT}; upgrade hcl_jax to use this directory.'
    )
  return saved


def _read_history(workdir: pathlib.Path) -> list[Any]:
  path = workdir / _VERSIONS
  try:
    history = json.loads(path.read_text(encoding='utf-8'))
  except (FileNotFoundError, NotADirectoryError):
    return []
  except ValueError:
    logging.warning('%s cannot be read; its entries are lost.', path)
    return []
  return history if isinstance(history, list) else [history]


def _versions(changed: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
  """Describes this start: versions, devices and the fields it changed."""
  now = datetime.datetime.now(datetime.UTC)
  return {
      'time': now.isoformat(timespec='seconds'),
      'command': sys.argv,
      'hcl_jax': hcl_jax.__version__,
      **{name: _version_of(name) for name in _PACKAGES},
      'python': platform.python_version(),
      'platform': platform.platform(),
      'device_kind': jax.devices()[0].device_kind,
      'device_count': jax.device_count(),
      'process_count': jax.process_count(),
      'changed': changed,
  }


def _version_of(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _write(path: pathlib.Path, value: Any) -> None:
  temporary = path.with_name(path.name + '.tmp')
  with open(temporary, 'w', encoding='utf-8') as file:
    json.dump(value, file, indent=2, sort_keys=True)
    file.write('\n')
    file.flush()
    os.fsync(file.fileno())
  os.replace(temporary, path)


def plain(value: Any, name: str = 'value') -> Any:
  """Converts a value to what JSON gives back.

  Raises:
    ValueError: JSON cannot keep it; the message names the field.
  """
  if isinstance(value, Mapping):
    return {key: plain(v, f'{name}.{key}') for key, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [plain(v, f'{name}[{i}]') for i, v in enumerate(value)]
  if hasattr(value, 'item') and getattr(value, 'ndim', None) == 0:
    value = value.item()
  if value is None or isinstance(value, (bool, int, float, str)):
    return value
  raise ValueError(
      f'{name} holds a {type(value).__name__}, which {_CONFIG} cannot keep; '
      'use numbers, strings, None and sequences of them.'
  )


def _with_tuples(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _with_tuples(v) for key, v in value.items()}
  if isinstance(value, list):
    return tuple(_with_tuples(v) for v in value)
  return value


def _flat(value: Any, name: str = '') -> dict[str, Any]:
  """Maps dotted names to leaves; an empty group is a leaf."""
  if not isinstance(value, dict) or (name and not value):
    return {name: value}
  return {
      full: leaf
      for key, child in value.items()
      for full, leaf in _flat(child, f'{name}.{key}' if name else key).items()
  }


def _same(a: Any, b: Any) -> bool:
  """Compares values: 1 equals 1.0, True is not 1, NaN equals NaN."""
  if isinstance(a, list) and isinstance(b, list):
    return len(a) == len(b) and all(map(_same, a, b))
  if isinstance(a, bool) != isinstance(b, bool):
    return False
  if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
    return math.isnan(b)
  return a == b


def _covered(name: str, may_change: Sequence[str]) -> bool:
  return any(
      name == field or name.startswith(f'{field}.') for field in may_change
  )
