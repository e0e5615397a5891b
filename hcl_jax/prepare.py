# SPDX-License-Identifier: Apache-2.0
"""Prepares a data set for training, once.

  python -m hcl_jax.prepare --dataset=NAME [--data_dir=DIR] [FLAGS]

Which flags there are depends on the kind of data; see below. TensorFlow is not
needed. A data set is written whole or not at all. One that is there already is
left alone, and refused if it was made from another source. The last line is the
command that trains on it.
"""

from collections.abc import Mapping
import contextlib
import os
import pathlib
import shlex
import sys
from typing import Any

from absl import flags
import tensorflow_datasets as tfds

from hcl_jax import command
from hcl_jax import domains
from hcl_jax.storage import catalogue
from hcl_jax.storage import locations
from hcl_jax.storage import preparing
from hcl_jax.storage import records
from hcl_jax.storage import sources

_DATASET = flags.DEFINE_string(
    'dataset', None, 'Name of the data set, name[/config].'
)
_DATA_DIR = flags.DEFINE_string(
    'data_dir', None,
    'Folder of prepared data sets; by default $TFDS_DATA_DIR or '
    '~/tensorflow_datasets.',
)  # fmt: skip
_DOMAIN = flags.DEFINE_string(
    'domain', None,
    'Kind of data, where neither name nor files tell: '
    f'{", ".join(domains.rooms())}, or a package of your own.',
)  # fmt: skip
command.local('data_dir')


def prepare(
    dataset: str,
    *,
    data_dir: str | os.PathLike | None = None,
    domain: str | None = None,
    **options: Any,
) -> pathlib.Path:
  """Prepares a data set unless it is prepared.

  Args:
    dataset: its name.
    data_dir: folder of prepared data sets; None for the default of tfds.
    domain: its room; None: told by the name, or by the options.
    **options: flags of the room, such as ``images`` or ``text``; see
      ``python -m hcl_jax.prepare --help``.

  Returns:
    The folder of the prepared data set.

  Raises:
    ValueError: an argument or the data is unsuitable.
    OSError: something cannot be found, read, downloaded or written.
  """
  room, dataset = _find_room(dataset, domain, options)
  options = preparing.read_options(dataset, room, _rooms(), options)
  root = locations.data_dir(data_dir)
  found = locations.find(room.full_name(dataset), root)
  source = room.source(dataset, options)
  if found:
    records.check_format(found)
    if source:
      sources.check(dataset, found, source)
    print(
        f'{dataset} is prepared already{sources.describe(found)}; it is left '
        'as it is.'
    )
    return found
  with catalogue.quiet():
    builder = room.builder(
        dataset, options, source, data_dir=root, file_format='array_record'
    )
  catalogue.download_and_prepare(builder, is_local=bool(source))
  if source:
    catalogue.drop_default_config(builder)
  return pathlib.Path(builder.data_dir)


def describe(
    dataset: str, directory: pathlib.Path, *, domain: str | None = None
) -> str:
  """Returns where a data set is, what it holds and how to load it."""
  room, _ = _find_room(dataset, domain)
  root = _root(room.full_name(dataset), directory)
  where = f', data_dir={str(root)!r}' if root else ''
  info = tfds.builder_from_directory(directory).info
  contents = room.describe(dataset, info, where)
  return f'{dataset} is ready in {directory} {contents}'


def train_command(
    dataset: str, directory: pathlib.Path, *, domain: str | None = None
) -> str | None:
  """Returns the command that trains on a data set, if its room says one."""
  room, _ = _find_room(dataset, domain)
  if not hasattr(room, 'train_flags'):
    return None
  info = tfds.builder_from_directory(directory).info
  found = room.train_flags(dataset, info)
  if not found:
    return None
  words = ['hcl_jax', 'train', *found]
  root = _root(room.full_name(dataset), directory)
  if root:
    words.append(f'--config.data.dir={root}')
  name = dataset.partition(':')[0].rpartition('/')[2]
  return shlex.join([*words, f'--workdir=runs/{name}'])


