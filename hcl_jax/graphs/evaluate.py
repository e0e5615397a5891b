# SPDX-License-Identifier: Apache-2.0
"""Evaluation protocols on the embeddings of graphs."""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import jax
import ml_collections
import numpy as np

from hcl_jax import evaluation
from hcl_jax.graphs import data as graph_data
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib


class GraphReader:
  """Embeds all graphs and cross-validates classifiers on the embeddings.

  Args:
    config: the whole configuration.
    task: has the features.
    epoch: batches of all graphs.
    labels: classes of the graphs, in the order of the set.
    device: where to embed them.
    poll: called before every batch and after every fold; raises to leave.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: task_lib.Task,
      epoch: graph_data.GraphBatches,
      *,
      labels: np.ndarray,
      device: jax.Device,
      poll: Callable[[], None] = lambda: None,
  ):
    self._config, self._epoch, self._labels = config, epoch, labels
    self._poll = poll
    self._embed = step_lib.make_features(task, [device])

  def evaluate(
      self, state: state_lib.TrainState, protocols: tuple[str, ...]
  ) -> experiment_lib.Scores:
    """Scores by ``protocol/measure``, between 0 and 1, and all folds."""
    features = self.features(state)
    config = self._config.evaluate
    results = [
        validate(
            features,
            self._labels,
            workers=config.workers or None,
            progress=lambda *_: self._poll(),
        )
        for validate in validations(config, protocols)
    ]
    return summarize(config, protocols, results)

  def features(self, state: state_lib.TrainState) -> np.ndarray:
    """Embeddings ``[n, dim]`` in evaluation mode, in the order of the set."""
    params = state_lib.evaluated_params(state)
    parts, index = [], []
    for batch in self._epoch:
      self._poll()
      rows = step_lib.split_rows(batch._asdict(), 1)
      out = np.asarray(self._embed(params, state.task_state, rows))[0]
      parts.append(out[batch.graph_mask])
      index.append(batch.index[batch.graph_mask])
    return np.concatenate(parts)[np.argsort(np.concatenate(index))]


def validations(
    config: ml_collections.ConfigDict, protocols: tuple[str, ...]
) -> list[Callable[..., dict[str, Any]]]:
  """The cross-validations to do, for each protocol and seed of the folds.

  Args:
    config: ``config.evaluate``.
    protocols: those wanted.

  Returns:
    Functions of features, labels, ``workers`` and ``progress``, which go to
    other processes by pickling.
  """
  classify = {
      'svm': functools.partial(
          evaluation.svm_accuracy, gamma=config.svm_gamma
      ),
      'logistic': evaluation.logistic_accuracy,
  }
  return [
      functools.partial(
          classify[protocol],
          folds=config.folds,
          inner_folds=config.inner_folds,
          seed=seed,
      )
      for protocol in protocols
      for seed in config.fold_seeds
  ]


def summarize(
    config: ml_collections.ConfigDict,
    protocols: tuple[str, ...],
    results: Sequence[dict[str, Any]],
) -> experiment_lib.Scores:
  """Means over the seeds of the folds, and all folds.

  Args:
    config: ``config.evaluate``.
    protocols: those wanted.
    results: of :func:`validations`, in their order.

  Returns:
    Scores by ``protocol/measure``.
  """
  scores, results = {}, iter(results)
  for protocol in protocols:
    by_seed = {seed: next(results) for seed in config.fold_seeds}
    for name in ('accuracy', 'deviation'):
      values = [result[name] for result in by_seed.values()]
      scores[f'{protocol}/{name}'] = float(np.mean(values))
    scores[f'{protocol}/folds'] = [
        {'seed': seed, 'fold': i, **fold}
        for seed, result in by_seed.items()
        for i, fold in enumerate(result['folds'])
    ]
  return scores
