# SPDX-License-Identifier: Apache-2.0
"""Beta by the effective number of negatives, dense, in tiles and on a ring."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import losses
from tests import reference
from tests.support import testing

P = jax.sharding.PartitionSpec
_FRACTIONS = 0.999, 0.95, 0.7, 0.3, 0.05
_KNOBS = {'temperature': 0.2, 'tau_plus': 0.1}


def _samples():
  """Returns logits of many shapes and sizes, 300 negatives each."""
  rng = np.random.default_rng(0)
  normal = rng.normal(size=(3, 300))
  first = np.arange(300)
  samples = {
      'normal': normal,
      'cosines': 0.09 * normal / 0.05,
      'huge': 1e5 * normal,
      'tiny': 0.02 * normal,
      'exponential': rng.exponential(size=(3, 300)),
      'cauchy': np.clip(rng.standard_cauchy(size=(3, 300)), -1e4, 1e4),
      'one_high': np.where(first == 0, 3.0, 0.0) + np.zeros((3, 1)),
      'ten_high': np.where(first < 10, 3.0, 0.0) + 1e-3 * normal,
  }
  return {k: x.astype(np.float32) for k, x in samples.items()}


def _shares(logits, betas):
  return [
      reference.perplexity(row.tolist(), float(beta)) / len(row)
      for row, beta in zip(logits, betas, strict=True)
  ]


class BetaForPerplexityTest(testing.LossTest):

  @parameterized.parameters(*_samples())
  def test_reaches_the_fraction_within_one_percent(self, name):
    logits = _samples()[name]
    for fraction in _FRACTIONS:
      with self.subTest(fraction=fraction):
        betas = losses.beta_for_perplexity(logits, fraction)
        np.testing.assert_allclose(
            _shares(logits, betas), fraction, rtol=0.01
        )

  def test_reaches_it_where_the_entropy_falls_steeply(self):
    logits = np.zeros((1, 2046), np.float32)
    logits[:, 0] = 3.0
    for fraction in (0.3, 0.1, 0.05):
      betas = losses.beta_for_perplexity(logits, fraction)
      np.testing.assert_allclose(_shares(logits, betas), fraction, rtol=0.01)

  def test_means_the_same_at_every_temperature(self):
    logits = _samples()['normal']
    one = losses.beta_for_perplexity(logits, 0.7)
    for scale in (0.1, 20.0, 1e3):
      scaled = losses.beta_for_perplexity(np.float32(scale) * logits, 0.7)
      np.testing.assert_allclose(scale * scaled, one, rtol=0.01)

  def test_falls_with_the_fraction(self):
    logits = _samples()['normal']
    betas = [losses.beta_for_perplexity(logits, f) for f in _FRACTIONS]
    self.assertTrue(np.all(np.diff(betas, axis=0) > 0))

  def test_what_cannot_be_reached_gives_the_largest_beta(self):
    logits = np.float32([
        [1, 1, 1, 0, 0, 0, 0, 0],  # ties at the top: a perplexity of 3 at least
        [2, 1, 0, 0, 0, 0, 0, 0],
        [5, 5, 5, 5, 5, 5, 5, 5],
    ])
    betas = losses.beta_for_perplexity(logits, 0.25)
    self.assertEqual(betas[0], 2048.0)
    self.assertLess(betas[1], 50.0)
    self.assertEqual(betas[2], 0.0)  # no beta changes the weights
    betas = losses.beta_for_perplexity(logits, 0.01, max_beta=50.0)
    np.testing.assert_array_equal(betas, [50.0, 50.0, 0.0])

  def test_the_whole_gives_0(self):
    betas = losses.beta_for_perplexity(_samples()['normal'], 1.0)
    np.testing.assert_array_equal(betas, 0.0)

  def test_masking_is_deletion(self):
    logits = _samples()['normal']
    where = np.ones((3, 300), bool)
    where[:, ::3] = False
    where[2] = False
    poisoned = np.where(where, logits, np.float32(np.nan))
    betas = losses.beta_for_perplexity(poisoned, 0.5, where=where)
    kept = logits[:2][where[:2]].reshape(2, -1)
    np.testing.assert_allclose(
        betas[:2], losses.beta_for_perplexity(kept, 0.5), rtol=1e-5
    )
    self.assertEqual(betas[2], 0.0)

  def test_has_no_gradient_and_any_leading_axes(self):
    logits = _samples()['normal'].reshape(3, 1, 300)
    betas, grad = jax.value_and_grad(
        lambda x: losses.beta_for_perplexity(x, 0.5).sum()
    )(logits)
    self.assertGreater(betas, 0)
    np.testing.assert_array_equal(grad, 0.0)
    self.assertEqual(losses.beta_for_perplexity(logits, 0.5).shape, (3, 1))

  def test_refuses_what_is_no_fraction(self):
    for fraction in (0.0, 1.1, -1.0, float('nan')):
      with self.assertRaisesRegex(ValueError, 'fraction must be'):
        losses.beta_for_perplexity(_samples()['normal'], fraction)


class EffectiveNegativesTest(testing.LossTest):

  @parameterized.parameters('simclr', 'in_batch', 'moco')
  def test_blocks_change_nothing(self, name):
    arrays = testing.views(24, 6)
    if name == 'moco':
      arrays += (testing.normal(50, 6, seed=7),)
    loss = getattr(losses, f'{name}_loss')

    def mean(arrays, fraction, block_size):
      values = loss(
          *arrays, effective_negatives=fraction, block_size=block_size, **_KNOBS
      )
      return values.mean(), values

    both = [
        jax.jit(jax.grad(mean, has_aux=True), static_argnums=2)(arrays, 0.5, b)
        for b in (200, 7)
    ]
    (dense_grads, dense), (grads, values) = both
    self.assert_close(values, dense, 1e-4)
    self.assert_same_gradient(grads, dense_grads, 1e-4)

  @parameterized.parameters('simclr', 'in_batch')
  def test_crowded_rows_have_their_share(self, name):
    """Rows whose beta / t is far above 32, beside rows with less."""
    z1, z2 = testing.views(24, 6)
    crowded = np.arange(24)[:, None] < 16
    z1, z2 = (np.where(crowded, 1 + 0.03 * z, z) for z in (z1, z2))
    rows, others = [np.array(z) for z in (z1, z2)]
    if name == 'simclr':
      rows = others = np.concatenate([z1, z2])
    n = len(rows)
    pair = np.arange(n) % 24
    where = pair[:, None] != pair[None, :]
    cosines = np.array(reference.cosines(np.concatenate([rows, others])))
    logits = cosines[:n, n:] / 0.2
    kept = logits[where].reshape(n, -1)
    betas = np.float32(
        [reference.beta_for_perplexity(row.tolist(), 0.2) for row in kept]
    )
    self.assertGreater(betas.max() / 0.2, 100)
    loss = getattr(losses, f'{name}_loss')
    for block_size in (200, 7):
      given = {'block_size': block_size, **_KNOBS}
      self.assert_close(
          loss(z1, z2, effective_negatives=0.2, **given),
          loss(z1, z2, beta=betas, **given),
          2e-3,
      )

  @parameterized.parameters(100, 7)
  def test_is_the_loss_with_these_betas(self, block_size):
    z1, z2 = testing.views(24, 6)
    negatives = testing.normal(5, 6, seed=3)
    cosines = np.array(
        reference.cosines(np.concatenate([z1, z2, negatives]))
    )[:24, 24:]
    where = np.concatenate(
        [~np.eye(24, dtype=bool), np.ones((24, 5), bool)], axis=1
    )
    betas = losses.beta_for_perplexity(
        np.float32(cosines / 0.2), 0.6, where=where
    )
    given = {'negatives': negatives, 'block_size': block_size, **_KNOBS}
    self.assert_close(
        losses.in_batch_loss(z1, z2, effective_negatives=0.6, **given),
        losses.in_batch_loss(z1, z2, beta=betas, **given),
        1e-3,
    )

  def test_logits(self):
    pos, neg = testing.normal(5), testing.normal(5, 30, seed=1)
    betas = losses.beta_for_perplexity(neg, 0.4)
    self.assert_close(
        losses.hard_nce_loss(pos, neg, effective_negatives=0.4),
        losses.hard_nce_loss(pos, neg, beta=betas),
    )

  @parameterized.parameters(None, 3)
  def test_devices_change_nothing(self, block_size):
    z1, z2 = testing.views(24, 6)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ('batch',))

    def mean(z1, z2, **where):
      return losses.in_batch_loss(
          z1, z2, effective_negatives=0.5, **_KNOBS, **where
      ).mean()

    def local(z1, z2):
      return jax.lax.pmean(
          mean(z1, z2, axis_name='batch', block_size=block_size), 'batch'
      )

    whole = jax.shard_map(
        local, mesh=mesh, in_specs=(P('batch'), P('batch')), out_specs=P()
    )
    value, grads = jax.jit(jax.value_and_grad(whole, (0, 1)))(z1, z2)
    expected, expected_grads = jax.value_and_grad(mean, (0, 1))(z1, z2)
    self.assert_close(value, expected, 1e-4)
    self.assert_same_gradient(grads, expected_grads, 1e-4)

  def test_excludes_beta(self):
    with self.assertRaisesRegex(ValueError, 'exclude each other; got beta=2'):
      losses.simclr_loss(
          *testing.views(4, 3), beta=2.0, effective_negatives=0.5
      )
    with self.assertRaisesRegex(
        ValueError, r'effective_negatives must be in \(0, 1\], got 3'
    ):
      losses.simclr_loss(*testing.views(4, 3), effective_negatives=3)

  def test_a_large_temperature_or_a_traced_fraction(self):
    z1, z2 = testing.views(12, 4)
    loss = jax.jit(
        lambda f, t: losses.simclr_loss(
            z1, z2, effective_negatives=f, temperature=t
        )
    )
    for temperature in (0.01, 1.0, 100.0):
      self.assert_finite(loss(jnp.float32(0.8), jnp.float32(temperature)))
