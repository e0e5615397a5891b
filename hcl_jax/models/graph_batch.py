# SPDX-License-Identifier: Apache-2.0
"""Several graphs as one, padded to static shapes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class GraphBatch(NamedTuple):
  """G graphs whose nodes have N different rows, padding included.

  A network of k layers gives the same embedding to nodes that k rounds of
  colour refinement leave with one colour, whichever graphs they are in. Such
  nodes may share a row, which is embedded once (see
  :meth:`hcl_jax.graphs.Graphs.colored`); with a row for every node, M = N.
  Rows and members are graph after graph, a row where its first node is.

  The padding comes last in every array. An index that points nowhere marks it:
  an edge of padding runs from row N to row N, a member of padding has row N and
  graph G, and none of them exists. So sums over neighbours and over the nodes
  of a graph leave padding out by themselves; whatever else lets nodes or graphs
  meet asks the counts and the mask. Padding may hold any values, NaN too.

  Attributes:
    nodes: features of the nodes of a row, float ``[N, F]``.
    node_counts: how many nodes a row stands for, int32 ``[N]``, 0 in padding.
    senders: the row where each edge begins, int32 ``[E]``. An undirected edge
      is there in both directions. A row has the edges of its first node.
    receivers: the row where it ends, int32 ``[E]``, in ascending order.
    members: the row of nodes of a graph, int32 ``[M]``.
    graph_ids: that graph, int32 ``[M]``, in ascending order.
    member_counts: how many nodes with this row the graph has, int32 ``[M]``, 0
      in padding.
    graph_mask: True for graphs that are there, bool ``[G]``.
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
  """The static shape of a batch.

  Attributes:
    nodes: N.
    edges: E.
    members: M.
    graphs: G.
  """

  nodes: int
  edges: int
  members: int
  graphs: int


def masked_nodes(batch: GraphBatch) -> jax.Array:
  """The features of the nodes ``[N, F]``, 0 in padding."""
  return jnp.where(batch.node_counts[:, None] > 0, batch.nodes, 0)


def sum_neighbours(batch: GraphBatch, x: jax.Array) -> jax.Array:
  r"""Sums over neighbours, :math:`y_v = \sum_{u \to v} x_u`.

  Args:
    batch: the graphs.
    x: a row for each of the batch's, ``[N, dim]``.

  Returns:
    ``[N, dim]``; 0 for a node without neighbours.
  """
  sent = jnp.take(x, batch.senders, axis=0, mode='fill', fill_value=0)
  return jax.ops.segment_sum(
      sent, batch.receivers, x.shape[0], indices_are_sorted=True
  )


def sum_nodes(batch: GraphBatch, x: jax.Array) -> jax.Array:
  r"""Sums over the nodes of each graph, :math:`y_G = \sum_{v \in G} x_v`.

  Args:
    batch: the graphs.
    x: a row for each of the batch's, ``[N, dim]``.

  Returns:
    ``[G, dim]``; 0 in padding.
  """
  num_graphs = batch.graph_mask.shape[0]
  rows = jnp.take(x, batch.members, axis=0, mode='fill', fill_value=0)
  counts = batch.member_counts[:, None].astype(x.dtype)
  return jax.ops.segment_sum(
      rows * counts, batch.graph_ids, num_graphs, indices_are_sorted=True
  )
