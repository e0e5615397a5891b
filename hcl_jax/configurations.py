# SPDX-License-Identifier: Apache-2.0
"""Lists the configurations that come with the package, with a line each.

  hcl_jax configs

A command takes one by its name, ``--config=digits:hard``, or a file of your
own, ``--config=FILE.py[:ARGUMENT]``, whose function ``get_config`` returns it;
``--config.FIELD=VALUE`` sets a field.
"""

import ast
from collections.abc import Sequence
import difflib
from importlib import machinery
import importlib.util
import inspect
import pathlib
import sys
from typing import Any

from absl import flags
import ml_collections

from hcl_jax import command
from hcl_jax import domains
from hcl_jax.training import fields as fields_lib

FOLDER = pathlib.Path(__file__).with_name('configs')
PREFIX = '--config.'
_HELP = (
    'The configuration: a name that "hcl_jax configs" lists, or a file, and '
    'perhaps an argument for it, as NAME:ARGUMENT. --config.FIELD=VALUE sets a '
    'field; --print_config shows all of them.'
)


def define_flags() -> tuple[flags.FlagHolder, flags.FlagHolder]:
  """Adds ``--config`` and ``--print_config`` to the flags of a command."""
  return (
      flags.DEFINE_string('config', None, _HELP),
      flags.DEFINE_bool(
          'print_config', False, 'Print every field, with its help, and exit.'
      ),
  )


def names() -> dict[str, str]:
  """Returns the first line of each configuration of the package, by name."""
  found = {}
  for path in sorted(FOLDER.glob('*.py')):
    text = ast.get_docstring(ast.parse(path.read_text(encoding='utf-8')))
    found[path.stem] = (text or '').partition('\n')[0]
  return found


def find(name: str) -> pathlib.Path:
  """Returns the file of a configuration; a file wins over a name.

  Raises:
    FileNotFoundError: there is neither.
  """
  path = pathlib.Path(name)
  if path.is_file():
    return path
  packaged = FOLDER / f'{path.name.removesuffix(".py")}.py'
  if path.parent.name in ('', 'configs') and packaged.is_file():
    return packaged
  near = difflib.get_close_matches(path.stem, names(), n=1)
  hint = f' Did you mean {near[0]}?' if near else ''
  raise FileNotFoundError(
      f'--config: there is no file {name!r} and no configuration of that name;'
      f'{hint} "hcl_jax configs" lists them.'
  )


def read_config(name: str, **values: Any) -> ml_collections.ConfigDict:
  """Reads a configuration by name or file, and sets fields of it.

  Example::

    config = hcl_jax.read_config('digits:hard', **{'loss.beta': 2.0})

  Args:
    name: ``'NAME[:ARGUMENT]'`` of one that "hcl_jax configs" lists, or
      ``'FILE.py[:ARGUMENT]'``.
    **values: values of fields by their dotted names.

  Returns:
    The configuration; its fields can be set.

  Raises:
    ValueError: a field or value is unsuitable; the message names it.
    OSError: the file cannot be found or read.
  """
  config = _load(name)
  known = fields_lib.flatten(config)
  for field, value in values.items():
    if field not in known:
      near = _nearest(field, known)
      hint = f' Did you mean {near}?' if near else ''
      raise ValueError(f'{name} has no field {field!r}.{hint}')
    try:
      config.update_from_flattened_dict({field: value})
    except TypeError as error:
      raise ValueError(f'config.{field}: {error}') from error
  return config


def read(
    name: str | None, arguments: Sequence[str] = ()
) -> ml_collections.ConfigDict:
  """Reads a configuration, and sets fields of it.

  Args:
    name: ``'NAME[:ARGUMENT]'`` or ``'FILE.py[:ARGUMENT]'``; None: the first of
      the arguments that is no flag.
    arguments: ``'--config.FIELD=VALUE'`` each, beside that.

  Returns:
    The configuration; what its room thinks of it is not checked.

  Raises:
    ValueError: a field or value is unsuitable; the message names it.
    OSError: the file cannot be found or read.
  """
  others = [x for x in arguments if not x.startswith(PREFIX)]
  if name is None and others:
    name = others.pop(0)
  if others:
    raise ValueError(
        f'unexpected argument {others[0]!r}; write --FLAG=VALUE without spaces.'
    )
  if not name:
    raise ValueError(
        'give --config=NAME, as --config=digits; "hcl_jax configs" lists them.'
    )
  config = _load(name)
  set_fields(config, [x for x in arguments if x.startswith(PREFIX)])
  return config.lock()


