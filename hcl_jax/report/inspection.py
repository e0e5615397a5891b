# SPDX-License-Identifier: Apache-2.0
"""What a run has learned, as arrays to look at."""

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
  """A run, its record, and a sample of what it makes of its data.

  Attributes:
    name: of the run.
    config: its configuration.
    step: of the checkpoint.
    steps_per_epoch: to count epochs by.
    summary: one line on what was trained.
    records: of ``metrics.jsonl``.
    kinds: of scores, by name.
    sample: see there.
  """

  name: str
  config: ml_collections.ConfigDict
  step: int
  steps_per_epoch: int
  summary: str
  records: list[dict[str, float]]
  kinds: dict[str, scores_lib.Kind]
  sample: sample_lib.Sample

  @property
  def score(self) -> str:
    """The name of the score that is measured on the way."""
    return domains.main_score(self.config)

  def scores(self) -> dict[str, scores_lib.Score]:
    """Returns the last value of every score."""
    values = {}
    for record in self.records:
      values |= {name: x for name, x in record.items() if '/' in name}
    return scores_lib.with_kinds(values, self.kinds)

  def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Epochs, rising, and the values of a metric at them."""
    by_step = {r['step']: r[name] for r in self.records if name in r}
    steps = np.array(sorted(by_step), float)
    values = np.array([by_step[step] for step in steps])
    return steps / self.steps_per_epoch, values


def inspect(
    workdir: str | os.PathLike,
    *,
    name: str | None = None,
    data_dir: str | None = None,
) -> Inspection:
  """Restores the last checkpoint of a run and embeds some of its data.

  Args:
    workdir: directory of the run.
    name: what to call it; by default as the directory.
    data_dir: where the data set is, if not where it was in training.

  Returns:
    The inspection.

  Raises:
    FileNotFoundError: there is no run, no checkpoint, or no data.
    ValueError: the configuration does not work here.
  """
  workdir = pathlib.Path(workdir)
  config = workdir_lib.load_config(workdir)
  domains.fill_defaults(config)
  if data_dir is not None:
    config.data.dir = data_dir
  with loop.open_checkpoints(
      workdir, config, domains.main_score(config)
  ) as checkpoints:
    if not checkpoints.steps():
      raise FileNotFoundError(f'{workdir} has no checkpoint yet.')
    experiment = domains.make_experiment(config, to_train=False)
    state = loop.restore(experiment, checkpoints)
  return Inspection(
      name=name or workdir.resolve().name,
      config=config,
      step=int(state.step),
      steps_per_epoch=experiment.steps_per_epoch,
      summary=experiment.summary,
      records=metrics_lib.read_metrics(workdir),
      kinds=scores_lib.read_kinds(workdir),
      sample=experiment.inspect(state),
  )


def single_runs(
    workdirs: Sequence[str | os.PathLike],
) -> dict[str, pathlib.Path]:
  """Directories of runs by name, those of a comparison one by one.

  Args:
    workdirs: of runs, or of comparisons of variants.

  Returns:
    The directories; names are as short as they can be told apart, those of a
    sweep's members what their values differ in.
  """
  paths = []
  for workdir in map(pathlib.Path, workdirs):
    config = workdir_lib.load_config(workdir)
    domains.fill_defaults(config)
    variants = config.get('compare')
    paths += [workdir / x for x in variants] if variants else [workdir]
  names = _member_names(paths)
  runs = {}
  for path in paths:
    if path in runs.values():
      raise ValueError(f'--workdir has {path} twice.')
    runs[names.get(path) or _name(path, runs)] = path
  return runs


def _member_names(paths):
  """Names of the members of sweeps among runs."""
  values = {path: swept for path in paths if (swept := _swept_values(path))}
  names = {
      path: _differences(swept, list(values.values()))
      for path, swept in values.items()
  }
  if len(set(names.values())) == len(names):
    return names
  return {path: f'{path.parts[-3]}: {name}' for path, name in names.items()}


def _swept_values(path):
  """Of a sweep's member, its values of what was swept; of other runs none."""
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
  """The values that not all have; all of them where there is but one run."""
  alone = len(all_values) == 1
  return ', '.join(
      f'{field.rpartition(".")[-1]}={_short(value)}'
      for field, value in values.items()
      if alone or any(other.get(field) != value for other in all_values)
  )


def _short(value):
  return f'{value:g}' if isinstance(value, float) else str(value)


def _name(path, taken):
  """The end of the path, as short as it can be told from the others."""
  parts = path.resolve().parts
  ends = ('/'.join(parts[-depth:]) for depth in range(1, len(parts) + 1))
  return next(name for name in ends if name not in taken)
