# SPDX-License-Identifier: Apache-2.0
"""quick_thoughts_loss."""

import contextlib
import functools

from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from hcl_jax import losses
from tests import reference
from tests.support import testing

# Pieces of text of 3, 2, 1 and 2 sentences; the single one has no neighbour.
_SEGMENTS = np.array([4, 4, 4, 7, 7, 8, 9, 9])
_TOY = np.float32([[9.0, 1.0, 0.0], [0.5, 9.0, 2.0], [0.0, 1.0, 9.0]])


def _scores(left, right):
  return left.astype(np.float64) @ right.astype(np.float64).T


def _exact_betas(scores, fraction, **given):
  return [
      reference.beta_for_perplexity(neg, fraction)
      for _, neg in reference.quick_thoughts_logits(scores, **given)
  ]


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
    masks = (
        {}, {'where': where}, {'segments': _SEGMENTS, 'where': where},
    )  # fmt: skip
    fixed = {
        'window': window, 'self_pair': self_pair, 'floor': floor,
        'clip_scale': clip_scale,
    }  # fmt: skip
    loss = self.variant(functools.partial(losses.quick_thoughts_loss, **fixed))
    for beta, tau_plus in ((0.0, 0.0), (1.0, 0.0), (2.0, 0.3), (0.0, 0.01)):
      for mask in masks:
        knobs = {'beta': beta, 'tau_plus': tau_plus, **mask}
        expected = reference.quick_thoughts(
            _scores(left, right), **fixed, **knobs
        )
        np.testing.assert_allclose(
            loss(left, right, **knobs), expected, rtol=1e-5, atol=1e-6
        )

  @parameterized.product(floor=('none', 'soft'), clip_scale=(None, 2.0))
  def test_gradient_matches_the_oracle(self, floor, clip_scale):
    left, right = testing.normal(8, 3), testing.normal(8, 3, seed=1)
    knobs = {
        'beta': 1.5, 'tau_plus': 0.1, 'floor': floor, 'window': 2,
        'clip_scale': clip_scale, 'segments': _SEGMENTS,
    }  # fmt: skip

    def expected(k, i, j):
      sums = []
      for change in (1e-6, -1e-6):
        pair = [np.float64(left), np.float64(right)]
        pair[k][i, j] += change
        sums.append(sum(reference.quick_thoughts(pair[0] @ pair[1].T, **knobs)))
      return (sums[0] - sums[1]) / 2e-6

    grads = jax.jit(jax.grad(
        lambda *z: losses.quick_thoughts_loss(*z, **knobs).sum(), (0, 1)
    ))(left, right)
    for k, grad in enumerate(grads):
      slopes = [[expected(k, i, j) for j in range(3)] for i in range(8)]
      self.assertLess(testing.gradient_error(grad, slopes), 1e-5)

  def test_the_clip_may_be_a_constant(self):
    left, right = testing.normal(8, 3), testing.normal(8, 3, seed=1)
    scores = _scores(left, right)
    distance = abs(np.arange(8)[:, None] - np.arange(8))
    fixed = 1.5 * 2.0 / abs(scores[distance > 1]).max()

    def value_and_grad(**knobs):
      return jax.value_and_grad(
          lambda *z: losses.quick_thoughts_loss(
              *z, tau_plus=0.1, floor='soft', **knobs
          ).sum(),
          (0, 1),
      )(left, right)

    expected, expected_grads = value_and_grad(beta=fixed)
    clip = functools.partial(value_and_grad, beta=1.5, clip_scale=2.0)
    value, grads = clip(stop_gradient_clip=True)
    self.assert_close(value, expected)
    self.assert_same_gradient(grads, expected_grads, 1e-5)
    value, grads = clip()
    self.assert_close(value, expected)
    # The score with the largest size is told apart from the others.
    difference = np.abs(grads[0] - expected_grads[0]).max(axis=1)
    self.assertEqual(np.sum(difference > 1e-4), 1)

  @parameterized.product(
      self_pair=('zero', 'drop'), mask=('none', 'where', 'segments')
  )
  def test_effective_negatives_match_the_oracle(self, self_pair, mask):
    left, right = testing.normal(8, 3), testing.normal(8, 3, seed=1)
    scores = _scores(left, right)
    given = {
        'none': {'window': 2},
        'where': {'where': np.arange(8) != 6},
        'segments': {'segments': _SEGMENTS, 'where': np.arange(8) != 0},
    }[mask] | {'self_pair': self_pair}  # fmt: skip
    knobs = {'floor': 'soft', **given}

    @jax.jit
    def value_and_grad(fraction, tau_plus):
      def total(scores):
        values = losses.quick_thoughts_loss(
            scores, jnp.eye(8), effective_negatives=fraction,
            tau_plus=tau_plus, **knobs,
        )  # fmt: skip
        return values.sum(), values

      return jax.grad(total, has_aux=True)(np.float32(scores))

    for fraction, tau_plus in ((1.0, 0.0), (0.8, 0.0), (0.4, 0.1)):
      grad, values = value_and_grad(fraction, tau_plus)
      betas = _exact_betas(scores, fraction, **given)
      oracle = functools.partial(
          reference.quick_thoughts, beta=betas, tau_plus=tau_plus, **knobs
      )
      np.testing.assert_allclose(values, oracle(scores), rtol=3e-3, atol=1e-6)
      # Beta is a constant of the gradient.
      slopes = np.zeros((8, 8))
      for place in np.ndindex(8, 8):
        step = np.zeros((8, 8))
        step[place] = 1e-6
        rise = np.subtract(oracle(scores + step), oracle(scores - step))
        slopes[place] = rise.sum() / 2e-6
      self.assert_same_gradient(grad, slopes, 0.01)
      share = losses.quick_thoughts_clamp_fraction(
          left, right, effective_negatives=fraction, tau_plus=0.4, **given
      )
      self.assertAlmostEqual(
          float(share),
          reference.quick_thoughts_clamp_fraction(
              scores, beta=betas, tau_plus=0.4, **given
          ),
          places=6,
      )

  def test_a_huge_score_changes_no_other_sentence(self):
    left, right = testing.normal(12, 3), testing.normal(12, 3, seed=1)
    huge = left.copy()
    huge[0] *= 1e5

    def of_others(left, **hardness):
      return testing.jitted(
          losses.quick_thoughts_loss, left, right, **hardness
      )[1:]

    asked = of_others(left, effective_negatives=0.5)
    np.testing.assert_allclose(
        of_others(huge, effective_negatives=0.5), asked, rtol=1e-6
    )
    # The clip makes the weights of all others equal.
    uniform = of_others(left)
    clipped = of_others(huge, beta=2.0, clip_scale=2.0)
    np.testing.assert_allclose(clipped, uniform, rtol=1e-4)
    self.assertTrue(np.all(asked > 1.01 * uniform))

  def test_a_huge_sentence_leaves_the_share_that_counts(self):
    left, right = testing.normal(12, 3), testing.normal(12, 3, seed=1)
    right[5] *= 100
    scores = _scores(left, right)
    np.testing.assert_allclose(
        losses.quick_thoughts_loss(left, right, effective_negatives=0.5),
        reference.quick_thoughts(
            scores, beta=_exact_betas(scores, 0.5), tau_plus=0.0
        ),
        rtol=3e-3,
    )

  def test_effective_negatives_exclude_beta_and_the_clip(self):
    loss = functools.partial(
        losses.quick_thoughts_loss, *testing.views(4, 3),
        effective_negatives=0.5,
    )  # fmt: skip
    with self.assertRaisesRegex(ValueError, 'clip_scale=2.0 and effective_neg'):
      loss(clip_scale=2.0)
    with self.assertRaisesRegex(ValueError, 'exclude each other; got beta=1'):
      loss(beta=1.0)

  def test_only_sentences_of_one_segment_are_neighbours(self):
    left, right = testing.normal(8, 3), testing.normal(8, 3, seed=1)
    loss = functools.partial(losses.quick_thoughts_loss, left, right)
    one = loss(segments=np.full(8, 3))
    np.testing.assert_array_equal(one, loss())
    split = loss(segments=_SEGMENTS)
    self.assertEqual(split[5], 0)  # it has no neighbour
    # 1 has both its neighbours still, 2 lost one.
    np.testing.assert_allclose(split[1], one[1], rtol=1e-6)
    self.assertGreater(abs(split[2] - one[2]), 1e-3)
    # Yet across a border sentences are negatives: pushed apart.
    pulls = jax.grad(
        lambda s: losses.quick_thoughts_loss(
            s, jnp.eye(8), segments=_SEGMENTS
        )[2]
    )(np.float32(_scores(left, right)))
    self.assertLess(pulls[2, 1], 0)
    self.assertGreater(pulls[2, 3], 0)

  @parameterized.product(
      floor=('none', 'soft', 'sphere'), tau_plus=(0.0, 0.2, 0.6)
  )
  def test_clamp_fraction_matches_the_oracle(self, floor, tau_plus):
    left, right = 2 * testing.normal(8, 3), testing.normal(8, 3, seed=1)
    for more in (
        {}, {'segments': _SEGMENTS}, {'where': np.arange(8) < 6},
        {'clip_scale': 2.0, 'self_pair': 'drop'},
    ):  # fmt: skip
      knobs = {'beta': 1.0, 'tau_plus': tau_plus, 'floor': floor, **more}
      with self._warnings_of(floor):
        share = losses.quick_thoughts_clamp_fraction(left, right, **knobs)
      expected = reference.quick_thoughts_clamp_fraction(
          _scores(left, right), **knobs
      )
      self.assertAlmostEqual(float(share), expected, places=6)
      if not tau_plus:
        self.assertEqual(share, 0)

  def _warnings_of(self, floor):
    if floor == 'sphere':
      return self.assertWarnsRegex(UserWarning, 'unit embeddings')
    return contextlib.nullcontext()

  def test_clamped_anchors_have_no_gradient_on_negatives(self):
    left, right = 2 * testing.normal(8, 3), testing.normal(8, 3, seed=1)
    knobs = {'beta': 1.0, 'tau_plus': 0.6, 'self_pair': 'drop'}
    share = losses.quick_thoughts_clamp_fraction(left, right, **knobs)
    pulls = jax.jit(jax.grad(
        lambda s: losses.quick_thoughts_loss(s, jnp.eye(8), **knobs).sum()
    ))(np.float32(_scores(left, right)))
    away = np.abs(np.subtract.outer(np.arange(8), np.arange(8))) > 1
    dead = np.abs(np.where(away, pulls, 0)).sum(axis=1) == 0
    self.assertBetween(dead.mean(), 0.1, 0.9)
    self.assertAlmostEqual(float(share), dead.mean(), places=6)

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

  def test_effective_negatives_of_any_size_are_finite(self):
    both = jax.jit(
        jax.value_and_grad(
            lambda x, f: losses.quick_thoughts_loss(
                x, testing.normal(8, 3, seed=1), effective_negatives=f,
                tau_plus=0.1, floor='soft',
            ).sum()
        )
    )  # fmt: skip
    for size in (0.0, 1e-3, 1.0, 30.0, 1e6):
      left = np.float32(size) * testing.normal(8, 3)
      for fraction in (1.0, 0.7, 1e-3):
        self.assert_finite(both(left, fraction))

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
          jax.jit(lambda a, b, c=clip_scale: losses.quick_thoughts_loss(
              a, b, beta=1.0, tau_plus=0.05, floor='soft', clip_scale=c
          )),
          (left, right), order=1, eps=1e-3, atol=0.05,
      )  # fmt: skip

  def test_masked_sentences_may_hold_anything(self):
    left, right = testing.normal(8, 3), testing.normal(8, 3, seed=1)
    where = np.arange(8) < 6
    clip = {'beta': 1.0, 'clip_scale': 2.0}
    for filler, knobs in (
        (np.nan, clip), (np.inf, clip), (np.nan, {'effective_negatives': 0.6})
    ):  # fmt: skip
      padded = [np.where(where[:, None], x, np.float32(filler))
                for x in (left, right)]
      value, grads = jax.jit(jax.value_and_grad(
          lambda a, b, knobs=knobs: losses.quick_thoughts_loss(
              a, b, where=where, **knobs).sum(), (0, 1)
      ))(*padded)
      expected = losses.quick_thoughts_loss(left[:6], right[:6], **knobs).sum()
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
      pulls = jax.jit(jax.grad(
          lambda s, floor=floor: losses.quick_thoughts_loss(
              s, jnp.eye(64), beta=1.0, tau_plus=0.01, floor=floor,
              self_pair='drop',
          ).sum()
      ))(params[0] @ params[1].T)
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
