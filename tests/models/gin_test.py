# SPDX-License-Identifier: Apache-2.0
"""GIN and InfoGraph's heads against numpy in float64, node by node."""

import functools

from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np

import hcl_jax
from hcl_jax.models import gin
from hcl_jax.models import graph_batch as graphs_lib
from tests.support import testing
from tests.support import tu

_ROWS = [3, 8, 0, 5]


def _variables(module, batch, seed=0):
  """Random values everywhere, so that none is left out by being 0 or 1."""
  variables = testing.jitted(
      module.init, jax.random.key(seed), batch, train=False
  )
  rng = np.random.default_rng(seed)
  shift = lambda x: x + rng.uniform(0.1, 0.4, x.shape).astype(x.dtype)  # noqa: E731
  return jax.tree.map(shift, variables)


def _linear(params, x):
  kernel, bias = (np.float64(params[name]) for name in ('kernel', 'bias'))
  return x @ kernel + bias


def _gin(variables, graphs, rows, train, num_layers):
  """Embeddings of each node and graph, and new running statistics."""
  variables = jax.tree.map(np.float64, variables)
  params, stats = variables['params'], variables['batch_stats']
  starts = graphs.node_starts
  x = [np.float64(graphs.nodes[starts[r] : starts[r + 1]]) for r in rows]
  layers, new_stats = [], {}
  for k in range(num_layers):
    for i, r in enumerate(rows):
      summed = x[i].copy()
      for e in range(graphs.edge_starts[r], graphs.edge_starts[r + 1]):
        summed[graphs.receivers[e]] += x[i][graphs.senders[e]]
      hidden = np.maximum(_linear(params[f'hidden_{k}'], summed), 0)
      x[i] = np.maximum(_linear(params[f'out_{k}'], hidden), 0)
    together = np.concatenate(x)
    norm, running = params[f'norm_{k}'], stats[f'norm_{k}']
    mean, var = running['mean'], running['var']
    if train:
      new_stats[f'norm_{k}'] = {
          'mean': 0.9 * mean + 0.1 * together.mean(0),
          'var': 0.9 * var + 0.1 * together.var(0, ddof=1),
      }
      mean, var = together.mean(0), together.var(0)
    x = [
        (part - mean) / np.sqrt(var + 1e-5) * norm['scale'] + norm['bias']
        for part in x
    ]
    layers.append(list(x))
  nodes = [np.concatenate(parts, axis=1) for parts in zip(*layers, strict=True)]
  return nodes, np.stack([part.sum(0) for part in nodes]), new_stats


def _feed_forward(params, x):
  y = x
  for k in range(3):
    y = np.maximum(_linear(params[f'hidden_{k}'], y), 0)
  return y + _linear(params['shortcut'], x)


def _make_step(module, variables, variant):
  """Loss with features and statistics, and gradients, of a batch of 16."""

  @jax.jit
  def step(batch):
    def loss(params):
      (features, *embeddings), updated = module.apply(
          {**variables, 'params': params}, batch, train=True,
          mutable=['batch_stats'],
      )  # fmt: skip
      value = hcl_jax.infograph_loss(
          *embeddings, batch.graph_ids, variant=variant, beta=2.0, tau_plus=0.2,
          graph_mask=batch.graph_mask, node_rows=batch.members,
          node_counts=batch.member_counts,
      )  # fmt: skip
      return value, (features[:16], updated)

    return jax.value_and_grad(loss, has_aux=True)(variables['params'])

  return lambda batch: step(jax.tree.map(jnp.asarray, batch))


class GinTest(parameterized.TestCase):

  @parameterized.product(train=(True, False), num_layers=(1, 3))
  def test_matches_numpy(self, train, num_layers):
    graphs = tu.random_graphs()
    batch = graphs.batch(_ROWS)
    module = gin.Gin(width=5, num_layers=num_layers)
    variables = _variables(module, batch)
    (nodes, pooled), updated = module.apply(
        variables, batch, train=train, mutable=['batch_stats']
    )
    expected, expected_pooled, stats = _gin(
        variables, graphs, _ROWS, train, num_layers
    )
    np.testing.assert_allclose(
        nodes[batch.node_counts > 0],
        np.concatenate(expected),
        rtol=1e-4,
        atol=1e-4,
    )
    np.testing.assert_allclose(
        pooled[:4], expected_pooled, rtol=1e-4, atol=1e-4
    )
    if train:
      chex.assert_trees_all_close(
          updated['batch_stats'], jax.tree.map(np.float32, stats), rtol=1e-4
      )

  def test_sizes_and_initialisation_are_the_released_ones(self):
    batch = tu.random_graphs(num_features=7).batch(_ROWS)
    module = gin.InfoGraph(gin.Gin())
    variables = module.init(jax.random.key(0), batch, train=False)
    sizes = jax.tree.map(lambda x: x.size, variables['params'])
    total = lambda tree: sum(jax.tree.leaves(tree))  # noqa: E731
    linear = lambda a, b: (a + 1) * b  # noqa: E731
    encoder = linear(7, 32) + 5 * linear(32, 32) + 3 * 64
    self.assertEqual(total(sizes['encoder']), encoder)
    self.assertEqual(total(sizes['local_head']), 4 * linear(96, 96))
    self.assertEqual(total(sizes['global_head']), 4 * linear(96, 96))
    kernel = variables['params']['local_head']['hidden_1']['kernel']
    bound = np.sqrt(6 / (96 + 96))
    self.assertLess(np.abs(kernel).max(), bound)
    self.assertGreater(np.abs(kernel).max(), 0.99 * bound)
    self.assertAlmostEqual(np.std(kernel), bound / np.sqrt(3), places=3)
    biases = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(variables)
        if path[-1].key == 'bias'
    ]
    self.assertLen(biases, 6 + 3 + 8)
    for bias in biases:
      np.testing.assert_array_equal(bias, 0)

  def test_a_graph_does_not_depend_on_its_company_in_evaluation(self):
    graphs = tu.random_graphs()
    module = gin.Gin()
    variables = _variables(module, graphs.batch(_ROWS))
    apply = functools.partial(testing.jitted, module.apply, variables)
    together = apply(graphs.batch(_ROWS), train=False)[1]
    alone = apply(graphs.batch([5]), train=False)[1]
    np.testing.assert_allclose(together[3], alone[0], rtol=1e-5)


