# SPDX-License-Identifier: Apache-2.0
"""hard, debiased and plain NCE on logits."""

import functools

from absl.testing import parameterized
import chex
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax

from hcl_jax import losses
from tests import reference
from tests.support import testing


def _oracle(pos, neg, **knobs):
  pos = pos[:, None] if pos.ndim == 1 else pos
  return [
      reference.hard_nce([float(x) for x in p], [float(x) for x in n], **knobs)
      for p, n in zip(pos, neg, strict=True)
  ]


def _icosahedron():
  golden = (1 + 5**0.5) / 2
  signs = [(a, b * golden) for a in (1, -1) for b in (1, -1)]
  return np.array(
      [np.roll((0, a, b), k) for a, b in signs for k in range(3)]
  )


_hard_nce = functools.partial(testing.jitted, losses.hard_nce_loss)
_debiased_nce = functools.partial(testing.jitted, losses.debiased_nce_loss)


class HardNceLossTest(testing.LossTest):

  @chex.variants(
      with_jit=True, without_jit=True, with_device=True, without_device=True
  )
  @parameterized.product(
      beta=(0.0, 1.0, 10.0),
      tau_plus=(0.0, 0.1, 0.5),
      floor=({}, {'log_floor': -2.0}, {'soft_floor': 0.5}),
  )
  def test_matches_the_oracle(self, beta, tau_plus, floor):
    pos, neg = testing.normal(8), testing.normal(8, 30, seed=1)
    knobs = {'beta': beta, 'tau_plus': tau_plus, **floor}
    loss = self.variant(functools.partial(losses.hard_nce_loss, **knobs))
    self.assert_close(loss(pos, neg), _oracle(pos, neg, **knobs))

  @chex.variants(with_pmap=True)
  def test_matches_the_oracle_under_pmap(self):
    pos, neg = testing.normal(8, 3), testing.normal(8, 3, 30, seed=1)
    loss = self.variant(
        losses.hard_nce_loss, reduce_fn=None, broadcast_args_to_devices=False
    )
    for p, n, actual in zip(pos, neg, loss(pos, neg), strict=True):
      self.assert_close(actual, _oracle(p, n, beta=1.0, tau_plus=0.1))

  @parameterized.product(
      beta=(0.0, 1.0, 10.0), tau_plus=(0.0, 0.1, 0.5), num_positives=(1, 2, 5)
  )
  def test_several_positives(self, beta, tau_plus, num_positives):
    pos = testing.normal(8, num_positives)
    neg = testing.normal(8, 30, seed=1)
    knobs = {'beta': beta, 'tau_plus': tau_plus, 'log_floor': -2.0}

    def loss(p, n):
      values = losses.hard_nce_loss(p, n, **knobs)
      return values.sum(), values

    grads, actual = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(pos, neg)
    self.assert_close(actual, _oracle(pos, neg, **knobs))
    expected = [
        reference.hard_nce_grad(p.tolist(), n.tolist(), **knobs)
        for p, n in zip(pos, neg, strict=True)
    ]
    self.assert_same_gradient(
        grads, tuple(np.array(x) for x in zip(*expected, strict=True)), 1e-5
    )

  def test_golden_values(self):
    pos = np.float32([1.6, 1.6])
    neg = np.float32([[0.0, -1.2], [0.0, 1.2]])
    golden = {
        (0.0, 0.0): (0.233257, 0.627123),
        (0.0, 0.1): (0.067354, 0.557847),
        (0.0, 0.14): (0.053207, 0.523914),
        (0.5, 0.0): (0.265288, 0.697475),
        (1.0, 0.0): (0.291532, 0.753199),
        (2.0, 0.0): (0.322318, 0.816568),
        (0.5, 0.1): (0.109160, 0.641078),
        (1.0, 0.1): (0.143116, 0.706274),
        (2.0, 0.1): (0.182621, 0.779692),
    }
    for (beta, tau_plus), expected in golden.items():
      actual = _hard_nce(
          pos, neg, beta=beta, tau_plus=tau_plus, log_floor=-2.0
      )
      np.testing.assert_allclose(actual, expected, atol=1e-6)

  def test_golden_gradient_with_and_without_weights(self):
    for stop, expected in ((False, (0.26935, -0.01647)),
                           (True, (0.23185, 0.02103))):
      grad = jax.grad(
          lambda neg, stop=stop: _hard_nce(
              jnp.float32(1.6), neg, tau_plus=0.0, stop_gradient_weights=stop
          )
      )(np.float32([0.0, -1.2]))
      np.testing.assert_allclose(grad, expected, atol=1e-5)

  def test_golden_clipping(self):
    pos = np.float32([1.6, 1.6])
    neg = np.float32([[0.0, -1.2], [0.0, 1.2]])
    golden = {(1.0, 0.0): 0.558231, (1.0, 0.1): 0.467755, (2.0, 0.0): 0.589378}
    for (beta, tau_plus), expected in golden.items():
      actual = _hard_nce(
          pos, neg, beta=losses.clipped_beta(beta, neg), tau_plus=tau_plus
      )
      self.assertAlmostEqual(float(actual.mean()), expected, places=5)

  @parameterized.parameters((0.0, 0.0), (2.5, 0.0), (1.0, 0.1))
  def test_numerical_gradients(self, beta, tau_plus):
    def loss(pos, neg, beta, tau_plus):
      return losses.hard_nce_loss(pos, neg, beta=beta, tau_plus=tau_plus)

    args = testing.normal(3), testing.normal(3, 5, seed=1) + 2
    fixed = jax.jit(functools.partial(loss, beta=beta, tau_plus=tau_plus))
    chex.assert_numerical_grads(fixed, args, order=2, eps=1e-2, atol=0.02)
    if beta and tau_plus:
      chex.assert_numerical_grads(
          jax.jit(loss), (*args, beta, tau_plus), order=1, eps=1e-3, atol=0.02
      )

  @parameterized.parameters(0.0, 1.0, 30.0)
  def test_masking_is_deletion(self, beta):
    pos, neg = testing.normal(4), testing.normal(4, 9, seed=1)
    where = np.ones((4, 9), bool)
    where[:, [2, 5]] = False
    loss = functools.partial(losses.hard_nce_loss, beta=beta, log_floor=-2.0)
    for filler in (np.nan, np.inf, -np.inf, 1e30):
      padded = np.where(where, neg, np.float32(filler))
      value, grad = jax.value_and_grad(
          lambda n: loss(pos, n, where=where).sum()
      )(padded)
      kept = np.delete(neg, [2, 5], axis=1)
      expected, kept_grad = jax.value_and_grad(
          lambda n: loss(pos, n).sum()
      )(kept)
      np.testing.assert_allclose(value, expected, rtol=1e-6)
      np.testing.assert_array_equal(grad[:, [2, 5]], 0)
      np.testing.assert_allclose(
          np.delete(grad, [2, 5], axis=1), kept_grad, rtol=1e-5, atol=1e-7
      )

  @parameterized.product(
      tau_plus=(0.0, 0.3), floor=({}, {'log_floor': -2.0}, {'soft_floor': 0.5})
  )
  def test_a_row_without_negatives_has_loss_zero(self, tau_plus, floor):
    pos, neg = testing.normal(2), testing.normal(2, 3, seed=1)
    where = np.array([[True] * 3, [False] * 3])

    def loss(p, n):
      values = losses.hard_nce_loss(
          p, n, tau_plus=tau_plus, where=where, **floor
      )
      return values.sum(), values

    grads, values = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(pos, neg)
    self.assertEqual(values[1], 0)
    self.assertGreater(values[0], 0)
    self.assertEqual(grads[0][1], 0)
    np.testing.assert_array_equal(grads[1][1], 0)
    self.assert_finite(grads)

  def test_nan_is_never_hidden(self):
    neg = testing.normal(2, 3)
    neg[0, 1] = np.nan
    for floor in ({}, {'log_floor': -2.0}, {'soft_floor': 0.5}):
      values = _hard_nce(jnp.zeros(2), neg, **floor)
      np.testing.assert_array_equal(np.isnan(values), [True, False])

  def test_zero_beta_and_prior_is_cross_entropy(self):
    pos, neg = testing.normal(6), testing.normal(6, 7, seed=1)
    logits = np.concatenate([pos[:, None], neg], axis=1)
    expected = optax.softmax_cross_entropy_with_integer_labels(
        logits, np.zeros(6, int)
    )
    for actual in (
        _hard_nce(pos, neg, beta=0.0, tau_plus=0.0),
        _debiased_nce(pos, neg, tau_plus=0.0),
        losses.nce_loss(pos, neg),
    ):
      self.assert_close(actual, expected, 1e-6)

  def test_large_beta_is_the_hardest_negative(self):
    pos, neg = testing.normal(6), testing.normal(6, 7, seed=1)
    actual = _hard_nce(pos, neg, beta=1e5, tau_plus=0.0)
    expected = np.logaddexp(0, np.log(7) + neg.max(axis=1) - pos)
    self.assert_close(actual, expected, 1e-5)

  def test_grows_with_beta_without_prior(self):
    pos, neg = testing.normal(20), testing.normal(20, 9, seed=1)
    values = [
        _hard_nce(pos, neg, beta=beta, tau_plus=0.0)
        for beta in (0.0, 0.1, 0.5, 1.0, 3.0, 10.0, 100.0)
    ]
    self.assertTrue(np.all(np.diff(values, axis=0) >= -1e-6))

  def test_many_negatives_split_into_alignment_and_uniformity(self):
    """As N grows, loss - log N -> E|f - f+|^2 / 2t - 1/t + A."""
    t, beta, copies = 0.5, 1.5, 4000
    rows = testing.normal(3, 12, 4)
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    anchors, positives, negatives = rows[0], rows[1], rows[2]
    pos = (anchors * positives).sum(axis=1) / np.float32(t)
    neg = anchors @ negatives.T / np.float32(t)
    tiled = np.tile(neg, (1, copies))
    loss = _hard_nce(pos, tiled, beta=beta, tau_plus=0.0)
    alignment = ((anchors - positives) ** 2).sum(axis=1) / (2 * t) - 1 / t
    uniformity = np.log([reference.tilted_mean(n, beta) for n in neg])
    np.testing.assert_allclose(
        loss - np.log(tiled.shape[1]), alignment + uniformity, atol=5e-3
    )

  @parameterized.named_parameters(
      ('simplex', np.eye(5) - 1 / 5, -1 / 4),
      ('octahedron', np.concatenate([np.eye(3), -np.eye(3)]), 0.0),
      ('icosahedron', _icosahedron(), 1 / np.sqrt(5)),
  )
  def test_packings_reach_their_worst_case(self, vertices, cosine):
    """Collapsed classes on a packing: Ng / N -> e^{max cos / t}."""
    vertices = vertices / np.linalg.norm(vertices, axis=1, keepdims=True)
    t, n = 0.5, len(vertices) - 1
    cosines = np.float32(vertices @ vertices.T)
    neg = cosines[~np.eye(n + 1, dtype=bool)].reshape(n + 1, n) / t
    pos = np.full(n + 1, 1 / t, np.float32)
    loss = _hard_nce(pos, neg, beta=1e5, tau_plus=0.0)
    expected = np.log1p(n * np.exp((cosine - 1) / t))
    self.assert_close(loss, np.full(n + 1, expected), 1e-5)

  def test_scaling_embeddings_is_scaling_the_temperature(self):
    z = testing.normal(7, 3)
    for c in (0.1, 30.0):
      values = []
      for factor in (1.0, c):
        rows = np.float32(factor) * z
        logits = rows @ rows.T / np.float32(0.7 * factor**2)
        values.append(_hard_nce(logits[0, 1], logits[0, 2:]))
      self.assert_close(values[1], values[0], 1e-5)

  def test_prior_lowers_the_mass_where_positives_are_closer(self):
    pos, neg = testing.normal(50), testing.normal(50, 9, seed=1)
    low, high = (
        _hard_nce(pos, neg, tau_plus=tau) for tau in (0.05, 0.1)
    )
    e_neg = np.array([reference.tilted_mean(n, 1.0) for n in neg])
    closer = e_neg < np.exp(pos)
    np.testing.assert_array_equal(high < low, closer)

  def test_ties_at_the_floor_pass_the_gradient(self):
    # Identical logits: the estimate is e^s for every tau_plus, here the floor.
    pos, neg = jnp.float32(-2.0), jnp.full((4,), -2.0, jnp.float32)
    grad = jax.grad(
        lambda n: _debiased_nce(pos, n, tau_plus=0.5, log_floor=-2.0)
    )(neg)
    self.assertGreater(float(grad.sum()), 0.5)

  def test_soft_floor_is_the_paper_up_to_r0_and_smooth_there(self):
    neg = jnp.zeros((3,))
    tau_plus, r0 = 0.1, 0.5
    at_r0 = np.float32(np.log(r0 / tau_plus))

    def soft(p):
      return _hard_nce(p, neg, tau_plus=tau_plus, soft_floor=r0)

    for p in (-3.0, 0.0, float(at_r0) - 0.01):
      hard = _hard_nce(jnp.float32(p), neg, tau_plus=tau_plus)
      self.assert_close(soft(jnp.float32(p)), hard, 1e-6)
    left, right = (jax.grad(soft)(at_r0 + np.float32(d)) for d in (-1e-3, 1e-3))
    self.assertAlmostEqual(float(left), float(right), places=2)
    far = soft(jnp.float32(30.0))
    self.assertGreater(float(far), 0)
    pull = jax.grad(
        lambda n: _hard_nce(
            jnp.float32(8.0), n, tau_plus=tau_plus, soft_floor=r0
        )
    )(neg)
    self.assertTrue(np.all(pull > 0))

  @parameterized.parameters(jnp.bfloat16, jnp.float16)
  def test_half_precision_is_upcast(self, dtype):
    pos = jnp.asarray(testing.normal(4), dtype)
    neg = jnp.asarray(testing.normal(4, 9, seed=1), dtype)
    actual = _hard_nce(pos, neg, log_floor=-2.0)
    self.assertEqual(actual.dtype, jnp.float32)
    expected = _oracle(
        np.asarray(pos, np.float64), np.asarray(neg, np.float64),
        beta=1.0, tau_plus=0.1, log_floor=-2.0,
    )  # fmt: skip
    self.assert_close(actual, expected)

  def test_knobs_are_traced(self):
    chex.clear_trace_counter()
    loss = jax.jit(chex.assert_max_traces(losses.hard_nce_loss, n=1))
    pos, neg = testing.normal(2), testing.normal(2, 3)
    for beta in (0.0, 1.0, 2.0):
      loss(pos, neg, beta=jnp.float32(beta), tau_plus=jnp.float32(beta / 4))

  def test_vmap_is_the_loop(self):
    pos, neg = testing.normal(5, 2), testing.normal(5, 2, 3)
    betas = jnp.linspace(0, 2, 5)
    one = jax.jit(lambda p, n, b: losses.hard_nce_loss(p, n, beta=b))
    actual = jax.vmap(one)(pos, neg, betas)
    for i in range(5):
      self.assert_close(actual[i], one(pos[i], neg[i], betas[i]), 1e-6)

  def test_clipped_beta_of_zeros_is_zero(self):
    def loss(s):
      beta = losses.clipped_beta(50.0, s)
      return losses.hard_nce_loss(jnp.zeros(2), s, beta=beta).sum()

    value, grad = testing.jitted(jax.value_and_grad(loss), jnp.zeros((2, 3)))
    self.assert_close(value, 2 * np.log(4.0), 1e-6)
    self.assert_finite(grad)

  @hypothesis.settings(max_examples=20, deadline=None)
  @hypothesis.given(
      shape=st.lists(st.integers(1, 4), max_size=2),
      n=st.integers(1, 6),
      m=st.integers(0, 3),
      beta=st.floats(0, 20),
      tau_plus=st.floats(0, 0.9),
      seed=st.integers(0, 99),
  )
  def test_random_shapes(self, shape, n, m, beta, tau_plus, seed):
    pos = testing.normal(*shape, *((m,) if m else ()), seed=seed)
    neg = testing.normal(*shape, n, seed=seed + 1)
    knobs = {'beta': beta, 'tau_plus': tau_plus, 'log_floor': -3.0}
    actual = jax.jit(losses.hard_nce_loss)(pos, neg, **knobs)
    expected = _oracle(
        pos.reshape(-1, m) if m else pos.reshape(-1),
        neg.reshape(-1, n),
        **knobs,
    )
    self.assertEqual(actual.shape, tuple(shape))
    self.assert_close(actual.reshape(-1), expected, 2e-5)
