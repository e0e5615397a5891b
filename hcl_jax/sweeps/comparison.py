# SPDX-License-Identifier: Apache-2.0
"""Compares variants of a loss, trained from the same seed."""

import os

import ml_collections

from hcl_jax import domains
from hcl_jax.runs import scores as scores_lib
from hcl_jax.training import config as config_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import loop


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
