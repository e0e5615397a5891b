# SPDX-License-Identifier: Apache-2.0
"""Variants trained from the same seed, beside raw pixels and chance weights."""

import os

import ml_collections

from hcl_jax import domains
from hcl_jax.images import evaluate as readout
from hcl_jax.images import experiment as experiment_lib
from hcl_jax.training import config as config_lib
from hcl_jax.training import experiment as base
from hcl_jax.training import loop


def variant_config(
    config: ml_collections.ConfigDict, variant: str
) -> ml_collections.ConfigDict:
  """The configuration of one run of a comparison."""
  config = ml_collections.ConfigDict(config.to_dict())
  config.compare = ()
  config_lib.set_variant(config, variant)
  return config


def compare(
    experiment: experiment_lib.Experiment, workdir: str | os.PathLike
) -> dict[str, base.Scores]:
  """Trains each variant of ``config.compare`` into its own sub-folder.

  Args:
    experiment: its configuration names the variants; beta and tau_plus in it
      are those of the hard one.
    workdir: directory of the comparison.

  Returns:
    Scores of raw pixels, of the encoder before training, and of each variant.
  """
  config = experiment.config
  workdir = loop.open_workdir(workdir, config)
  scores = baselines(experiment)
  for variant in config.compare:
    scores[variant] = loop.train(
        domains.make_experiment(variant_config(config, variant)),
        workdir / variant,
        label=variant,
    )
  return scores


def baselines(
    experiment: experiment_lib.Experiment,
) -> dict[str, base.Scores]:
  """Scores of what has learned nothing."""
  config = experiment.config.evaluate
  protocols = tuple(p for p in config.protocols if p != 'linear_released')
  images = experiment.bank, experiment.test
  pixels = tuple(map(readout.raw_pixels, images))
  return {
      'raw pixels': readout.evaluate_features(
          pixels, images, config, protocols
      ),
      'random encoder': experiment.reader().evaluate(
          experiment.create_state(), protocols
      ),
  }
