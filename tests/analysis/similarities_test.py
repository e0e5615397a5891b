# SPDX-License-Identifier: Apache-2.0
"""Similarities of pairs and weights of negatives, against loops in float64."""

import doctest

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

import hcl_jax
from hcl_jax import analysis
from hcl_jax.analysis import negatives
from hcl_jax.analysis import repeats
from hcl_jax.analysis import similarities
from tests import reference
from tests.support import testing

_LABELS = np.random.default_rng(5).integers(0, 3, 37)


def _rows():
  return testing.normal(37, 5)


class HistogramTest(parameterized.TestCase):

  @parameterized.parameters(5, 36, 1000)
  def test_counts_every_pair_once(self, block_size):
    found = analysis.similarity_histograms(
        _rows(), _LABELS, num_bins=13, block_size=block_size
    )
    same, different = reference.similarity_histograms(_rows(), _LABELS, 13)
    np.testing.assert_array_equal(found.same, same)
    np.testing.assert_array_equal(found.different, different)
    self.assertEqual(found.same.sum() + found.different.sum(), 37 * 36 // 2)
    np.testing.assert_allclose(found.edges, np.linspace(-1, 1, 14))

  def test_duplicates_opposites_and_zeros_are_in_the_outer_bins(self):
    rows = np.float32([[3, 4], [3e-8, 4e-8], [-30, -40], [0, 0]])
    found = analysis.similarity_histograms(rows, [0, 0, 0, 1], num_bins=4)
    np.testing.assert_array_equal(found.same, [2, 0, 0, 1])
    np.testing.assert_array_equal(found.different, [0, 0, 3, 0])

  def test_overlap(self):
    found = analysis.SimilarityHistograms(
        np.linspace(-1, 1, 4), np.array([1, 3, 0]), np.array([2, 2, 4])
    )
    self.assertAlmostEqual(analysis.overlap_coefficient(found), 0.5)
    apart = found._replace(different=np.array([0, 0, 9]))
    self.assertEqual(analysis.overlap_coefficient(apart), 0)
    alike = found._replace(different=7 * found.same)
    self.assertAlmostEqual(analysis.overlap_coefficient(alike), 1)

  def test_one_class_has_no_overlap(self):
    found = analysis.similarity_histograms(_rows(), np.zeros(37, int))
    self.assertEqual(found.different.sum(), 0)
    self.assertTrue(np.isnan(analysis.overlap_coefficient(found)))

  @parameterized.parameters(
      (_rows()[0], _LABELS, 'embeddings must have rank 2'),
      (_rows()[:1], _LABELS[:1], 'embeddings must have at least 2 rows'),
      (_rows(), _LABELS[:9], r'labels must have shape \(37,\).*got \(9,\)'),
      (_rows(), _LABELS / 2, 'labels must be an integer array'),
      (_rows() + [[np.nan] + 4 * [0]], _LABELS, '37 of 37 rows are not, .* 0'),
  )
  def test_refuses(self, rows, labels, message):
    with self.assertRaisesRegex(ValueError, message):
      analysis.similarity_histograms(rows, labels)


class SphereTest(parameterized.TestCase):

  def test_alignment(self):
    z1, z2 = testing.views(9, 5)
    one, two = (
        np.array([reference.unit(x) for x in reference.numbers(z)])
        for z in (z1, z2)
    )
    expected = np.mean(np.sum((one - two) ** 2, axis=1))
    self.assertAlmostEqual(analysis.alignment(z1, 3 * z2), expected, places=6)
    self.assertEqual(analysis.alignment(z1, 2 * z1), 0)

  @parameterized.product(scale=(2.0, 30.0), block_size=(9, 100))
  def test_uniformity(self, scale, block_size):
    actual = analysis.uniformity(_rows(), scale=scale, block_size=block_size)
    expected = reference.uniformity(_rows(), scale)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)

  def test_uniformity_of_a_point_and_at_a_large_scale(self):
    self.assertAlmostEqual(
        analysis.uniformity(np.ones((4, 3), np.float32)), 0, places=5
    )
    opposite = np.float32([[1, 0], [-1, 0]])
    self.assertAlmostEqual(analysis.uniformity(opposite, scale=1e4), -4e4)

  @parameterized.product(labeled=(False, True), block_size=(3, 100))
  def test_margins(self, labeled, block_size):
    z1, z2 = testing.views(9, 5)
    ids = _LABELS[:9] if labeled else np.arange(9)
    found = analysis.pair_similarities(
        z1, z2, labels=ids if labeled else None, block_size=block_size
    )
    cosines = np.array(reference.cosines(np.concatenate([z1, z2])))
    for i in range(18):
      others = [cosines[i, j] for j in range(18) if ids[i % 9] != ids[j % 9]]
      positive = cosines[i, (i + 9) % 18]
      np.testing.assert_allclose(
          [found.margin[i], found.hardest_margin[i]],
          [positive - np.mean(others), positive - max(others)],
          atol=1e-6,
      )

  def test_one_class_has_no_margin(self):
    found = analysis.pair_similarities(*testing.views(4, 3), labels=[1] * 4)
    self.assertTrue(np.isnan(found.margin).all())
    self.assertTrue(np.isnan(found.hardest_margin).all())


