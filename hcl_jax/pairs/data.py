# SPDX-License-Identifier: Apache-2.0
"""Holds pairs of queries and documents, split into parts."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

PARTS = ('train', 'validation', 'test')

# Texts, or vectors float32 [n, d], or images uint8 [n, height, width, 3].
Items = Sequence[str] | np.ndarray


class Part(NamedTuple):
  """Holds the pairs of a part.

  Attributes:
    query: row of the query of each pair, int32 ``[n]``.
    document: row of its document, int32 ``[n]``.
    negatives: rows of documents that are negatives of the pair, int32
      ``[n, k]``, -1 for none.
  """

  query: np.ndarray
  document: np.ndarray
  negatives: np.ndarray


@dataclasses.dataclass(frozen=True)
class Pairs:
  """Holds all queries and documents, and which belong together.

  Attributes:
    queries: distinct queries of all parts.
    documents: distinct documents of all parts, in the order of first appearance
      in train, validation, test.
    ids: id of each document, int32 ``[documents]``. Documents of one id answer
      the same queries.
    groups: group of each document, int32 ``[documents]``, -1 for none.
    parts: pairs by part.
  """

  queries: Items
  documents: Items
  ids: np.ndarray
  groups: np.ndarray
  parts: Mapping[str, Part]


def kind(items: Items) -> str:
  """Returns what items are: 'text', 'vector' or 'image'."""
  if not isinstance(items, np.ndarray):
    return 'text'
  return 'vector' if items.ndim == 2 else 'image'
