# SPDX-License-Identifier: Apache-2.0
"""The rows most similar to an anchor, of those that are its negatives."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import _checks
from hcl_jax import _vectors


def read_ids(ids: Any, rows: int) -> np.ndarray:
  """The ids, or numbers that no two rows share."""
  if ids is None:
    return np.arange(rows)
  return _checks.host_labels('ids', ids, rows)


def hardest(
    units: np.ndarray, ids: np.ndarray, anchors: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
  """Rows and similarities of the k hardest negatives, hardest first.

  A negative has another id than the anchor. Of equally similar rows the lower
  one comes first.
  """
  keep = ids[anchors, None] != ids[None, :]
  refuse_few(keep, anchors, k)
  cosines, rows = _top(units[anchors], units, keep, k)
  return np.asarray(rows), np.asarray(cosines)


def refuse_few(keep: np.ndarray, anchors: np.ndarray, k: int) -> None:
  """Raises where an anchor keeps fewer than k negatives."""
  count = keep.sum(axis=1)
  if count.min() < k:
    raise ValueError(
        f'k must not exceed the number of negatives; got k = {k}, and row '
        f'{anchors[count.argmin()]} has {count.min()} rows of another id.'
    )


@functools.partial(jax.jit, static_argnames='k')
def _top(anchors, units, keep, k):
  cosines = _vectors.inner_products(anchors, units)
  return jax.lax.top_k(jnp.where(keep, cosines, -jnp.inf), k)
