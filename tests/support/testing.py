# SPDX-License-Identifier: Apache-2.0
"""What the tests of all losses share."""

import functools

from absl.testing import parameterized
import chex
import jax
import numpy as np

PAIRS = 4
TEMPERATURES = (1e-3, 1e-2, 0.05, 0.1, 0.5, 1.0, 10.0)
BETAS = (0.0, 0.5, 1.0, 2.0, 10.0, 100.0, 1e4)
TAUS = (0.0, 0.01, 0.1, 0.5, 0.99)


def jitted(function, *args, **knobs):
  """Calls a function as one program; each operation would be one by itself.

  Args:
    function: what to call.
    *args: arrays.
    **knobs: constants of the program.

  Returns:
    What the function returns.
  """
  return jax.jit(functools.partial(function, **knobs))(*args)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
  rng = np.random.default_rng(seed)
  return rng.standard_normal(shape).astype(np.float32)


def views(batch: int, dim: int, *, noise: float = 0.5, seed: int = 0):
  """Two noisy views of the same points."""
  points = normal(batch, dim, seed=seed)
  return tuple(
      points + np.float32(noise) * normal(batch, dim, seed=seed + k)
      for k in (1, 2)
  )


def geometries() -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Easy, degenerate and adversarial sets of pairs."""
  random = views(PAIRS, 5)
  one = np.tile(normal(1, 5), (PAIRS, 1))
  eye = np.eye(PAIRS, dtype=np.float32)
  duplicated = tuple(np.concatenate([z[:2], z[:2]]) for z in random)
  crowded = tuple(
      one + np.float32(1e-3) * normal(PAIRS, 5, seed=k) for k in (3, 4)
  )
  half = np.where(np.arange(PAIRS)[:, None] < PAIRS // 2, one, -one)
  return {
      'random': random,
      'identical': (one, one),
      'orthonormal': (eye, eye),
      'antipodal': (half, half),
      'duplicated': duplicated,
      'crowded': crowded,
  }


def value_error(actual, expected) -> float:
  """|dv| / max(|v|, 1e-6), the largest."""
  actual, expected = _pair(actual, expected)
  return np.max(np.abs(actual - expected) / np.maximum(np.abs(expected), 1e-6))


def gradient_error(actual, expected, unit: float = 0.0) -> float:
  """max |dg| / max(max |g|, unit)."""
  actual, expected = _pair(actual, expected)
  size = max(np.max(np.abs(expected)), unit)
  return np.max(np.abs(actual - expected)) / (size or 1.0)


def _pair(actual, expected):
  return np.asarray(actual, np.float64), np.asarray(expected, np.float64)


class LossTest(chex.TestCase, parameterized.TestCase):
  """Compares a loss with the oracle and with itself."""

  def assert_close(self, actual, expected, tolerance=1e-5):
    chex.assert_shape(actual, np.shape(expected))
    self.assertLessEqual(value_error(actual, expected), tolerance)

  def assert_same_gradient(self, actual, expected, tolerance=1e-5, unit=0.0):
    chex.assert_trees_all_equal_shapes(actual, expected)
    for a, e in zip(
        jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
    ):
      self.assertLessEqual(gradient_error(a, e, unit), tolerance)

  def assert_finite(self, tree):
    for leaf in jax.tree.leaves(tree):
      self.assertTrue(np.all(np.isfinite(leaf)))
