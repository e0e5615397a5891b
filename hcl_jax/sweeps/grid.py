# SPDX-License-Identifier: Apache-2.0
"""Expands a sweep into runs: every combination of the values of fields."""

from collections.abc import Mapping
from collections.abc import Sequence
import difflib
import itertools
import math
import re
from typing import Any
from typing import NamedTuple

import ml_collections

from hcl_jax import domains
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib

PREFIX = '--sweep.'

_RANGE = re.compile(r'(-?\d+):(-?\d+)')
_MAX_RUNS = 100_000
_WISHES = {
    int: 'integers',
    float: 'numbers',
    bool: 'true, false',
    str: 'strings',
}


class Run(NamedTuple):
  """Describes a run of a sweep.

  Attributes:
    number: of the run, from 0.
    values: of the swept fields, by name.
    config: the whole configuration, checked.
    title: what to call the run, if not by its values.
  """

  number: int
  values: dict[str, Any]
  config: ml_collections.ConfigDict
  title: str = ''

  @property
  def name(self) -> str:
    """Returns what the files of the run are called."""
    return f'{self.number:04d}'

  @property
  def label(self) -> str:
    """Returns the title or the values, to show."""
    values = ', '.join(f'{field}={x}' for field, x in self.values.items())
    return self.title or values


def read_fields(
    config: ml_collections.ConfigDict, arguments: Sequence[str]
) -> dict[str, tuple[Any, ...]]:
  """Reads values of fields to sweep: ``config.sweep``, which flags overrule.

  Raises:
    ValueError: values do not fit their field, or there are none at all.
  """
  fields = read_config(config) | read_flags(config, arguments)
  if not fields:
    raise ValueError(
        'nothing to sweep; give --sweep.FIELD=values, as --sweep.seed=0:10.'
    )
  return fields


def read_config(config: fields_lib.Config) -> dict[str, tuple[Any, ...]]:
  """Reads values of fields that the configuration itself gives, if any.

  ``config.sweep.loss.beta`` has the values of ``config.loss.beta``, and so on.

  Raises:
    ValueError: there is no such field, or values do not fit it.
  """
  sweep = config.get('sweep') or ml_collections.ConfigDict()
  fields = {}
  for field, values in fields_lib.flatten(sweep).items():
    name = f'config.sweep.{field}'
    kind = _scalar_type(config, field, name)
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(values, tuple) or any(
        type(x) not in kinds for x in values
    ):
      raise ValueError(
          f'{name} must be a tuple of {_WISHES[kind]}, got {values!r}.'
      )
    fields[field] = tuple(map(kind, values))
    _check_values(name, fields[field])
  return fields


def read_flags(
    config: ml_collections.ConfigDict, arguments: Sequence[str]
) -> dict[str, tuple[Any, ...]]:
  """Reads values of fields that flags, ``'--sweep.FIELD=values'``, give.

  Raises:
    ValueError: an argument is something else, or its values do not fit.
  """
  fields = {}
  for argument in arguments:
    if not argument.startswith(PREFIX):
      raise ValueError(f'unexpected argument {argument!r}.')
    field, equals, text = argument.removeprefix(PREFIX).partition('=')
    if not equals:
      raise ValueError(f'{argument} has no values; write {argument}=0,1,2.')
    if field in fields:
      raise ValueError(f'--sweep.{field} is given twice.')
    fields[field] = read_values(config, field, text)
  return fields


def read_values(
    config: ml_collections.ConfigDict, field: str, text: str
) -> tuple[Any, ...]:
  """Reads values of a field, between commas, as values of its type.

  In the text ``a:b`` stands for a, a + 1, ..., b - 1.

  Raises:
    ValueError: there is no such field, or the text does not fit it.
  """
  name = f'--sweep.{field}'
  kind = _scalar_type(config, field, name)
  values = []
  for word in text.strip('()[]').split(','):
    found = _RANGE.fullmatch(word.strip())
    if found and kind in (int, float):
      low, high = map(int, found.groups())
      if high - low > _MAX_RUNS:
        raise ValueError(f'{name}: {word} has too many values.')
      if low >= high:
        raise ValueError(
            f'{name}: {word} has no values; a:b goes from a up to b - 1.'
        )
      values += map(kind, range(low, high))
    else:
      values.append(_convert(name, kind, word.strip()))
  _check_values(name, values)
  return tuple(values)


def expand(
    config: ml_collections.ConfigDict, fields: Mapping[str, Sequence[Any]]
) -> list[Run]:
  """Returns all combinations of values, the last field changing fastest.

  The configuration of each has been checked, and has no ``sweep``.
  """
  count = math.prod(map(len, fields.values()))
  if count > _MAX_RUNS:
    raise ValueError(
        f'the sweep would have {count} runs, more than {_MAX_RUNS}; give fewer '
        'values.'
    )
  common = without_sweep(config)
  runs = []
  for number, combination in enumerate(itertools.product(*fields.values())):
    values = dict(zip(fields, combination, strict=True))
    run = Run(number, values, fields_lib.with_values(common, values))
    domains.check(run.config)
    runs.append(run)
  return runs


def groups(runs: Sequence[Run]) -> list[list[Run]]:
  """Groups runs that share programs, in the order of the first ones."""
  found = {}
  for run in runs:
    not_traced = tuple(
        (k, x) for k, x in run.values.items() if k not in config_lib.TRACED
    )
    found.setdefault(not_traced, []).append(run)
  return list(found.values())


def without_sweep(config: fields_lib.Config) -> fields_lib.Config:
  """Copies a configuration without what it has to sweep."""
  copy = config.copy_and_resolve_references()
  with copy.unlocked():
    if 'sweep' in copy:
      del copy['sweep']
  return copy


def _scalar_type(config, field, name):
  names = list(fields_lib.flatten(without_sweep(config)))
  if field not in names:
    near = difflib.get_close_matches(field, names, n=1)
    hint = f' Did you mean {near[0]}?' if near else ''
    raise ValueError(f'{name}: no such field of the config.{hint}')
  kind = fields_lib.type_of(config, field)
  if kind not in _WISHES:
    raise ValueError(
        f'{name}: only an int, float, str or bool can be swept, and this '
        f'field holds a {kind.__name__}.'
    )
  return kind


def _check_values(name, values):
  if not values:
    raise ValueError(f'{name} has no values; give one or more.')
  twice = [x for i, x in enumerate(values) if x in values[:i]]
  if twice:
    raise ValueError(f'{name} has the value {twice[0]} twice.')


def _convert(name, kind, word):
  try:
    return fields_lib.read_value(kind, word, like=word)
  except ValueError:
    raise ValueError(
        f'{name} must be {_WISHES[kind]} between commas, got {word!r}.'
    ) from None