class FalseNegativesTest(parameterized.TestCase):

  @parameterized.product(views=(False, True), block_size=(5, 100))
  def test_shares_of_the_hardest(self, views, block_size):
    rows, n = _rows(), 37
    ids = np.arange(n) // 2 if views else np.arange(n)
    found = analysis.false_negatives(
        rows,
        _LABELS,
        k=(2, 9),
        ids=ids if views else None,
        block_size=block_size,
    )
    cosines = reference.cosines(rows)
    shares, hits, total = {2: [], 9: []}, 0, 0
    for i in range(n):
      others = [j for j in range(n) if ids[j] != ids[i]]
      same = [_LABELS[j] == _LABELS[i] for j in others]
      hits, total = hits + sum(same), total + len(same)
      ranked = sorted(others, key=lambda j, i=i: -cosines[i][j])
      for k, share in shares.items():
        share.append(np.mean([_LABELS[j] == _LABELS[i] for j in ranked[:k]]))
    np.testing.assert_allclose(
        found.fraction, [np.mean(shares[2]), np.mean(shares[9])]
    )
    self.assertAlmostEqual(found.base_rate, hits / total)

  def test_refuses_more_than_there_are(self):
    with self.assertRaisesRegex(ValueError, 'got k = 37, and row 0 has 36'):
      analysis.false_negatives(_rows(), _LABELS, k=(1, 37))
    with self.assertRaisesRegex(ValueError, 'k must have at least one number'):
      analysis.false_negatives(_rows(), _LABELS, k=())


