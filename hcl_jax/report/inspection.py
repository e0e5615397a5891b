# SPDX-License-Identifier: Apache-2.0
"""Loading of runs for reports: configuration, metrics and a sample."""

from collections.abc import Sequence
import os
import pathlib
from typing import NamedTuple

import ml_collections
import numpy as np

from hcl_jax import domains
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import scores as scores_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import results
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import loop
from hcl_jax.training import sample as sample_lib


class Inspection(NamedTuple):
  """Everything that a report shows of a run.

  Attributes:
    name: name of the run.
    config: its configuration.
    step: step of the checkpoint.
    steps_per_epoch: converts steps to epochs.
    summary: one line about the model and data.
    records: lines of ``metrics.jsonl``.
    final: scores of the end; none of an unfinished run.
    sample: embeddings, labels and negatives of some of its data.
  """

  name: str
  config: ml_collections.ConfigDict
  step: int
  steps_per_epoch: int
  summary: str
  records: list[dict[str, float]]
  final: scores_lib.Scores
  sample: sample_lib.Sample

  @property
  def score(self) -> str:
    """Name of the score that is measured during training."""
    return domains.main_score(self.config)

  def scores(self) -> dict[str, scores_lib.Score]:
    """Returns the last value of every score."""
    values = {}
    for record in self.records:
      values |= {name: x for name, x in record.items() if '/' in name}
    return scores_lib.with_kinds(
        values, scores_lib.kinds(self.final), scores_lib.errors(self.final)
    )

  def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns epochs, rising, and the values of a metric at them."""
    by_step = {r['step']: r[name] for r in self.records if name in r}
    steps = np.array(sorted(by_step), float)
    values = np.array([by_step[step] for step in steps])
    return steps / self.steps_per_epoch, values


def inspect(
    workdir: str | os.PathLike,
    *,
    name: str | None = None,
    data_dir: str | None = None,
    allow_code: bool = False,
) -> Inspection:
  """Restores the last checkpoint of a run and embeds some of its data.

  Args:
    workdir: directory of the run.
    name: name of the run in the report; by default that of the directory.
    data_dir: directory of the data set, if it has moved since training.
    allow_code: whether code may be run that the run names as its own.

  Raises:
    FileNotFoundError: there is no run, no checkpoint, or no data.
    ValueError: the configuration is not valid on this machine.
  """
  workdir = pathlib.Path(workdir)
  config = domains.load_config(workdir, allow_code=allow_code)
  if data_dir is not None:
    config.data.dir = data_dir
  with loop.open_checkpoints(
      workdir, config, domains.main_score(config)
  ) as checkpoints:
    if not checkpoints.steps():
      raise FileNotFoundError(f'{workdir} has no checkpoint yet.')
    experiment = domains.make_experiment(config, to_train=False)
    workdir_lib.check_inputs(workdir, experiment.inputs)
    state = loop.restore(experiment, checkpoints)
  return Inspection(
      name=name or workdir.resolve().name,
      config=config,
      step=int(state.step),
      steps_per_epoch=experiment.steps_per_epoch,
      summary=experiment.summary,
      records=metrics_lib.read_metrics(workdir),
      final=scores_lib.read(workdir).get('last step', {}),
      sample=experiment.inspect(state),
  )


def single_runs(
    workdirs: Sequence[str | os.PathLike], *, allow_code: bool = False
) -> dict[str, pathlib.Path]:
  """Returns directories of single runs, keyed by short unique names.

  A directory that compares variants stands for a run of each variant. Runs of a
  sweep are named by the values that differ among them, other runs by the end of
  their path.
  """
  paths = []
  for workdir in map(pathlib.Path, workdirs):
    config = domains.load_config(workdir, allow_code=allow_code)
    variants = config.get('compare')
    paths += [workdir / x for x in variants] if variants else [workdir]
  names = _sweep_run_names(paths)
  runs = {}
  for path in paths:
    if path in runs.values():
      raise ValueError(f'--workdir has {path} twice.')
    runs[names.get(path) or _name(path, runs)] = path
  return runs


def _sweep_run_names(paths):
  """Returns names of those paths that are runs of sweeps."""
  values = {path: swept for path in paths if (swept := _swept_values(path))}
  names = {
      path: _differences(swept, list(values.values()))
      for path, swept in values.items()
  }
  if len(set(names.values())) == len(names):
    return names
  return {path: f'{path.parts[-3]}: {name}' for path, name in names.items()}


def _swept_values(path):
  """Returns the values of the swept fields; none unless a sweep has the run."""
  workdir = path.parent.parent
  try:
    sweep = workdir_lib.load_config(workdir).get('sweep')
  except (OSError, workdir_lib.WorkdirError):
    return {}
  if not sweep or path != results.folder(workdir) / path.name:
    return {}
  config = workdir_lib.load_config(path)
  return {x: fields_lib.get(config, x) for x in fields_lib.flatten(sweep)}


def _differences(values, all_values):
  """Returns the values that differ between runs, or all of a single run."""
  alone = len(all_values) == 1
  return ', '.join(
      f'{field.rpartition(".")[-1]}={_short(value)}'
      for field, value in values.items()
      if alone or any(other.get(field) != value for other in all_values)
  )


def _short(value):
  return f'{value:g}' if isinstance(value, float) else str(value)


def _name(path, taken):
  """Returns the shortest end of the path that is not taken."""
  parts = path.resolve().parts
  ends = ('/'.join(parts[-depth:]) for depth in range(1, len(parts) + 1))
  return next(name for name in ends if name not in taken)
