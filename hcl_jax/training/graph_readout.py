# SPDX-License-Identifier: Apache-2.0
"""Evaluation protocols on the embeddings of graphs."""

from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from hcl_jax import evaluation
from hcl_jax.training import readout
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib

if TYPE_CHECKING:
  from hcl_jax.training import graph_experiment


class GraphReader:
  """Embeds all graphs and cross-validates classifiers on the embeddings.

  Args:
    experiment: what is evaluated.
    poll: called before every batch and after every fold; raises to leave.
  """

  def __init__(
      self,
      experiment: 'graph_experiment.GraphExperiment',
      poll: Callable[[], None] = lambda: None,
  ):
    self._experiment = experiment
    self._poll = poll
    self._embed = step_lib.make_features(experiment.task, experiment.devices)

  def evaluate(
      self, state: state_lib.TrainState, protocols: tuple[str, ...]
  ) -> readout.Scores:
    """Scores by ``protocol/measure``, between 0 and 1, and all folds."""
    features = self.features(state)
    scores = {}
    for protocol in protocols:
      scores |= self._cross_validate(protocol, features)
    return scores

  def features(self, state: state_lib.TrainState) -> np.ndarray:
    """Embeddings ``[n, dim]`` in evaluation mode, in the order of the set."""
    params = readout.evaluated_params(state)
    parts, index = [], []
    for batch in self._experiment.epoch:
      self._poll()
      rows = step_lib.split_rows(batch._asdict(), 1)
      out = np.asarray(self._embed(params, state.task_state, rows))[0]
      parts.append(out[batch.graph_mask])
      index.append(batch.index[batch.graph_mask])
    return np.concatenate(parts)[np.argsort(np.concatenate(index))]

  def _cross_validate(self, protocol, features) -> readout.Scores:
    """Means over the seeds of the division into folds."""
    config = self._experiment.config.evaluate
    knobs: dict[str, Any] = {
        'folds': config.folds,
        'inner_folds': config.inner_folds,
        'workers': config.workers or None,
        'progress': lambda *_: self._poll(),
    }
    if protocol == 'svm':
      knobs['gamma'] = config.svm_gamma
    classify = {
        'svm': evaluation.svm_accuracy,
        'logistic': evaluation.logistic_accuracy,
    }[protocol]
    labels = self._experiment.graphs.labels
    results = [
        classify(features, labels, seed=seed, **knobs)
        for seed in config.fold_seeds
    ]
    means = {
        f'{protocol}/{name}': float(np.mean([x[name] for x in results]))
        for name in ('accuracy', 'deviation')
    }
    folds = [
        {'seed': seed, 'fold': i, **fold}
        for seed, result in zip(config.fold_seeds, results, strict=True)
        for i, fold in enumerate(result['folds'])
    ]
    return means | {f'{protocol}/folds': folds}
