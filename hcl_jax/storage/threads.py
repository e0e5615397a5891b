# SPDX-License-Identifier: Apache-2.0
"""Work ahead in threads."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from concurrent import futures
from typing import TypeVar

Item = TypeVar('Item')
Result = TypeVar('Result')


def map_ahead(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    num_threads: int = 1,
    num_ahead: int = 3,
) -> Iterator[Result]:
  """``function(item)`` in order, with at most num_ahead results in store.

  Closing the iterator (or dropping it) ends the threads; an exception in the
  function reaches the caller at the item's turn.
  """
  pending = collections.deque()
  with futures.ThreadPoolExecutor(num_threads) as pool:
    try:
      for item in items:
        pending.append(pool.submit(function, item))
        if len(pending) > num_ahead:
          yield pending.popleft().result()
      while pending:
        yield pending.popleft().result()
    finally:
      for future in pending:
        future.cancel()
