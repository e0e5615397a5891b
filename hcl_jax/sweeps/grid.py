# SPDX-License-Identifier: Apache-2.0
"""The members of a sweep: every combination of the values of some fields."""

from collections.abc import Mapping
from collections.abc import Sequence
import difflib
import itertools
import re
from typing import Any
from typing import NamedTuple

import ml_collections

from hcl_jax import domains
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib

PREFIX = '--sweep.'

_RANGE = re.compile(r'(-?\d+):(-?\d+)')
_MAX_MEMBERS = 100_000
_BOOLEANS = {'true': True, 'false': False}
_WISHES = {
    int: 'whole numbers',
    float: 'numbers',
    bool: 'true, false',
    str: 'words',
}


class Member(NamedTuple):
  """One run of a sweep.

  Attributes:
    number: of the member, from 0.
    values: of the swept fields, by name.
    config: the whole configuration, checked.
  """

  number: int
  values: dict[str, Any]
  config: ml_collections.ConfigDict

  @property
  def name(self) -> str:
    return member_name(self.number)

  def words(self) -> str:
    """The values, to show."""
    return ', '.join(f'{field}={x}' for field, x in self.values.items())


def member_name(number: int) -> str:
  """What the files of a member are called."""
  return f'{number:04d}'


def read_fields(
    config: ml_collections.ConfigDict, arguments: Sequence[str]
) -> dict[str, tuple[Any, ...]]:
  """What to sweep: ``config.sweep``, with the values of flags in its place.

  Args:
    config: has the fields and, if it likes, a ``sweep`` with values of some.
    arguments: each ``'--sweep.FIELD=values'``.

  Returns:
    The values, by the name of the field.

  Raises:
    ValueError: values do not fit their field, or there are none at all.
  """
  fields = read_config(config) | read_flags(config, arguments)
  if not fields:
    raise ValueError(
        'nothing to sweep; give --sweep.FIELD=values, as --sweep.seed=0:10.'
    )
  return fields


def read_config(
    config: ml_collections.ConfigDict,
) -> dict[str, tuple[Any, ...]]:
  """Values of fields, as the configuration itself gives them.

  Args:
    config: ``config.sweep.loss.beta`` has the values of ``config.loss.beta``,
      and so on. There need not be any.

  Returns:
    The values, by the name of the field.

  Raises:
    ValueError: there is no such field, or values do not fit it.
  """
  sweep = config.get('sweep', ml_collections.ConfigDict())
  fields = {}
  for field, values in fields_lib.flatten(sweep).items():
    name = f'config.sweep.{field}'
    kind = _scalar_type(config, field, name)
    if not isinstance(values, tuple) or not all(_fits(kind, x) for x in values):
      raise ValueError(
          f'{name} must be a tuple of {_WISHES[kind]}, got {values!r}.'
      )
    fields[field] = tuple(map(kind, values))
    _check_values(name, fields[field])
  return fields


def read_flags(
    config: ml_collections.ConfigDict, arguments: Sequence[str]
) -> dict[str, tuple[Any, ...]]:
  """Values of fields, as flags of a command give them.

  Args:
    config: has the fields.
    arguments: each ``'--sweep.FIELD=values'``.

  Returns:
    The values, by the name of the field.

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
  """Values of a field, as written in a flag.

  Args:
    config: has the field.
    field: its dotted name.
    text: values between commas; ``a:b`` stands for a, a + 1, ..., b - 1.

  Returns:
    Values of the type of the field.

  Raises:
    ValueError: there is no such field, or the text does not fit it.
  """
  name = f'--sweep.{field}'
  kind = _scalar_type(config, field, name)
  values = []
  for word in text.split(','):
    found = _RANGE.fullmatch(word.strip())
    if found and kind in (int, float):
      low, high = map(int, found.groups())
      if high - low > _MAX_MEMBERS:
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
) -> list[Member]:
  """All combinations, the last field changing fastest.

  Args:
    config: what the members have in common; ``sweep`` is not theirs.
    fields: values by the name of the field.

  Returns:
    The members; the configuration of each has been checked.
  """
  count = 1
  for values in fields.values():
    count *= len(values)
  if count > _MAX_MEMBERS:
    raise ValueError(
        f'the sweep would have {count} members, more than {_MAX_MEMBERS}; give '
        'fewer values.'
    )
  common = without_sweep(config)
  members = []
  for number, combination in enumerate(itertools.product(*fields.values())):
    values = dict(zip(fields, combination, strict=True))
    member = Member(number, values, fields_lib.with_values(common, values))
    domains.check(member.config)
    members.append(member)
  return members


def groups(members: Sequence[Member]) -> list[list[Member]]:
  """Members that may be trained together, in the order of the first ones."""
  found = {}
  for member in members:
    # On images every member is a run of its own.
    alone = member.number if member.config.task != 'infograph' else None
    found.setdefault((alone, *not_traced(member)), []).append(member)
  return list(found.values())


def not_traced(member: Member) -> tuple[tuple[str, Any], ...]:
  """Names and values of what was swept beside fields of ``TRACED``."""
  return tuple(
      (k, x) for k, x in member.values.items() if k not in config_lib.TRACED
  )


def without_sweep(
    config: ml_collections.ConfigDict,
) -> ml_collections.ConfigDict:
  """A copy of a configuration that has nothing to sweep."""
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
  *path, last = field.split('.')
  parent = fields_lib.get(config, '.'.join(path)) if path else config
  kind = parent.get_type(last)
  if kind not in _WISHES:
    raise ValueError(
        f'{name}: only a number, a word or a truth value can be swept, and '
        f'this field holds a {kind.__name__}.'
    )
  return kind


def _fits(kind, value):
  return type(value) in ((int, float) if kind is float else (kind,))


def _check_values(name, values):
  if not values:
    raise ValueError(f'{name} has no values; give one or more.')
  twice = [x for i, x in enumerate(values) if x in values[:i]]
  if twice:
    raise ValueError(f'{name} has the value {twice[0]} twice.')


def _convert(name, kind, word):
  try:
    if not word:
      raise ValueError
    return _BOOLEANS[word.lower()] if kind is bool else kind(word)
  except (ValueError, KeyError):
    raise ValueError(
        f'{name} must be {_WISHES[kind]} between commas, got {word!r}.'
    ) from None
