# SPDX-License-Identifier: Apache-2.0
"""Finds sentences nearest to a given one, by the encoders of a run."""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import NamedTuple

import ml_collections

from hcl_jax import evaluation
from hcl_jax.sentences import encode
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import state as state_lib

UNIT = 'sentences'
_MOST = 50_000


class Found(NamedTuple):
  """Sentence that was found, and the cosine of the two embeddings."""

  cosine: float
  text: str


def configure(config: ml_collections.ConfigDict) -> None:
  """Drops from a configuration what only an evaluation needs."""
  config.evaluate.tasks_dir, config.evaluate.protocols = '', ()


def count(
    experiment: experiment_lib.Experiment,
    texts: Sequence[str] | None,
    max_sentences: int = _MOST,
) -> int:
  """Returns how many sentences a finder embeds."""
  found = experiment.data.train if texts is None else texts
  return min(len(found), max_sentences)


class Finder:
  """Embeds a collection of sentences once, and looks into it.

  Args:
    texts: the collection; None for the sentences trained on.
    max_sentences: the first so many of the collection are taken.
    progress: called with the number of sentences embedded so far.
  """

  def __init__(
      self,
      experiment: experiment_lib.Experiment,
      state: state_lib.TrainState,
      *,
      texts: Sequence[str] | None = None,
      max_sentences: int = _MOST,
      progress: Callable[[int], None] = lambda done: None,
  ):
    self._corpus = experiment.data.train
    self._embed = functools.partial(
        encode.Embedder(experiment.task, experiment.config),
        state_lib.evaluated_params(state),
        task_state=state.task_state,
    )
    self._texts = None if texts is None else list(texts[:max_sentences])
    self.size = count(experiment, texts, max_sentences)
    if not self.size:
      raise ValueError('texts must have a sentence or more, got none.')
    tokens = [self._tokens(row) for row in range(self.size)]
    self._features = self._embed(tokens, progress)

  def find(self, text: str, k: int = 10) -> list[Found]:
    """Returns the k nearest sentences, the nearest first."""
    query = self._embed([self._corpus.vocabulary.encode(text)])
    cosines, rows = evaluation.nearest_neighbors(self._features, query, k=k)
    return [
        Found(float(cosine), self._text(row))
        for cosine, row in zip(cosines[0], rows[0], strict=True)
    ]

  def _tokens(self, row):
    if self._texts is not None:
      return self._corpus.vocabulary.encode(self._texts[row])
    first, last = self._corpus.starts[row : row + 2]
    return self._corpus.tokens[first:last]

  def _text(self, row):
    return self._corpus.text(row) if self._texts is None else self._texts[row]