def set_fields(
    config: ml_collections.ConfigDict, arguments: Sequence[str]
) -> None:
  """Sets fields by ``'--config.FIELD=VALUE'``; a bool needs no value.

  Raises:
    ValueError: there is no such field, or the value is of another type.
  """
  known = fields_lib.flatten(config)
  for argument in arguments:
    flag, equals, text = argument.partition('=')
    field = flag.removeprefix(PREFIX)
    if field not in known:
      near = _nearest(field, known)
      hint = f' Did you mean {PREFIX}{near}?' if near else ''
      raise ValueError(f'{flag}: there is no such field.{hint}')
    kind = fields_lib.type_of(config, field)
    if not equals and kind is not bool:
      raise ValueError(f'{flag} has no value; write {flag}=VALUE.')
    try:
      value = fields_lib.read_value(
          kind, text if equals else 'true', known[field]
      )
    except ValueError:
      wish = fields_lib.KINDS[kind]
      if kind is tuple:
        wish = f'{type(known[field][0]).__name__}s between commas'
      raise ValueError(f'{flag} must be {wish}, got {text!r}.') from None
    config.update_from_flattened_dict({field: value})


def describe(config: ml_collections.ConfigDict) -> str:
  """Returns a line for each field: name, value, and help."""
  known = fields_lib.flatten_fields(domains.room_config(config).FIELDS)
  values = fields_lib.flatten(config)
  lines = []
  for field in sorted(values, key=[*known, *values].index):
    line = f'{PREFIX}{field}={values[field]!r}'
    text = known[field].help if field in known else ''
    lines.append(f'{line:<52} {text}'.rstrip())
  return '\n'.join(lines)


def explain_flag(flag: str) -> str:
  """Returns a hint for a flag that there is not, or ''."""
  if flag == 'variant':
    return 'A variant is a part of --config, as --config=digits:hard.'
  if flag.startswith('sweep.'):
    return 'Only "hcl_jax sweep" takes values to sweep.'
  known = {
      field
      for room in domains.configs().values()
      for field in fields_lib.flatten_fields(room.FIELDS)
  }
  field = _nearest(flag, known)
  return f'Did you mean {PREFIX}{field}?' if field else ''


def _load(name):
  path, _, argument = name.partition(':')
  file = find(path)
  loader = machinery.SourceFileLoader('hcl_jax_config', str(file))
  spec = importlib.util.spec_from_loader(loader.name, loader)
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module  # where dataclasses look for it
  try:
    loader.exec_module(module)
    get_config = module.get_config
    given = [argument] if argument else []
    try:
      inspect.signature(get_config).bind(*given)
    except TypeError:
      wish = 'takes no argument' if argument else 'needs an argument'
      raise ValueError(f'it {wish}') from None
    config = get_config(*given)
  except Exception as error:  # whatever the file raises
    raise ValueError(f'--config={name}: {command.one_line(error)}') from error
  if not isinstance(config, ml_collections.ConfigDict):
    raise ValueError(
        f'--config={name}: get_config must return an '
        f'ml_collections.ConfigDict, got {type(config).__name__}.'
    )
  return config


def _nearest(field, known):
  """Returns the field that was probably meant: of the same last word first."""
  last = field.replace('-', '_').rpartition('.')[2]
  same = sorted(x for x in known if x.rpartition('.')[2] == last)
  near = same or difflib.get_close_matches(field, known, n=1)
  return near[0] if near else None


def main(arguments: list[str]) -> int:
  if arguments:
    raise command.UsageError(f'unexpected argument {arguments[0]!r}.')
  width = max(map(len, names()))
  for name, line in names().items():
    print(f'{name:<{width}}  {line}')
  print(f'\nThe files are in {FOLDER}.')
  return 0


if __name__ == '__main__':
  command.run('hcl_jax configs', main)
