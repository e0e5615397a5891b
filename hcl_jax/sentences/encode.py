# SPDX-License-Identifier: Apache-2.0
"""Embeds many sentences, in batches of one shape."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import itertools
from typing import Any

import joblib
import ml_collections
import numpy as np

from hcl_jax.models import gru
from hcl_jax.sentences import data as sentence_data
from hcl_jax.storage import records
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib

# One sentence that is looked for should not take the time of a whole batch.
_FEW = 8
# Share of the places of a batch that words may take; packed rows are seldom
# quite full.
_FILL = 0.95


class Embedder:
  """Computes the features that a task has of sentences.

  A batch has as many sentences as packed rows have space for, whatever their
  lengths, so that there is little padding and one shape to compile, and another
  for a few sentences. (There are more if sentences fill rows badly, such as all
  that are a little longer than half a row.)
  """

  def __init__(self, task: task_lib.Task, config: ml_collections.ConfigDict):
    self._length = config.data.max_length
    self._rows = config.evaluate.batch_size
    self._packed_rows = -(-self._rows // 4)
    # Of the 25,000 words of a batch of books, one in eight is new.
    self._words = max(self._packed_rows * self._length // 6, self._length)
    self._features = step_lib.make_features(
        task, compiler_options=gru.compiler_options()
    )

  def __call__(
      self,
      params: Any,
      sentences: Sequence[np.ndarray],
      progress: Callable[[int], None] = lambda done: None,
      poll: experiment_lib.Poll = lambda: None,
  ) -> np.ndarray:
    """Returns features ``[n, F]`` of sentences, in their order.

    Args:
      params: of the task.
      sentences: words of each, as ids.
      progress: called with the number of sentences embedded so far.
      poll: called before the first batch and after each; raises to leave.
    """
    sizes = self._rows, self._packed_rows, self._words
    if len(sentences) <= _FEW:
      sizes = _FEW, _FEW, _FEW * self._length
    num_rows, packed_rows, words = sizes

    def embed(rows):
      batch = sentence_data.pack_sentences(
          sentences[rows.start : rows.stop],
          max_length=self._length,
          num_rows=num_rows,
          min_packed_rows=packed_rows,
          min_words=words,
      )
      features = np.asarray(self._features(params, {}, batch))
      return rows, features[: len(rows)]

    ranges, parts = self._ranges(sentences), []
    # The first alone, or several threads would compile.
    first = map(embed, itertools.islice(ranges, 1))
    others = records.map_ahead(embed, ranges, num_threads=joblib.cpu_count())
    poll()
    for rows, features in itertools.chain(first, others):
      parts.append(features)
      progress(rows.stop)
      poll()
    return np.concatenate(parts)

  def _ranges(self, sentences) -> Iterator[range]:
    """Yields sentences that follow each other and fit into a batch."""
    start, used, seen = 0, 0, set()
    for row, sentence in enumerate(sentences):
      words = np.asarray(sentence[: self._length]).tolist() or [0]
      full = (
          row - start == self._rows
          or used + len(words) > _FILL * self._packed_rows * self._length
          or len(seen) + len(set(words) - seen) > self._words
      )
      if full and row > start:
        yield range(start, row)
        start, used, seen = row, 0, set()
      used += len(words)
      seen.update(words)
    yield range(start, len(sentences))