class TiltingTest(parameterized.TestCase):

  @parameterized.product(
      beta=(0.0, 0.5, 3.0), order=(1, 2), masked=(False, True)
  )
  def test_effective_negatives(self, beta, order, masked):
    logits = 2 * testing.normal(4, 11)
    keep = np.arange(11) % 3 > 0 if masked else np.ones(11, bool)
    actual = analysis.effective_negatives(
        np.where(keep, logits, np.nan), beta=beta, order=order, where=keep
    )
    expected = [
        reference.effective_negatives(row[keep].tolist(), beta, order)
        for row in logits
    ]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    weights = analysis.negative_weights(logits, beta=beta, where=keep)
    for row, line in zip(logits, weights, strict=True):
      expected = reference.negative_weights(row[keep].tolist(), beta)
      np.testing.assert_allclose(line[keep], expected, rtol=1e-5)
      self.assertFalse(np.any(line[~keep]))

  @parameterized.parameters(1, 2)
  def test_limits_of_effective_negatives(self, order):
    count = lambda logits, **options: float(  # noqa: E731
        analysis.effective_negatives(jnp.array(logits), order=order, **options)
    )
    self.assertAlmostEqual(count([1.0, 9.0, 3.0], beta=0.0), 3, places=5)
    self.assertEqual(count([1.0, 9.0, 3.0], beta=1e6), 1)
    self.assertAlmostEqual(count([1.0, 9.0, 9.0], beta=1e6), 2, places=5)
    none = jnp.zeros(2, bool)
    self.assertEqual(count([1.0, 9.0], beta=1.0, where=none), 0)

  def test_beta_may_be_traced(self):
    logits = jnp.asarray(testing.normal(2, 5))
    curve = jax.jit(jax.vmap(
        lambda beta: analysis.effective_negatives(logits, beta=beta)
    ))(jnp.array([0.0, 1.0, 4.0]))  # fmt: skip
    self.assertTrue(np.all(np.diff(curve, axis=0) < 0))

  @parameterized.product(
      beta=(0.0, 1.0), tau_plus=(0.0, 0.3), sphere=(False, True)
  )
  def test_clamp_fraction(self, beta, tau_plus, sphere):
    pos, neg = 2 * testing.normal(50), testing.normal(50, 7, seed=1)
    log_floor = -1.0 if sphere else None
    actual = analysis.clamp_fraction(
        pos, neg, beta=beta, tau_plus=tau_plus, log_floor=log_floor
    )
    expected = [
        reference.negative_mass(
            [float(p)], row.tolist(), beta, tau_plus, log_floor=log_floor
        )[3]
        for p, row in zip(pos, neg, strict=True)
    ]
    self.assertAlmostEqual(float(actual), np.mean(expected), places=6)
    if tau_plus == 0.3:
      self.assertBetween(np.mean(expected), 0.1, 0.9)

  def test_two_view_logits_are_those_of_the_loss(self):
    z1, z2 = testing.views(6, 4)
    for labels in (None, np.array([0, 0, 1, 1, 2, 2])):
      pos, neg, where = analysis.two_view_logits(
          z1, z2, temperature=0.3, labels=labels
      )
      losses = hcl_jax.hard_nce_loss(
          pos, neg, where=where, log_floor=-1 / 0.3
      ).reshape(2, 6)
      np.testing.assert_allclose(
          losses.mean(0),
          hcl_jax.simclr_loss(
              z1, z2, temperature=0.3, beta=1.0, labels=labels
          ),
          rtol=1e-5,
      )

  def test_draws_agree_with_the_weights(self):
    logits = testing.normal(3, 6)
    keep = np.array([True, True, False, True, True, True])
    draws = analysis.sample_negatives(
        jax.random.key(0), logits, beta=1.5, num_samples=40_000, where=keep
    )
    self.assertEqual(draws.shape, (3, 40_000))
    for row, drawn in zip(logits, np.asarray(draws), strict=True):
      weights = np.array(reference.negative_weights(row[keep].tolist(), 1.5))
      counts = np.bincount(drawn, minlength=6)
      self.assertEqual(counts[2], 0)
      expected = 40_000 * weights
      chi_square = np.sum((counts[keep] - expected) ** 2 / expected)
      self.assertLess(chi_square, 18.5)  # 0.999 quantile, 4 degrees of freedom
      values = np.exp(row[drawn])
      error = values.std() / 200
      mean = reference.tilted_mean(row[keep].tolist(), 1.5)
      self.assertLess(abs(values.mean() - mean), 4 * error)

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, 'order must be one of 1, 2'):
      analysis.effective_negatives(jnp.ones(3), beta=1.0, order=3)
    with self.assertRaisesRegex(ValueError, r'\[\.\.\., N\] with N >= 1'):
      analysis.negative_weights(jnp.ones((3, 0)), beta=1.0)
    with self.assertRaisesRegex(ValueError, r'got \(2,\) and \(3, 4\)'):
      analysis.clamp_fraction(jnp.ones(2), jnp.ones((3, 4)))


