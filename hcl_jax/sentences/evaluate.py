# SPDX-License-Identifier: Apache-2.0
"""Evaluation protocols on the embeddings of sentences."""

from collections.abc import Callable
from collections.abc import Sequence

import jax.numpy as jnp
import ml_collections
import numpy as np

import hcl_jax
from hcl_jax.models import gru
from hcl_jax.models import vocabulary as vocabulary_lib
from hcl_jax.sentences import data as sentence_data
from hcl_jax.sentences import encode as embedding
from hcl_jax.sentences import scored_tasks
from hcl_jax.sentences import scoring as sentence_scoring
from hcl_jax.sentences import task as quick_thoughts
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib

_LENGTHS = (8, 16, 24, 32, 50)


class SentenceReader:
  """Embeds sentences and scores the embeddings.

  Args:
    config: the whole configuration.
    task: has the encoders.
    vocabulary: the words that they know.
    validation: text to retrieve sentences from.
    tasks: labeled sentences to score on, if any.
    poll: called before every batch; raises to leave early.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: quick_thoughts.QuickThoughts,
      *,
      vocabulary: vocabulary_lib.Vocabulary,
      validation: sentence_data.Sentences,
      tasks: tuple[scored_tasks.SentenceTask, ...] = (),
      poll: Callable[[], None] = lambda: None,
  ):
    self._config, self._task, self._poll = config, task, poll
    self._vocabulary, self._validation = vocabulary, validation
    self._tasks = tasks
    self._embed = embedding.Embedder(task, config, poll)
    self._retrieve = step_lib.compile_lone(
        self._count_retrieved, compiler_options=gru.compiler_options()
    )

  def evaluate(
      self, state: state_lib.TrainState, protocols: tuple[str, ...]
  ) -> experiment_lib.Scores:
    """Scores by name, between 0 and 1 but for losses, and what they are from.

    Names are ``retrieval/MEASURE`` and, by the protocol ``'sentences'``, those
    of :func:`sentence_scoring.score_tasks`.
    """
    scores = {}
    if 'retrieval' in protocols:
      result = self.retrieval(state)
      scores |= {f'retrieval/{name}': value for name, value in result.items()}
    if 'sentences' in protocols:
      encoders = sentence_scoring.Encoders(
          self._task,
          state_lib.evaluated_params(state),
          self._vocabulary,
      )
      scores |= sentence_scoring.score_tasks(
          encoders, self._tasks, self._config, self._poll
      )
    return scores

  def features(
      self,
      state: state_lib.TrainState,
      sentences: Sequence[np.ndarray],
      progress: Callable[[int], None] = lambda done: None,
  ) -> np.ndarray:
    """Both embeddings of sentences, each of length one, as one vector.

    Args:
      state: has the parameters.
      sentences: words of each, as ids of the vocabulary.
      progress: called with the number of sentences embedded so far.

    Returns:
      ``[n, 2 dim]``, in the order given.
    """
    params = state_lib.evaluated_params(state)
    return self._embed(params, sentences, progress)

  def retrieval(self, state: state_lib.TrainState) -> dict[str, float]:
    """How well sentences of the validation split find their neighbours.

    A sentence looks among a batch, in the order of the text, as in training.

    Returns:
      ``accuracy``, the share of sentences whose highest score, themselves
      apart, is a neighbour's; and ``loss``, their mean standard loss (without
      beta and tau_plus, so that runs can be compared).
    """
    config = self._config
    batches = sentence_data.SentenceBatches(
        self._validation,
        seed=0,
        batch_size=config.data.batch_size,
        max_length=config.data.max_length,
        lengths=lengths(config.data.max_length),
    )
    count = config.evaluate.retrieval_batches or len(batches)
    sums = np.zeros(3)
    for number in range(min(count, len(batches))):
      self._poll()
      batch = batches.batch(number)._asdict()
      sums += self._retrieve({}, state, step_lib.split_rows(batch, 1))
    hits, losses, anchors = sums
    return {
        'accuracy': float(hits / max(anchors, 1)),
        'loss': float(losses / max(anchors, 1)),
    }

  def _count_retrieved(self, _, state, batch):
    """Hits, losses, and sentences that have a neighbour."""
    loss = self._config.loss
    params = state_lib.evaluated_params(state)
    embeddings, _ = self._task.embed(
        params, state.task_state, batch, None, None
    )
    losses = hcl_jax.quick_thoughts_loss(
        *embeddings,
        window=loss.window,
        self_pair=loss.self_pair,
        segments=batch['segment'],
        where=batch['index'] >= 0,
    )
    best, is_anchor = _best(*embeddings, batch, loss.window)
    return jnp.stack([
        jnp.sum(x, where=is_anchor, dtype=jnp.float32) for x in (best, losses)
    ] + [jnp.sum(is_anchor, dtype=jnp.float32)])


def lengths(max_length: int) -> tuple[int, ...]:
  """What batches may be padded to."""
  return (*(x for x in _LENGTHS if x < max_length), max_length)


def _best(left, right, batch, window):
  """Whether the best of the others is a neighbour, and who has neighbours."""
  there, segment = batch['index'] >= 0, batch['segment']
  row = jnp.arange(left.shape[0])
  distance = jnp.abs(row[:, None] - row[None, :])
  others = there[None, :] & (distance > 0)
  near = others & there[:, None] & (distance <= window)
  near &= segment[:, None] == segment[None, :]
  scores = jnp.where(others, jnp.matmul(left, right.T), -jnp.inf)
  best = jnp.argmax(scores, axis=1)
  return near[row, best], jnp.any(near, axis=1)
