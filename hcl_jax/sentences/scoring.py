# SPDX-License-Identifier: Apache-2.0
"""Scores sentence encoders on labeled sentences: MR, CR, SUBJ, ..."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import itertools
import pathlib
from typing import Any
from typing import NamedTuple

import ml_collections
import numpy as np

from hcl_jax import evaluation
from hcl_jax.models import vocabulary as vocabulary_lib
from hcl_jax.runs import progress as progress_lib
from hcl_jax.runs import scores as scores_lib
from hcl_jax.sentences import encode as embedding
from hcl_jax.sentences import scored_tasks
from hcl_jax.sentences import task as quick_thoughts
from hcl_jax.sentences import word_vectors

_FOLDS = 10
_LOOKED_AT = 1000  # lines of word vectors, before training


class Encoders(NamedTuple):
  """Holds what embeds sentences.

  Attributes:
    task: has the encoders.
    params: their parameters.
    vocabulary: the words that they know.
  """

  task: quick_thoughts.QuickThoughts
  params: Any
  vocabulary: vocabulary_lib.Vocabulary


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
    poll: Callable[[], None] = lambda: None,
) -> scores_lib.Scores:
  """Embeds the sentences of tasks and scores each task by its protocol.

  Args:
    encoders: what embeds.
    tasks: what is scored.
    config: the whole configuration.
    poll: called before every batch and after every fold; raises to leave.

  Returns:
    For each task ``NAME/accuracy``, and ``NAME/f1`` of pairs, between 0 and 1;
    also ``NAME/folds``, a list, or ``NAME/choice``, a dict, with C and what it
    was chosen by.
  """
  if config.evaluate.word_vectors:
    encoders = with_word_vectors(encoders, tasks, config.evaluate.word_vectors)
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
      result = _named(task.name, result)
      scores |= result
      shares = scores_lib.of_numbers(result).items()
      shown.write(', '.join(f'{name} {x:.2%}' for name, x in shares))
  return scores


def with_word_vectors(
    encoders: Encoders,
    tasks: Sequence[scored_tasks.SentenceTask],
    path: str,
) -> Encoders:
  """Adds words of tasks that the encoders do not know, from vectors of others.

  Each encoder has a table of words of its own and gets a map of its own; see
  ``hcl_jax.sentences.expand_vocabulary``.

  Args:
    encoders: what is to know more.
    tasks: words that are in none of them are not added.
    path: text of word vectors.

  Returns:
    Encoders with more words.
  """
  task, params, vocabulary = encoders
  wanted = set(vocabulary.words).union(*(
      vocabulary_lib.tokenize(sentence, cased=vocabulary.cased)
      for one in tasks
      for sentence in one.sentences
  ))  # fmt: skip
  vectors = word_vectors.read_word_vectors(path, words=wanted)
  words, expanded = vocabulary.words, {}
  for side, of_side in params.items():
    words, table = word_vectors.expand_vocabulary(
        of_side['words'], vocabulary.words, vectors
    )
    expanded[side] = {**of_side, 'words': table}
  module = task.module.clone(vocabulary_size=len(words))
  return Encoders(
      task=dataclasses.replace(task, module=module),
      params=expanded,
      vocabulary=vocabulary_lib.Vocabulary(words, cased=vocabulary.cased),
  )


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
    features = embed(encoders.params, ids, shown.update, poll)
  ends = itertools.accumulate(len(task.sentences) for task in tasks)
  return np.split(features, list(ends)[:-1])


def _named(name, result):
  measures = {
      f'{name}/{x}': scores_lib.Score(result[x])
      for x in ('accuracy', 'f1')
      if x in result
  }
  if 'folds' in result:
    return {**measures, f'{name}/folds': result['folds']}
  choice = {x: result[x] for x in ('c', 'inner_score')}
  return {**measures, f'{name}/choice': choice}
