# SPDX-License-Identifier: Apache-2.0
"""Drops negatives that are too similar to the anchor to be negatives."""

import dataclasses
import functools
from typing import Any

import jax
from jax.lax import stop_gradient
import jax.numpy as jnp
from jax.typing import ArrayLike

from hcl_jax import _checks
from hcl_jax import _vectors
from hcl_jax.losses import _columns


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=('value', 'guide'),
    meta_fields=('relative',),
)
@dataclasses.dataclass(frozen=True)
class Margin:
  """Tells which negatives from the batch are false: those near the positive.

  A negative is dropped if its cosine to the anchor exceeds c - value, with c
  the positive's cosine. Cosines, not logits: the margin means the same at every
  temperature. No gradient flows through the choice.

  Attributes:
    value: the margin; larger drops more.
    relative: the limit is c - abs(c) value instead, a share of the positive's
      cosine, which is right for a negative c too.
    guide: embeddings that decide in place of the loss's own, in the order and
      number of its arguments, of any width; for example those of a trained
      encoder. They need not be unit vectors.
  """

  value: ArrayLike = 0.0
  relative: bool = False
  guide: tuple[jax.Array, ...] | None = None

  def limits(self, positive: jax.Array) -> jax.Array:
    """Returns the cosines above which negatives are dropped."""
    unit = jnp.abs(positive) if self.relative else jnp.ones_like(positive)
    return stop_gradient(positive - self.value * unit)

  def limit(
      self, columns: _columns.Columns, positive: jax.Array
  ) -> _columns.Columns:
    """Adds limits to columns; a guide is (rows, their partners, columns)."""
    if self.guide is None:
      return columns._replace(limits=self.limits(positive))
    rows, partners, others = self.guide
    return columns._replace(
        limits=self.limits(jnp.sum(rows * partners, axis=-1)),
        guide_rows=rows,
        guide_columns=others,
    )


def read(margin: Any, **embeddings: jax.Array) -> Margin | None:
  """Checks a margin, a number or a :class:`Margin`, and normalizes its guide.

  Args:
    margin: the argument of a loss.
    **embeddings: the loss's arguments that a guide would stand for.

  Returns:
    A margin with arrays in the dtype of computation, or None.
  """
  if margin is None:
    return None
  if not isinstance(margin, Margin):
    margin = Margin(margin)
  _checks.number('margin', margin.value)
  first = next(iter(embeddings.values()))
  guide = margin.guide
  if guide is not None:
    guide = _read_guide(guide, embeddings)
  dtype = _vectors.compute_dtype(first.dtype)
  return Margin(jnp.asarray(margin.value, dtype), margin.relative, guide)


def _read_guide(guide, embeddings):
  names = ', '.join(embeddings)
  if not isinstance(guide, (tuple, list)) or len(guide) != len(embeddings):
    got = len(guide) if isinstance(guide, (tuple, list)) else type(guide)
    raise ValueError(
        f"margin's guide must have {len(embeddings)} arrays, in place of "
        f'({names}); got {got}.'
    )
  read_guide = []
  for (name, array), given in zip(embeddings.items(), guide, strict=True):
    given = _checks.matrix(f"margin's guide of {name}", given)
    if given.shape[0] != array.shape[0]:
      raise ValueError(
          f"margin's guide of {name} must have its {array.shape[0]} rows; got "
          f'shape {given.shape}.'
      )
    read_guide.append(stop_gradient(_vectors.normalize(given)))
  for name, given in zip(embeddings, read_guide, strict=True):
    if given.shape[1] != read_guide[0].shape[1]:
      raise ValueError(
          f"margin's guides of ({names}) must have one width; got "
          f'{[x.shape for x in read_guide]}, of which that of {name} differs.'
      )
  return tuple(read_guide)
