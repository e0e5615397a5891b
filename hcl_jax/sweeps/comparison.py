# SPDX-License-Identifier: Apache-2.0
"""Trains a run, or variants of a loss from the same seed to compare them."""

import os
import pathlib

import jax
import ml_collections

from hcl_jax import domains
from hcl_jax.runs import interruption as interruption_lib
from hcl_jax.runs import processes
from hcl_jax.runs import progress as progress_lib
from hcl_jax.runs import scores as scores_lib
from hcl_jax.sweeps import grid
from hcl_jax.sweeps import slots
from hcl_jax.training import config as config_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import finite
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

  ``config.compare_jobs`` of them train at a time where devices of a CPU allow
  it (:func:`use_cores`), or else one after the other.

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
  train = _one_by_one
  if _num_at_a_time(config) > 1:
    train = _side_by_side
  scores |= train(experiment, workdir)
  if processes.is_first():
    scores_lib.write(workdir, scores, experiment.evaluation)
  return scores


def closing_lines(
    experiment: experiment_lib.Experiment,
    scores: dict[str, scores_lib.Scores],
    workdir: pathlib.Path,
    program: str,
) -> list[str]:
  """Returns what the room says of a comparison, below its scores.

  ``program`` is what one types for ``hcl_jax``.
  """
  config = experiment.config
  if not config.get('compare'):
    return []
  room = domains.door(domains.domain_of(config), 'evaluate')
  if not hasattr(room, 'closing_lines'):
    return []
  return room.closing_lines(experiment, scores, workdir, program)


def use_cores(config: ml_collections.ConfigDict) -> None:
  """Makes a device of a core for each variant that trains at a time.

  To be called before JAX starts; does nothing for a single run, or where
  accelerators train.
  """
  jobs = min(config.get('compare_jobs') or 1, len(config.get('compare') or ()))
  if jobs > 1:
    slots.use_cores(jobs)


def _num_at_a_time(config) -> int:
  """Returns how many variants train at a time, each on a device of its own."""
  if jax.default_backend() != 'cpu' or jax.process_count() > 1:
    return 1
  jobs = config.get('compare_jobs') or 1
  return min(jobs, len(config.compare), len(jax.local_devices()))


def _one_by_one(experiment, workdir) -> dict[str, scores_lib.Scores]:
  programs, scores = experiment.programs(), {}
  for variant in experiment.config.compare:
    config = variant_config(experiment.config, variant)
    scores[variant] = loop.train(
        domains.make_experiment(config, like=experiment),
        workdir / variant,
        label=variant,
        header=[f'{variant}: {header.loss(config)}'],
        programs=programs,
    )
  return scores


def _side_by_side(experiment, workdir) -> dict[str, scores_lib.Scores]:
  variants = experiment.config.compare
  configs = {x: variant_config(experiment.config, x) for x in variants}
  jobs = [
      slots.Job(grid.Run(number, {}, config, variant), workdir / variant)
      for number, (variant, config) in enumerate(configs.items())
  ]
  devices = jax.local_devices()[: _num_at_a_time(experiment.config)]
  progress_lib.say(
      *(f'{name}: {header.loss(config)}' for name, config in configs.items())
  )
  scores = {}
  with (
      interruption_lib.Interruption() as interruption,
      progress_lib.Progress(
          len(jobs) * experiment.total_steps,
          batch_size=experiment.rows_per_step,
          label='train',
          unit=experiment.unit,
      ) as progress,
  ):
    finished = slots.train(
        jobs,
        experiment,
        devices=devices,
        per_device=1,
        interruption=interruption,
        progress=progress,
    )
    for run, result in finished:
      if 'failure' in result:
        interruption.requested = True
        raise finite.NonFiniteError(f'{run.label}: {result["failure"]}')
      scores[run.label] = result['scores']
    if len(scores) < len(jobs):
      raise loop.Interrupted('stopped; everything is saved')
  return {name: scores[name] for name in variants}