class GalleryTest(absltest.TestCase):

  def test_hardest_and_random(self):
    rows, ids = _rows(), np.arange(37) // 2
    found = analysis.hard_negative_gallery(rows, [4, 0], k=7, ids=ids, seed=1)
    cosines = np.array(reference.cosines(rows))
    for i, anchor in enumerate((4, 0)):
      others = np.flatnonzero(ids != ids[anchor])
      ranked = others[np.argsort(-cosines[anchor, others])]
      np.testing.assert_array_equal(found.hardest[i], ranked[:7])
      self.assertContainsSubset(found.random[i], others)
      self.assertLen(set(found.random[i].tolist()), 7)
      for kind in ('hardest', 'random'):
        np.testing.assert_allclose(
            getattr(found, f'{kind}_similarities')[i],
            cosines[anchor, getattr(found, kind)[i]],
            atol=1e-6,
        )
    again = analysis.hard_negative_gallery(rows, [4, 0], k=7, ids=ids, seed=1)
    np.testing.assert_array_equal(again.random, found.random)

  def test_text(self):
    rows = np.float32([[1, 0], [1, 0.1], [-1, 0]])
    found = analysis.hard_negative_gallery(rows, [0], k=2)
    items = ['a dog', 'a cat', 'a law']
    text = analysis.gallery_text(found, items, labels=[0, 0, 1])
    self.assertStartsWith(
        text, 'a dog\n  hardest\n  * +0.995  a cat\n    -1.000  a law\n  random'
    )
    self.assertIn('    -1.000  #2', analysis.gallery_text(found))
    self.assertNotIn('*', analysis.gallery_text(found))
    with self.assertRaisesRegex(ValueError, 'items must have .*at least 3.*2'):
      analysis.gallery_text(found, ['a', 'b'])

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, 'anchors must be from 0 to 36.*37'):
      analysis.hard_negative_gallery(_rows(), [3, 37])
    with self.assertRaisesRegex(ValueError, 'at least one int;'):
      analysis.hard_negative_gallery(_rows(), [])
    with self.assertRaisesRegex(ValueError, 'got k = 10, and row 1 has 0'):
      analysis.hard_negative_gallery(_rows(), [1], ids=[0] * 37)


class CurvesTest(absltest.TestCase):

  def test_first_epoch_at_the_target(self):
    epochs, scores = [1, 3, 5, 9], [0.1, 0.5, 0.4, 0.9]
    reach = lambda target, **options: analysis.epochs_to_reach(  # noqa: E731
        epochs, scores, target, **options
    )
    self.assertEqual(reach(0.5), 3)
    self.assertEqual(reach(0.5, interpolate=True), 3)
    self.assertAlmostEqual(reach(0.3, interpolate=True), 2)
    self.assertEqual(reach(0.6), 9)
    self.assertAlmostEqual(reach(0.65, interpolate=True), 7)
    self.assertEqual(reach(0.05, interpolate=True), 1)
    self.assertIsNone(reach(0.91))
    self.assertIsNone(reach(0.91, interpolate=True))

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, 'epochs must rise'):
      analysis.epochs_to_reach([1, 1], [0.1, 0.2], 0.5)
    with self.assertRaisesRegex(ValueError, 'same length; got 2 and 1'):
      analysis.epochs_to_reach([1, 2], [0.1], 0.5)
    with self.assertRaisesRegex(ValueError, 'scores must be finite'):
      analysis.epochs_to_reach([1, 2], [0.1, np.nan], 0.5)


class ExamplesTest(parameterized.TestCase):

  @parameterized.parameters(negatives, repeats, similarities)
  def test_examples(self, module):
    result = doctest.testmod(module)
    self.assertGreater(result.attempted, 0)
    self.assertEqual(result.failed, 0)
