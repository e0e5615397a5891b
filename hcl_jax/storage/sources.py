# SPDX-License-Identifier: Apache-2.0
"""Compares the source of a data set with the one it was prepared from.

A builder records its source in ``metadata.json`` beside the data set, so that a
name that is taken does not give one project the data of another.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import hashlib
import json
import os
import pathlib
from typing import Any

import numpy as np


def measure(path: str | os.PathLike, **options: Any) -> dict[str, Any]:
  """Describes a source, to tell it from others.

  Args:
    path: a file, or a folder, whose hidden files are skipped. It need not
      exist.
    **options: what else the data set depends on, as JSON can hold it.

  Returns:
    The path, the number and total size of its files, and the options.
  """
  path = pathlib.Path(path).resolve()
  sizes = list(_sizes(path))
  return {
      'path': str(path), 'files': len(sizes), 'bytes': sum(sizes), **options
  }  # fmt: skip


def digest(arrays: Iterable[np.ndarray]) -> str:
  """Returns a short name of the values, types and shapes of arrays."""
  found = hashlib.sha256()
  for array in arrays:
    found.update(f'{array.dtype.str} {array.shape};'.encode())
    found.update(np.ascontiguousarray(array).data)
  return found.hexdigest()[:16]


def check(
    dataset: str, directory: pathlib.Path, asked: Mapping[str, Any]
) -> None:
  """Raises ValueError unless a data set was prepared from this source.

  ``asked`` is the source as :func:`measure` describes it.
  """
  remedy = (
      'Choose another name with --dataset=NAME; or give --dataset alone to use '
      f'what is there; or remove {directory} first.'
  )
  recorded = _read(directory)
  if recorded is None:
    raise ValueError(
        f'{dataset} is prepared already, without a record of its source; '
        f'{asked["path"]} may be other data. {remedy}'
    )
  differences = '; '.join(
      f'{name} was {recorded.get(name)!r} and is {value!r}'
      for name, value in asked.items()
      if recorded.get(name) != value
  )
  if differences:
    raise ValueError(
        f'{dataset} is prepared already, from another source: {differences}. '
        + remedy
    )


def describe(directory: pathlib.Path) -> str:
  """Returns ``', from PATH'`` for a data set with a record, or nothing."""
  recorded = _read(directory)
  return f', from {recorded["path"]}' if recorded else ''


def _sizes(path: pathlib.Path) -> Iterator[int]:
  """Yields the bytes of each file, through links as their readers do."""
  if path.is_file():
    yield path.stat().st_size
  for folder, folders, files in os.walk(path, followlinks=True):
    folders[:] = [name for name in folders if not name.startswith('.')]
    for name in files:
      file = os.path.join(folder, name)
      if not name.startswith('.') and os.path.isfile(file):
        yield os.stat(file).st_size


def _read(directory: pathlib.Path) -> dict[str, Any] | None:
  """Reads the recorded source of a data set, or None."""
  try:
    text = (directory / 'metadata.json').read_text(encoding='utf-8')
  except FileNotFoundError:
    return None
  return json.loads(text).get('source')
