# SPDX-License-Identifier: Apache-2.0
"""The numerics: the whole grid against 60 digits, folds, derivatives."""

import functools

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import mpmath
import numpy as np

from hcl_jax import losses
from hcl_jax.losses import tilting
from tests import reference
from tests.support import compiler
from tests.support import testing

_MP = mpmath.mp.clone()
_MP.dps = 60


def _logits(z1, z2, temperature):
  """float32 logits of every anchor: positive [2B], negatives [2B, 2B-2]."""
  z = np.concatenate([z1, z2]).astype(np.float64)
  z /= np.linalg.norm(z, axis=1, keepdims=True)
  n = len(z)
  cosines = (z @ z.T).astype(np.float32)
  logits = (cosines / np.float32(temperature)).astype(np.float32)
  row = np.arange(n)
  keep = row[:, None] % (n // 2) != row[None, :] % (n // 2)
  return logits[row, (row + n // 2) % n], logits[keep].reshape(n, n - 2)


@compiler.optimized
def _value_and_grad(pos, neg, beta, tau_plus, log_floor):
  def mean(pos, neg):
    values = losses.hard_nce_loss(
        pos, neg, beta=beta, tau_plus=tau_plus, log_floor=log_floor
    )
    return jnp.mean(values), values

  return jax.value_and_grad(mean, argnums=(0, 1), has_aux=True)(pos, neg)


class GridTest(testing.LossTest):

  @parameterized.product(
      geometry=tuple(testing.geometries()), temperature=testing.TEMPERATURES
  )
  def test_is_exact_in_float32(self, geometry, temperature):
    pos, neg = _logits(*testing.geometries()[geometry], temperature)
    log_floor = np.float32(-1 / temperature)
    anchors = len(pos)
    exact = [_MP.mpf(float(x)) for x in pos], reference.numbers(neg, _MP)
    for beta in testing.BETAS:
      for tau_plus in testing.TAUS:
        with self.subTest(beta=beta, tau_plus=tau_plus):
          (_, values), (to_pos, to_neg) = _value_and_grad(
              pos, neg, np.float32(beta), np.float32(tau_plus), log_floor
          )
          self.assert_finite((values, to_pos, to_neg))
          knobs = {
              'beta': _MP.mpf(float(np.float32(beta))),
              'tau_plus': _MP.mpf(float(np.float32(tau_plus))),
              'log_floor': _MP.mpf(float(log_floor)),
              'm': _MP,
          }
          expected, grads = [], []
          for p, n in zip(*exact, strict=True):
            expected.append(reference.hard_nce([p], n, **knobs))
            to_p, to_n = reference.hard_nce_grad([p], n, **knobs)
            grads.append([g / anchors for g in to_p + to_n])
          self.assert_close(values, np.array(expected, float), 1e-5)
          actual = np.concatenate([to_pos[:, None], to_neg], axis=1)
          error = testing.gradient_error(
              actual, np.array(grads, float), unit=1 / anchors
          )
          self.assertLessEqual(error, 2e-4)


class OracleTest(testing.LossTest):

  @parameterized.product(
      floor=({}, {'log_floor': -1.0}, {'soft_floor': 0.5}),
      tau_plus=(0.0, 0.1, 0.6),
  )
  def test_gradient_is_the_limit_of_differences(self, floor, tau_plus):
    pos = [_MP.mpf(x) for x in (0.3, 1.1)]
    neg = [_MP.mpf(x) for x in (0.2, -0.4, 0.9)]
    knobs = {'beta': 1.5, 'tau_plus': tau_plus, 'm': _MP, **floor}
    to_pos, to_neg = reference.hard_nce_grad(pos, neg, **knobs)
    h = _MP.mpf(10) ** -20
    for k, expected in enumerate([*to_pos, *to_neg]):
      both = []
      for sign in (1, -1):
        moved = [*pos, *neg]
        moved[k] += sign * h
        both.append(reference.hard_nce(moved[:2], moved[2:], **knobs))
      self.assertLess(abs((both[0] - both[1]) / (2 * h) - expected), 1e-15)


class FoldTest(testing.LossTest):

  @parameterized.product(beta=(0.0, 1.0, 50.0), scale=(0.1, 2.0, 1000.0))
  def test_merge_is_the_fold_of_both(self, beta, scale):
    scores = jnp.asarray(np.tanh(testing.normal(3, 12)))
    knobs = jnp.float32(scale), jnp.float32(beta)
    whole = tilting.fold(scores, *knobs, None)
    parts = [
        tilting.fold(scores[:, i : i + 4], *knobs, None) for i in (0, 4, 8)
    ]
    left = tilting.merge(
        tilting.merge(parts[0], parts[1], *knobs), parts[2], *knobs
    )
    right = tilting.merge(
        parts[2], tilting.merge(parts[1], parts[0], *knobs), *knobs
    )
    for fold in (left, right):
      for actual, expected in zip(fold, whole, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-30)

  def test_an_empty_fold_is_neutral(self):
    scores = jnp.asarray(np.tanh(testing.normal(2, 5)))
    knobs = jnp.float32(1000.0), jnp.float32(100.0)
    keep = jnp.zeros((2, 5), bool)
    empty = tilting.fold(scores, *knobs, keep, lowest=-2.0)
    whole = tilting.fold(scores, *knobs, None)
    merged = tilting.merge(empty, whole, *knobs)
    for actual, expected in zip(merged, whole, strict=True):
      np.testing.assert_array_equal(actual, expected)

  def test_queue_sized_sums(self):
    rng = np.random.default_rng(0)
    scores = np.tanh(rng.standard_normal((2, 65536)) / 3).astype(np.float32)
    for scale in (1.0, 5.0, 100.0):
      for beta in (0.0, 0.2, 1.0, 10.0):
        s = scale * scores.astype(np.float64)
        top = s.max(axis=1, keepdims=True)
        expected = (
            np.log(np.exp((1 + beta) * (s - top)).sum(axis=1))
            - np.log(np.exp(beta * (s - top)).sum(axis=1))
        )
        _, actual = tilting.tilted_log_mean(
            jnp.asarray(scores), jnp.float32(scale), jnp.float32(beta)
        )
        self.assert_close(actual, expected, 2e-6)


class DerivativeTest(testing.LossTest):

  @parameterized.parameters(0.0, 1e-4, -1e-4)
  def test_second_derivatives_do_not_depend_on_their_order(self, gap):
    def loss(gap, tau_plus):
      return tilting.debiased_loss(gap, jnp.float32(1), tau_plus)

    by_gap_and_tau = jax.jit(jax.grad(jax.grad(loss), 1))
    by_tau_and_gap = jax.jit(jax.grad(jax.grad(loss, 1)))
    args = jnp.float32(gap), jnp.float32(0.1)
    np.testing.assert_allclose(
        by_tau_and_gap(*args), by_gap_and_tau(*args), rtol=1e-4
    )

  @parameterized.product(
      beta=(0.0, 0.7, 3.0),
      stop_gradient_weights=(False, True),
      where=(None, np.array([True, False, True, True])),
  )
  def test_first_and_second_in_all_modes(
      self, beta, stop_gradient_weights, where
  ):
    scores = jnp.asarray(testing.normal(3, 4))

    def log_mean(scores, scale, beta):
      mask = None if where is None else jnp.asarray(where)[None, :]
      peak, rest = tilting.tilted_log_mean(
          scores, scale, beta, mask,
          stop_gradient_weights=stop_gradient_weights,
      )  # fmt: skip
      return scale * peak + rest

    def plain(scores, scale, beta):
      s = scale * (scores if where is None else scores[:, where])
      log_weights = jax.nn.log_softmax(beta * s, axis=1)
      if stop_gradient_weights:
        log_weights = jax.lax.stop_gradient(log_weights)
      return jax.nn.logsumexp(log_weights + s, axis=1)

    args = scores, jnp.float32(1.5), jnp.float32(beta)
    self.assert_same_derivatives(
        log_mean, plain, args, (0, 1, 2), (1e-5, 1e-5, 1e-4)
    )

  @parameterized.product(
      tau_plus=(0.0, 0.1, 0.6),
      floor=({}, {'floor_gap': -1.0}, {'soft_floor': 0.4}),
  )
  def test_debiasing(self, tau_plus, floor):
    gap = jnp.asarray(testing.normal(16))
    excess = 0.3 * jnp.asarray(testing.normal(16, seed=1))
    log_n = jnp.full((16,), np.log(6.0), jnp.float32)

    def loss(gap, excess, tau_plus):
      knobs = {k: jnp.asarray(v, jnp.float32) for k, v in floor.items()}
      if 'floor_gap' in knobs:
        knobs['floor_gap'] = jnp.broadcast_to(knobs['floor_gap'], gap.shape)
      return tilting.debiased_loss(
          gap, log_n, tau_plus, excess=excess, **knobs
      )

    def plain(gap, excess, tau_plus):
      low, high = tau_plus * jnp.exp(excess), jnp.exp(gap)
      raw = high - low
      if 'soft_floor' in floor:
        r0, r = floor['soft_floor'], low / high
        raw = high * jnp.where(r <= r0, 1 - r, (1 - r0) ** 2 / (1 - 2 * r0 + r))
      mass = raw / (1 - tau_plus)
      if 'soft_floor' not in floor:
        bound = jnp.exp(floor.get('floor_gap', -jnp.inf))
        mass = jnp.where((mass < bound) & (tau_plus > 0), bound, mass)
      return jnp.log1p(jnp.exp(log_n) * mass)

    args = gap, excess, jnp.float32(tau_plus)
    self.assert_same_derivatives(loss, plain, args, (0, 1), (2e-5, 1e-4, 1e-3))

  def assert_same_derivatives(self, loss, plain, args, twice, tolerances):
    """Compares values, Jacobians by all, and Hessians by some arguments."""
    every = tuple(range(len(args)))

    @functools.partial(jax.jit, static_argnums=0)
    def derivatives(function, *args):
      return (
          function(*args),
          [f(function, every)(*args) for f in (jax.jacfwd, jax.jacrev)],
          jax.hessian(lambda *a: function(*a).sum(), twice)(*args),
      )

    values, *actual = derivatives(loss, *args)
    expected_values, *expected = derivatives(plain, *args)
    np.testing.assert_allclose(values, expected_values, rtol=tolerances[0])
    for a, e, tolerance in zip(actual, expected, tolerances[1:], strict=True):
      self.assert_same_gradient(a, e, tolerance)