def main(argv: list[str]) -> None:
  if argv:
    raise command.UsageError(
        f'unexpected argument {argv[0]!r}; flags are --name=value.'
    )
  dataset, domain = _DATASET.value, _DOMAIN.value
  if not dataset:
    raise command.UsageError('--dataset=NAME is needed, such as cifar10.')
  if not sys.stderr.isatty():
    tfds.disable_progress_bar()
  try:
    options = {
        name: flags.FLAGS[name].value
        for room in _rooms(domain)
        for name in room.FLAGS
    }
    room, dataset = _find_room(dataset, domain, options)
    directory = prepare(
        dataset, data_dir=_DATA_DIR.value, domain=domain, **options
    )
  except catalogue.OfflineError as error:
    raise command.UsageError(
        f'{error}: {dataset} must be downloaded; try again with a network, or '
        f'give the data by {preparing.source_flags(room)}.'
    ) from error
  except ModuleNotFoundError as error:
    raise command.UsageError(
        f'tfds needs {error.name} to prepare {dataset}; install it.'
    ) from error
  except (ValueError, OSError, catalogue.DownloadError) as error:
    raise command.UsageError(str(error)) from error
  print(describe(dataset, directory, domain=domain))
  train = train_command(dataset, directory, domain=domain)
  if train:
    print(f'Train with: {train}')


def _rooms(domain: str | None = None) -> list[preparing.Room]:
  """Returns all rooms of the package, and last the one that is named."""
  rooms = [domains.door(name, 'prepare') for name in domains.rooms()]
  if not domain:
    return rooms
  try:
    room = domains.door(domain, 'prepare')
  except ValueError as error:
    message = str(error).replace('config.domain', '--domain')
    raise ValueError(message) from None
  for name in ('FLAGS', 'full_name', 'source', 'builder', 'describe'):
    if not hasattr(room, name):
      raise ValueError(f'--domain={domain}: its module prepare has no {name}.')
  return [*rooms, room]


def _find_room(
    dataset: str, domain: str | None, options: Mapping[str, Any] | None = None
) -> tuple[preparing.Room, str]:
  """Returns a room, and the name that the data set has in it.

  It is the room that is named, or that owns the name, or whose files are among
  the options, or the first.
  """
  rooms = _rooms(domain)
  if domain:
    return rooms[-1], dataset
  for room in rooms:
    if room.owns(dataset):
      return room, dataset
  for room in rooms[1:]:
    if any((options or {}).get(name) for name in preparing.sources(room)):
      return room, room.full_name(dataset)
  return rooms[0], dataset


def _root(full_name: str, directory: pathlib.Path) -> pathlib.Path | None:
  """Returns the folder of data sets that holds one; None for the default."""
  name, _, _ = locations.parse(full_name)
  root = directory.parents[2 if directory.parents[1].name == name else 1]
  return None if locations.is_default(root) else root


def _define_flags(room: preparing.Room) -> None:
  """Defines the flags of a room, in place of others of the same name."""
  kinds = {
      str: flags.DEFINE_string, int: flags.DEFINE_integer,
      float: flags.DEFINE_float, bool: flags.DEFINE_bool,
  }  # fmt: skip
  for name, flag in room.FLAGS.items():
    kinds[flag.type](
        name, flag.default, flag.help, module_name=room.__name__,
        allow_override=True,
    )  # fmt: skip
    if flag.is_source:
      command.local(name)


def _read_domain(argv: list[str]) -> str | None:
  """Returns ``--domain``, without which other flags cannot be read."""
  early = flags.FlagValues()
  domain = flags.DEFINE_string('domain', None, '', flag_values=early)
  with contextlib.suppress(flags.Error):  # reported with all other flags
    early(argv, known_only=True)
  return domain.value


def _help(room: preparing.Room) -> str:
  """Returns what ``--help`` says of a room."""
  heading = f'\n{room.__name__}:'
  listed = flags.FLAGS.module_help(room.__name__).removeprefix(heading)
  return f'\n{(room.__doc__ or room.__name__).rstrip()}\n{listed}\n'


for _room in _rooms():
  _define_flags(_room)

if __name__ == '__main__':
  try:
    asked = _rooms(_read_domain(sys.argv))
  except ValueError as error:
    sys.exit(command.refuse('hcl_jax.prepare', error))
  _define_flags(asked[-1])
  __doc__ += ''.join(map(_help, dict.fromkeys(asked)))  # for --help
  command.run('hcl_jax.prepare', main)
