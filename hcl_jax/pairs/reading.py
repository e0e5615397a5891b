# SPDX-License-Identifier: Apache-2.0
"""Reads tables of pairs from files: TSV, CSV, JSON lines, Parquet, vectors."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import csv
import json
import pathlib
from typing import Any
import zipfile

import numpy as np

from hcl_jax.pairs import tables
from hcl_jax.storage import text_files

_COMPRESSED = ('.gz', '.xz')


def read(
    path: pathlib.Path, names: Mapping[str, str | Sequence[str]]
) -> dict[str, Any]:
  """Reads columns of a file, as ``tables.divide`` takes them.

  The end of its name says what it is: ``.tsv`` and ``.csv``, whose first line
  has the names of the columns; ``.jsonl``, an object a line; ``.parquet``; or
  ``.npz``, arrays of vectors or images. Text may be compressed, ``.gz`` or
  ``.xz``.

  Args:
    path: the file.
    names: name of each column that is read: ``'query'``, ``'document'``, and if
      wanted ``'id'``, ``'group'`` and ``'negatives'``, one or several.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is not such a file, or lacks a column.
  """
  if not path.is_file():
    raise FileNotFoundError(f'there is no file {path}.')
  suffixes = [x for x in path.suffixes if x not in _COMPRESSED]
  suffix = suffixes[-1] if suffixes else ''
  if suffix not in _READERS:
    raise ValueError(
        f'{path} must end in one of {", ".join(_READERS)}, which says how to '
        'read it.'
    )
  found = _READERS[suffix](path, names)
  if not len(found['query']):
    raise ValueError(f'{path} has no pairs.')
  return found


def _read_table(path, names, *, delimiter, **format):
  lines = (f'{line}\n' for line in text_files.read_lines(path))
  rows = csv.reader(lines, delimiter=delimiter, strict=True, **format)
  try:
    header = next(rows, [])
    columns = _find(path, names, header)
    found = {name: [] for name in columns}
    for row in rows:
      if not row:
        continue
      if len(row) != len(header):
        raise ValueError(
            f'{path}, line {rows.line_num}: it must have {len(header)} fields, '
            f'as the first line has; got {len(row)}.'
        )
      for name, places in columns.items():
        values = [row[place] for place in places]
        found[name].append(_value(name, values))
      _check_texts(path, f'line {rows.line_num}', found)
  except csv.Error as error:
    raise ValueError(
        f'{path}, line {rows.line_num}, cannot be read: {error}.'
    ) from error
  return found


def _read_json(path, names):
  found = {name: [] for name in names}
  for number, line in enumerate(text_files.read_lines(path), 1):
    if not line.strip():
      continue
    try:
      row = json.loads(line)
    except ValueError as error:
      raise ValueError(
          f'{path}, line {number}, is no JSON: {error}.'
      ) from error
    if not isinstance(row, dict):
      raise ValueError(
          f'{path}, line {number}, must be an object with the columns; got '
          f'{line:.60}.'
      )
    needed = {k: x for k, x in names.items() if k in ('query', 'document')}
    _find(path, needed, list(row), f', line {number},')
    for name, asked in names.items():
      values = [row.get(x) for x in _several(asked)]
      found[name].append(_value(name, values))
    _check_texts(path, f'line {number}', found)
  _check_known(path, found, names)
  return found


def _read_parquet(path, names):
  try:
    import pyarrow
    from pyarrow import parquet
  except ModuleNotFoundError as error:
    raise ValueError(
        f'{path} needs the package pyarrow to be read; pip install pyarrow.'
    ) from error
  try:
    columns = _find(path, names, parquet.read_schema(path).names)
    wanted = [x for asked in names.values() for x in _several(asked)]
    table = parquet.read_table(path, columns=wanted)
  except (pyarrow.ArrowException, OSError) as error:
    raise ValueError(f'{path} is no Parquet file: {error}') from error
  found = {}
  for name in columns:
    asked = _several(names[name])
    values = zip(*(table[x].to_pylist() for x in asked), strict=True)
    found[name] = [_value(name, list(x)) for x in values]
  for row in range(table.num_rows):
    _check_texts(path, f'row {row}', found, row)
  return found


def _read_arrays(path, names):
  try:
    with np.load(path, allow_pickle=False) as file:
      columns = _find(path, names, file.files)
      found = {}
      for name in columns:
        arrays = [file[x] for x in _several(names[name])]
        if name == 'negatives':
          shape = file[_several(names['query'])[0]].shape
          arrays = [x[:, None] if x.ndim == len(shape) else x for x in arrays]
        found[name] = (
            arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)
        )
  except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
    if str(path) in str(error):
      raise
    raise ValueError(
        f'{path} cannot be read as arrays, which numpy.savez writes: {error}'
    ) from error
  return found


_READERS: dict[str, Callable[..., dict[str, Any]]] = {
    '.tsv': lambda path, names: _read_table(
        path, names, delimiter='\t', quoting=csv.QUOTE_NONE
    ),
    '.csv': lambda path, names: _read_table(path, names, delimiter=','),
    '.jsonl': _read_json,
    '.parquet': _read_parquet,
    '.npz': _read_arrays,
}


def _several(asked: str | Sequence[str]) -> list[str]:
  return [asked] if isinstance(asked, str) else list(asked)


def _find(path, names, header, place='') -> dict[str, list[int]]:
  """Returns the places of columns; raises a ValueError if one is missing."""
  found = {}
  for name, asked in names.items():
    for column in _several(asked):
      if column not in header:
        flag = 'negative_columns' if name == 'negatives' else f'{name}_column'
        raise ValueError(
            f'{path}{place} has no column {column!r}, only '
            f'{", ".join(map(repr, header)) or "none"}; name it by '
            f'--{flag}=NAME.'
        )
      found.setdefault(name, []).append(header.index(column))
  return found


def _check_known(path, found, names):
  """Raises a ValueError if no line has a column that was asked for."""
  for name in ('id', 'group', 'negatives'):
    if name in names and not any(x not in (None, []) for x in found[name]):
      _find(path, {name: names[name]}, [])


def _value(name: str, values: list[Any]) -> Any:
  """Returns what a row has of a column, or of several of negatives."""
  if name != 'negatives':
    return values[0]
  return list(_texts(values))


def _texts(values) -> Iterator[Any]:
  """Yields texts of lists and texts that are not empty."""
  for value in values:
    if isinstance(value, list | tuple):
      yield from value
    elif value is not None and value != '':
      yield value


def _check_texts(path, place, found, row=-1):
  """Raises a ValueError unless the last query and document are texts."""
  for name in tables.COLUMNS[:2]:
    value = found[name][row]
    if not isinstance(value, str) or not value.strip():
      what = 'empty' if value in ('', None) else f'{value!r:.60}'
      raise ValueError(
          f'{path}, {place}: the {name} must be a text, but is {what}; '
          'complete or remove that row.'
      )
