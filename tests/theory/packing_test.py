# SPDX-License-Identifier: Apache-2.0
"""Packings against known optima, and embeddings that train towards them."""

from absl.testing import absltest
from absl.testing import parameterized
import jax.numpy as jnp
import numpy as np

from hcl_jax import theory
from hcl_jax.theory import packing
from tests import reference
from tests.support import testing


def _polygon(n):
  angles = 2 * np.pi * np.arange(n) / n
  return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _uniform(n):
  return np.full(n, 1 / n)


class TammesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('pentagon', 5, 2, 72.0),
      ('tetrahedron', 4, 3, 109.471221),
      ('octahedron', 6, 3, 90.0),
      ('seven', 7, 3, 77.869542),
      ('icosahedron', 12, 3, 63.434949),
      ('simplex', 10, 9, 96.379370),
  )
  def test_finds_the_optimum(self, num_points, dim, degrees):
    found = theory.tammes_packing(num_points, dim)
    self.assertEqual(found.points.shape, (num_points, dim))
    np.testing.assert_allclose(np.linalg.norm(found.points, axis=1), 1)
    cosines = found.points @ found.points.T - 2 * np.eye(num_points)
    self.assertAlmostEqual(np.cos(found.angle), cosines.max())
    self.assertAlmostEqual(np.degrees(found.angle), degrees, delta=1e-3)
    known = theory.known_angle(num_points, dim)
    self.assertAlmostEqual(np.degrees(known), degrees, delta=1e-4)

  def test_the_same_seed_gives_the_same_points(self):
    options = {'num_restarts': 2, 'num_steps': 20}
    one, same, other = (
        theory.tammes_packing(5, 3, seed=seed, **options).points
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, same)
    self.assertFalse(np.array_equal(one, other))

  def test_known_angles(self):
    degrees = lambda *size: np.degrees(theory.known_angle(*size))  # noqa: E731
    self.assertAlmostEqual(degrees(2, 7), 180)
    self.assertAlmostEqual(degrees(3, 5), 120)
    self.assertAlmostEqual(degrees(9, 5), 90)
    self.assertAlmostEqual(degrees(9, 2), 40)
    self.assertIsNone(theory.known_angle(15, 3))
    self.assertIsNone(theory.known_angle(11, 5))

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, 'num_points must be >= 2, got 1'):
      theory.tammes_packing(1, 3)
    with self.assertRaisesRegex(ValueError, 'dim must be >= 2, got 1'):
      theory.known_angle(3, 1)
    with self.assertRaisesRegex(ValueError, 'num_steps must be >= 1, got 0'):
      theory.tammes_packing(3, 2, num_steps=0)


class BallPackingTest(parameterized.TestCase):

  def test_value(self):
    points = 3 * _polygon(5)[:4]  # the ends have one neighbor, 72 degrees off
    value = 2 - 2 * np.cos(np.radians(72))
    self.assertAlmostEqual(theory.packing_value(points), value, places=6)
    points[3] = -points[1]
    rho = np.array([0.4, 0.3, 0.2, 0.1])
    squared = np.sum((points[:, None] - points[None]) ** 2, axis=-1) / 9
    nearest = np.min(squared + 9 * np.eye(4), axis=1)
    self.assertAlmostEqual(
        theory.packing_value(points, rho), rho @ nearest, places=6
    )

  @parameterized.parameters((6, 3, 2.0), (12, 3, 1.105573))
  def test_agrees_with_tammes_on_solids(self, num_points, dim, value):
    found = theory.ball_packing(_uniform(num_points), dim)
    self.assertAlmostEqual(found.value, value, delta=1e-4)
    self.assertAlmostEqual(
        found.angle, theory.known_angle(num_points, dim), delta=1e-3
    )

  def test_the_heptagon_is_not_the_best_on_the_circle(self):
    heptagon = theory.packing_value(_polygon(7))
    self.assertAlmostEqual(heptagon, 0.7530, places=4)
    triangle = theory.packing_value(_polygon(3)[[0, 1, 2, 2, 2, 2, 2]])
    self.assertAlmostEqual(triangle, 6 / 7, places=5)
    found = theory.ball_packing(_uniform(7), 2)
    self.assertGreater(found.value, 6 / 7 - 1e-4)
    self.assertLess(found.angle, 0.01)

  def test_five_in_space_give_up_the_right_angle(self):
    found = theory.ball_packing(_uniform(5), 3)
    self.assertAlmostEqual(found.value, 2.025, delta=1e-4)
    self.assertAlmostEqual(np.degrees(found.angle), 89.10, delta=0.01)

  def test_heavy_classes_stand_apart(self):
    # The light ones at angles a on both sides of what is opposite the heavy one
    # have the value .7 (2 + 2 cos a) + .3 (4 sin^2 a), largest at cos a = 7/12;
    # up to a weight of 2/3 the triangle is best.
    rho = np.array([0.7, 0.15, 0.15])
    found = theory.ball_packing(rho, 2)
    even = theory.packing_value(_polygon(3), rho)
    self.assertGreater(found.value, even)
    self.assertAlmostEqual(
        found.value, 2.6 + 1.4 * 7 / 12 - 1.2 * (7 / 12) ** 2, places=5
    )
    self.assertAlmostEqual(
        found.value, theory.packing_value(found.points, rho), places=5
    )
    light = found.points[1] @ found.points[2]
    self.assertGreater(light, found.points[0] @ found.points[1])

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, 'class_prior must have positive'):
      theory.ball_packing([0.5, 0.6], 2)
    with self.assertRaisesRegex(ValueError, 'one entry for each point; got 2'):
      theory.packing_value(_polygon(3), [0.5, 0.5])


