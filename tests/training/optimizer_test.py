# SPDX-License-Identifier: Apache-2.0
"""Optimizers and learning rates by configuration, against numpy."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax.images import config as image_config
from hcl_jax.training import optimizer as optimizer_lib


def _config(**knobs):
  config = image_config.simclr().optimizer
  config.update(knobs)
  return config


def _run(config, grads, params):
  """Parameters after one update for each gradient."""
  optimizer = optimizer_lib.create(config, lambda _: config.learning_rate)
  with jax.numpy_dtype_promotion('standard'):
    state = optimizer.init(params)
    for g in grads:
      updates, state = optimizer.update(g, state, params)
      params = jax.tree.map(jnp.add, params, updates)
  return params


class OptimizerTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    rng = np.random.default_rng(0)
    self.params = {
        'kernel': rng.standard_normal((3, 2)).astype(np.float32),
        'bias': rng.standard_normal(2).astype(np.float32),
    }
    self.grads = [
        jax.tree.map(
            lambda x: rng.standard_normal(x.shape).astype(np.float32),
            self.params,
        )
        for _ in range(3)
    ]

  def test_adam_adds_l2_to_the_gradient(self):
    config = _config(weight_decay=0.1, learning_rate=0.01)
    actual = _run(config, self.grads, self.params)
    for name, x in self.params.items():
      x, m, v = np.float64(x), 0.0, 0.0
      for t, g in enumerate(self.grads, 1):
        g = g[name] + 0.1 * x
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        x -= 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
      np.testing.assert_allclose(actual[name], x, rtol=1e-5)

  def test_adamw_decays_apart_from_the_gradient(self):
    config = _config(
        name='adamw', weight_decay=0.1, learning_rate=0.01, decay_vectors=False
    )
    decayed = _run(config, self.grads[:1], self.params)
    plain = _run(_config(weight_decay=0.0, learning_rate=0.01),
                 self.grads[:1], self.params)  # fmt: skip
    np.testing.assert_allclose(
        decayed['kernel'],
        plain['kernel'] - 0.01 * 0.1 * self.params['kernel'],
        rtol=1e-5,
    )
    np.testing.assert_allclose(decayed['bias'], plain['bias'], rtol=1e-6)

  @parameterized.parameters(True, False)
  def test_sgd_with_momentum(self, decay_vectors):
    config = _config(
        name='sgd', weight_decay=0.1, learning_rate=0.01,
        decay_vectors=decay_vectors,
    )  # fmt: skip
    actual = _run(config, self.grads, self.params)
    for name, x in self.params.items():
      x, m = np.float64(x), 0.0
      decay = 0.1 if decay_vectors or x.ndim > 1 else 0.0
      for g in self.grads:
        m = 0.9 * m + g[name] + decay * x
        x -= 0.01 * m
      np.testing.assert_allclose(actual[name], x, rtol=1e-5)

  def test_lars_scales_matrices_by_their_norm(self):
    config = _config(
        name='lars', weight_decay=0.0, learning_rate=0.5, momentum=0.0
    )
    g = self.grads[0]
    actual = _run(config, [g], self.params)
    kernel = self.params['kernel']
    trust = np.linalg.norm(kernel) / np.linalg.norm(g['kernel'])
    np.testing.assert_allclose(
        actual['kernel'], kernel - 0.5 * 0.001 * trust * g['kernel'], rtol=1e-4
    )
    np.testing.assert_allclose(
        actual['bias'], self.params['bias'] - 0.5 * g['bias'], rtol=1e-5
    )

  def test_clipping_bounds_the_norm_before_decay(self):
    config = _config(
        name='sgd', weight_decay=0.1, learning_rate=1.0, momentum=0.0,
        clip_norm=0.5,
    )  # fmt: skip
    g = self.grads[0]
    norm = np.sqrt(sum((x**2).sum() for x in g.values()))
    actual = _run(config, [g], self.params)
    for name, x in self.params.items():
      expected = x - g[name] * 0.5 / norm - 0.1 * x
      np.testing.assert_allclose(actual[name], expected, rtol=1e-5)


  def test_clipping_of_each_variable(self):
    config = _config(name='sgd', weight_decay=0.0, learning_rate=1.0,
                     momentum=0.0)  # fmt: skip
    with config.unlocked():
      config.clip_each_norm = 1.5
    g = self.grads[0]
    norms = {name: np.linalg.norm(x) for name, x in g.items()}
    self.assertLess(norms['bias'], 1.5)
    self.assertGreater(norms['kernel'], 1.5)
    actual = _run(config, [g], self.params)
    for name, x in self.params.items():
      expected = x - g[name] * min(1.5 / norms[name], 1)
      np.testing.assert_allclose(actual[name], expected, rtol=1e-5)


class LearningRateTest(parameterized.TestCase):

  def _rates(self, steps, **knobs):
    config = _config(learning_rate=2.0, **knobs)
    schedule = optimizer_lib.learning_rate(config, 100, 10)
    with jax.numpy_dtype_promotion('standard'):
      return [float(schedule(step)) for step in steps]

  def test_constant(self):
    self.assertEqual(self._rates((0, 99)), [2.0, 2.0])

  def test_cosine_ends_at_the_last_rate(self):
    rates = self._rates((0, 50, 100), schedule='cosine',
                        final_learning_rate=0.5)  # fmt: skip
    np.testing.assert_allclose(rates, [2.0, 1.25, 0.5], rtol=1e-6)

  def test_warm_up_is_linear_and_moves_at_once(self):
    rates = self._rates(
        (0, 9, 19, 20, 60, 100), schedule='cosine', warmup_epochs=2.0
    )
    np.testing.assert_allclose(rates, [0.1, 1, 2, 2, 1, 0], atol=1e-6)

  def test_warm_up_then_constant(self):
    rates = self._rates((0, 9, 10, 99), warmup_epochs=1.0)
    np.testing.assert_allclose(rates, [0.2, 2, 2, 2], rtol=1e-6)
