# SPDX-License-Identifier: Apache-2.0
"""GraphBatch: sums over neighbours and nodes, which padding does not enter."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax.models import graph_batch as graphs
from tests.support import testing

# A triangle with a tail, and an edge beside a node without one.
_EDGES = [(0, 1), (1, 2), (2, 0), (2, 3), (4, 5)]
_GRAPH_OF_NODE = [0, 0, 0, 0, 1, 1, 1]


def _batch(padding=None, filler=0.0):
  """The two graphs above, with random features."""
  n, e, m, g = padding or graphs.Padding(7, 10, 7, 2)
  both = sorted([(v, u) for u, v in _EDGES] + _EDGES, key=lambda pair: pair[1])
  nodes = np.full((n, 3), filler, np.float32)
  nodes[:7] = testing.normal(7, 3)
  senders, receivers = np.full((2, e), n, np.int32)
  senders[:10], receivers[:10] = np.transpose(both)
  members, graph_ids = np.full(m, n, np.int32), np.full(m, g, np.int32)
  members[:7], graph_ids[:7] = np.arange(7), _GRAPH_OF_NODE
  label, index = np.full((2, g), -1, np.int32)
  label[:2], index[:2] = (1, 0), (5, 3)
  return graphs.GraphBatch(
      nodes=nodes,
      senders=senders,
      receivers=receivers,
      members=members,
      graph_ids=graph_ids,
      node_counts=(np.arange(n) < 7).astype(np.int32),
      member_counts=(np.arange(m) < 7).astype(np.int32),
      graph_mask=np.arange(g) < 2,
      label=label,
      index=index,
  )


class SumsTest(parameterized.TestCase):

  def test_neighbours(self):
    batch = _batch()
    expected = np.zeros((7, 3))
    for u, v in _EDGES:
      expected[u] += batch.nodes[v].astype(np.float64)
      expected[v] += batch.nodes[u].astype(np.float64)
    sums = jax.jit(graphs.sum_neighbors)(batch, batch.nodes)
    np.testing.assert_allclose(sums, expected, rtol=1e-6, atol=1e-6)

  def test_nodes(self):
    batch = _batch()
    expected = [batch.nodes[:4].sum(axis=0), batch.nodes[4:].sum(axis=0)]
    sums = jax.jit(graphs.sum_nodes)(batch, batch.nodes)
    np.testing.assert_allclose(sums, expected, rtol=1e-6, atol=1e-6)

  def test_nodes_that_share_a_row(self):
    batch = _batch()._replace(
        members=np.array([0, 1, 4, 0, 2]),
        graph_ids=np.array([0, 0, 0, 1, 1]),
        member_counts=np.array([2, 1, 1, 3, 0]),
    )
    x = batch.nodes.astype(np.float64)
    np.testing.assert_allclose(
        graphs.sum_nodes(batch, batch.nodes),
        [2 * x[0] + x[1] + x[4], 3 * x[0]],
        rtol=1e-6,
    )

  @parameterized.parameters(np.nan, np.inf, 7.0)
  def test_padding_changes_no_bit(self, filler):
    def value_and_grad(batch):
      def loss(nodes):
        x = graphs.masked_nodes(batch._replace(nodes=nodes))
        sums = graphs.sum_nodes(batch, x * graphs.sum_neighbors(batch, x))
        return jnp.sum(sums), sums

      (_, sums), grad = jax.value_and_grad(loss, has_aux=True)(batch.nodes)
      return sums, grad

    batch = _batch(graphs.Padding(12, 17, 9, 5), filler)
    sums, grad = jax.jit(value_and_grad)(batch)
    expected_sums, expected_grad = jax.jit(value_and_grad)(_batch())
    np.testing.assert_array_equal(sums[:2], expected_sums)
    np.testing.assert_array_equal(sums[2:], 0)
    np.testing.assert_array_equal(grad[:7], expected_grad)
    np.testing.assert_array_equal(grad[7:], 0)

  def test_features_of_padding_are_zeroed(self):
    batch = _batch(graphs.Padding(12, 17, 9, 5), np.nan)
    nodes = graphs.masked_nodes(batch)
    np.testing.assert_array_equal(nodes[:7], batch.nodes[:7])
    np.testing.assert_array_equal(nodes[7:], 0)

  def test_padded_edges_alone(self):
    # No node of padding to point to.
    batch = _batch(graphs.Padding(7, 16, 7, 2))
    np.testing.assert_array_equal(
        graphs.sum_neighbors(batch, batch.nodes),
        graphs.sum_neighbors(_batch(), batch.nodes),
    )
