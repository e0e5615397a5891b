# SPDX-License-Identifier: Apache-2.0
"""Describes fields of a configuration: default, what is valid, and help."""

import ast
from collections.abc import Callable
from collections.abc import Mapping
import math
from typing import Any
from typing import NamedTuple
from typing import TypeAlias

from flax import traverse_util
import ml_collections
from ml_collections import config_dict

_BOOLEANS = {'true': True, 'false': False, '1': True, '0': False}
# What a flag must give for a field of a type.
KINDS = {
    int: 'an int',
    float: 'a number',
    bool: 'true or false',
    str: 'a str',
    tuple: 'values between commas',
}

# An ml_collections.ConfigDict; a type checker cannot know its fields.
Config: TypeAlias = Any


class Check(NamedTuple):
  """Decides what a field may be.

  Attributes:
    holds: whether a value is valid; may raise TypeError or OverflowError for a
      value of another kind altogether.
    wish: what is valid, after 'must be'.
  """

  holds: Callable[[Any], bool]
  wish: str


class Field(NamedTuple):
  """Describes a field of a configuration.

  Attributes:
    default: its value unless another is given; its type is that of the field.
    check: what it may be; None: whatever has the type.
    help: what it does, in a line.
  """

  default: Any
  check: Check | None
  help: str


# Fields and groups of fields, by name.
Fields = Mapping[str, 'Field | Fields']


def number(
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> Check:
  """Accepts finite numbers of an interval, which is closed unless told."""
  left, right = '(' if open_low else '[', ')' if open_high else ']'
  if high == math.inf:
    wish = f'{">" if open_low else ">="} {low:g} and finite'
  else:
    wish = f'in {left}{low:g}, {high:g}{right}'

  def holds(x):
    above = x > low if open_low else x >= low
    return math.isfinite(x) and above and (x < high if open_high else x <= high)

  return Check(holds, wish)


def one_of(*choices: Any) -> Check:
  """Accepts some values."""
  wish = f'one of {", ".join(map(repr, choices))}'
  return Check(lambda x: x in choices, wish)


def all_of(*choices: Any) -> Check:
  """Accepts tuples of some values."""
  wish = f'a tuple of {", ".join(map(repr, choices))}'
  return Check(lambda x: all(item in choices for item in x), wish)


def some_of(choices: tuple[Any, ...], *others: Any) -> Check:
  """Accepts tuples of one value or more; names the choices, not the others."""
  known = *choices, *others
  wish = f'one or more of {", ".join(map(repr, choices))}'
  return Check(lambda x: bool(x) and all(item in known for item in x), wish)


def integers(check: Check, wish: str, *, least: int = 0) -> Check:
  """Accepts tuples of at least so many integers that a check accepts."""

  def holds(x):
    whole = all(isinstance(item, int) for item in x)
    return whole and len(x) >= least and all(map(check.holds, x))

  return Check(holds, wish)


def or_none(check: Check) -> Check:
  """Accepts None too."""
  return Check(lambda x: x is None or check.holds(x), f'None or {check.wish}')


COUNT, COUNT_OR_ZERO = number(1), number(0)
NON_NEGATIVE, POSITIVE = number(0), number(0, open_low=True)
PROBABILITY, DECAY = number(0, 1), number(0, 1, open_high=True)
SEED = number(0, 2**31 - 1)
SEEDS = integers(SEED, 'one or more integers >= 0, below 2**31', least=1)


def make(fields: Fields) -> Config:
  """Returns the configuration that has the defaults of all fields."""
  return ml_collections.ConfigDict({
      name: _default(x) for name, x in fields.items()
  })


def check(config: Config, fields: Fields) -> None:
  """Raises a ValueError for a value that is not valid, naming its field."""
  for name, field in flatten_fields(fields).items():
    if field.check is None:
      continue
    value = get(config, name)
    try:
      is_valid = field.check.holds(value)
    except (TypeError, OverflowError):  # of another kind altogether
      is_valid = False
    if not is_valid:
      raise ValueError(
          f'config.{name} must be {field.check.wish}, got {value!r}.'
      )


def fill(config: Config, fields: Fields, path: str = 'config') -> None:
  """Gives the configuration of an older run the fields it was made without.

  The default of a new field says what runs were before there was one; ``path``
  is that of the configuration, for messages.

  Raises:
    ValueError: it is not the configuration of a run.
  """
  for name, field in fields.items():
    if name not in config:
      config[name] = _default(field)
    elif not isinstance(field, Field):
      if not isinstance(config[name], ml_collections.ConfigDict):
        raise ValueError(
            f'{path}.{name} must be a group of fields, got {config[name]!r}.'
        )
      fill(config[name], field, f'{path}.{name}')
    elif isinstance(field.default, tuple) and not isinstance(
        config[name], tuple
    ):
      raise ValueError(f'{path}.{name} must be a tuple, got {config[name]!r}.')


def flatten_fields(fields: Fields, prefix: str = '') -> dict[str, Field]:
  """Returns all fields by dotted name."""
  flat = {}
  for name, field in fields.items():
    if isinstance(field, Field):
      flat[prefix + name] = field
    else:
      flat |= flatten_fields(field, f'{prefix}{name}.')
  return flat


def get(config: Config, field: str) -> Any:
  """Returns the value of a field by its dotted name."""
  for part in field.split('.'):
    config = config[part]
  return config


def type_of(config: Config, field: str) -> type:
  """Returns the type of a field by its dotted name."""
  group, _, name = field.rpartition('.')
  return (get(config, group) if group else config).get_type(name)


def read_value(kind: type, text: str, like: Any = None) -> Any:
  """Reads the value of a field from the text of a flag.

  Args:
    kind: type of the field, one of ``KINDS``.
    text: as written; entries of a tuple stand between commas, with brackets or
      without.
    like: the value that the field has: None allows None, and entries of a tuple
      have the type of those that are there.

  Returns:
    The value.

  Raises:
    ValueError: the text is of another type.
  """
  text = text.strip()
  if like is None and text == 'None':
    return None
  if kind is bool:
    if text.lower() not in _BOOLEANS:
      raise ValueError(text)
    return _BOOLEANS[text.lower()]
  if kind is tuple:
    words = [x.strip().strip('\'"') for x in text.strip('()[]').split(',')]
    entry = type(like[0]) if like else _literal
    return tuple(entry(word) for word in words if word)
  if not text:
    raise ValueError(text)
  return kind(text)


def _literal(text):
  """Returns a number where it is one, or the text."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def flatten(config: Config) -> dict[str, Any]:
  """Returns the values of all fields by dotted name, sorted by group."""
  return traverse_util.flatten_dict(config.to_dict(), sep='.')


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
  """Returns a copy with some fields set, to traced values or others."""
  copy = config.copy_and_resolve_references()
  with copy.ignore_type():
    copy.update_from_flattened_dict(values)
  return copy


def _default(field):
  """Returns what a configuration begins with; references are its own."""
  if not isinstance(field, Field):
    return make(field)
  if isinstance(field.default, config_dict.FieldReference):
    return config_dict.placeholder(field.default.get_type())
  return field.default
