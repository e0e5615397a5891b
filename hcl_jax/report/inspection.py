# SPDX-License-Identifier: Apache-2.0
"""What a run has learned, as arrays to look at."""

from collections.abc import Callable
from collections.abc import Sequence
import os
import pathlib
from typing import Any
from typing import NamedTuple

import jax
import ml_collections
import numpy as np

import hcl_jax
from hcl_jax import analysis
from hcl_jax import domains
from hcl_jax import models
from hcl_jax.graphs import experiment as graph_experiment
from hcl_jax.images import experiment as experiment_lib
from hcl_jax.models import packed_text as sentences_lib
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sentences import batches as sentence_batches
from hcl_jax.sentences import evaluate as sentence_readout
from hcl_jax.sentences import experiment as sentence_experiment
from hcl_jax.sweeps import tally
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import loop
from hcl_jax.training import state as state_lib
from hcl_jax.training import task as task_lib

_MAX_ROWS = 2000
_MAX_ITEMS = 256
_CLIP_SCALE = 2.0


class Negatives(NamedTuple):
  """The negatives of anchors, in the numbers that the loss weighs them by.

  Attributes:
    pos_logits: similarity of each anchor to its positive, ``[a]``; None where
      the loss has more than one of them, or another form.
    neg_logits: what beta multiplies, ``[a, n]``.
    where: what is a negative of its anchor, ``[a, n]``.
    anchors: the item that each anchor is of, ``[a]``.
    items: the item that each column is of, ``[n]``.
  """

  pos_logits: np.ndarray | None
  neg_logits: np.ndarray
  where: np.ndarray
  anchors: np.ndarray
  items: np.ndarray


class Sample(NamedTuple):
  """Some of the data of a run, as its encoder sees them in evaluation mode.

  Attributes:
    embeddings: of items and of further rows, the items first, ``[n, dim]``.
    labels: of the same, ``[n]``; rows that have one label belong together.
    items: a batch, as images ``[m, height, width, 3]`` or as words.
    item_names: the class of each item, or None.
    negatives: of the batch.
    views: two augmented views of the items, ``[m, dim]`` each, or None.
  """

  embeddings: np.ndarray
  labels: np.ndarray
  items: np.ndarray | list[str]
  item_names: list[str] | None
  negatives: Negatives
  views: tuple[np.ndarray, np.ndarray] | None = None


