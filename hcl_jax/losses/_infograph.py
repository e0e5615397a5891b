# SPDX-License-Identifier: Apache-2.0
"""InfoGraph's objective for nodes and graphs, plain and with hard negatives."""

from typing import NamedTuple

import jax
from jax import core
from jax.lax import stop_gradient
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from hcl_jax import _checks
from hcl_jax import _vectors
from hcl_jax.losses import _nce
from hcl_jax.losses import _perplexity
from hcl_jax.losses import tilting

_LOG2 = float(np.log(2.0))
_CLIP = 2.0
_NEVER = -1e30  # a logit; -inf is slow on CPU
_RELEASED_TAU_PLUS = 0.5
VARIANTS = ('paper', 'released', 'infograph')


def infograph_loss(
    node_embeddings: jax.Array,
    graph_embeddings: jax.Array,
    graph_ids: jax.Array,
    *,
    beta: ArrayLike | None = None,
    effective_negatives: ArrayLike | None = None,
    tau_plus: ArrayLike | None = None,
    variant: str = 'paper',
    node_mask: jax.Array | None = None,
    graph_mask: jax.Array | None = None,
    node_rows: jax.Array | None = None,
    node_counts: jax.Array | None = None,
) -> jax.Array:
  r"""Computes the Jensen-Shannon objective of nodes and graphs.

  T are the inner products of nodes and graphs and sp is softplus. Positives are
  the pairs of a node and its own graph, negatives all other pairs. Variant
  ``'paper'`` is

  .. math::
    L = \frac{\overline{w \, sp(T)}_{neg} - \tau^+ \overline{sp(T)}_{pos}}
             {1 - \tau^+} + \overline{sp(-T)}_{pos} - 2 \log 2, \qquad
    w \propto e^{2 \beta T / c}

  where w has mean 1 over a node's negatives and c is the largest |T| of all
  negatives, through which the gradient flows. ``beta=0, tau_plus=0`` is
  exactly InfoGraph's objective. One large score makes c large, and with it all
  weights alike; ``effective_negatives`` gives each node weights of its own,
  :math:`w \propto e^{\beta_u T}`, instead.

  Variant ``'infograph'`` is that objective for any ``beta`` and ``tau_plus``.
  Variant ``'released'`` has the values of the paper's released code: its
  weights grow as T *falls*, its prior term has the opposite sign, and its
  masked entries count as scores of 0.

  Args:
    node_embeddings: ``[nodes, dim]``, raw; no temperature, no normalization.
      With ``node_rows``, ``[rows, dim]``.
    graph_embeddings: ``[graphs, dim]``.
    graph_ids: graph of each node, integers ``[nodes]``. An id outside
      ``[0, graphs)`` means padding; outside a compiled function it is an error
      unless ``node_mask`` drops the node.
    beta: concentration, >= 0. May be traced. The scores have no temperature;
      weights before normalization lie between e^{-2 beta} and e^{2 beta}.
      None: 1.
    effective_negatives: instead of beta, for ``'paper'`` only, the share of a
      node's negative graphs that shall count, in (0, 1]: each node u gets the
      beta_u of that perplexity among the graphs of ``graph_mask``, within 1 %;
      see :func:`beta_for_perplexity`. It has no gradient. ``node_counts`` and
      other nodes do not change it. May be traced.
    tau_plus: probability that a negative graph has the node's class. None: 0
      for ``'paper'``, and 0.5, a constant of the code, for ``'released'``.
    variant: ``'paper'``, ``'released'`` or ``'infograph'``.
    node_mask: nodes to count, boolean ``[nodes]``. Padding may have any value.
    graph_mask: graphs to count, boolean ``[graphs]``.
    node_rows: row of ``node_embeddings`` of each node, integers ``[nodes]``, if
      nodes share rows; None: node i has row i. Rows outside the array mean
      padding, as in ``graph_ids``.
    node_counts: number of equal nodes of its graph that each node represents,
      integers ``[nodes]``; None: 1.

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
  nodes = _checks.matrix('node_embeddings', node_embeddings)
  graphs = _checks.matrix('graph_embeddings', graph_embeddings)
  names = 'node_embeddings', nodes, 'graph_embeddings', graphs
  _checks.same_width(*names)
  _checks.same_dtype(*names)
  num_graphs = graphs.shape[0]
  if num_graphs < 2:
    raise ValueError(
        'graph_embeddings must have at least 2 graphs, otherwise there are 0 '
        f'negatives; got shape {graphs.shape}.'
    )
  shape = nodes.shape[:1] if node_rows is None else np.shape(graph_ids)
  ids = _checks.labels('graph_ids', graph_ids, shape)
  _checks.choice('variant', variant, VARIANTS)
  if tau_plus is None:
    tau_plus = _RELEASED_TAU_PLUS if variant == 'released' else 0.0
  _nce.check_hardness(beta, effective_negatives)
  beta = 1.0 if beta is None else beta
  _checks.beta(beta)
  if effective_negatives is not None and variant != 'paper':
    raise ValueError(
        "effective_negatives needs variant='paper', whose weights it chooses; "
        f'got variant={variant!r}. Leave it out.'
    )
  _checks.tau_plus(tau_plus)
  node_mask = _read_mask('node_mask', node_mask, ids)
  graph_mask = _read_mask('graph_mask', graph_mask, graphs)
  if node_counts is not None:
    node_counts = _checks.labels('node_counts', node_counts, ids.shape)
    node_mask &= node_counts > 0
  if node_rows is not None:
    node_rows = _checks.labels('node_rows', node_rows, ids.shape)
    _check_indices(
        'node_rows', node_rows, node_mask, 'node_embeddings', len(nodes)
    )
    node_mask &= (node_rows >= 0) & (node_rows < len(nodes))
  _check_ids(ids, node_mask, graph_mask)

  node_mask &= jnp.take(graph_mask, ids, mode='fill', fill_value=False)
  scores = _scores(nodes, graphs, node_rows, node_mask, graph_mask)
  counts = node_mask.astype(scores.dtype)
  if node_counts is not None:
    counts *= node_counts.astype(scores.dtype)
  beta = jnp.asarray(beta, scores.dtype)
  tau_plus = jnp.asarray(tau_plus, scores.dtype)
  if variant == 'infograph':
    beta, tau_plus = jnp.zeros_like(beta), jnp.zeros_like(tau_plus)
  own = ids[:, None] == jnp.arange(num_graphs, dtype=ids.dtype)[None, :]
  pairs = _Pairs(scores, own, counts, graph_mask)
  if variant == 'released':
    return _released(pairs, beta, tau_plus)
  if effective_negatives is None:
    tilt = tilting.clipped_beta(beta, scores, _CLIP, pairs.others)
  else:
    tilt = _perplexity.beta_for_perplexity(
        scores, effective_negatives, where=pairs.others
    )
  return _paper(pairs, tilt, tau_plus)


class _Pairs(NamedTuple):
  """All pairs of a node and a graph.

  Attributes:
    scores: inner products ``[nodes, graphs]``.
    own: whether the graph is the node's own, ``[nodes, graphs]``.
    counts: number of equal nodes, 0 in padding, ``[nodes]``.
    graph_mask: graphs to count, ``[graphs]``.
  """

  scores: jax.Array
  own: jax.Array
  counts: jax.Array
  graph_mask: jax.Array

  @property
  def others(self):
    """Returns which pairs are negatives, ``[nodes, graphs]``."""
    return self.graph_mask[None, :] & ~self.own


def _scores(nodes, graphs, node_rows, node_mask, graph_mask):
  """Returns inner products ``[nodes, graphs]``; 0 for masked entries."""
  if node_rows is None:
    used = node_mask
  else:
    used = jnp.zeros(nodes.shape[:1], bool)
    used = used.at[node_rows].max(node_mask, mode='drop')
  scores = _vectors.inner_products(
      _vectors.upcast(jnp.where(used[:, None], nodes, 0)),
      _vectors.upcast(jnp.where(graph_mask[:, None], graphs, 0)),
  )
  if node_rows is None:
    return scores
  return jnp.take(scores, node_rows, axis=0, mode='fill', fill_value=0)


def _paper(pairs, tilt, tau_plus):
  """Returns the objective; weights are e^{tilt T}, one tilt or one per node."""
  scores, own, counts, graph_mask = pairs
  num_graphs = jnp.sum(graph_mask, dtype=jnp.int32)
  # With one graph there are no negatives.
  hard = _tilted_softplus(tilt, scores, pairs.others)
  hard = jnp.where(num_graphs > 1, hard, 0)
  negative = _mean(hard, counts)
  own_scores = _own_scores(scores, own)
  positive = _mean(_softplus(own_scores), counts)
  debiased = (negative - tau_plus * positive) / (1 - tau_plus)
  return debiased + _mean(_softplus(-own_scores), counts) - 2 * _LOG2


def _released(pairs, beta, tau_plus):
  scores, own, counts, graph_mask = pairs
  p = _own_scores(scores, own)
  q = jnp.where(own, 0, scores)
  prior = tau_plus / (1 - tau_plus)
  num_graphs = jnp.sum(graph_mask, dtype=scores.dtype)
  num_others = jnp.maximum(num_graphs - 1, 1)
  e_pos = _LOG2 - _softplus(-p) - prior * _softplus(p)
  # Its positive term also adds sp(0) = log 2 of negatives, masked to 0.
  masked = prior * _LOG2 * (num_graphs - 1)
  # The released sign: the more similar, the smaller the weight.
  tilt = -tilting.clipped_beta(beta, q, _CLIP)
  # Its branch for beta = 0 differs from the limit by a constant.
  offset = jnp.where(beta == 0, _LOG2 / (1 - tau_plus), _LOG2)
  e_neg = _tilted_softplus(tilt, q, graph_mask[None, :]) / (1 - tau_plus)
  negative = (num_graphs / num_others) * _mean(e_neg - offset, counts)
  return negative - (_mean(e_pos, counts) - masked)


def _own_scores(scores, own):
  """Returns the score of each node with its graph, ``[nodes]``.

  Each sum has one term; softplus of all scores would cost a pass over the
  matrix.
  """
  return jnp.sum(jnp.where(own, scores, 0), axis=1)


@jax.custom_jvp
def _tilted_softplus(beta, scores, where):
  r"""Returns the mean of softplus(T) over each row with weights e^{beta T}.

  .. math::
    m = \sum_G w_G \, sp(T_G), \quad w = softmax(\beta T), \qquad
    dm = \sum_G w_G \bigl(\sigma(T_G) \, dT_G
      + (sp(T_G) - m) \, d(\beta T_G)\bigr)

  JAX's own derivative takes twice as many passes over the matrix.
  """
  tilts, total = _tilts(beta, scores, where)
  return jnp.sum(tilts * _softplus(scores), axis=-1) / total


@_tilted_softplus.defjvp
def _tilted_softplus_jvp(primals, tangents):
  beta, scores, where = primals
  d_beta, d_scores, _ = tangents
  tilts, total = _tilts(beta, scores, where)
  values = _softplus(scores)
  mean = jnp.sum(tilts * values, axis=-1) / total
  weights = tilts * (1 / total)[:, None]
  excess = weights * (values - mean[:, None])
  across = beta[:, None] if beta.ndim else beta
  slopes = weights * jax.nn.sigmoid(scores) + across * excess
  return mean, (
      jnp.sum(slopes * d_scores, axis=-1)
      + jnp.sum(excess * scores, axis=-1) * d_beta
  )


@jax.custom_jvp
def _softplus(x):
  """Returns log(1 + e^x); jax.nn's derivative takes twice the passes over x."""
  return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


