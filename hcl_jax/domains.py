# SPDX-License-Identifier: Apache-2.0
"""Joins the name of a domain to its room: a package with the same doors.

A room has modules ``config`` (FIELDS, SCORE, check; if it likes SMALL_RUNS,
EVALUATE_FLAGS, set_protocols), ``experiment`` (prepare) and, to prepare data
sets, ``prepare``. ``config.domain`` is the name of one of ours, or the path of
a package of your own.
"""

import importlib
import types

import ml_collections

from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import fields

_ROOMS = {
    'images': 'hcl_jax.images',
    'graphs': 'hcl_jax.graphs',
    'sentences': 'hcl_jax.sentences',
}
# Of runs that were made before configurations had a domain.
_OF_TASK = {
    'simclr': 'images',
    'moco': 'images',
    'infograph': 'graphs',
    'quick_thoughts': 'sentences',
}


def rooms() -> tuple[str, ...]:
  """Returns the names of the package's own rooms; the first is the default."""
  return tuple(_ROOMS)


def door(domain: str, name: str) -> types.ModuleType:
  """Returns a module of a room, such as its ``config``.

  Raises:
    ValueError: there is no such room.
  """
  path = f'{_ROOMS.get(domain, domain)}.{name}'
  try:
    if path.startswith('.'):
      raise ModuleNotFoundError(name=path)
    return importlib.import_module(path)
  except ModuleNotFoundError as error:
    if error.name is None or not f'{path}.'.startswith(f'{error.name}.'):
      raise  # of what the room itself imports
    raise ValueError(
        f'config.domain must be one of {", ".join(map(repr, _ROOMS))}, or a '
        f'package that has a module {name!r}; got {domain!r}.'
    ) from None


def domain_of(config: ml_collections.ConfigDict) -> str:
  """Returns the domain of a configuration, by its task if it has none.

  Raises:
    ValueError: it has neither.
  """
  domain, task = config.get('domain'), config.get('task')
  if domain is None and isinstance(task, str) and task in _OF_TASK:
    return _OF_TASK[task]
  if domain is None:
    raise ValueError(
        f'config.task must be one of {", ".join(map(repr, _OF_TASK))}, or '
        f'config.domain must name a room; got {task!r} and {domain!r}.'
    )
  if not isinstance(domain, str):
    raise ValueError(f'config.domain must be a str, got {domain!r}.')
  return domain


def check(config: ml_collections.ConfigDict) -> None:
  """Raises a ValueError for a value that cannot work, naming its field."""
  room_config(config).check(config)


def make_experiment(
    config: ml_collections.ConfigDict,
    *,
    to_train: bool = True,
    like: experiment_lib.Experiment | None = None,
) -> experiment_lib.Experiment:
  """Checks a configuration and opens its data; writes nothing of a run.

  Args:
    config: the whole configuration.
    to_train: whether the batch must fit the devices of this machine, which it
      need not for an evaluation.
    like: an experiment whose configuration differs in hyperparameters only;
      the room may share its data and compiled programs.

  Raises:
    ValueError: a value cannot work; the message names its field.
    FileNotFoundError: the data set is not there; the message says which
      command prepares it.
  """
  check(config)
  room = door(domain_of(config), 'experiment')
  return room.prepare(config, to_train=to_train, like=like)


def fill_defaults(config: ml_collections.ConfigDict) -> None:
  """Gives the configuration of an older run the fields it was made without.

  Raises:
    ValueError: it is not the configuration of a run.
  """
  fields.fill(config, room_config(config).FIELDS)


def main_score(config: ml_collections.ConfigDict) -> str:
  """Returns the score that is measured during training."""
  return room_config(config).SCORE


def small_runs(config: ml_collections.ConfigDict) -> bool:
  """Returns whether a core, or a share of an accelerator, suffices for a run.

  Such runs of a sweep train side by side in one process.
  """
  return getattr(room_config(config), 'SMALL_RUNS', False)


def configs() -> dict[str, types.ModuleType]:
  """Returns the modules ``config`` of the package's own rooms, by name."""
  return {name: door(name, 'config') for name in _ROOMS}


def room_config(config: ml_collections.ConfigDict) -> types.ModuleType:
  """Returns the module ``config`` of the room that a configuration names.

  Raises:
    ValueError: there is no such room.
  """
  domain = domain_of(config)
  module = door(domain, 'config')
  for name in ('FIELDS', 'SCORE', 'check'):
    if not hasattr(module, name):
      raise ValueError(
          f'config.domain={domain!r}: its module config has no {name}, as that '
          'of a room must.'
      )
  return module
