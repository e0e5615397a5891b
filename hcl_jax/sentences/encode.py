# SPDX-License-Identifier: Apache-2.0
"""Embeds sentences by the encoders of a run, in batches of one shape."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Any

import joblib
import ml_collections
import numpy as np

from hcl_jax.models import gru
from hcl_jax.models import packed_text
from hcl_jax.models import vocabulary as vocabulary_lib
from hcl_jax.sentences import data as sentence_data
from hcl_jax.sentences import task as quick_thoughts
from hcl_jax.storage import records
from hcl_jax.storage import text_files
from hcl_jax.training import encoder as encoder_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib

# What encoders of two runs must have in common, of ``inputs``.
MUST_AGREE = ('vocabulary', 'cased')

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

  def __init__(
      self,
      task: task_lib.Task,
      config: ml_collections.ConfigDict,
      *,
      spread: bool = False,
  ):
    """Takes the task; ``spread``: all local devices take turns."""
    self._spread = spread
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
      poll: experiment_lib.Poll = lambda *_: None,
      *,
      task_state: Any = None,
  ) -> np.ndarray:
    """Returns features ``[n, F]`` of sentences, in their order.

    Args:
      params: of the task.
      sentences: words of each, as ids.
      progress: called with the number of sentences embedded so far.
      poll: called before the first batch and after each; raises to leave.
      task_state: of the task, if its encoders have any beside parameters.
    """
    sizes = self._rows, self._packed_rows, self._words
    if len(sentences) <= _FEW:
      sizes = _FEW, _FEW, _FEW * self._length
    num_rows, packed_rows, words = sizes
    variables = params, task_state or {}
    copies = state_lib.copies(variables) if self._spread else [variables]

    def embed(numbered):
      number, rows = numbered
      batch = sentence_data.pack_sentences(
          sentences[rows.start : rows.stop],
          max_length=self._length,
          num_rows=num_rows,
          min_packed_rows=packed_rows,
          min_words=words,
      )
      variables = copies[number % len(copies)]
      features = np.asarray(self._features(*variables, batch))
      return rows, features[: len(rows)]

    ranges, parts = enumerate(self._ranges(sentences)), []
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


def inputs(corpus: sentence_data.Sentences) -> dict[str, Any]:
  """Returns what must be known of a corpus to embed other sentences."""
  words = corpus.vocabulary
  return {'vocabulary': words.words, 'cased': words.cased}


def make(
    config: ml_collections.ConfigDict, inputs: Mapping[str, Any]
) -> encoder_lib.Parts:
  """Makes the encoders of a configuration, without their parameters.

  They take a sequence of sentences, each a str.
  """
  vocabulary = vocabulary_lib.Vocabulary(
      inputs['vocabulary'], cased=inputs['cased']
  )
  task = quick_thoughts.create(
      config, vocabulary_size=len(vocabulary), total_steps=1, steps_per_epoch=1
  )
  embedder = Embedder(task, config, spread=True)

  def embed(
      state: state_lib.TrainState,
      rows: Any,
      progress: encoder_lib.ShowProgress,
  ) -> np.ndarray:
    texts = [] if isinstance(rows, str) else list(rows)
    if not texts or not all(isinstance(text, str) for text in texts):
      raise ValueError(
          'rows must be a sequence of one or more sentences, each a str; got '
          f'{rows!r:.60}.'
      )
    ids = [vocabulary.encode(text) for text in texts]
    return embedder(
        state_lib.evaluated_params(state),
        ids,
        progress,
        task_state=state.task_state,
    )

  return encoder_lib.Parts(
      task=task,
      module=task.module,
      example=example(),
      inputs=inputs,
      embed=embed,
      read=_read,
      unit='sentences',
  )


def example() -> packed_text.SentenceBatch:
  """Returns a batch of three sentences of a word, for its shapes."""
  return packed_text.pack(np.zeros((3, 1), np.int32), np.ones(3, np.int32))


def _read(path):
  """Returns the lines of a text file that are not blank, which name it."""
  texts = [x for x in map(str.strip, text_files.read_lines(path)) if x]
  if not texts:
    raise ValueError(f'{path} has no sentence.')
  return texts, texts