class ToyTest(absltest.TestCase):

  def test_loss(self):
    points = testing.normal(3, 4, 2)
    flat = points.reshape(12, 2)
    logits = (flat @ flat.T / 0.5).astype(float)
    expected = 0
    for i in range(12):
      own = range(i // 4 * 4, i // 4 * 4 + 4)
      pos = [logits[i, j] for j in own if j != i]
      neg = [logits[i, j] for j in range(12) if j not in own]
      expected += reference.hard_nce(pos, neg, 2.0, 0.0)
    actual = packing._loss(jnp.asarray(points), 2.0, 0.5)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)

  def test_a_large_beta_trains_towards_the_packing(self):
    runs = {
        beta: theory.train_free_embeddings(8, 3, beta=beta)
        for beta in (0.0, 5.0, 50.0)
    }
    to_go = [np.degrees(run.angles_to_go[-1]) for run in runs.values()]
    self.assertGreater(to_go[0], 3)
    self.assertBetween(to_go[1], 0.2, 1)
    self.assertBetween(to_go[2], 0, 0.1)
    hard = runs[50.0]
    self.assertGreater(np.degrees(hard.angles_to_go[0]), 20)
    self.assertLess(hard.values_to_go[-1], 1e-2)
    self.assertGreater(hard.values_to_go[0], 0.2)
    self.assertGreater(hard.spreads[0], 0.2)
    self.assertLess(hard.spreads[-1], 1e-4)

  def test_frames(self):
    run = theory.train_free_embeddings(
        3, 2, num_rows=4, num_steps=50, num_frames=6
    )
    np.testing.assert_array_equal(run.steps, [0, 2, 8, 18, 32, 50])
    self.assertEqual(run.embeddings.shape, (6, 12, 2))
    np.testing.assert_array_equal(run.labels, np.repeat([0, 1, 2], 4))
    np.testing.assert_allclose(
        np.linalg.norm(run.embeddings, axis=-1), 1, rtol=1e-5
    )
    mean = run.embeddings[-1, 4:8].mean(0)
    np.testing.assert_allclose(
        run.class_means[-1, 1], mean / np.linalg.norm(mean)
    )
    again = theory.train_free_embeddings(
        3, 2, num_rows=4, num_steps=50, num_frames=2
    )
    np.testing.assert_array_equal(again.embeddings, run.embeddings[[0, -1]])

  def test_seven_classes_on_the_circle_fall_together(self):
    run = theory.train_free_embeddings(
        7, 2, warmup=0.0, learning_rate=0.05, num_frames=2
    )
    self.assertLess(run.angles[-1], 0.01)
    self.assertGreater(run.values[-1], 0.753)

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, 'num_rows must be >= 2, got 1'):
      theory.train_free_embeddings(3, 2, num_rows=1)
    with self.assertRaisesRegex(ValueError, r'warmup must be in \[0, 1\]'):
      theory.train_free_embeddings(3, 2, warmup=2.0)
