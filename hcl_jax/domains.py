# SPDX-License-Identifier: Apache-2.0
"""Joins the name of a domain to its room: a package with the same doors.

A room has modules ``config`` (FIELDS, SCORE, check; if it likes SMALL_RUNS,
EVALUATE_FLAGS, set_protocols), ``experiment`` (prepare) and, if it likes,
``encode`` (make, MUST_AGREE; if it likes Encoder, own_rows), to embed new rows,
``nearest`` (configure, count, Finder, UNIT), to look for texts, and
``prepare``, to prepare data sets. ``config.domain`` is the name of one of ours,
or the path of a package of your own.
"""

import dataclasses
import importlib
import os
import pathlib
import types
from typing import Any

import ml_collections

from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.training import encoder as encoder_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import fields
from hcl_jax.training import own_code

_ROOMS = {
    'images': 'hcl_jax.images',
    'graphs': 'hcl_jax.graphs',
    'sentences': 'hcl_jax.sentences',
    'pairs': 'hcl_jax.pairs',
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
    data: Any = None,
) -> experiment_lib.Experiment:
  """Checks a configuration and opens its data; writes nothing of a run.

  Args:
    config: the whole configuration.
    to_train: whether the batch must fit the devices of this machine, which it
      need not for an evaluation.
    like: an experiment whose configuration differs in hyperparameters only;
      the room may share its data and compiled programs.
    data: what to train on, if it is at hand and no prepared data set; its room
      says what it may be (``hcl_jax.images.experiment.prepare`` and so on).
      ``config.data.name`` is then only a name.

  Raises:
    TypeError: the room does not take such data.
    ValueError: a value cannot work; the message names its field.
    FileNotFoundError: the data set is not there; the message says which
      command prepares it.
  """
  check(config)
  room = door(domain_of(config), 'experiment')
  given = {} if data is None else {'data': data}
  experiment = room.prepare(config, to_train=to_train, like=like, **given)
  source = config.train.get('init_from')
  if not source:
    return experiment

  def load_source():
    # Code that this configuration names too is that of its user.
    theirs = named_code(workdir_lib.load_config(source))
    encoder = load(
        source, allow_code=theirs.items() <= named_code(config).items()
    )
    _check_agreement(experiment, encoder)
    return encoder

  return dataclasses.replace(
      experiment, begin=encoder_lib.Begin(load_source, experiment.task)
  )


def load(
    workdir: str | os.PathLike,
    step: int | None = None,
    *,
    allow_code: bool = False,
) -> encoder_lib.Encoder:
  """Loads the encoder that a run has trained, to embed new rows.

  The data set of the run need not be there.

  Example::

    encoder = hcl_jax.load('runs/photos')
    embeddings = encoder(['new.jpg', 'other.jpg'])  # [2, dim], numpy

  Args:
    workdir: directory of the run.
    step: number of a step whose checkpoint was kept; None for the last.
    allow_code: whether code may be run that the configuration of the run
      names, which is not part of this package.

  Returns:
    The encoder, on all local devices; of pairs, with methods ``query`` and
    ``document``.

  Raises:
    ValueError: the run names code of its own, is of a domain that embeds
      nothing new, or holds several runs.
    FileNotFoundError: there is no run, or no such checkpoint.
    checkpoint.DamagedCheckpoint: the checkpoint is damaged.
  """
  config = load_config(workdir, allow_code=allow_code)
  domain = domain_of(config)
  check_single(config, workdir)
  try:
    room = door(domain, 'encode')
  except ValueError:
    raise ValueError(
        f'{workdir} is a run of config.domain={domain!r}, whose package has no '
        "module 'encode' that embeds new rows."
    ) from None
  inputs = workdir_lib.read_inputs(workdir)
  if inputs is None:  # It was trained by an earlier version.
    experiment = make_experiment(config, to_train=False)
    inputs = workdir_lib.plain(experiment.inputs)
  return encoder_lib.restore(
      config,
      room.make(config, inputs),
      workdir,
      step,
      make=getattr(room, 'Encoder', encoder_lib.Encoder),
  )


def check_single(
    config: ml_collections.ConfigDict, workdir: str | os.PathLike
) -> None:
  """Raises a ValueError for a directory that holds several runs."""
  if config.get('compare'):
    raise ValueError(
        f'{workdir} holds the runs {", ".join(config.compare)}; give the '
        f'folder of one, such as {os.path.join(workdir, config.compare[-1])}.'
    )


def load_config(
    workdir: str | os.PathLike, *, allow_code: bool = False
) -> ml_collections.ConfigDict:
  """Reads the configuration of a run, and refuses code that it names.

  Args:
    workdir: directory of the run.
    allow_code: whether code may be run that is not part of this package.

  Raises:
    ValueError: the run names code of its own, which is not allowed, or it is
      a sweep.
    FileNotFoundError: there is no run.
    workdir.WorkdirError: its configuration cannot be read.
  """
  config = workdir_lib.load_config(workdir)
  if config.get('sweep'):
    runs = sorted(pathlib.Path(workdir).glob('*/*/config.json'))
    example = f', such as {runs[0].parent}' if runs else ''
    raise ValueError(
        f'{workdir} holds a sweep; give the folder of one of its runs{example}.'
    )
  code = named_code(config)
  if code and not allow_code:
    named = ', '.join(f'config.{name}={x!r}' for name, x in code.items())
    raise ValueError(
        f'the run in {workdir} names code of its own, {named}, which would be '
        'run. If you trust it, give allow_code=True, or --allow_code on the '
        'command line.'
    )
  fill_defaults(config)
  return config


def named_code(config: ml_collections.ConfigDict) -> dict[str, str]:
  """Returns fields that name code outside of this package, with their value."""
  domain = domain_of(config)
  own_room = {} if domain in _ROOMS else {'domain': domain}
  return {**own_room, **own_code.named(config)}


def _check_agreement(experiment, encoder):
  """Raises a ValueError if encoders of two runs read their inputs otherwise."""
  ours = workdir_lib.plain(experiment.inputs)
  room = door(domain_of(experiment.config), 'encode')
  for name in room.MUST_AGREE:
    if encoder.inputs.get(name) != ours[name]:
      raise ValueError(
          f'its {name} is not that of {experiment.config.data.name}, so its '
          'encoder would misread the data; prepare both alike.'
      )


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
