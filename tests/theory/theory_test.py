# SPDX-License-Identifier: Apache-2.0
"""The paper's theory on small samples, against loops in float64."""

import math

from absl.testing import parameterized
import numpy as np

from hcl_jax import theory
from tests import reference
from tests.support import testing

_LABELS = np.array([0, 0, 1, 2, 2, 2, 1, 0, 3])


def _rows():
  return testing.normal(9, 3)


class WorstCaseTest(parameterized.TestCase):

  @parameterized.product(
      beta=(0.0, 2.0), temperature=(0.5, 1.0), num_negatives=(1.0, 20.0)
  )
  def test_tilted_and_worst_case_loss(self, beta, temperature, num_negatives):
    options = {'temperature': temperature, 'num_negatives': num_negatives}
    np.testing.assert_allclose(
        theory.tilted_loss(_rows(), _LABELS, beta=beta, **options),
        reference.tilted_loss(_rows(), _LABELS, beta, *options.values()),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        theory.worst_case_loss(_rows(), _LABELS, **options),
        reference.tilted_loss(_rows(), _LABELS, None, *options.values()),
        rtol=1e-5,
    )

  def test_proposition_1(self):
    betas = [0, 1, 3, 10, 30, 100, 300]
    curve = theory.convergence_in_beta(_rows(), _LABELS, betas=betas)
    to_go = curve.limit - curve.losses
    self.assertTrue(np.all(np.diff(to_go) <= 0))
    self.assertGreater(to_go[0], 0.1)
    self.assertLess(abs(to_go[-1]), 1e-4)
    self.assertAlmostEqual(
        curve.losses[1], theory.tilted_loss(_rows(), _LABELS, beta=1)
    )
    self.assertAlmostEqual(
        curve.limit, theory.worst_case_loss(_rows(), _LABELS)
    )

  @parameterized.parameters(0.2, 1.0)
  def test_limiting_loss_and_its_parts(self, temperature):
    found = theory.limiting_worst_case_loss(
        _rows(), _LABELS, temperature=temperature
    )
    np.testing.assert_allclose(
        found.loss,
        reference.limiting_worst_case_loss(_rows(), _LABELS, temperature),
        rtol=1e-5,
    )
    self.assertGreater(found.alignment, 0)

  def test_no_embedding_is_below_the_packing(self):
    packing = theory.ball_packing(np.full(4, 0.25), 3)
    least = theory.least_limiting_loss(packing.value, temperature=0.5)
    labels = np.repeat(np.arange(4), 3)
    best = theory.limiting_worst_case_loss(
        np.float32(packing.points)[labels], labels
    )
    self.assertAlmostEqual(best.loss, least, places=4)
    self.assertAlmostEqual(least, -8 / 3, places=4)  # the simplex
    for seed in range(5):
      rows = testing.normal(12, 3, seed=seed)
      found = theory.limiting_worst_case_loss(rows, labels)
      self.assertGreater(found.loss, least)

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, 'at least two classes.*only 4'):
      theory.worst_case_loss(_rows(), np.full(9, 4))
    with self.assertRaisesRegex(ValueError, 'beta must be >= 0'):
      theory.convergence_in_beta(_rows(), _LABELS, betas=[1, -1])
    with self.assertRaisesRegex(ValueError, 'num_negatives must be > 0'):
      theory.worst_case_loss(_rows(), _LABELS, num_negatives=0)


class RiskBoundTest(parameterized.TestCase):

  def test_is_the_least_of_the_proof(self):
    excess, classes, radius, xi = 1e-5, 3, 2.0, math.sqrt(3)
    squared = (radius * xi) ** 2 - 2 * classes * (1 + radius) * excess**0.5
    s = math.sqrt(squared)
    deltas = np.linspace(0.01, 0.99, 9999) * s
    best = np.min(2 * excess / deltas**2 + 2 * excess / (s - deltas) ** 2)
    options = {'separation': xi, 'num_classes': classes, 'temperature': 0.25}
    self.assertAlmostEqual(theory.risk_bound(excess, **options) / best, 1)
    self.assertAlmostEqual(
        theory.risk_bound(excess, bound='printed', **options),
        8 * excess / squared**2,
    )

  def test_says_nothing_of_bad_embeddings(self):
    options = {'separation': 1.0, 'num_classes': 10}
    self.assertEqual(theory.risk_bound(1.5, **options), 1)
    self.assertEqual(theory.risk_bound(0.5, **options), 1)
    self.assertEqual(theory.risk_bound(0.0, **options), 0)

  def test_holds_for_noisy_simplices(self):
    triangle = theory.tammes_packing(3, 2, num_restarts=4).points
    labels = np.repeat(np.arange(3), 50)
    noise = np.random.default_rng(0).normal(size=(150, 2))
    bounds = []
    for spread in (0.001, 0.003, 0.01):
      rows = np.float32(triangle[labels] + spread * noise)
      found = theory.limiting_worst_case_loss(rows, labels)
      excess = found.loss - theory.least_limiting_loss(3.0)
      bounds.append(
          theory.risk_bound(
              excess, separation=math.sqrt(3), num_classes=3
          )
      )
      nearest = np.argmax(rows @ triangle.T, axis=1)
      self.assertLessEqual(np.mean(nearest != labels), bounds[-1])
    self.assertLess(bounds[0], 0.1)
    self.assertTrue(np.all(np.diff(bounds) >= 0))

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, 'excess_loss must be >= 0'):
      theory.risk_bound(-0.1, separation=1.0, num_classes=3)
    with self.assertRaisesRegex(ValueError, 'bound must be one of'):
      theory.risk_bound(0.1, separation=1.0, num_classes=3, bound='best')


class VarianceTest(parameterized.TestCase):

  @parameterized.product(beta=(0.0, 1.5), temperature=(0.5, 1.0))
  def test_variance(self, beta, temperature):
    found = theory.one_positive_variance(
        _rows(), _LABELS, beta=beta, temperature=temperature
    )
    np.testing.assert_allclose(
        found.variance[0],
        reference.one_positive_variance(_rows(), _LABELS, beta, temperature),
        rtol=1e-4,
    )
    self.assertTrue(np.isfinite(
        theory.one_positive_variance(_rows(), _LABELS, temperature=0.01)
    ).all())  # fmt: skip
    alignment = theory.limiting_worst_case_loss(
        _rows(), _LABELS, temperature=temperature
    ).alignment
    self.assertAlmostEqual(found.alignment[0], alignment, places=6)

  @parameterized.product(beta=(0.0, 1.0), temperature=(0.5, 1.0))
  def test_the_lemma(self, beta, temperature):
    spreads = np.geomspace(0.01, 1, 7)
    curve = theory.variance_against_alignment(
        np.eye(3, dtype=np.float32),
        spreads=spreads,
        num_rows=30,
        beta=beta,
        temperature=temperature,
    )
    self.assertTrue(np.all(curve.variance <= curve.bound))
    self.assertTrue(np.all(np.diff(curve.alignment) > 0))
    ratio = curve.variance / curve.alignment
    self.assertLess(ratio.max(), math.exp((2 + 4 * beta) / temperature))
    # A point has no variance.
    self.assertLess(curve.variance[0], 1e-3 * curve.variance.max())

  def test_one_class_and_no_spread(self):
    curve = theory.variance_against_alignment(
        np.eye(1, 2, dtype=np.float32), spreads=[0.0], num_rows=5
    )
    self.assertAlmostEqual(curve.variance[0], 0, places=5)
    self.assertAlmostEqual(curve.alignment[0], 0, places=5)
