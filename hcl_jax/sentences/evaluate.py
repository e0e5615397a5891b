# SPDX-License-Identifier: Apache-2.0
"""Evaluates embeddings of sentences: retrieval, and labeled tasks."""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import itertools
import math
import pathlib
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

import hcl_jax
from hcl_jax import evaluation
from hcl_jax.models import gru
from hcl_jax.models import vocabulary as vocabulary_lib
from hcl_jax.runs import progress as progress_lib
from hcl_jax.runs import reporting
from hcl_jax.runs import scores as scores_lib
from hcl_jax.sentences import data as sentence_data
from hcl_jax.sentences import encode as embedding
from hcl_jax.sentences import scored_tasks
from hcl_jax.sentences import task as quick_thoughts
from hcl_jax.sentences import word_vectors
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import state as state_lib

_FOLDS = 10
_LOOKED_AT = 1000  # lines of word vectors, before training


class Retrieval:
  """Measures how well sentences of a text find their neighbors.

  A sentence looks among a batch, in the order of the text, as in training.
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
        batch_size=min(config.data.batch_size, len(text)),
        max_length=config.data.max_length,
        lengths=sentence_data.lengths_up_to(config.data.max_length),
    )
    self._count = jax.jit(
        self._count_retrieved, compiler_options=gru.compiler_options()
    )

  def __call__(
      self,
      state: state_lib.TrainState,
      poll: experiment_lib.Poll = lambda *_: None,
  ) -> Iterator[tuple[str, scores_lib.Score]]:
    """Yields the scores of a state; ``poll`` is called before every batch.

    ``retrieval/accuracy`` is the share of sentences whose highest score, of all
    but themselves, is a neighbor's; ``retrieval/loss`` is their mean standard
    loss (without beta and tau_plus, so that runs can be compared). Its standard
    error is that of the batches, whose sentences share their negatives.
    """
    count = self._config.evaluate.retrieval_batches or len(self._batches)
    count = min(count, len(self._batches))
    by_batch, sums = [], np.zeros(3)
    for number in range(count):
      poll(number, count, 'batches')
      by_batch.append(self._count(state, self._batches.batch(number)))
      sums += by_batch[-1]
    hits, losses, anchors = sums
    anchors = max(anchors, 1)
    share, loss = hits / anchors, losses / anchors
    yield 'retrieval/accuracy', scores_lib.share(share, anchors)
    error = _error_of_batches(loss, np.asarray(by_batch, np.float64))
    yield 'retrieval/loss', scores_lib.Score(loss, 'loss', error)

  def _count_retrieved(self, state, batch):
    """Returns hits, losses, and sentences that have a neighbor."""
    loss = self._config.loss
    params = state_lib.evaluated_params(state)
    embeddings = self._task.compared(params, state.task_state, batch)
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
  """Makes the evaluators of a configuration, by protocol.

  The encoders know the words of ``train`` and retrieve from ``validation``.
  """

  def sentences(state, poll):
    encoders = Encoders(
        task,
        state_lib.evaluated_params(state),
        train.vocabulary,
        state.task_state,
    )
    return score_tasks(encoders, tasks, config, poll).items()

  return {
      'retrieval': Retrieval(config, task, validation),
      'sentences': sentences,
  }


class Encoders(NamedTuple):
  """Holds encoders: parameters, the words that they know, and other state."""

  task: quick_thoughts.QuickThoughts
  params: Any
  vocabulary: vocabulary_lib.Vocabulary
  task_state: Any = None


def load_tasks(
    config: ml_collections.ConfigDict,
) -> tuple[scored_tasks.SentenceTask, ...]:
  """Reads the tasks of ``config.evaluate``, each once.

  Raises:
    FileNotFoundError: a file is missing; the message says which and where.
    ValueError: a file is not what it should be.
  """
  folder, vectors = config.tasks_dir, config.word_vectors
  if not pathlib.Path(folder).is_dir():
    raise FileNotFoundError(
        f'config.evaluate.tasks_dir={folder!r}: there is no such folder.'
    )
  if vectors and not pathlib.Path(vectors).is_file():
    raise FileNotFoundError(
        f'config.evaluate.word_vectors={vectors!r}: there is no such file.'
    )
  if vectors:  # All of it is read at the end, which may be days away.
    word_vectors.read_word_vectors(vectors, max_lines=_LOOKED_AT)
  tasks = [scored_tasks.load_sentence_task(x, folder) for x in config.tasks]
  return tuple({task.name: task for task in tasks}.values())


def score_tasks(
    encoders: Encoders,
    tasks: Sequence[scored_tasks.SentenceTask],
    config: ml_collections.ConfigDict,
    poll: experiment_lib.Poll = lambda *_: None,
) -> scores_lib.Scores:
  """Embeds the sentences of tasks and scores each task by its protocol.

  ``poll`` is called before every batch and after every fold; raises to leave.

  Returns:
    For each task ``NAME/accuracy``, and ``NAME/f1`` of pairs, between 0 and 1;
    also ``NAME/folds``, a list, or ``NAME/choice``, a dict, with C and what it
    was chosen by.
  """
  if config.evaluate.word_vectors:
    encoders = with_word_vectors(encoders, tasks, config)
  scores = {}
  features = _embed(encoders, tasks, config, poll)
  with progress_lib.Progress(
      _FOLDS * len(tasks), label='tasks', unit='folds'
  ) as shown:
    for number, (task, of_task) in enumerate(zip(tasks, features, strict=True)):

      def after_fold(done, _, before=_FOLDS * number):
        shown.update(before + done)
        poll()

      result = evaluation.sentence_scores(
          of_task,
          task,
          folds=_FOLDS,
          workers=config.evaluate.workers or None,
          progress=after_fold,
      )
      result = _named(task, result)
      scores |= result
      shares = scores_lib.of_numbers(result).items()
      shown.write(
          ', '.join(f'{name} {reporting.score(x)}' for name, x in shares)
      )
  return scores


def with_word_vectors(
    encoders: Encoders,
    tasks: Sequence[scored_tasks.SentenceTask],
    config: ml_collections.ConfigDict,
) -> Encoders:
  """Adds words of tasks that the encoders do not know, from vectors of others.

  Each encoder has a table of words of its own and gets a map of its own; see
  ``hcl_jax.sentences.expand_vocabulary``. Words that are in no task are not
  added. ``config.evaluate.word_vectors`` is the file of the vectors.
  """
  task, params, vocabulary, task_state = encoders
  wanted = set(vocabulary.words).union(*(
      vocabulary_lib.tokenize(sentence, cased=vocabulary.cased)
      for one in tasks
      for sentence in one.sentences
  ))  # fmt: skip
  vectors = word_vectors.read_word_vectors(
      config.evaluate.word_vectors, words=wanted
  )
  words, expanded = vocabulary.words, {}
  for side, of_side in params.items():
    words, table = word_vectors.expand_vocabulary(
        of_side['words'], vocabulary.words, vectors
    )
    expanded[side] = {**of_side, 'words': table}
  module = quick_thoughts.create_encoders(config, len(words))
  return Encoders(
      task=dataclasses.replace(task, module=module),
      params=expanded,
      vocabulary=vocabulary_lib.Vocabulary(words, cased=vocabulary.cased),
      task_state=task_state,
  )


def check_word_tables(config: ml_collections.ConfigDict, params: Any) -> None:
  """Raises a ValueError if encoders have no table to add words to."""
  for of_side in params.values():
    if getattr(of_side.get('words'), 'ndim', 0) != 2:
      raise ValueError(
          "config.evaluate.word_vectors needs a parameter 'words' [words, D] "
          f'of config.model.encoder={config.model.encoder!r}, which has '
          f"{', '.join(of_side) or 'none'}; set word_vectors=''."
      )


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


def _embed(encoders, tasks, config, poll):
  """Embeds the sentences of each task, all as one list."""
  encode = encoders.vocabulary.encode
  ids = [encode(sentence) for task in tasks for sentence in task.sentences]
  unknown = np.mean(np.concatenate(ids) == 0)
  embed = embedding.Embedder(encoders.task, config)
  with progress_lib.Progress(
      len(ids), label='embed', unit='sentences'
  ) as shown:
    shown.write(
        f'{len(ids)} sentences of {", ".join(task.name for task in tasks)}; '
        f'{unknown:.1%} of their words are unknown'
    )
    features = embed(
        encoders.params,
        ids,
        shown.update,
        poll,
        task_state=encoders.task_state,
    )
  ends = itertools.accumulate(len(task.sentences) for task in tasks)
  return np.split(features, list(ends)[:-1])


def _error_of_batches(loss, sums):
  """Returns the standard error of a mean loss; None if of a single batch.

  Sums of hits, losses and anchors are ``[batches, 3]``.
  """
  count = len(sums)
  _, losses, anchors = sums.T
  if count < 2 or not anchors.any():
    return None
  spread = np.sum((losses - loss * anchors) ** 2) * count / (count - 1)
  return math.sqrt(spread) / float(anchors.sum())


def _named(task, result):
  name, rows = task.name, len(task.labels) - (task.num_train or 0)
  accuracy = scores_lib.share(result['accuracy'], rows)
  measures = {f'{name}/accuracy': accuracy}
  if 'f1' in result:
    error = _f1_error(result['f1'], accuracy, rows)
    measures[f'{name}/f1'] = scores_lib.Score(result['f1'], error=error)
  if 'folds' in result:
    return {**measures, f'{name}/folds': result['folds']}
  choice = {x: result[x] for x in ('c', 'inner_score')}
  return {**measures, f'{name}/choice': choice}


def _f1_error(f1, accuracy, rows):
  """Returns the standard error of an F1, by the delta method.

  With a true positives, e errors and F1 = 2 a / (2 a + e), the variance is
  F1 (1 - F1) (2 - F1) / (2 a + e), and e is known from the accuracy.
  """
  wrong = rows * (1 - accuracy)
  return math.sqrt(f1 * (2 - f1) / wrong) * (1 - f1) if wrong else 0.0