class Inspection(NamedTuple):
  """A run, its record, and a sample of what it makes of its data.

  Attributes:
    name: of the run.
    config: its configuration.
    step: of the checkpoint.
    steps_per_epoch: to count epochs by.
    summary: one line on what was trained.
    records: of ``metrics.jsonl``.
    sample: see there.
  """

  name: str
  config: ml_collections.ConfigDict
  step: int
  steps_per_epoch: int
  summary: str
  records: list[dict[str, float]]
  sample: Sample

  @property
  def score(self) -> str:
    """The name of the score that is measured on the way."""
    return domains.main_score(self.config)

  def scores(self) -> dict[str, float]:
    """The last value of every score."""
    values = {}
    for record in self.records:
      values |= {name: x for name, x in record.items() if '/' in name}
    return values

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
  take = {
      'infograph': sample_graphs,
      'quick_thoughts': sample_sentences,
  }.get(config.task, sample_images)
  return Inspection(
      name=name or workdir.resolve().name,
      config=config,
      step=int(state.step),
      steps_per_epoch=experiment.steps_per_epoch,
      summary=experiment.summary(),
      records=metrics_lib.read_metrics(workdir),
      sample=take(experiment, state),
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


def sample_images(
    experiment: experiment_lib.Experiment, state: state_lib.TrainState
) -> Sample:
  """Test images in an order of their own, and two views of the first ones."""
  config, test = experiment.config, experiment.test
  rows = np.random.default_rng(0).permutation(len(test))[:_MAX_ROWS]
  num_items = min(len(rows), config.data.batch_size, _MAX_ITEMS)
  images = test.rows(rows)
  compared = _compile(experiment.task.compared, state)
  plain = _in_blocks(
      lambda some: compared({'image': some}), images, num_items
  )
  views = tuple(
      np.asarray(compared({'image': images[:num_items]}, keys))
      for keys in np.moveaxis(_view_keys(num_items), 1, 0)
  )
  items = np.arange(num_items)
  labels = test.labels[rows]
  by_class = config.loss.supervised_negatives
  pos_logits, neg_logits, where = map(
      np.asarray,
      analysis.two_view_logits(
          *views,
          temperature=config.loss.temperature,
          labels=labels[:num_items] if by_class else None,
      ),
  )
  return Sample(
      embeddings=plain,
      labels=labels,
      items=images[:num_items],
      item_names=_class_names(labels[:num_items], test.class_names),
      negatives=Negatives(
          pos_logits=pos_logits[:num_items],
          neg_logits=neg_logits[:num_items],
          where=where[:num_items],
          anchors=items,
          items=np.concatenate([items, items]),
      ),
      views=views,
  )


def sample_graphs(
    experiment: graph_experiment.GraphExperiment, state: state_lib.TrainState
) -> Sample:
  """All graphs, and the first batch: a node of each against the others."""
  batch, graphs = experiment.epoch[0], experiment.graphs
  there = batch.member_counts > 0
  _, first = np.unique(batch.graph_ids[there], return_index=True)
  index = batch.index[batch.graph_mask]
  nodes, pooled = map(
      np.asarray, _compile(experiment.task.compared, state)(batch._asdict())
  )
  scores = nodes[batch.members[there]] @ pooled[: len(index)].T
  others = batch.graph_ids[there][:, None] != np.arange(len(index))
  # Released weights grow as the scores fall.
  sign = -1 if experiment.config.loss.variant == 'released' else 1
  tilts = sign * _clipped(scores, others) * scores
  order = np.concatenate([index, np.setdiff1d(np.arange(len(graphs)), index)])
  features = experiment.reader().features(state)
  items = np.arange(len(index))
  return Sample(
      embeddings=features[order],
      labels=graphs.labels[order],
      items=np.stack([_draw_graph(graphs, row) for row in index]),
      item_names=[_describe_graph(graphs, row) for row in index],
      negatives=Negatives(None, tilts[first], others[first], items, items),
  )


def sample_sentences(
    experiment: sentence_experiment.SentenceExperiment,
    state: state_lib.TrainState,
) -> Sample:
  """A batch of the validation text; every second pair of neighbours is one."""
  config, text = experiment.config, experiment.validation
  batch = sentence_batches.SentenceBatches(
      text,
      seed=0,
      batch_size=min(config.data.batch_size, _MAX_ITEMS),
      max_length=config.data.max_length,
      lengths=sentence_readout.lengths(config.data.max_length),
  ).batch(0)
  index, segment = batch['index'], batch['segment']
  packed = sentences_lib.pack(**batch)._asdict()
  left, right = map(
      np.asarray, _compile(experiment.task.compared, state)(packed)
  )
  features = np.asarray(_compile(experiment.task.features, state)(packed))
  there = index >= 0
  left, right, features, index, segment = (
      x[there] for x in (left, right, features, index, segment)
  )
  rows = np.arange(len(index))
  distance = np.abs(rows[:, None] - rows[None, :])
  near = distance <= config.loss.window
  near &= segment[:, None] == segment[None, :]
  where = ~near & (distance > 0)
  scores = left @ right.T
  if config.loss.clip_scale:
    scores = _clipped(scores, where, config.loss.clip_scale) * scores
  pairs = 2 * segment.astype(np.int64) * len(rows) + rows // 2
  return Sample(
      embeddings=features,
      labels=np.unique(pairs, return_inverse=True)[1],
      items=[text.text(row) for row in index],
      item_names=None,
      negatives=Negatives(None, scores, where, rows, rows),
  )


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
  if not sweep or path != tally.run_folder(workdir, path.name):
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


def _compile(
    function: Callable[..., Any], state: state_lib.TrainState
) -> Callable[..., Any]:
  """A function of the task with the parameters that are evaluated."""
  params, task_state = jax.device_get(
      (state_lib.evaluated_params(state), state.task_state)
  )
  compiled = jax.jit(function, compiler_options=models.compiler_options())
  return lambda batch, *keys: compiled(params, task_state, batch, *keys)


def _in_blocks(function, rows, size):
  """The function of so many rows at a time, the last ones padded."""
  parts = []
  for start in range(0, len(rows), size):
    some = rows[start : start + size]
    padding = [(0, size - len(some))] + [(0, 0)] * (some.ndim - 1)
    parts.append(np.asarray(function(np.pad(some, padding)))[: len(some)])
  return np.concatenate(parts)


def _view_keys(num_items):
  rows = np.arange(num_items, dtype=np.int32)
  return task_lib.row_keys(jax.random.key(0), rows, 2)


def _clipped(scores, where, clip_scale=_CLIP_SCALE):
  """What the scores are multiplied by, for a beta of one."""
  return float(
      hcl_jax.clipped_beta(1.0, scores, clip_scale=clip_scale, where=where)
  )


def _class_names(labels, names=()):
  return [names[x] if 0 <= x < len(names) else f'class {x}' for x in labels]


def _draw_graph(graphs, row):
  edges = slice(*graphs.edge_starts[row : row + 2])
  return analysis.graph_picture(
      np.diff(graphs.node_starts)[row],
      graphs.senders[edges],
      graphs.receivers[edges],
  )


def _describe_graph(graphs, row):
  nodes = np.diff(graphs.node_starts)[row]
  return f'graph {row}, {nodes} nodes, class {graphs.labels[row]}'
