# SPDX-License-Identifier: Apache-2.0
"""supcon_loss."""

from absl.testing import parameterized
import chex
import jax
import numpy as np

from hcl_jax import losses
from tests import reference
from tests.support import testing


class SupconLossTest(testing.LossTest):

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(0.05, 0.5)
  def test_matches_the_oracle(self, temperature):
    z1, z2 = testing.views(7, 3)
    labels = np.array([0, 1, 2, 0, 1, 0, -4])
    loss = self.variant(losses.supcon_loss)
    self.assert_close(
        loss(z1, z2, labels, temperature=temperature),
        reference.supcon(z1, z2, labels, temperature=temperature),
    )

  def test_golden_values(self):
    z1 = np.float32([[1.0, 0.0], [0.0, 1.0]])
    z2 = np.float32([[0.8, 0.6], [-0.6, 0.8]])
    for labels, expected in (((0, 1), 0.430190), ((0, 0), 1.496857)):
      values = losses.supcon_loss(
          z1, z2, np.array(labels), temperature=0.5
      )
      self.assertAlmostEqual(float(values.mean()), expected, delta=1e-6)

  def test_different_labels_are_ntxent(self):
    z1, z2 = testing.views(7, 3)
    knobs = {'temperature': 0.1}
    self.assert_close(
        losses.supcon_loss(z1, z2, np.arange(7), **knobs),
        losses.simclr_loss(z1, z2, beta=0.0, tau_plus=0.0, **knobs),
    )

  def test_gradients(self):
    z1, z2 = testing.views(5, 3)
    labels = np.array([0, 1, 0, 1, 2])
    chex.assert_numerical_grads(
        lambda a, b: losses.supcon_loss(a, b, labels, temperature=0.5),
        (z1, z2), order=1, eps=1e-3, atol=0.02,
    )  # fmt: skip
    for temperature in (1e-3, 10.0):
      self.assert_finite(jax.grad(
          lambda z, t=temperature: losses.supcon_loss(
              z, z2, labels, temperature=t).sum())(z1))
