# SPDX-License-Identifier: Apache-2.0
"""in_batch_loss by inner products, normalize=False."""

import functools

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import mpmath
import numpy as np

from hcl_jax import losses
from tests import reference
from tests.support import compiler
from tests.support import testing

P = jax.sharding.PartitionSpec
_MP = mpmath.mp.clone()
_MP.dps = 30


def _towers(size=1.0, batch=7):
  """Returns embeddings whose products are about ``size``, without rounding."""
  z = [np.round(4 * x) / 4 for x in testing.views(batch, 4)]
  return tuple(np.float32(np.sqrt(size) * x) for x in z)


@functools.cache
def _loss(block_size, floor='sphere'):
  def mean(arrays, knobs, negatives):
    values = losses.in_batch_loss(
        *arrays, negatives=negatives, normalize=False, block_size=block_size,
        floor=floor, **knobs,
    )  # fmt: skip
    return values.mean(), values

  return compiler.optimized(jax.grad(mean, (0, 1), has_aux=True))


class InnerProductsTest(testing.LossTest):

  @parameterized.product(
      size=(2.0**-10, 1.0, 2.0**10), block_size=(None, 3)
  )
  def test_matches_the_oracle(self, size, block_size):
    arrays = _towers(size)
    negatives = np.flip(arrays[1][:5], axis=1)
    for temperature in (0.05, 1.0, 100.0):
      for beta, tau_plus in ((0.0, 0.0), (1.0, 0.1), (20.0, 0.0)):
        knobs = {
            'temperature': temperature, 'beta': beta, 'tau_plus': tau_plus
        }  # fmt: skip
        knobs = {k: np.float32(v) for k, v in knobs.items()}
        with self.subTest(**knobs):
          (grads, slopes), values = _loss(block_size)(
              arrays, knobs, negatives
          )
          exact = {k: _MP.mpf(float(v)) for k, v in knobs.items()}

          def oracle(exact=exact):
            return reference.in_batch(
                *arrays, negatives=negatives, normalize=False, floor='none',
                m=_MP, **exact,
            )  # fmt: skip

          expected, *expected_grads = oracle()
          # Of a loss near e^{-61}, float32 has fewer digits.
          np.testing.assert_allclose(
              values, np.array(expected, float), rtol=2e-5, atol=1e-9
          )
          unit = np.sqrt(size) / temperature / 7
          for grad, other in zip(grads, expected_grads, strict=True):
            self.assert_same_gradient(
                grad, np.array(other, float), 2e-5, 1e-4 * unit
            )
          step = {'temperature': temperature * _MP.mpf(10) ** -12}
          ends = [
              sum(oracle(exact | {'temperature': x})[0]) / 7
              for x in (
                  exact['temperature'] - step['temperature'],
                  exact['temperature'] + step['temperature'],
              )
          ]
          slope = float((ends[1] - ends[0]) / (2 * step['temperature']))
          np.testing.assert_allclose(
              slopes['temperature'], slope, rtol=1e-4,
              atol=1e-6 * size / temperature**2,
          )  # fmt: skip

  @parameterized.parameters(None, 3)
  def test_products_that_are_all_negative(self, block_size):
    z1, z2 = map(np.abs, _towers(2.0**8))
    knobs = {'temperature': 1.0, 'beta': 1.0, 'tau_plus': 0.1}
    _, values = _loss(block_size)((z1, -z2), knobs, -z2[:2])
    expected, *_ = reference.in_batch(
        z1, -z2, negatives=-z2[:2], normalize=False, floor='none', m=_MP,
        **knobs,
    )  # fmt: skip
    self.assert_close(values, np.array(expected, float), 2e-5)

  def test_unit_vectors_give_the_loss_of_cosines(self):
    z1, z2 = (
        z / np.linalg.norm(z, axis=1, keepdims=True)
        for z in testing.views(9, 4)
    )
    margin = losses.Margin(0.1, guide=testing.views(9, 6, seed=3))
    for block_size in (None, 4):
      given = {
          'tau_plus': 0.1, 'margin': margin, 'floor': 'soft',
          'block_size': block_size, 'labels': np.arange(9) // 2,
      }  # fmt: skip
      self.assert_close(
          losses.in_batch_loss(z1, z2, normalize=False, **given),
          losses.in_batch_loss(z1, z2, **given),
      )

  @parameterized.parameters(None, 3)
  def test_a_margin_is_about_products(self, block_size):
    z1, z2 = _towers()
    given = {'temperature': 1.0, 'tau_plus': 0.1, 'beta': 1.0}
    values = losses.in_batch_loss(
        z1, z2, margin=0.3, normalize=False, block_size=block_size, **given
    )
    expected, *_ = reference.in_batch(
        z1, z2, margin=0.3, normalize=False, floor='none', **given
    )
    self.assert_close(values, expected)
    dropped = losses.in_batch_loss(
        z1, z2, margin=1e6, normalize=False, block_size=block_size, **given
    )
    np.testing.assert_array_equal(dropped, 0.0)

  def test_effective_negatives(self):
    for size in (2.0**-10, 2.0**10):
      z1, z2 = _towers(size, batch=24)
      z2[3] *= 64  # does not change how much the others differ
      own = np.stack([z1[:, ::-1], z2[:, ::-1]], axis=1)
      labels = np.where(np.arange(24) == 3, 0, np.arange(24))
      logits = np.concatenate(
          [z1 @ z2.T, np.einsum('bd,bnd->bn', z1, own)], axis=1
      )
      where = labels[:, None] != labels[None, :]
      where = np.concatenate([where, np.ones((24, 2), bool)], axis=1)
      betas = losses.beta_for_perplexity(logits, 0.6, where=where)
      given = {
          'negatives': own, 'temperature': 1.0, 'normalize': False,
          'labels': labels,
      }  # fmt: skip
      for block_size in (None, 7):
        self.assert_close(
            losses.in_batch_loss(
                z1, z2, effective_negatives=0.6, block_size=block_size, **given
            ),
            losses.in_batch_loss(z1, z2, beta=betas, **given),
            2e-3,
        )

  @parameterized.parameters(None, 2)
  def test_devices_change_nothing(self, block_size):
    z1, z2 = _towers(64.0, batch=32)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ('batch',))

    def mean(z1, z2, fraction, **where):
      return losses.in_batch_loss(
          z1, z2, negatives=z1[:, ::-1], effective_negatives=fraction,
          temperature=9.0, normalize=False, **where,
      ).mean()  # fmt: skip

    whole = jax.shard_map(
        lambda *a: jax.lax.pmean(
            mean(*a, axis_name='batch', block_size=block_size), 'batch'
        ),
        mesh=mesh, in_specs=(P('batch'), P('batch'), P()), out_specs=P(),
    )  # fmt: skip
    fraction = jnp.float32(0.7)
    value, grads = jax.jit(jax.value_and_grad(whole, (0, 1)))(z1, z2, fraction)
    expected, expected_grads = jax.jit(jax.value_and_grad(mean, (0, 1)))(
        z1, z2, fraction
    )
    self.assert_close(value, expected, 1e-4)
    self.assert_same_gradient(grads, expected_grads, 1e-4)

  def test_sphere_is_no_bound(self):
    z1, z2 = (-3 * z for z in _towers())
    given = {'normalize': False, 'temperature': 1.0, 'tau_plus': 0.5}
    for block_size in (None, 3):
      np.testing.assert_array_equal(
          losses.in_batch_loss(z1, z2, block_size=block_size, **given),
          losses.in_batch_loss(
              z1, z2, block_size=block_size, floor='none', **given
          ),
      )

  def test_half_precision_is_upcast(self):
    z1, z2 = (jnp.asarray(z, jnp.bfloat16) for z in _towers())
    values = losses.in_batch_loss(z1, z2, normalize=False)
    self.assertEqual(values.dtype, jnp.float32)
    self.assert_close(
        values,
        losses.in_batch_loss(
            z1.astype(jnp.float32), z2.astype(jnp.float32), normalize=False
        ),
    )

  def test_normalize_is_a_bool(self):
    with self.assertRaisesRegex(ValueError, 'normalize must be one of True'):
      losses.in_batch_loss(*_towers(), normalize='no')
