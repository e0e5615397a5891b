# SPDX-License-Identifier: Apache-2.0
"""Embeds queries and documents by the two towers of a run."""

import collections
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import pathlib
from typing import Any

import ml_collections
import numpy as np

from hcl_jax.pairs import data as pair_data
from hcl_jax.pairs import items as items_lib
from hcl_jax.pairs import readers as readers_lib
from hcl_jax.pairs import task as two_towers
from hcl_jax.pairs import towers
from hcl_jax.storage import text_files
from hcl_jax.training import encoder as encoder_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib

# What encoders of two runs must have in common, of ``inputs``.
MUST_AGREE = two_towers.SIDES

# One query that is looked for should not take the time of a whole block.
_FEW = 8


class Embedder:
  """Embeds rows in blocks of one shape, which devices take in turn."""

  def __init__(
      self, task: two_towers.TwoTowers, config: ml_collections.ConfigDict
  ):
    """Takes the task, and the size of a block from the configuration."""
    self._block = config.evaluate.batch_size
    self._features = step_lib.make_features(task)

  def __call__(
      self,
      state: state_lib.TrainState,
      side: str,
      array: np.ndarray,
      rows: np.ndarray,
      poll: experiment_lib.Poll = lambda *_: None,
  ) -> np.ndarray:
    """Returns embeddings ``[len(rows), dim]`` of rows of an array.

    Uses the local devices that hold the state.

    Args:
      state: what has been learned.
      side: 'query' or 'document'.
      array: what the encoder of that side reads, a row for each item.
      rows: which of them to embed.
      poll: called before every block with the number of rows that are embedded;
        raises to leave.
    """
    variables = state_lib.evaluated_params(state), state.task_state
    copies = state_lib.copies(variables)
    count, size = len(rows), self._block if len(rows) > _FEW else _FEW
    waiting, parts = collections.deque(), []
    for number, start in enumerate(range(0, count, size)):
      poll(start, count, 'items')
      block = rows[np.minimum(np.arange(start, start + size), count - 1)]
      waiting.append(
          self._features(*copies[number % len(copies)], {side: array[block]})
      )
      if len(waiting) > len(copies):
        parts.append(np.asarray(waiting.popleft()))
    parts += map(np.asarray, waiting)
    poll(count, count, 'items')
    return np.concatenate(parts)[:count]


class Encoder(encoder_lib.Encoder):
  """Embeds queries and documents by what a run has learned.

  A call embeds documents.

  Example::

    encoder = hcl_jax.load('runs/molecules')
    found = encoder.query(['ethanol']) @ encoder.document(['CCO', 'CCN']).T
  """

  def query(
      self,
      items: items_lib.Items,
      *,
      progress: encoder_lib.ShowProgress = lambda done: None,
  ) -> np.ndarray:
    """Returns embeddings of queries, ``[n, dim]``, each of length one.

    Args:
      items: queries such as the run was trained on.
      progress: called with the number of queries that are embedded so far.

    Raises:
      ValueError: the items are not such.
    """
    return self.parts.embed(self.state, items, progress, side='query')

  def document(
      self,
      items: items_lib.Items,
      *,
      progress: encoder_lib.ShowProgress = lambda done: None,
  ) -> np.ndarray:
    """Returns embeddings of documents; see :meth:`query`."""
    return self.parts.embed(self.state, items, progress, side='document')


def inputs(readers: Mapping[str, readers_lib.Reader]) -> dict[str, Any]:
  """Returns what must be known to embed other items, by side."""
  return {side: reader.to_json() for side, reader in readers.items()}


def make(
    config: ml_collections.ConfigDict, inputs: Mapping[str, Any]
) -> encoder_lib.Parts:
  """Makes the towers of a configuration, without their parameters.

  They take texts, vectors or images, such as the run was trained on.
  """
  readers = {
      side: readers_lib.from_json(inputs[side]) for side in two_towers.SIDES
  }
  module = towers.create(config, readers)
  task = two_towers.create(config, module, total_steps=1, steps_per_epoch=1)
  embedder = Embedder(task, config)

  def embed(
      state: state_lib.TrainState,
      rows: Any,
      progress: encoder_lib.ShowProgress,
      *,
      side: str = 'document',
  ) -> np.ndarray:
    array = readers[side](rows)
    found = embedder(
        state,
        side,
        array,
        np.arange(len(array)),
        lambda done, *_: progress(done),
    )
    return found

  return encoder_lib.Parts(
      task=task,
      module=module,
      example=example(readers),
      inputs=inputs,
      embed=embed,
      read=functools.partial(_read, readers['document']),
      unit='documents',
  )


def example(readers: Mapping[str, readers_lib.Reader]) -> dict[str, np.ndarray]:
  """Returns rows of both sides, for their shapes."""
  return {side: reader.example() for side, reader in readers.items()}


def own_rows(
    config: ml_collections.ConfigDict,
) -> tuple[items_lib.Items, Sequence[str]]:
  """Returns all documents of the data set of a run, and their names.

  Raises:
    FileNotFoundError: the data set is not there.
  """
  documents = pair_data.load_pairs(
      config.data.name, data_dir=config.data.dir or None
  ).documents
  names = [items_lib.name(x, row) for row, x in enumerate(documents)]
  return documents, names


def _read(
    reader: readers_lib.Reader, path: pathlib.Path
) -> tuple[items_lib.Items, Sequence[str]]:
  """Reads documents of a file: lines of text, or an array ``.npy``."""
  if reader.kind == 'text':
    texts = [x for x in map(str.strip, text_files.read_lines(path)) if x]
    if not texts:
      raise ValueError(f'{path} has no text.')
    return texts, texts
  if path.suffix != '.npy':
    raise ValueError(f'{path} must be an array, FILE.npy, of {reader.wish}.')
  try:
    array = np.load(path, allow_pickle=False)
  except (ValueError, EOFError) as error:
    raise ValueError(f'{path} cannot be read as an array: {error}') from error
  return array, [str(row) for row in range(len(array))]
