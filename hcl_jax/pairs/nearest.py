# SPDX-License-Identifier: Apache-2.0
"""Finds the documents nearest to a query, by the two towers of a run."""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import NamedTuple

import ml_collections
import numpy as np

from hcl_jax import evaluation
from hcl_jax.pairs import encode
from hcl_jax.pairs import items as items_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import state as state_lib

UNIT = 'documents'


class Found(NamedTuple):
  """Document that was found, and the cosine of the two embeddings."""

  cosine: float
  text: str


def configure(config: ml_collections.ConfigDict) -> None:
  """Drops from a configuration what only an evaluation needs."""
  config.evaluate.protocols = ()


def count(
    experiment: experiment_lib.Experiment,
    texts: Sequence[str] | None,
    max_sentences: int | None = None,
) -> int:
  """Returns how many documents a finder embeds."""
  documents = experiment.data.pairs.documents if texts is None else texts
  return min(len(documents), max_sentences or len(documents))


class Finder:
  """Embeds documents once, and looks into them.

  Args:
    texts: documents; None for those of the data set.
    max_sentences: the first so many of them are taken; None for all.
    progress: called with the number of documents embedded so far.

  Raises:
    ValueError: queries or documents are no texts.
  """

  def __init__(
      self,
      experiment: experiment_lib.Experiment,
      state: state_lib.TrainState,
      *,
      texts: Sequence[str] | None = None,
      max_sentences: int | None = None,
      progress: Callable[[int], None] = lambda done: None,
  ):
    data = experiment.data
    self._reader = data.readers['query']
    if self._reader.kind != 'text':
      raise ValueError(
          f'the queries of this run are {self._reader.wish}, no texts; use '
          'hcl_jax.load(workdir).query.'
      )
    self.size = count(experiment, texts, max_sentences)
    embedder = encode.Embedder(experiment.task, experiment.config)
    self._embed = functools.partial(embedder, state)
    if texts is None:
      array, self._names = data.arrays.document, data.pairs.documents
    else:
      array, self._names = data.readers['document'](texts), texts
    self._embeddings = self._embed(
        'document',
        array,
        np.arange(self.size),
        lambda done, *_: progress(done),
    )

  def find(self, text: str, k: int = 10) -> list[Found]:
    """Returns the k nearest documents, the nearest first."""
    query = self._embed('query', self._reader([text]), np.arange(1))
    cosines, rows = evaluation.nearest_neighbors(
        self._embeddings, query, k=min(k, self.size)
    )
    return [
        Found(float(cosine), items_lib.name(self._names[row], row))
        for cosine, row in zip(cosines[0], rows[0].tolist(), strict=True)
    ]
