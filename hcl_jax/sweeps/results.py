# SPDX-License-Identifier: Apache-2.0
"""Results of sweeps, read back from their directories and joined."""

import ast
from collections.abc import Sequence
import csv
import math
import os
import pathlib
from typing import Any
from typing import NamedTuple

import ml_collections
import numpy as np

from hcl_jax import domains
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import grid
from hcl_jax.sweeps import tally
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib

_DATA_SET = 'data.name'


class Results(NamedTuple):
  """Finished members of one sweep or more, as columns.

  Attributes:
    fields: values of all members, by the name of the field: the data set, what
      was swept, and what the sweeps differ in.
    scores: of all members, by name; NaN where a member has none.
    curves: of all members, epochs and the score that was measured on the way;
      empty where there is none.
    curve_score: name of that score.
  """

  fields: dict[str, list[Any]]
  scores: dict[str, np.ndarray]
  curves: list[tuple[np.ndarray, np.ndarray]]
  curve_score: str


class _Member(NamedTuple):
  """What is known of a member."""

  values: dict[str, Any]
  scores: dict[str, float]
  curve: tuple[np.ndarray, np.ndarray]


class _Sweep(NamedTuple):
  """A directory, its configuration, and its members."""

  workdir: pathlib.Path
  config: ml_collections.ConfigDict
  members: list[_Member]


def read(workdirs: Sequence[str | os.PathLike]) -> Results:
  """Reads ``results.csv`` of one sweep, or of several that go together.

  Args:
    workdirs: directories of the sweeps.

  Returns:
    The results of all of them.

  Raises:
    FileNotFoundError: a directory holds no sweep, or nothing of it is finished.
    ValueError: a directory holds something else, or sweeps cannot be joined.
  """
  sweeps = [_read_sweep(pathlib.Path(workdir)) for workdir in workdirs]
  fields = _swept_fields(sweeps) | _different_fields(sweeps)
  fields |= dict.fromkeys([_DATA_SET])
  members = {}
  for sweep in sweeps:
    for member in sweep.members:
      key = tuple(
          member.values[field]
          if field in member.values
          else fields_lib.get(sweep.config, field)
          for field in fields
      )
      if key in members:
        words = ', '.join(map('{}={}'.format, fields, key))
        raise ValueError(f'{sweep.workdir}: {words} is there twice.')
      members[key] = member
  names = dict.fromkeys(name for x in members.values() for name in x.scores)
  return Results(
      fields={
          field: [key[k] for key in members] for k, field in enumerate(fields)
      },
      scores={
          name: np.array(
              [x.scores.get(name, math.nan) for x in members.values()]
          )
          for name in names
      },
      curves=[x.curve for x in members.values()],
      curve_score=domains.main_score(sweeps[0].config),
  )


def _read_sweep(workdir):
  config = workdir_lib.load_config(workdir)
  if 'sweep' not in config:
    raise ValueError(
        f'{workdir} holds a single run; give the directory of a sweep, which '
        'python -m hcl_jax.sweep makes.'
    )
  path = workdir / tally.CSV
  config = grid.without_sweep(config)
  domains.fill_defaults(config)
  try:
    with open(path, encoding='utf-8', newline='') as file:
      rows = list(csv.DictReader(file))
    return _Sweep(
        workdir, config, [_read_member(workdir, config, row) for row in rows]
    )
  except FileNotFoundError as error:
    raise FileNotFoundError(
        f'{workdir} has no {tally.CSV}: no member of the sweep is finished yet.'
    ) from error
  except (ValueError, TypeError, csv.Error) as error:
    raise ValueError(f'{path} cannot be read: {error}.') from error


def _read_member(workdir, config, row):
  values = {k: _value(text) for k, text in row.items() if _is_field(k)}
  scores = {k: float(text or 'nan') for k, text in row.items() if '/' in k}
  config = fields_lib.with_values(config, values)
  folder = tally.run_folder(workdir, grid.member_name(int(row['member'])))
  return _Member(values, scores, _read_curve(folder, config))


def _read_curve(folder, config):
  """Epochs, and the score that chooses the best step, of a finished run.

  The length of an epoch is that of the data; what is known here is how many
  epochs the steps of the whole run are.
  """
  records = metrics_lib.read_metrics(folder) if folder.is_dir() else []
  name = domains.main_score(config)
  by_step = {x['step']: x[name] for x in records if name in x}
  if config.train.get('steps') or not by_step:
    return np.zeros(0), np.zeros(0)
  steps = np.array(sorted(by_step))
  share = steps / max(x['step'] for x in records)
  return share * config.train.epochs, np.array([by_step[x] for x in steps])


def _is_field(column):
  return column != 'member' and '/' not in column


def _value(text):
  """A number or a truth value, or else a word."""
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError, RecursionError, MemoryError):
    return text
  return value if isinstance(value, (bool, int, float)) else text


def _swept_fields(sweeps):
  return dict.fromkeys(
      field for sweep in sweeps for x in sweep.members for field in x.values
  )


def _different_fields(sweeps):
  """Fields of which configurations have different values, swept or not."""
  first, *others = sweeps
  names = fields_lib.flatten(first.config)
  for sweep in others:
    odd = set(names).symmetric_difference(fields_lib.flatten(sweep.config))
    if odd:
      raise ValueError(
          f'{first.workdir} and {sweep.workdir} cannot be joined: only one has '
          f'a field {min(odd)}.'
      )
  return dict.fromkeys(
      name
      for name in names
      if name not in config_lib.SWEEP_MAY_CHANGE
      and len({fields_lib.get(sweep.config, name) for sweep in sweeps}) > 1
  )
