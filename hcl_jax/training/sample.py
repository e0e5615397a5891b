# SPDX-License-Identifier: Apache-2.0
"""Holds a sample of what a run makes of its data, to look at."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import hcl_jax
from hcl_jax import models
from hcl_jax.training import state as state_lib

MAX_ITEMS = 256


class Negatives(NamedTuple):
  """Holds negatives of anchors, in the numbers that the loss weighs them by.

  Attributes:
    pos_logits: similarity of each anchor to its positive, ``[a]``; None where
      the loss has more than one of them, or another form.
    neg_logits: what beta multiplies, ``[a, n]``.
    where: what is a negative of its anchor, ``[a, n]``.
    anchors: the item that each anchor is of, ``[a]``.
    items: the item that each column is of, ``[n]``.
    tau_plus: class prior that the loss takes.
    temperature: that of the logits, if it was learned; None: the configured.
  """

  pos_logits: np.ndarray | None
  neg_logits: np.ndarray
  where: np.ndarray
  anchors: np.ndarray
  items: np.ndarray
  tau_plus: float = 0.0
  temperature: float | None = None


class Found(NamedTuple):
  """Is something that a query has found.

  Attributes:
    text: what was found.
    cosine: of its embedding and the query's.
    mark: what there is to say of it, such as 'right'; '' for nothing.
  """

  text: str
  cosine: float
  mark: str


class Ranking(NamedTuple):
  """Shows what a query finds among all documents.

  Attributes:
    query: what is looked for.
    rank: place of the first right document, from 1.
    found: the first documents.
  """

  query: str
  rank: int
  found: list[Found]


class Sample(NamedTuple):
  """Holds some data of a run, as its encoder sees them in evaluation mode.

  Attributes:
    embeddings: of items and of further rows, the items first, ``[n, dim]``.
    labels: of the same, ``[n]``; rows that have one label belong together.
    items: a batch, as images ``[m, height, width, 3]`` or as words.
    item_names: the class of each item, or None.
    negatives: of the batch.
    views: two augmented views of the items, ``[m, dim]`` each, or both sides of
      pairs; None if there are none.
    groups: of items, ``[m]``; items of one group are alike, though none answers
      the other. None: not known.
    rankings: what some queries find, where the room has queries.
  """

  embeddings: np.ndarray
  labels: np.ndarray
  items: np.ndarray | list[str]
  item_names: list[str] | None
  negatives: Negatives
  views: tuple[np.ndarray, np.ndarray] | None = None
  groups: np.ndarray | None = None
  rankings: Sequence[Ranking] = ()


def compiled(
    function: Callable[..., Any], state: state_lib.TrainState
) -> Callable[..., Any]:
  """Returns a function of the task with the parameters that are evaluated."""
  params, task_state = jax.device_get(
      (state_lib.evaluated_params(state), state.task_state)
  )
  compiled = jax.jit(function, compiler_options=models.compiler_options())
  return lambda batch, *keys: compiled(params, task_state, batch, *keys)


def clip_factor(
    scores: np.ndarray, where: np.ndarray, clip_scale: float = 2.0
) -> float:
  """Returns what clipping multiplies scores by, for a beta of one."""
  factor = hcl_jax.clipped_beta(
      1.0, jnp.asarray(scores), clip_scale=clip_scale, where=jnp.asarray(where)
  )
  return float(factor)
