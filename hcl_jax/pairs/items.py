# SPDX-License-Identifier: Apache-2.0
"""Names what queries and documents may be, takes some, finds distinct ones."""

from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Sequence

import numpy as np

# Texts, or vectors float32 [n, d], or images uint8 [n, height, width, 3].
Items = Sequence[str] | np.ndarray


def kind(items: Items) -> str:
  """Returns what items are: 'text', 'vector' or 'image'."""
  if not isinstance(items, np.ndarray):
    return 'text'
  return 'vector' if items.ndim == 2 else 'image'


def name(item: str | np.ndarray, row: int) -> str:
  """Returns an item as a text, or its number."""
  return item if isinstance(item, str) else f'number {row}'


def take(items: Items, rows: np.ndarray) -> Items:
  """Returns some items."""
  if isinstance(items, np.ndarray):
    return items[rows]
  return [items[row] for row in rows.tolist()]


class Distinct:
  """Collects items, each once, and numbers them in the order they come."""

  def __init__(self):
    self._rows: dict[Hashable, int] = {}
    self._blocks: list[Items] = []

  def add(self, items: Items) -> np.ndarray:
    """Returns the number of each item, int32."""
    known = len(self._rows)
    is_array = isinstance(items, np.ndarray)
    keys: Iterable[Hashable] = (
        (x.tobytes() for x in items) if is_array else items
    )
    numbers = np.array(
        [self._rows.setdefault(key, len(self._rows)) for key in keys], np.int32
    )
    new, first = np.unique(numbers, return_index=True)
    self._blocks.append(take(items, first[new >= known]))
    return numbers

  def items(self) -> Items:
    """Returns all items that came, by number."""
    if isinstance(self._blocks[0], np.ndarray):
      return np.concatenate(self._blocks)
    return [item for block in self._blocks for item in block]
