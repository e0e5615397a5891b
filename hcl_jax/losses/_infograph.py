# SPDX-License-Identifier: Apache-2.0
"""InfoGraph's node-graph objective, plain and with hard negatives."""

import jax
from jax.lax import stop_gradient
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from hcl_jax.losses import _arguments
from hcl_jax.losses import _cosine
from hcl_jax.losses import _tilting

_LOG2 = float(np.log(2.0))
_CLIP = 2.0
_RELEASED_TAU_PLUS = 0.5
VARIANTS = ('paper', 'released', 'infograph')


def infograph_loss(
    node_embeddings: jax.Array,
    graph_embeddings: jax.Array,
    graph_ids: jax.Array,
    *,
    beta: ArrayLike = 1.0,
    tau_plus: ArrayLike | None = None,
    variant: str = 'paper',
    node_mask: jax.Array | None = None,
    graph_mask: jax.Array | None = None,
) -> jax.Array:
  r"""Jensen-Shannon objective between nodes and graphs, hard negatives apart.

  With scores T = inner products of nodes and graphs, sp = softplus, positives
  the pairs of a node and its own graph and negatives all other pairs, variant
  ``'paper'`` is

  .. math::
    L = \frac{\overline{w \, sp(T)}_{neg} - \tau^+ \overline{sp(T)}_{pos}}
             {1 - \tau^+} + \overline{sp(-T)}_{pos} - 2 \log 2, \qquad
    w \propto e^{2 \beta T / c}

  with w of mean 1 over a node's negatives and c the largest |T| of all
  negatives, through which the gradient flows. ``beta=0, tau_plus=0`` is
  InfoGraph's objective exactly.

  The other variants: ``'infograph'``, that objective whatever ``beta`` and
  ``tau_plus`` say; ``'released'``, the paper's released code number for
  number, whose weights grow as T *falls*, whose prior term has the other sign
  and whose masked entries count as scores of 0.

  Args:
    node_embeddings: ``[nodes, dim]``, raw; no temperature, no normalisation.
    graph_embeddings: ``[graphs, dim]``.
    graph_ids: integers ``[nodes]``, the graph of each node. A node outside
      ``[0, graphs)`` is padding; outside a compiled function it is an error
      unless ``node_mask`` drops it.
    beta: concentration, >= 0. May be traced.
    tau_plus: probability that a negative graph shares the node's class. None:
      0 for ``'paper'``, and the 0.5 fixed in the code for ``'released'``.
    variant: ``'paper'``, ``'released'`` or ``'infograph'``.
    node_mask: nodes to count, boolean ``[nodes]``. Padding may hold anything.
    graph_mask: graphs to count, boolean ``[graphs]``.

  Returns:
    A scalar.

  Example:
    >>> import jax.numpy as jnp
    >>> scores = jnp.array([[1.0, -1.0], [0.5, 2.0], [1.5, 1.0]])
    >>> ids = jnp.array([0, 0, 1])
    >>> loss = infograph_loss(scores, jnp.eye(2), ids, variant='infograph')
    >>> print(f'{loss:.6f}')
    0.361107

  References:
    Sun et al., InfoGraph, 2020; Robinson et al., 2021, section on graphs.
  """
  nodes = _arguments.matrix('node_embeddings', node_embeddings)
  graphs = _arguments.matrix('graph_embeddings', graph_embeddings)
  names = 'node_embeddings', nodes, 'graph_embeddings', graphs
  _arguments.same_width(*names)
  _arguments.same_dtype(*names)
  num_graphs = graphs.shape[0]
  if num_graphs < 2:
    raise ValueError(
        'graph_embeddings must hold at least 2 graphs, or there are 0 '
        f'negatives; got shape {graphs.shape}.'
    )
  ids = _arguments.labels('graph_ids', graph_ids, nodes.shape[:1])
  _arguments.choice('variant', variant, VARIANTS)
  if tau_plus is None:
    tau_plus = _RELEASED_TAU_PLUS if variant == 'released' else 0.0
  _arguments.beta(beta)
  _arguments.tau_plus(tau_plus)
  node_mask = _read_mask('node_mask', node_mask, nodes)
  graph_mask = _read_mask('graph_mask', graph_mask, graphs)
  _check_ids(ids, node_mask, graph_mask)

  own = ids[:, None] == jnp.arange(num_graphs, dtype=ids.dtype)[None, :]
  own &= node_mask[:, None] & graph_mask[None, :]
  node_mask = jnp.any(own, axis=1)
  counted = node_mask[:, None] & graph_mask[None, :]
  scores = _cosine.inner_products(
      _cosine.upcast(jnp.where(node_mask[:, None], nodes, 0)),
      _cosine.upcast(jnp.where(graph_mask[:, None], graphs, 0)),
  )
  beta = jnp.asarray(beta, scores.dtype)
  tau_plus = jnp.asarray(tau_plus, scores.dtype)
  if variant == 'infograph':
    beta, tau_plus = jnp.zeros_like(beta), jnp.zeros_like(tau_plus)
  objective = _released if variant == 'released' else _paper
  return objective(scores, own, counted, beta, tau_plus)


