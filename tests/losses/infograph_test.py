# SPDX-License-Identifier: Apache-2.0
"""infograph_loss, its three variants."""

from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import losses
from tests import reference
from tests.support import testing

_SCORES = np.float32([[1.0, -1.0], [0.5, 2.0], [1.5, 1.0]])
_IDS = np.array([0, 0, 1])
_CASES = {
    'paper': {'variant': 'paper', 'beta': 2.0},
    'released': {'variant': 'released', 'beta': 2.0},
    'infograph': {'variant': 'infograph'},
    'effective': {'variant': 'paper', 'effective_negatives': 0.6},
}


def _batch(num_nodes=9, num_graphs=4, dim=3):
  ids = np.arange(num_nodes) % num_graphs
  return (
      testing.normal(num_nodes, dim),
      testing.normal(num_graphs, dim, seed=1),
      ids,
  )


def _float64_scores(nodes, graphs):
  return nodes.astype(np.float64) @ graphs.astype(np.float64).T


def _exact_betas(scores, ids, fraction):
  return [
      reference.beta_for_perplexity(np.delete(row, own), fraction)
      for row, own in zip(scores, ids, strict=True)
  ]


class InfographLossTest(testing.LossTest):

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.product(variant=('paper', 'released', 'infograph'))
  def test_matches_the_oracle(self, variant):
    nodes, graphs, ids = _batch()
    scores = nodes.astype(np.float64) @ graphs.astype(np.float64).T

    @self.variant
    def value_and_grad(nodes, beta, tau_plus):
      return jax.value_and_grad(
          lambda nodes: losses.infograph_loss(
              nodes, graphs, ids, beta=beta, tau_plus=tau_plus, variant=variant
          )
      )(nodes)

    for beta in (0.0, 1.0, 10.0):
      for tau_plus in (0.0, 0.1, 0.5):
        with self.subTest(beta=beta, tau_plus=tau_plus):
          value, grad = value_and_grad(nodes, beta, tau_plus)
          oracle = lambda x, b=beta, t=tau_plus: reference.infograph(  # noqa: E731
              x, ids, b, t, variant
          )
          self.assert_close(value, oracle(scores), 1e-5)
          h, expected = 1e-6, np.zeros(nodes.shape)
          for u in range(nodes.shape[0]):
            for k in range(nodes.shape[1]):
              step = np.zeros(scores.shape)
              step[u] = h * graphs[:, k]
              expected[u, k] = (
                  oracle(scores + step) - oracle(scores - step)
              ) / (2 * h)
          self.assert_same_gradient(grad, expected, 1e-4)

  def test_golden_values(self):
    def loss(**knobs):
      return float(
          losses.infograph_loss(
              _SCORES, np.eye(2, dtype=np.float32), _IDS, **knobs
          )
      )

    self.assertAlmostEqual(loss(variant='infograph'), 0.361107, delta=1e-6)
    self.assertAlmostEqual(
        loss(variant='paper', beta=0.0), 0.361107, delta=1e-6
    )
    golden = {0.0: 2.941841, 1.0: 3.056196, 2.0: 2.605367, 10.0: 2.446871}
    for beta, expected in golden.items():
      for tau_plus in (None, 0.5):
        self.assertAlmostEqual(
            loss(variant='released', beta=beta, tau_plus=tau_plus),
            expected,
            delta=1e-6,
        )

  def test_paper_rises_with_beta_where_released_falls(self):
    nodes, graphs, ids = _batch(60, 6)
    paper, released = (
        [
            float(losses.infograph_loss(
                nodes, graphs, ids, beta=b, tau_plus=0.0, variant=variant))
            for b in (1e-6, 1.0, 3.0, 10.0)
        ]
        for variant in ('paper', 'released')
    )
    self.assertTrue(np.all(np.diff(paper) > 0))
    self.assertTrue(np.all(np.diff(released) < 0))

  @parameterized.product(case=tuple(_CASES), filler=(np.nan, np.inf, 1e30))
  def test_padding_changes_nothing(self, case, filler):
    nodes, graphs, ids = _batch()
    padded_nodes = np.full((12, 3), filler, np.float32)
    padded_graphs = np.full((6, 3), filler, np.float32)
    padded_nodes[:9], padded_graphs[:4] = nodes, graphs
    padded_ids = np.concatenate([ids, [5, 5, 99]])
    masks = {
        'node_mask': np.arange(12) < 9, 'graph_mask': np.arange(6) < 4
    }  # fmt: skip

    def loss(nodes, graphs, ids, **masks):
      return losses.infograph_loss(
          nodes, graphs, ids, tau_plus=0.3, **_CASES[case], **masks
      )

    both = jax.jit(jax.value_and_grad(loss, (0, 1)))
    value, (to_nodes, to_graphs) = both(
        padded_nodes, padded_graphs, padded_ids, **masks
    )
    expected, expected_grads = both(nodes, graphs, ids)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    self.assert_same_gradient(
        (to_nodes[:9], to_graphs[:4]), expected_grads, 1e-6
    )
    np.testing.assert_array_equal(to_nodes[9:], 0)
    np.testing.assert_array_equal(to_graphs[4:], 0)

  @parameterized.product(case=tuple(_CASES), filler=(0.0, np.nan))
  def test_nodes_may_share_rows(self, case, filler):
    nodes, graphs, _ = _batch(5, 4)
    nodes[3] = filler  # of no node
    rows = np.array([0, 2, 1, 0, 4, 2, 1])
    ids = np.array([0, 0, 1, 2, 2, 3, 3])
    counts = np.array([1, 2, 3, 1, 1, 2, 1])
    loss = lambda nodes, graphs, ids, **shared: losses.infograph_loss(  # noqa: E731
        nodes, graphs, ids, tau_plus=0.3, **_CASES[case], **shared
    )
    both = jax.jit(jax.value_and_grad(loss, (0, 1)))
    value, (to_nodes, to_graphs) = both(
        nodes, graphs, ids, node_rows=rows, node_counts=counts
    )
    each = np.repeat(rows, counts)
    expected, (to_each, expected_to_graphs) = both(
        nodes[each], graphs, np.repeat(ids, counts)
    )
    expected_to_nodes = np.zeros(nodes.shape)
    np.add.at(expected_to_nodes, each, to_each)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    self.assert_same_gradient(
        (to_nodes, to_graphs), (expected_to_nodes, expected_to_graphs), 1e-5
    )
    padded = [np.concatenate([x, [0, y]]) for x, y in
              ((ids, 9), (rows, 7), (counts, 0))]  # fmt: skip
    padded[2][-2] = 0
    ids, rows, counts = map(jnp.asarray, padded)
    np.testing.assert_allclose(
        jax.jit(loss)(nodes, graphs, ids, node_rows=rows, node_counts=counts),
        expected,
        rtol=1e-6,
    )

  def test_a_lone_graph_has_no_negatives(self):
    nodes, graphs, _ = _batch(3, 2)
    value = losses.infograph_loss(
        nodes, graphs, np.array([0, 0, 1]), graph_mask=np.array([True, False]),
        node_mask=np.array([True, True, False]),
    )  # fmt: skip
    own = nodes[:2].astype(np.float64) @ graphs[0].astype(np.float64)
    expected = np.logaddexp(0, -own).mean() - 2 * np.log(2)
    np.testing.assert_allclose(value, expected, rtol=1e-5)

  @parameterized.product(
      amplitude=(0.0, 0.1, 1.0, 10.0, 100.0), variant=('paper', 'released')
  )
  def test_is_finite_where_the_released_formula_is_not(
      self, amplitude, variant
  ):
    nodes, graphs, ids = _batch()
    both = jax.jit(
        jax.value_and_grad(
            lambda n, b: losses.infograph_loss(
                n, graphs, ids, beta=b, variant=variant
            )
        )
    )
    for beta in (1.0, 10.0, 50.0, 1e4):
      value, grad = both(np.float32(amplitude) * nodes, beta)
      self.assert_finite((value, grad))

  def test_numerical_gradients(self):
    nodes, graphs, ids = _batch(5, 3)
    chex.assert_numerical_grads(
        jax.jit(
            lambda n, g, b: losses.infograph_loss(
                n, g, ids, beta=b, tau_plus=0.2
            )
        ),
        (nodes, graphs, 1.0), order=1, eps=1e-3, atol=0.02,
    )  # fmt: skip

  def test_effective_negatives_matches_the_oracle(self):
    nodes, graphs, ids = _batch(9, 7)
    scores = _float64_scores(nodes, graphs)

    @jax.jit
    def value_and_grad(fraction, tau_plus):
      return jax.value_and_grad(
          lambda nodes, graphs: losses.infograph_loss(
              nodes, graphs, ids, effective_negatives=fraction,
              tau_plus=tau_plus,
          ),
          (0, 1),
      )(nodes, graphs)  # fmt: skip

    for fraction in (1.0, 0.9, 0.6, 0.3):
      for tau_plus in (0.0, 0.3):
        with self.subTest(fraction=fraction, tau_plus=tau_plus):
          value, grads = value_and_grad(fraction, tau_plus)
          betas = _exact_betas(scores, ids, fraction)
          oracle = lambda s, b=betas, t=tau_plus: reference.infograph(  # noqa: E731
              s, ids, b, t, 'paper'
          )
          self.assert_close(value, oracle(scores), 2e-3)
          # Beta is a constant of the gradient.
          slopes = np.zeros(scores.shape)
          for place in np.ndindex(scores.shape):
            step = np.zeros(scores.shape)
            step[place] = 1e-6
            rise = oracle(scores + step) - oracle(scores - step)
            slopes[place] = rise / 2e-6
          expected = slopes @ graphs, slopes.T @ nodes
          self.assert_same_gradient(grads, expected, 0.01)

  def test_a_huge_score_changes_no_other_node(self):
    nodes, graphs, ids = _batch(9, 7)
    huge = nodes.copy()
    huge[0] *= 1e5

    def to_others(nodes, **hardness):
      loss = lambda x: losses.infograph_loss(x, graphs, ids, **hardness)  # noqa: E731
      return jax.jit(jax.grad(loss))(nodes)[1:]

    asked = to_others(nodes, effective_negatives=0.5)
    self.assert_same_gradient(
        to_others(huge, effective_negatives=0.5), asked, 1e-6
    )
    # Of this node too, the asked share counts: its scores grew, its beta fell.
    betas = _exact_betas(_float64_scores(huge, graphs), ids, 0.5)
    value = losses.infograph_loss(huge, graphs, ids, effective_negatives=0.5)
    oracle = reference.infograph(
        _float64_scores(huge, graphs), ids, betas, 0.0, 'paper'
    )
    self.assert_close(value, oracle, 5e-3)
    # The clip makes the weights of all others equal.
    uniform = to_others(nodes, beta=0.0)
    clipped = to_others(huge, beta=2.0)
    self.assert_same_gradient(clipped, uniform, 1e-3)
    self.assertGreater(testing.gradient_error(asked, uniform), 0.1)

  def test_a_huge_graph_leaves_the_share_that_counts(self):
    nodes, graphs, ids = _batch(9, 7)
    graphs[2] *= 1e4
    scores = _float64_scores(nodes, graphs)
    expected = reference.infograph(
        scores, ids, _exact_betas(scores, ids, 0.5), 0.0, 'paper'
    )
    value = losses.infograph_loss(nodes, graphs, ids, effective_negatives=0.5)
    self.assert_close(value, expected, 0.01)

  def test_effective_negatives_is_of_the_paper(self):
    nodes, graphs, ids = _batch()
    loss = lambda **knobs: losses.infograph_loss(nodes, graphs, ids, **knobs)  # noqa: E731
    for variant in ('released', 'infograph'):
      with self.assertRaisesRegex(
          ValueError, f"needs variant='paper'.* got variant='{variant}'"
      ):
        loss(variant=variant, effective_negatives=0.5)
    with self.assertRaisesRegex(ValueError, 'exclude each other; got beta=2'):
      loss(beta=2.0, effective_negatives=0.5)
    with self.assertRaisesRegex(ValueError, r'must be in \(0, 1\], got 0'):
      loss(effective_negatives=0.0)

  def test_effective_negatives_of_any_size_are_finite(self):
    nodes, graphs, ids = _batch()
    both = jax.jit(
        jax.value_and_grad(
            lambda n, f: losses.infograph_loss(
                n, graphs, ids, effective_negatives=f
            )
        )
    )
    for size in (0.0, 1e-3, 1.0, 1e3, 1e15):
      for fraction in (1.0, 0.7, 1e-3):
        self.assert_finite(both(np.float32(size) * nodes, fraction))

  def test_half_precision_is_upcast(self):
    nodes, graphs, ids = _batch()
    nodes, graphs = (jnp.asarray(x, jnp.bfloat16) for x in (nodes, graphs))
    value = losses.infograph_loss(nodes, graphs, ids)
    self.assertEqual(value.dtype, jnp.float32)
    scores = np.asarray(nodes, float) @ np.asarray(graphs, float).T
    self.assert_close(
        value, reference.infograph(scores, ids, 1.0, 0.0, 'paper')
    )

  def test_knobs_are_traced(self):
    nodes, graphs, ids = _batch()
    chex.clear_trace_counter()
    loss = jax.jit(chex.assert_max_traces(
        lambda b, t: losses.infograph_loss(
            nodes, graphs, ids, beta=b, tau_plus=t, variant='released'), n=1))
    for beta in (0.0, 1.0):
      loss(beta, beta / 2)
