# SPDX-License-Identifier: Apache-2.0
"""Turns queries and documents into the arrays that encoders read."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import ml_collections
import numpy as np

from hcl_jax.models import tokens
from hcl_jax.pairs import config as pair_config
from hcl_jax.pairs import data as pair_data
from hcl_jax.pairs import items as items_lib
from hcl_jax.pairs import task as two_towers

_TOKENIZERS = {'words': tokens.Words, 'characters': tokens.Characters}


@dataclasses.dataclass(frozen=True)
class Reader:
  """Turns items of one side into an array, a row for each.

  Attributes:
    kind: what items are: 'text', 'vector' or 'image'.
    shape: of a vector or an image.
    tokenizer: that of texts.
  """

  kind: str
  shape: tuple[int, ...] = ()
  tokenizer: tokens.Tokenizer | None = None

  @property
  def wish(self) -> str:
    """Returns what items must be, in words."""
    if self.kind == 'text':
      return 'texts, a sequence of str'
    shape = ', '.join(map(str, ('n', *self.shape)))
    return f'{self.kind}s, {self._dtype.name} [{shape}]'

  def __call__(self, items: items_lib.Items) -> np.ndarray:
    """Returns what encoders read of items.

    Raises:
      ValueError: the items are not such as the reader was made for.
    """
    if self.tokenizer is not None:
      texts = [] if isinstance(items, str) else list(items)
      if not texts or not all(isinstance(x, str) for x in texts):
        raise ValueError(f'items must be {self.wish}; got {items!r:.60}.')
      return self.tokenizer(texts)
    array = np.asarray(items)
    is_float = array.dtype.kind == 'f' and self.kind == 'vector'
    if array.shape[1:] != self.shape or not len(array):
      raise ValueError(
          f'items must be {self.wish}; got {array.dtype} {list(array.shape)}.'
      )
    if not is_float and array.dtype != self._dtype:
      raise ValueError(f'items must be {self.wish}; got {array.dtype}.')
    return np.ascontiguousarray(array, self._dtype)

  def to_json(self) -> dict[str, Any]:
    """Returns what :func:`from_json` makes the same of."""
    tokenizer = self.tokenizer and self.tokenizer.to_json()
    return {
        'kind': self.kind,
        'shape': list(self.shape),
        'tokenizer': tokenizer,
    }

  def example(self) -> np.ndarray:
    """Returns a row, for its shape."""
    if self.tokenizer is not None:
      return np.zeros((1, self.tokenizer.length), np.int32)
    return np.zeros((1, *self.shape), self._dtype)

  @property
  def _dtype(self):
    return np.dtype(np.float32 if self.kind == 'vector' else np.uint8)


def from_json(content: Mapping[str, Any]) -> Reader:
  """Makes the reader that ``to_json`` describes."""
  described = content['tokenizer']
  return Reader(
      kind=content['kind'],
      shape=tuple(content['shape']),
      tokenizer=tokens.from_json(described) if described else None,
  )


def create(
    config: ml_collections.ConfigDict, pairs: pair_data.Pairs
) -> dict[str, Reader]:
  """Makes the reader of each side; words are those of the training pairs.

  Raises:
    ValueError: the encoder of a side does not take such items.
  """
  part = pairs.parts['train']
  items = {'query': pairs.queries, 'document': pairs.documents}
  rows = {'query': part.query, 'document': part.document}
  readers = {
      side: Reader(items_lib.kind(x), _shape_of(x)) for side, x in items.items()
  }
  for side, reader in readers.items():
    _check_encoder(config, side, reader.kind)
  if config.model.shared and readers['query'] != readers['document']:
    raise ValueError(
        'config.model.shared=True needs queries and documents of one kind and '
        f'shape; got {readers["query"].wish} and {readers["document"].wish}.'
    )

  def texts(side):
    sides = two_towers.SIDES if config.model.shared else (side,)
    for x in sides:
      yield from items_lib.take(items[x], np.unique(rows[x]))

  return {
      side: dataclasses.replace(
          reader,
          tokenizer=_tokenizer(
              config.model, pair_config.encoder_of(config, side), texts(side)
          ),
      )
      if reader.kind == 'text'
      else reader
      for side, reader in readers.items()
  }


def _shape_of(items) -> tuple[int, ...]:
  return items.shape[1:] if isinstance(items, np.ndarray) else ()


def _check_encoder(config, side, kind):
  name = pair_config.encoder_of(config, side)
  known = pair_config.ENCODERS[kind]
  if ':' in name or name in known:
    return
  field = 'model.encoder'
  if side == 'document' and config.model.document_encoder:
    field = 'model.document_encoder'
  remedy = ''
  if side == 'document' and field == 'model.encoder':
    remedy = ' by config.model.document_encoder'
  raise ValueError(
      f'config.{field}={name!r} reads no {kind}, of which the {side} is; give '
      f'one of {", ".join(map(repr, known))}{remedy}.'
  )


def _tokenizer(model, name, texts) -> tokens.Tokenizer:
  """Makes the tokenizer of an encoder; ``texts`` are those trained on."""
  if name == 'ngrams':
    least, most = model.ngrams
    return tokens.HashedNgrams(least, most, model.buckets, model.length)
  kind = 'words' if name == 'words' else model.tokens
  return _TOKENIZERS[kind].of_texts(
      texts, size=model.vocabulary_size, length=model.length
  )
