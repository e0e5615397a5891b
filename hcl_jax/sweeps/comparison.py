# SPDX-License-Identifier: Apache-2.0
"""Trains a run, or variants of a loss from the same seed to compare them."""

import os
import pathlib

import ml_collections

from hcl_jax import domains
from hcl_jax.runs import processes
from hcl_jax.runs import scores as scores_lib
from hcl_jax.training import config as config_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import loop


def fit(
    experiment: experiment_lib.Experiment, workdir: str | os.PathLike
) -> dict[str, scores_lib.Scores]:
  """Trains to the end, from wherever the directory stands.

  Example::

    config = hcl_jax.read_config('digits:hard')
    experiment = hcl_jax.make_experiment(config)
    scores = hcl_jax.fit(experiment, 'runs/digits')

  Args:
    experiment: what to train; each variant of its ``config.compare``, if it has
      any, into a sub-folder.
    workdir: directory of the run; everything is written there.

  Returns:
    Scores by what they are of: ``'last step'``, or the variants and what has
    learned nothing.

  Raises:
    workdir.WorkdirError: the directory holds another run, or cannot be used.
    loop.Interrupted: SIGTERM or Ctrl-C came; the state is saved.
    finite.NonFiniteError: a loss or gradient was NaN or infinite.
    processes.PeerError: another process could not begin.
  """
  if not experiment.config.get('compare'):
    return {'last step': loop.train(experiment, workdir)}
  scores = compare(experiment, workdir)
  if processes.is_first():
    scores_lib.write(pathlib.Path(workdir), scores)
  return scores


def variant_config(
    config: ml_collections.ConfigDict, variant: str
) -> ml_collections.ConfigDict:
  """Returns the configuration of one run of a comparison."""
  config = ml_collections.ConfigDict(config.to_dict())
  config.compare = ()
  config_lib.set_variant(config, variant)
  return config


def compare(
    experiment: experiment_lib.Experiment, workdir: str | os.PathLike
) -> dict[str, scores_lib.Scores]:
  """Trains each variant of ``config.compare`` into its own sub-folder.

  Beta and tau_plus of the experiment are those of the hard variant.

  Returns:
    Scores of what has learned nothing, as the room has it, and of each
    variant.
  """
  config = experiment.config
  workdir = loop.open_workdir(workdir, config)
  room = domains.door(domains.domain_of(config), 'evaluate')
  scores = room.baselines(experiment)
  programs = experiment.programs()
  for variant in config.compare:
    scores[variant] = loop.train(
        domains.make_experiment(
            variant_config(config, variant), like=experiment
        ),
        workdir / variant,
        label=variant,
        programs=programs,
    )
  return scores
