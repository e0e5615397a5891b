# SPDX-License-Identifier: Apache-2.0
"""Estimates of the class prior on data whose prior is known."""

import doctest

from absl.testing import parameterized
import numpy as np
from sklearn import datasets
from sklearn import svm

from hcl_jax import analysis
from hcl_jax.analysis import prior
from tests import reference


class LabelsTest(parameterized.TestCase):

  def test_is_the_share_of_pairs(self):
    labels = np.random.default_rng(0).integers(0, 4, 23)
    same = [
        labels[i] == labels[j] for i in range(23) for j in range(23) if i != j
    ]
    found = analysis.prior_from_labels(labels)
    self.assertAlmostEqual(found.tau_plus, np.mean(same))

  @parameterized.parameters(
      ((0.5, 0.2, 0.2, 0.1),), ((0.1,) * 10,), ((0.9, 0.1),)
  )
  def test_error_is_that_of_repeated_samples(self, rho):
    rng = np.random.default_rng(0)
    tau_plus = sum(p * p for p in rho)
    found = [
        analysis.prior_from_labels(rng.choice(len(rho), 60, p=rho))
        for _ in range(1500)
    ]
    estimates = np.array([x.tau_plus for x in found])
    deviation = estimates.std()
    self.assertLess(abs(estimates.mean() - tau_plus), 4 * deviation / 1500**0.5)
    errors = np.array([x.standard_error for x in found])
    # Too large for equal classes, whose zeta_1 is 0 and cannot come out below.
    self.assertBetween(np.mean(errors**2) ** 0.5 / deviation, 0.95, 1.2)
    covered = np.mean([
        x.interval()[0] <= tau_plus <= x.interval()[1] for x in found
    ])
    self.assertGreater(covered, 0.88)

  def test_classes_of_the_digits(self):
    labels = datasets.load_digits(return_X_y=True)[1]
    known = analysis.prior_from_labels(labels).tau_plus
    sample = np.random.default_rng(0).permutation(labels)[:200]
    low, high = analysis.prior_from_labels(sample).interval()
    self.assertBetween(known, low, high)
    self.assertLess(high - low, 0.02)

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, 'at least 3 entries; got 2'):
      analysis.prior_from_labels([0, 1])
    with self.assertRaisesRegex(ValueError, r'shape \(4,\).*got \(2, 2\)'):
      analysis.prior_from_labels([[0, 1], [1, 1]])

  def test_examples(self):
    self.assertEqual(doctest.testmod(prior), (0, 1))


def _positive_and_unlabeled(labels, digit, share, num_unlabeled):
  """Rows: 80 of the class, and others of which a share is of it."""
  rng = np.random.default_rng(digit)
  own = rng.permutation(np.flatnonzero(labels == digit))
  rest = rng.permutation(np.flatnonzero(labels != digit))
  count = round(share * num_unlabeled)
  unlabeled = np.r_[own[80 : 80 + count], rest[: num_unlabeled - count]]
  return own[:80], rng.permutation(unlabeled)


def _held_out_scores(images, positive, unlabeled):
  """Two classifiers of positive against unlabeled, each scores what the other
  was trained on."""
  scores = np.empty(len(images))
  for half in (0, 1):
    rows = np.r_[positive[half::2], unlabeled[half::2]]
    is_positive = np.arange(len(rows)) < len(positive[half::2])
    model = svm.SVC(class_weight='balanced').fit(images[rows], is_positive)
    others = np.r_[positive[1 - half :: 2], unlabeled[1 - half :: 2]]
    scores[others] = model.decision_function(images[others])
  return scores[positive], scores[unlabeled]


class MixtureProportionTest(parameterized.TestCase):

  def test_is_the_best_bin(self):
    rng = np.random.default_rng(1)
    positive = rng.normal(2, 1, 40).round(1)  # with ties
    unlabeled = np.r_[rng.normal(2, 1, 30), rng.normal(-2, 1, 70)].round(1)
    found = analysis.mixture_proportion(positive, unlabeled)
    self.assertAlmostEqual(
        found.share, reference.best_bin(positive, unlabeled, 0.1, 0.01)
    )
    self.assertLess(abs(found.share - 0.3), 0.05)
    i = np.argmin(np.abs(np.unique(positive) - found.threshold))
    self.assertAlmostEqual(found.ratio[i], found.share)
    self.assertEqual(found.coverage[0], 1)

  @parameterized.parameters((0.1, 900, 0.02), (0.3, 300, 0.05), (0.5, 180, 0.1))
  def test_a_digit_against_the_rest(self, share, num_unlabeled, most):
    images, labels = datasets.load_digits(return_X_y=True)
    errors = []
    for digit in range(10):
      rows = _positive_and_unlabeled(labels, digit, share, num_unlabeled)
      found = analysis.mixture_proportion(*_held_out_scores(images / 16, *rows))
      self.assertGreater(found.upper, share)
      errors.append(found.share - share)
    self.assertLess(np.mean(np.abs(errors)), most / 2)
    self.assertLess(np.max(np.abs(errors)), most)

  def test_similarities_of_pairs_give_tau_plus(self):
    images, labels = datasets.load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(images))[:300]
    units = images[rows] / np.linalg.norm(images[rows], axis=1, keepdims=True)
    i, j = np.triu_indices(300, 1)
    cosines, same = (units @ units.T)[i, j], labels[rows[i]] == labels[rows[j]]
    found = analysis.mixture_proportion(
        rng.choice(cosines[same], 2000), cosines
    )
    self.assertAlmostEqual(found.share, same.mean(), delta=0.03)

  def test_alike_scores_are_all_positive(self):
    scores = np.random.default_rng(0).normal(size=(2, 500))
    self.assertGreater(analysis.mixture_proportion(*scores).share, 0.9)
    same = analysis.mixture_proportion(np.ones(9), np.ones(9))
    self.assertEqual((same.share, same.upper), (1, 1))

  def test_no_positives(self):
    found = analysis.mixture_proportion(np.arange(1.0, 99), -np.arange(1.0, 99))
    self.assertEqual(found.share, 0)

  @parameterized.parameters(
      (([], [1.0]), {}, 'positive_scores must have .*at least 1'),
      (([1.0], [np.inf]), {}, 'unlabeled_scores must be finite'),
      (([1.0], [1.0]), {'delta': 1.0}, r'delta must be in \(0, 1\), got 1'),
      (([1.0], [1.0]), {'gamma': 0.0}, 'gamma must be > 0'),
  )
  def test_refuses(self, scores, options, message):
    with self.assertRaisesRegex(ValueError, message):
      analysis.mixture_proportion(*scores, **options)
