# SPDX-License-Identifier: Apache-2.0
"""Evaluates embeddings of sentences: retrieval, and labeled tasks."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

import hcl_jax
from hcl_jax.models import gru
from hcl_jax.runs import scores as scores_lib
from hcl_jax.sentences import data as sentence_data
from hcl_jax.sentences import scored_tasks
from hcl_jax.sentences import scoring
from hcl_jax.sentences import task as quick_thoughts
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import state as state_lib

_LENGTHS = (8, 16, 24, 32, 50)


class Retrieval:
  """Measures how well sentences of a text find their neighbors.

  A sentence looks among a batch, in the order of the text, as in training.

  Args:
    config: the whole configuration.
    task: has the encoders.
    text: to retrieve sentences from.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: quick_thoughts.QuickThoughts,
      text: sentence_data.Sentences,
  ):
    self._config, self._task = config, task
    self._batches = sentence_data.SentenceBatches(
        text,
        seed=0,
        batch_size=config.data.batch_size,
        max_length=config.data.max_length,
        lengths=lengths(config.data.max_length),
    )
    self._count = jax.jit(
        self._count_retrieved, compiler_options=gru.compiler_options()
    )

  def __call__(
      self,
      state: state_lib.TrainState,
      poll: experiment_lib.Poll = lambda: None,
  ) -> Iterator[tuple[str, scores_lib.Score]]:
    """Yields the scores of a state.

    Args:
      state: has the parameters.
      poll: called before every batch; raises to leave.

    Yields:
      ``retrieval/accuracy``, the share of sentences whose highest score, of
      all but themselves, is a neighbor's; and ``retrieval/loss``, their mean
      standard loss (without beta and tau_plus, so that runs can be compared).
    """
    count = self._config.evaluate.retrieval_batches or len(self._batches)
    sums = np.zeros(3)
    for number in range(min(count, len(self._batches))):
      poll()
      batch = self._batches.batch(number)
      sums += self._count(state, batch)
    hits, losses, anchors = sums
    share, loss = hits / max(anchors, 1), losses / max(anchors, 1)
    yield 'retrieval/accuracy', scores_lib.Score(share)
    yield 'retrieval/loss', scores_lib.Score(loss, 'loss')

  def _count_retrieved(self, state, batch):
    """Returns hits, losses, and sentences that have a neighbor."""
    loss = self._config.loss
    params = state_lib.evaluated_params(state)
    embeddings, _ = self._task.embed(
        params, state.task_state, batch, None, None
    )
    losses = hcl_jax.quick_thoughts_loss(
        *embeddings,
        window=loss.window,
        self_pair=loss.self_pair,
        segments=batch.segment,
        where=batch.index >= 0,
    )
    best, is_anchor = _best(*embeddings, batch, loss.window)
    return jnp.stack([
        jnp.sum(x, where=is_anchor, dtype=jnp.float32) for x in (best, losses)
    ] + [jnp.sum(is_anchor, dtype=jnp.float32)])


def make(
    config: ml_collections.ConfigDict,
    task: quick_thoughts.QuickThoughts,
    train: sentence_data.Sentences,
    validation: sentence_data.Sentences,
    tasks: tuple[scored_tasks.SentenceTask, ...],
) -> dict[str, experiment_lib.Evaluator]:
  """Makes the evaluators of a configuration.

  Args:
    config: the whole configuration.
    task: has the encoders.
    train: has the words that they know.
    validation: text to retrieve sentences from.
    tasks: labeled sentences to score on, if any.

  Returns:
    Evaluators by protocol.
  """

  def score_tasks(state, poll):
    encoders = scoring.Encoders(
        task, state_lib.evaluated_params(state), train.vocabulary
    )
    return scoring.score_tasks(encoders, tasks, config, poll).items()

  return {
      'retrieval': Retrieval(config, task, validation),
      'sentences': score_tasks,
  }


def lengths(max_length: int) -> tuple[int, ...]:
  """Returns what batches may be padded to."""
  return (*(x for x in _LENGTHS if x < max_length), max_length)


def _best(left, right, batch, window):
  """Returns whether the best other is a neighbor, and who has neighbors."""
  there, segment = batch.index >= 0, batch.segment
  row = jnp.arange(left.shape[0])
  distance = jnp.abs(row[:, None] - row[None, :])
  others = there[None, :] & (distance > 0)
  near = others & there[:, None] & (distance <= window)
  near &= segment[:, None] == segment[None, :]
  scores = jnp.where(others, jnp.matmul(left, right.T), -jnp.inf)
  best = jnp.argmax(scores, axis=1)
  return near[row, best], jnp.any(near, axis=1)