def _paper(scores, own, counted, beta, tau_plus):
  others = counted & ~own
  beta = _tilting.clipped_beta(beta, scores, _CLIP, others)
  hard = _row_counts(others, scores.dtype) * jnp.sum(
      _softmax(beta * scores, others) * _softplus(scores), axis=-1
  )
  negative = jnp.sum(hard) / _at_least_one(others, scores.dtype)
  own_scores, node_mask = _own_scores(scores, own)
  positive = _mean(_softplus(own_scores), node_mask)
  debiased = (negative - tau_plus * positive) / (1 - tau_plus)
  return debiased + _mean(_softplus(-own_scores), node_mask) - 2 * _LOG2


def _released(scores, own, counted, beta, tau_plus):
  p, node_mask = _own_scores(scores, own)
  q = jnp.where(counted & ~own, scores, 0)
  prior = tau_plus / (1 - tau_plus)
  num_nodes = _at_least_one(node_mask, scores.dtype)
  num_negatives = jnp.sum(counted & ~own, dtype=scores.dtype)
  # Its positive term also sums sp(0) = log 2 over the negatives, masked to 0.
  masked = prior * _LOG2 * (num_negatives / num_nodes)
  e_pos = _LOG2 - _softplus(-p) - prior * _softplus(p)
  easy = (_softplus(q) - _LOG2) / (1 - tau_plus)
  # The sign is the released one: the more similar, the smaller the weight.
  tilts = -_tilting.clipped_beta(beta, q, _CLIP, counted) * q
  num_graphs = _row_counts(counted, scores.dtype)[:, None]
  weights = num_graphs * _softmax(tilts, counted)
  hard = weights * _softplus(q) / (1 - tau_plus) - _LOG2
  # Its beta = 0 branch differs from the limit of the other by a constant.
  e_neg = jnp.where(beta == 0, easy, hard)
  e_neg = jnp.sum(jnp.where(counted, e_neg, 0))
  negative = e_neg / jnp.maximum(num_negatives, 1)
  return negative - (_mean(e_pos, node_mask) - masked)


def _own_scores(scores, own):
  """The score of each node with its graph ``[nodes]``, and which nodes count.

  A node has one graph, so nothing is summed; softplus of all scores would cost
  a pass over the matrix.
  """
  return jnp.sum(jnp.where(own, scores, 0), axis=1), jnp.any(own, axis=1)


@jax.custom_jvp
def _softplus(x):
  """log(1 + e^x); jax.nn's derivative takes twice the passes over x."""
  return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


@_softplus.defjvp
def _softplus_jvp(primals, tangents):
  (x,), (dx,) = primals, tangents
  return _softplus(x), jax.nn.sigmoid(x) * dx


def _softmax(logits, where):
  """softmax over the last axis; 0 in a row that keeps nothing."""
  logits = jnp.where(where, logits, -jnp.inf)
  peak = jnp.max(logits, axis=-1, keepdims=True)
  peak = stop_gradient(jnp.where(jnp.isneginf(peak), 0, peak))
  tilts = jnp.where(where, jnp.exp(jnp.where(where, logits - peak, 0)), 0)
  total = jnp.sum(tilts, axis=-1, keepdims=True)
  return tilts / jnp.where(total == 0, 1, total)


def _mean(values, where):
  return jnp.sum(jnp.where(where, values, 0)) / _at_least_one(
      where, values.dtype
  )


def _row_counts(where, dtype):
  return jnp.sum(where, axis=-1, dtype=dtype)


def _at_least_one(where, dtype):
  """The number of entries kept, or 1 so that nothing is divided by 0."""
  return jnp.maximum(jnp.sum(where, dtype=dtype), 1)


def _read_mask(name, mask, rows):
  if mask is None:
    return jnp.ones(rows.shape[:1], bool)
  return jnp.broadcast_to(
      _arguments.mask(name, mask, rows.shape[:1]), rows.shape[:1]
  )


def _check_ids(ids, node_mask, graph_mask):
  """Refuses known ids that cannot be right; traced ones are not looked at."""
  arrays = ids, node_mask, graph_mask
  if any(isinstance(x, jax.core.Tracer) for x in arrays):
    return
  ids, node_mask, graph_mask = map(np.asarray, arrays)
  num_graphs = graph_mask.shape[0]
  outside = ids[node_mask & ((ids < 0) | (ids >= num_graphs))]
  if outside.size:
    raise ValueError(
        f'graph_ids must be in [0, {num_graphs}), the rows of '
        f'graph_embeddings; got {outside[0]}. Drop padding by node_mask.'
    )
  nodes = np.bincount(ids[node_mask], minlength=num_graphs)
  empty = np.flatnonzero(graph_mask & (nodes == 0))
  if empty.size:
    raise ValueError(
        f'graph_ids gives graph {empty[0]} no node; drop empty graphs by '
        'graph_mask.'
    )
