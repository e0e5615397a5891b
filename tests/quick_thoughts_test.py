# SPDX-License-Identifier: Apache-2.0
"""quick_thoughts_loss."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from hcl_jax import losses
from tests import reference
from tests import testing

_TOY = np.float32([[9.0, 1.0, 0.0], [0.5, 9.0, 2.0], [0.0, 1.0, 9.0]])


def _scores(left, right):
  return left.astype(np.float64) @ right.astype(np.float64).T


class QuickThoughtsLossTest(testing.LossTest):

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.product(
      window=(1, 2),
      self_pair=('zero', 'drop'),
      floor=('none', 'soft'),
      clip_scale=(None, 2.0),
  )
  def test_matches_the_oracle(self, window, self_pair, floor, clip_scale):
    left, right = testing.normal(8, 3), testing.normal(8, 3, seed=1)
    where = np.array([True] * 6 + [False, True])
    fixed = {
        'window': window, 'self_pair': self_pair, 'floor': floor,
        'clip_scale': clip_scale,
    }  # fmt: skip
    loss = self.variant(functools.partial(losses.quick_thoughts_loss, **fixed))
    for beta, tau_plus in ((0.0, 0.0), (1.0, 0.0), (2.0, 0.3), (0.0, 0.01)):
      for mask in (None, where):
        knobs = {'beta': beta, 'tau_plus': tau_plus, 'where': mask}
        expected = reference.quick_thoughts(
            _scores(left, right), **fixed, **knobs
        )
        np.testing.assert_allclose(
            loss(left, right, **knobs), expected, rtol=1e-5, atol=1e-6
        )

  def test_golden_values(self):
    right = np.eye(3, dtype=np.float32)
    values = losses.quick_thoughts_loss(_TOY, right)
    np.testing.assert_allclose(
        values, (0.551445, 1.056356, 0.551445), atol=1e-6
    )
    dropped = losses.quick_thoughts_loss(_TOY, right, self_pair='drop')
    self.assertAlmostEqual(float(dropped.mean()), 0.525979, delta=1e-6)

  def test_without_knobs_is_softmax_cross_entropy(self):
    left, right = testing.normal(6, 3), testing.normal(6, 3, seed=1)
    scores = np.float32(_scores(left, right))
    np.fill_diagonal(scores, 0)
    near = np.abs(np.arange(6)[:, None] - np.arange(6)[None, :]) == 1
    targets = (near / near.sum(axis=1, keepdims=True)).astype(np.float32)
    self.assert_close(
        losses.quick_thoughts_loss(left, right),
        optax.softmax_cross_entropy(scores, targets),
    )

  @parameterized.product(
      floor=('none', 'soft'), clip_scale=(None, 2.0), size=(0.0, 1.0, 30.0)
  )
  def test_is_finite_for_embeddings_of_any_size(self, floor, clip_scale, size):
    left = np.float32(size) * testing.normal(8, 3)
    right = np.float32(size) * testing.normal(8, 3, seed=1)
    for beta, tau_plus in ((0.0, 0.1), (1.0, 0.1), (100.0, 0.5)):
      value, grad = jax.value_and_grad(
          lambda x, b=beta, t=tau_plus: losses.quick_thoughts_loss(
              x, right, beta=b, tau_plus=t, floor=floor, clip_scale=clip_scale
          ).sum()
      )(left)
      self.assert_finite((value, grad))

  def test_gradients(self):
    left, right = testing.normal(6, 3), testing.normal(6, 3, seed=1)
    for clip_scale in (None, 2.0):
      chex.assert_numerical_grads(
          lambda a, b, c=clip_scale: losses.quick_thoughts_loss(
              a, b, beta=1.0, tau_plus=0.05, floor='soft', clip_scale=c
          ),
          (left, right), order=1, eps=1e-3, atol=0.05,
      )  # fmt: skip

  def test_masked_sentences_may_hold_anything(self):
    left, right = testing.normal(8, 3), testing.normal(8, 3, seed=1)
    where = np.arange(8) < 6
    for filler in (np.nan, np.inf):
      padded = [np.where(where[:, None], x, np.float32(filler))
                for x in (left, right)]
      value, grads = jax.value_and_grad(
          lambda a, b: losses.quick_thoughts_loss(
              a, b, beta=1.0, where=where, clip_scale=2.0).sum(), (0, 1)
      )(*padded)
      expected = losses.quick_thoughts_loss(
          left[:6], right[:6], beta=1.0, clip_scale=2.0).sum()
      np.testing.assert_allclose(value, expected, rtol=1e-5)
      self.assert_finite(grads)
      np.testing.assert_array_equal(grads[0][6:], 0)

  def test_a_prior_trains_with_the_soft_floor(self):
    """Debiasing leaves most anchors dead without it, and none with it."""
    dead, ranks = {}, {}
    for floor in ('none', 'soft'):
      step = jax.jit(functools.partial(_train_step, floor=floor))
      params = [0.1 * testing.normal(64, 16, seed=k) for k in (0, 1)]
      optimizer = _OPTIMIZER.init(params)
      for _ in range(400):
        params, optimizer, loss = step(params, optimizer)
        self.assertTrue(np.isfinite(loss))
      pulls = jax.grad(
          lambda s, floor=floor: losses.quick_thoughts_loss(
              s, jnp.eye(64), beta=1.0, tau_plus=0.01, floor=floor,
              self_pair='drop',
          ).sum()
      )(params[0] @ params[1].T)
      away = np.abs(np.subtract.outer(np.arange(64), np.arange(64))) > 1
      dead[floor] = np.mean(np.abs(np.where(away, pulls, 0)).sum(axis=1) == 0)
      scores = np.array(params[0] @ params[1].T)
      np.fill_diagonal(scores, -np.inf)
      best = scores.argmax(axis=1)
      ranks[floor] = np.mean(np.abs(best - np.arange(64)) == 1)
    self.assertGreater(dead['none'], 0.5)
    self.assertEqual(dead['soft'], 0)
    self.assertGreater(ranks['soft'], 0.95)

  def test_knobs_are_traced(self):
    left, right = testing.normal(8, 3), testing.normal(8, 3, seed=1)
    chex.clear_trace_counter()
    loss = jax.jit(chex.assert_max_traces(
        lambda b, t: losses.quick_thoughts_loss(
            left, right, beta=b, tau_plus=t, clip_scale=2.0), n=1))
    for beta in (0.0, 1.0):
      loss(beta, beta / 10)


_OPTIMIZER = optax.adam(0.05)


def _train_step(params, state, *, floor):
  def loss(params):
    return losses.quick_thoughts_loss(
        *params, beta=1.0, tau_plus=0.01, floor=floor, self_pair='drop'
    ).mean()

  value, grads = jax.value_and_grad(loss)(params)
  with jax.numpy_dtype_promotion('standard'):
    updates, state = _OPTIMIZER.update(grads, state)
  return optax.apply_updates(params, updates), state, value


if __name__ == '__main__':
  absltest.main()
