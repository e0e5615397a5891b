# SPDX-License-Identifier: Apache-2.0
"""Evaluates embeddings of graphs by cross-validated classifiers."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import functools
from typing import Any

import ml_collections
import numpy as np

from hcl_jax import evaluation
from hcl_jax.models import graph_batch as graphs_lib
from hcl_jax.runs import scores as scores_lib
from hcl_jax.storage import records
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib


class Features:
  """Embeds all graphs of a set, compiled once for each shape of a batch."""

  def __init__(self, task: task_lib.Task):
    self._embed = step_lib.make_features(task)

  def __call__(
      self,
      state: state_lib.TrainState,
      epoch: Iterable[graphs_lib.GraphBatch],
      poll: experiment_lib.Poll = lambda *_: None,
  ) -> np.ndarray:
    """Returns embeddings ``[n, dim]`` of an epoch's graphs, in the set's order.

    ``poll`` is called before the first batch and after each; it raises to
    leave.
    """
    variables = [(state_lib.evaluated_params(state), state.task_state)]
    return self._compute(variables, epoch, poll)

  def spread(
      self,
      state: state_lib.TrainState,
      epoch: Iterable[graphs_lib.GraphBatch],
      poll: experiment_lib.Poll = lambda *_: None,
  ) -> np.ndarray:
    """Embeds as a call does, on all local devices, which take turns."""
    variables = state_lib.evaluated_params(state), state.task_state
    return self._compute(state_lib.copies(variables), epoch, poll)

  def _compute(self, copies, epoch, poll):
    def embed(numbered):
      number, batch = numbered
      variables = copies[number % len(copies)]
      return batch, np.asarray(self._embed(*variables, batch))

    parts, index = [], []
    found = map(embed, enumerate(epoch))
    if len(copies) > 1:
      found = records.map_ahead(
          embed, enumerate(epoch), num_threads=len(copies)
      )
    poll()
    for batch, out in found:
      parts.append(out[batch.graph_mask])
      index.append(batch.index[batch.graph_mask])
      poll()
    return np.concatenate(parts)[np.argsort(np.concatenate(index))]


def make(
    config: ml_collections.ConfigDict,
    labels: np.ndarray,
    epoch: Iterable[graphs_lib.GraphBatch],
    features: Features,
) -> dict[str, experiment_lib.Evaluator]:
  """Makes the evaluators of a configuration, by protocol.

  Labels are in the order of the set, whose batches are ``epoch``.
  """

  def cross_validate(protocol, classify, state, poll):
    embedded = features(state, epoch, poll)
    folds, seeds = config.evaluate.folds, config.evaluate.fold_seeds
    results = []
    for number, seed in enumerate(seeds):

      def after_fold(done, _, before=folds * number):
        poll(before + done, folds * len(seeds), 'folds')

      results.append(
          classify(
              embedded,
              labels,
              folds=folds,
              inner_folds=config.evaluate.inner_folds,
              seed=seed,
              workers=config.evaluate.workers or None,
              progress=after_fold,
          )
      )
    return _summarize(protocol, seeds, results, len(labels))

  classifiers: dict[str, Callable[..., Any]] = {
      'svm': functools.partial(
          evaluation.svm_accuracy, gamma=config.evaluate.svm_gamma
      ),
      'logistic': evaluation.logistic_accuracy,
  }
  return {
      protocol: functools.partial(cross_validate, protocol, classify)
      for protocol, classify in classifiers.items()
  }


def _summarize(protocol, seeds, results, rows) -> Iterator[tuple[str, Any]]:
  """Yields means over the seeds of the folds, and all folds.

  The standard error of the accuracy is binomial over the graphs. Every division
  tests each of them once, so more divisions do not make it smaller, as they
  would the deviation over all folds by the root of their number.
  """
  accuracy, deviation = (
      np.mean([result[name] for result in results])
      for name in ('accuracy', 'deviation')
  )
  yield f'{protocol}/accuracy', scores_lib.share(accuracy, rows)
  yield f'{protocol}/deviation', scores_lib.Score(deviation, 'number')
  yield f'{protocol}/folds', [
      {'seed': seed, 'fold': i, **fold}
      for seed, result in zip(seeds, results, strict=True)
      for i, fold in enumerate(result['folds'])
  ]
