# SPDX-License-Identifier: Apache-2.0
"""Batches of graphs, padded to static shapes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class GraphBatch(NamedTuple):
  """G graphs whose nodes have N distinct rows, padding included.

  A network of k layers gives the same embedding to nodes that have the same
  color after k rounds of color refinement, in any graphs. Such nodes may share
  a row, which is embedded once (see :class:`hcl_jax.graphs.Graphs`). If every
  node has its own row, M = N. Rows and members are sorted by graph; a row is in
  the place of its first node.

  Padding is last in every array and has indices out of range: an edge of
  padding goes from row N to row N, and a member of padding has row N and graph
  G. So sums over neighbors and over the nodes of a graph ignore padding; other
  functions of nodes or graphs must use the counts and the mask. Padding may
  have any value, even NaN.

  Attributes:
    nodes: features of the nodes of a row, float ``[N, F]``.
    node_counts: number of nodes with this row, int32 ``[N]``, 0 in padding.
    senders: row where each edge starts, int32 ``[E]``. An undirected edge is
      stored in both directions. A row has the edges of its first node.
    receivers: row where each edge ends, int32 ``[E]``, in ascending order.
    members: rows of the nodes of graphs, int32 ``[M]``.
    graph_ids: graph of each member, int32 ``[M]``, in ascending order.
    member_counts: number of nodes of the graph with this row, int32 ``[M]``, 0
      in padding.
    graph_mask: True for graphs, False for padding, bool ``[G]``.
    label: class of each graph, int32 ``[G]``, -1 for none.
    index: row of each graph in its data set, int32 ``[G]``, -1 in padding.
  """

  nodes: jax.Array
  node_counts: jax.Array
  senders: jax.Array
  receivers: jax.Array
  members: jax.Array
  graph_ids: jax.Array
  member_counts: jax.Array
  graph_mask: jax.Array
  label: jax.Array
  index: jax.Array


class Padding(NamedTuple):
  """Static shape of a batch: N, E, M and G of :class:`GraphBatch`."""

  nodes: int
  edges: int
  members: int
  graphs: int


def masked_nodes(batch: GraphBatch) -> jax.Array:
  """Returns the features of the nodes ``[N, F]``, 0 in padding."""
  return jnp.where(batch.node_counts[:, None] > 0, batch.nodes, 0)


def sum_neighbors(batch: GraphBatch, x: jax.Array) -> jax.Array:
  r"""Sums rows ``[N, dim]`` over neighbors, :math:`y_v = \sum_{u \to v} x_u`.

  The sum of a node without neighbors is 0.
  """
  sent = jnp.take(x, batch.senders, axis=0, mode='fill', fill_value=0)
  return jax.ops.segment_sum(
      sent, batch.receivers, x.shape[0], indices_are_sorted=True
  )


def sum_nodes(batch: GraphBatch, x: jax.Array) -> jax.Array:
  r"""Sums over the nodes of each graph, :math:`y_G = \sum_{v \in G} x_v`.

  Maps rows ``[N, dim]`` to ``[G, dim]``, which is 0 in padding.
  """
  num_graphs = batch.graph_mask.shape[0]
  rows = jnp.take(x, batch.members, axis=0, mode='fill', fill_value=0)
  counts = batch.member_counts[:, None].astype(x.dtype)
  return jax.ops.segment_sum(
      rows * counts, batch.graph_ids, num_graphs, indices_are_sorted=True
  )
