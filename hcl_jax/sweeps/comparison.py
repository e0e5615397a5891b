# SPDX-License-Identifier: Apache-2.0
"""Trains a run, or variants of a loss from the same seed to compare them."""

import os

import ml_collections

from hcl_jax import domains
from hcl_jax.runs import processes
from hcl_jax.runs import progress as progress_lib
from hcl_jax.runs import scores as scores_lib
from hcl_jax.training import config as config_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import header
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
  return compare(experiment, workdir)


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

  Beta and tau_plus of the experiment are those of the hard variant. Scores are
  written to the workdir too.

  Returns:
    Scores of what has learned nothing, as the room has it, and of each
    variant.
  """
  config = experiment.config
  workdir = loop.open_workdir(workdir, config)
  progress_lib.say(
      *header.shared_lines(experiment), *header.warnings(experiment)
  )
  known = scores_lib.read(workdir, experiment.evaluation)
  scores = {row: x for row, x in known.items() if row not in config.compare}
  if processes.anywhere(not scores):
    progress_lib.say('evaluating: what has learned nothing')
    room = domains.door(domains.domain_of(config), 'evaluate')
    with progress_lib.Parts() as parts:
      scores = room.baselines(experiment, parts)
  programs = experiment.programs()
  for variant in config.compare:
    of_variant = variant_config(config, variant)
    scores[variant] = loop.train(
        domains.make_experiment(of_variant, like=experiment),
        workdir / variant,
        label=variant,
        header=[f'{variant}: {header.loss(of_variant)}'],
        programs=programs,
    )
  if processes.is_first():
    scores_lib.write(workdir, scores, experiment.evaluation)
  return scores