@_softplus.defjvp
def _softplus_jvp(primals, tangents):
  (x,), (dx,) = primals, tangents
  return _softplus(x), jax.nn.sigmoid(x) * dx


def _tilts(beta, scores, where):
  """Returns the numerators of softmax(beta T), and their sums."""
  if beta.ndim:
    # Nothing bounds beta T: shift before the tilt, so that it rounds little.
    masked = jnp.where(where, scores, jnp.finfo(scores.dtype).min)
    top = stop_gradient(jnp.max(masked, axis=-1, keepdims=True))
    scores, beta = jnp.where(where, scores - top, 0), beta[:, None]
  logits = jnp.where(where, beta * scores, _NEVER)
  peak = stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
  tilts = jnp.exp(logits - peak)
  return tilts, jnp.sum(tilts, axis=-1)


def _mean(values, counts):
  """Returns the mean of values weighted by counts; 0 if counts are all 0."""
  return jnp.sum(counts * values) / jnp.maximum(jnp.sum(counts), 1)


def _read_mask(name, mask, rows):
  if mask is None:
    return jnp.ones(rows.shape[:1], bool)
  return jnp.broadcast_to(
      _checks.mask(name, mask, rows.shape[:1]), rows.shape[:1]
  )


def _check_ids(ids, node_mask, graph_mask):
  """Raises a ValueError if ids are invalid, unless they are traced."""
  arrays = ids, node_mask, graph_mask
  if any(isinstance(x, core.Tracer) for x in arrays):
    return
  ids, node_mask, graph_mask = map(np.asarray, arrays)
  num_graphs = graph_mask.shape[0]
  _check_indices('graph_ids', ids, node_mask, 'graph_embeddings', num_graphs)
  nodes = np.bincount(ids[node_mask], minlength=num_graphs)
  empty = np.flatnonzero(graph_mask & (nodes == 0))
  if empty.size:
    raise ValueError(
        f'graph_ids gives graph {empty[0]} no node; drop empty graphs with '
        'graph_mask.'
    )


def _check_indices(name, indices, node_mask, array_name, length):
  """Raises a ValueError if indices are out of range, unless traced."""
  if any(isinstance(x, core.Tracer) for x in (indices, node_mask)):
    return
  indices = np.asarray(indices)
  outside = indices[node_mask & ((indices < 0) | (indices >= length))]
  if outside.size:
    raise ValueError(
        f'{name} must be in [0, {length}), the rows of {array_name}; got '
        f'{outside[0]}. Drop padding with node_mask.'
    )
