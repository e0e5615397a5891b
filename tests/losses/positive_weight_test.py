# SPDX-License-Identifier: Apache-2.0
"""positive_weight: the decoupled loss, HN-NCE and what lies between."""

import functools
import itertools

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import losses
from tests import reference
from tests.support import testing

_WEIGHTS = 0.0, 0.3, 1.0, 2.0


@functools.cache
def _mean_and_grads(name, **fixed):
  """Compiles a loss once for all hyperparameters."""

  def mean(arrays, knobs):
    values = getattr(losses, name)(*arrays, **fixed, **knobs)
    return values.mean(), values

  return jax.jit(jax.grad(mean, (0, 1), has_aux=True))


class PositiveWeightTest(testing.LossTest):

  @parameterized.parameters({}, {'log_floor': -2.0}, {'soft_floor': 0.5})
  def test_logits_match_the_oracle(self, **floor):
    pos, neg = testing.normal(5, 2), testing.normal(5, 9, seed=1)
    loss = _mean_and_grads('hard_nce_loss', **floor)
    for weight, beta, tau_plus in itertools.product(
        _WEIGHTS, (0.0, 2.0), (0.0, 0.2)
    ):
      knobs = {
          'positive_weight': weight, 'beta': beta, 'tau_plus': tau_plus,
      }  # fmt: skip
      with self.subTest(**knobs):
        (grads, _), values = loss((pos, neg), knobs)
        given = [
            (p.tolist(), n.tolist()) for p, n in zip(pos, neg, strict=True)
        ]
        masses = [
            reference.negative_mass(p, n, beta, tau_plus, **floor)[0]
            for p, n in given
        ]
        if not weight and min(masses) == 0:
          self.assertTrue(np.isneginf(values).any())
          continue
        self.assert_close(
            values, [reference.hard_nce(p, n, **knobs, **floor)
                     for p, n in given]
        )
        pulls = [
            reference.hard_nce_grad(p, n, **knobs, **floor) for p, n in given
        ]
        expected = tuple(
            np.array([pull[k] for pull in pulls]) / 5 for k in range(2)
        )
        self.assert_same_gradient(grads, expected, 1e-5)

  @parameterized.product(
      name=('simclr', 'in_batch', 'moco'), block_size=(None, 4)
  )
  def test_embeddings_match_the_oracle(self, name, block_size):
    arrays = testing.views(7, 3)
    if name == 'moco':
      arrays += (testing.normal(11, 3, seed=7),)
    loss = _mean_and_grads(f'{name}_loss', block_size=block_size)
    for weight, beta, tau_plus in itertools.product(
        _WEIGHTS, (0.0, 2.0), (0.0, 0.05)
    ):
      knobs = {
          'positive_weight': weight, 'beta': beta, 'tau_plus': tau_plus,
          'temperature': 0.2,
      }  # fmt: skip
      with self.subTest(**knobs):
        (grads, _), values = loss(arrays, knobs)
        expected, *expected_grads = getattr(reference, name)(*arrays, **knobs)
        # Any weight but 1 lets the loss be near 0, by a difference.
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)
        grads = grads[: len(expected_grads)]
        self.assert_same_gradient(
            grads, tuple(np.array(g) for g in expected_grads), 2e-5
        )

  def test_0_is_the_decoupled_loss(self):
    z1, z2 = testing.views(6, 4)
    values = losses.in_batch_loss(
        z1, z2, temperature=0.5, beta=0.0, positive_weight=0.0
    )
    logits = 2 * np.array(reference.cosines(np.concatenate([z1, z2])))
    logits = logits[:6, 6:]
    others = np.where(np.eye(6, dtype=bool), -np.inf, logits)
    expected = -np.diag(logits) + np.log(np.exp(others).sum(axis=1))
    # The loss may be near 0, the difference of two numbers near 1.
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)

  @parameterized.parameters(*_WEIGHTS)
  def test_without_negatives_loss_and_gradient_are_0(self, weight):
    where = np.zeros((1, 3), bool)

    def loss(pos, neg, weight):
      return losses.hard_nce_loss(
          pos, neg, where=where, positive_weight=weight
      )[0]

    value, grads = jax.value_and_grad(loss, (0, 1, 2))(
        np.float32([1.0]), np.full((1, 3), np.nan, np.float32), weight
    )
    self.assertEqual(value, 0.0)
    for grad in grads:
      np.testing.assert_array_equal(grad, 0.0)

  @parameterized.parameters(None, 2)
  def test_without_other_labels_loss_and_gradient_are_0(self, block_size):
    z1, z2 = testing.views(4, 3)
    values, grads = jax.value_and_grad(
        lambda z: losses.simclr_loss(
            z, z2, labels=np.zeros(4, np.int32), positive_weight=0.0,
            block_size=block_size,
        ).sum()
    )(z1)  # fmt: skip
    self.assertEqual(values, 0.0)
    np.testing.assert_array_equal(grads, 0.0)

  def test_slope_by_the_weight(self):
    pos, neg = testing.normal(4), testing.normal(4, 6, seed=1)
    for weight in (0.0, 0.5, 1.0):
      slope = jax.jit(jax.grad(
          lambda w: losses.hard_nce_loss(
              pos, neg, positive_weight=w, log_floor=-2.0
          ).sum()
      ))(jnp.float32(weight))
      expected = 0.0
      for p, n in zip(pos.tolist(), neg.tolist(), strict=True):
        mass, *_ = reference.negative_mass(
            [p], n, 1.0, 0.1, log_floor=-2.0
        )
        expected += 1 / (weight + mass / np.exp(p))
      self.assert_close(slope, expected)

  def test_far_logits_are_finite(self):
    for weight in _WEIGHTS:
      for pos in (-1e4, 0.0, 1e4):
        value, grad = jax.value_and_grad(
            lambda p, w=weight: losses.hard_nce_loss(
                p, jnp.zeros((1, 3)), tau_plus=0.0, positive_weight=w
            )[0]
        )(jnp.full(1, pos))
        self.assert_finite((value, grad))
        if not weight:
          self.assert_close(value, np.log(3) - pos)
          np.testing.assert_array_equal(grad, -1.0)

  def test_refuses_a_negative_weight(self):
    with self.assertRaisesRegex(ValueError, 'positive_weight must be >= 0'):
      losses.simclr_loss(*testing.views(4, 3), positive_weight=-0.1)
