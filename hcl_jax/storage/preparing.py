# SPDX-License-Identifier: Apache-2.0
"""Says what ``hcl_jax.prepare`` asks of a room, and reads options of it."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
from typing import Any
from typing import NamedTuple
from typing import Protocol


class Flag(NamedTuple):
  """Flag, which is also an argument of :func:`hcl_jax.prepare.prepare`.

  Attributes:
    type: str, int, float or bool.
    default: its value unless another is given.
    help: what it does, in a line.
    is_source: whether it is the path of files to prepare.
  """

  type: type
  default: Any
  help: str
  is_source: bool = False


class Room(Protocol):
  """Module ``prepare`` of a room; ``--help`` shows its docstring.

  A room that ``--domain`` names needs neither ``DATASETS`` nor ``owns``, and no
  room needs ``train_flags``.

  Attributes:
    FLAGS: its flags by name; ``options`` below has a value for each.
    DATASETS: names that it knows, for messages: ``'tu_graphs/NAME'``.
  """

  FLAGS: Mapping[str, Flag]
  DATASETS: str

  @staticmethod
  def owns(dataset: str) -> bool:
    """Returns whether a name can be of no other room; never raises."""

  @staticmethod
  def full_name(dataset: str) -> str:
    """Returns ``'name[/config][:version]'``, as the data set is stored.

    Of a name that the room does not own, but that came with its files, this is
    what the room knows it by.
    """

  @staticmethod
  def source(
      dataset: str, options: Mapping[str, Any]
  ) -> Mapping[str, Any] | None:
    """Returns what ``sources.measure`` says of the files, if any are given."""

  @staticmethod
  def builder(
      dataset: str,
      options: Mapping[str, Any],
      source: Mapping[str, Any] | None,
      **where: str | pathlib.Path,
  ) -> Any:
    """Returns the tfds builder, to be made with the arguments ``where``.

    Raises:
      ValueError: the options or the data are unsuitable.
      OSError: a file cannot be found or read.
    """

  @staticmethod
  def describe(dataset: str, info: Any, where: str) -> str:
    """Returns ``'(CONTENTS): CALL'``, with the call that loads the data set.

    Args:
      dataset: its name.
      info: what tfds knows of it.
      where: the last argument of the call, with a comma before it, or ''.
    """

  @staticmethod
  def train_flags(dataset: str, info: Any) -> Sequence[str]:
    """Returns flags of ``hcl_jax train`` that suit the data set.

    They are ``--config=...`` and perhaps fields, but for the folder of data
    sets and ``--workdir``; none if it cannot be trained on as it is. Arguments
    are those of :meth:`describe`.
    """


def read_options(
    dataset: str, room: Room, rooms: Iterable[Room], given: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns a value for each flag of a room; refuses flags of others.

  A flag that has its default, or '' for None, counts as not given; those given
  may be of any room.

  Raises:
    TypeError: there is no such flag.
    ValueError: there are two sources, or a flag is another room's.
  """
  owners = {name: x for x in (*rooms, room) for name in x.FLAGS}
  known = {name: owner.FLAGS[name] for name, owner in owners.items()}
  for name in given:
    if name not in known:
      raise TypeError(f'no data set has the option {name!r}, only {[*known]}.')
  used = [
      name
      for name, flag in known.items()
      if (given.get(name, flag.default) or None) != (flag.default or None)
  ]
  paths = [name for name, flag in known.items() if flag.is_source]
  if len(set(paths).intersection(used)) > 1:
    raise ValueError(f'give one of {_join(paths, "and")}.')
  # Sources first: what else is wrong with a flag follows from them.
  for name in sorted(used, key=lambda name: name not in paths):
    if name not in room.FLAGS:
      raise ValueError(
          f'--{name} needs --dataset={owners[name].DATASETS}; got {dataset}, '
          f'which takes its files by {source_flags(room)}.'
      )
  return {
      name: given.get(name, flag.default) for name, flag in room.FLAGS.items()
  }


def batch_size_flags(num_rows: int, size: int) -> list[str]:
  """Returns a flag if there are fewer rows than a configuration's batch has."""
  if num_rows >= size:
    return []
  return [f'--config.data.batch_size={2 ** (num_rows.bit_length() - 1)}']


def source_flags(room: Room) -> str:
  """Returns the flags that name files, for messages: ``'--a or --b'``."""
  return _join(sources(room), 'or') or 'no flag'


def sources(room: Room) -> list[str]:
  """Returns the names of the flags that name files."""
  return [name for name, flag in room.FLAGS.items() if flag.is_source]


def _join(names, conjunction):
  """Returns ``'--a, --b and --c'``."""
  flags = [f'--{name}' for name in names]
  parts = ', '.join(flags[:-1]), *flags[-1:]
  return f' {conjunction} '.join(filter(None, parts))
