# SPDX-License-Identifier: Apache-2.0
"""Several graphs as one, padded to static shapes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class GraphBatch(NamedTuple):
  """G graphs with N nodes and E edges in all, padding included.

  The nodes of all graphs are the rows of one array, graph after graph, and the
  padding comes last in every array. An index that points nowhere marks it: an
  edge of padding runs from node N to node N, a node of padding belongs to graph
  G, and neither exists. So sums over neighbours and over the nodes of a graph
  leave padding out by themselves; whatever else lets nodes or graphs meet asks
  the masks. Padding may hold any values, NaN too.

  Attributes:
    nodes: features of the nodes, float ``[N, F]``.
    senders: the node where each edge begins, int32 ``[E]``. An undirected edge
      is there in both directions.
    receivers: the node where it ends, int32 ``[E]``, in ascending order.
    graph_ids: the graph of each node, int32 ``[N]``, in ascending order.
    node_mask: True for nodes that are there, bool ``[N]``.
    graph_mask: True for graphs that are there, bool ``[G]``.
    label: class of each graph, int32 ``[G]``, -1 for none.
    index: row of each graph in its data set, int32 ``[G]``, -1 in padding.
  """

  nodes: jax.Array
  senders: jax.Array
  receivers: jax.Array
  graph_ids: jax.Array
  node_mask: jax.Array
  graph_mask: jax.Array
  label: jax.Array
  index: jax.Array


class Padding(NamedTuple):
  """The static shape of a batch.

  Attributes:
    nodes: N.
    edges: E.
    graphs: G.
  """

  nodes: int
  edges: int
  graphs: int


def masked_nodes(batch: GraphBatch) -> jax.Array:
  """The features of the nodes ``[N, F]``, 0 in padding."""
  return jnp.where(batch.node_mask[:, None], batch.nodes, 0)


def sum_neighbours(batch: GraphBatch, x: jax.Array) -> jax.Array:
  r"""Sums over neighbours, :math:`y_v = \sum_{u \to v} x_u`.

  Args:
    batch: the graphs.
    x: a row for each node, ``[N, dim]``.

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
    x: a row for each node, ``[N, dim]``.

  Returns:
    ``[G, dim]``; 0 in padding.
  """
  num_graphs = batch.graph_mask.shape[0]
  return jax.ops.segment_sum(
      x, batch.graph_ids, num_graphs, indices_are_sorted=True
  )