class SharedRowsTest(parameterized.TestCase):

  @parameterized.parameters('paper', 'released', 'infograph')
  def test_nodes_that_share_a_row_change_nothing(self, variant):
    graphs = tu.random_graphs(num_features=2)
    module = gin.InfoGraph(gin.Gin(8, 2))
    plain = graphs.batch(range(16))
    shared = graphs.colored(2).batch(range(16))
    num_rows = (shared.node_counts > 0).sum()
    self.assertLess(num_rows, 0.7 * plain.node_counts.sum())
    step = _make_step(module, _variables(module, plain), variant)
    (value, exact), grads = step(shared)
    (expected, expected_exact), expected_grads = step(plain)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    chex.assert_trees_all_close(exact, expected_exact, rtol=1e-4, atol=1e-4)
    pairs = zip(*map(jax.tree.leaves, (grads, expected_grads)), strict=True)
    for g, e in pairs:
      self.assertLess(testing.gradient_error(g, e, 1e-3), 1e-4)


class InfoGraphTest(parameterized.TestCase):

  def test_heads_match_numpy(self):
    graphs = tu.random_graphs()
    batch = graphs.batch(_ROWS)
    module = gin.InfoGraph(gin.Gin(4, 2))
    variables = _variables(module, batch)
    features, local, pooled = module.apply(variables, batch, train=False)
    inner = {name: tree['encoder'] for name, tree in variables.items()}
    nodes, expected, _ = _gin(inner, graphs, _ROWS, False, 2)
    params = variables['params']
    np.testing.assert_allclose(features[:4], expected, rtol=1e-4)
    np.testing.assert_allclose(
        local[batch.node_counts > 0],
        _feed_forward(params['local_head'], np.concatenate(nodes)),
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        pooled[:4], _feed_forward(params['global_head'], expected), rtol=1e-4
    )

  def test_discriminator_matches_numpy(self):
    batch = tu.random_graphs().batch(_ROWS)
    module = gin.InfoGraph(gin.Gin(4, 2), with_prior=True)
    variables = _variables(module, batch)
    x = np.random.default_rng(0).random((5, 8), np.float32)
    logits = module.apply(variables, x, method='discriminate')
    params = variables['params']['discriminator']
    y = np.maximum(_linear(params['hidden_0'], np.float64(x)), 0)
    y = np.maximum(_linear(params['hidden_1'], y), 0)
    expected = _linear(params['out'], y)[:, 0]
    np.testing.assert_allclose(logits, expected, rtol=1e-5)


class PaddingTest(parameterized.TestCase):

  @parameterized.parameters('paper', 'released', 'infograph')
  def test_padding_changes_nothing(self, variant):
    graphs = tu.random_graphs()
    rows = [*range(16)]
    module = gin.InfoGraph(gin.Gin(8, 2))
    variables = _variables(module, graphs.batch(rows))
    step = _make_step(module, variables, variant)

    def steps(*more):
      padding = np.add(graphs.padding(rows), more).tolist()
      batch = graphs.batch(rows, graphs_lib.Padding(*padding))
      batch.nodes[batch.node_counts == 0] = np.nan
      return step(batch)

    (value, exact), grads = steps(0, 0, 0, 0)
    for more in ((640, 9, 5, 0), (33, 41, 77, 3)):
      (other_value, other_exact), other_grads = steps(*more)
      chex.assert_trees_all_equal(other_exact, exact)
      np.testing.assert_allclose(other_value, value, rtol=1e-5)
      for g, e in zip(*map(jax.tree.leaves, (other_grads, grads)), strict=True):
        self.assertLess(testing.gradient_error(g, e, 1e-3), 1e-4)
