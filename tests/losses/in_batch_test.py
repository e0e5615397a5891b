# SPDX-License-Identifier: Apache-2.0
"""simclr_loss and in_batch_loss, dense and blockwise."""

import functools
import itertools

from absl.testing import parameterized
import chex
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import optax

from hcl_jax import _vectors
from hcl_jax import losses
from tests import reference
from tests.support import compiler
from tests.support import testing

_MP = mpmath.mp.clone()
_MP.dps = 30

_TOY = (
    np.float32([[1.0, 0.0], [0.0, 1.0]]),
    np.float32([[0.8, 0.6], [-0.6, 0.8]]),
)


def _mean_and_grads(loss, *arrays, **knobs):
  def mean(*arrays):
    values = loss(*arrays, **knobs)
    return values.mean(), values

  grads, values = jax.grad(mean, tuple(range(len(arrays))), has_aux=True)(
      *arrays
  )
  return values, grads


@functools.cache
def _slopes(floor, block_size):
  """Differentiates the mean loss by its hyperparameters."""

  def mean(knobs, *arrays):
    return losses.simclr_loss(
        *arrays, floor=floor, block_size=block_size, **knobs
    ).mean()

  return compiler.optimized(jax.grad(mean))


@functools.cache
def _optimized(block_size):
  """Compiles loss and gradients once for all geometries."""
  return compiler.optimized(
      functools.partial(
          _mean_and_grads, losses.simclr_loss, block_size=block_size
      )
  )


@functools.cache
def _exact(geometry, temperature, beta, tau_plus):
  """Returns losses and gradients of the oracle, which knows no blocks."""
  knobs = {'temperature': temperature, 'beta': beta, 'tau_plus': tau_plus}
  values, *grads = reference.simclr(
      *testing.geometries()[geometry],
      m=_MP,
      **{k: _MP.mpf(float(np.float32(v))) for k, v in knobs.items()},
  )
  return np.array(values, float), np.array(grads, float)


class SimclrLossTest(testing.LossTest):

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.product(
      floor=('sphere', 'soft', 'none'), block_size=(None, 4)
  )
  def test_matches_the_oracle(self, floor, block_size):
    z1, z2 = testing.views(7, 3)
    loss = self.variant(
        functools.partial(
            losses.simclr_loss, floor=floor, block_size=block_size
        )
    )
    for temperature, beta, tau_plus in itertools.product(
        (0.05, 0.3), (0.0, 1.0, 10.0), (0.0, 0.3)
    ):
      knobs = {'temperature': temperature, 'beta': beta, 'tau_plus': tau_plus}
      with self.subTest(**knobs):
        values, grads = _mean_and_grads(loss, z1, z2, **knobs)
        expected, *expected_grads = reference.simclr(
            z1, z2, floor=floor, **knobs
        )
        self.assert_close(values, expected)
        self.assert_same_gradient(
            grads, tuple(np.array(g) for g in expected_grads), 1e-5
        )

  @chex.variants(with_pmap=True)
  def test_matches_the_oracle_under_pmap(self):
    z1, z2 = testing.views(32, 3)
    loss = self.variant(
        losses.simclr_loss, reduce_fn=None, broadcast_args_to_devices=False
    )
    values = loss(z1.reshape(8, 4, 3), z2.reshape(8, 4, 3))
    for i in range(8):
      part = slice(4 * i, 4 * i + 4)
      expected, *_ = reference.simclr(
          z1[part], z2[part], temperature=0.5, beta=1.0, tau_plus=0.1
      )
      self.assert_close(values[i], expected)

  @parameterized.parameters(None, 2)
  def test_golden_values(self, block_size):
    golden = {
        (0.0, 0.0): 0.430190, (0.0, 0.1): 0.312600, (0.0, 0.14): 0.288560,
        (0.5, 0.0): 0.481382, (1.0, 0.0): 0.522366, (2.0, 0.0): 0.569443,
        (0.5, 0.1): 0.375119, (1.0, 0.1): 0.424695, (2.0, 0.1): 0.481157,
    }  # fmt: skip
    for (beta, tau_plus), expected in golden.items():
      values = losses.simclr_loss(
          *_TOY, beta=beta, tau_plus=tau_plus, block_size=block_size
      )
      self.assertAlmostEqual(float(values.mean()), expected, delta=1e-6)

  @parameterized.parameters(None, 4)
  def test_without_beta_and_prior_is_optax_ntxent(self, block_size):
    z1, z2 = testing.views(9, 4)
    labels = np.tile(np.arange(9), 2)

    def ntxent(z1, z2):
      with jax.numpy_rank_promotion('allow'), jax.numpy_dtype_promotion(
          'standard'
      ):
        return optax.losses.ntxent(
            jnp.concatenate([z1, z2]), labels, temperature=0.5
        )

    expected, expected_grads = testing.jitted(
        jax.value_and_grad(ntxent, (0, 1)), z1, z2
    )
    values, grads = _mean_and_grads(
        losses.simclr_loss, z1, z2, beta=0.0, tau_plus=0.0,
        block_size=block_size,
    )  # fmt: skip
    self.assert_close(values.mean(), expected, 1e-6)
    self.assert_same_gradient(grads, expected_grads, 1e-5)

  @parameterized.product(
      geometry=tuple(testing.geometries()), block_size=(None, 2)
  )
  def test_embeddings_are_exact_where_float32_allows(
      self, geometry, block_size
  ):
    z1, z2 = testing.geometries()[geometry]
    pairs = len(z1)
    loss = _optimized(block_size)
    for temperature in testing.TEMPERATURES:
      for beta in testing.BETAS:
        for tau_plus in testing.TAUS[::2]:
          knobs = {
              'temperature': temperature, 'beta': beta, 'tau_plus': tau_plus,
          }  # fmt: skip
          traced = {k: jnp.float32(v) for k, v in knobs.items()}
          with self.subTest(**knobs):
            values, grads = loss(z1, z2, **traced)
            self.assert_finite((values, grads))
            sharpness = (1 + beta) / temperature
            if sharpness > 1e4:
              continue
            expected, expected_grads = _exact(
                geometry, temperature, beta, tau_plus
            )
            # float32 cosines are off by an ulp or two, so logits by that / t,
            # and the debiased difference magnifies it.
            slack = 4e-7 / temperature / (1 - tau_plus)
            np.testing.assert_allclose(
                values, expected, rtol=1e-5, atol=slack
            )
            error = testing.gradient_error(
                np.stack(grads),
                expected_grads,
                unit=1 / (2 * pairs * temperature),
            )
            conditioning = (2 * pairs - 2) * tau_plus / (1 - tau_plus)
            self.assertLessEqual(error, 2e-4 + 4e-5 * conditioning)

  @parameterized.product(
      knobs=(
          {},
          {'stop_gradient_weights': True},
          {'labels': True, 'floor': 'soft', 'tau_plus': 0.5},
      ),
      sizes=((2, 1), (5, 3), (16, 8), (21, 5)),
  )
  def test_blocks_change_nothing(self, knobs, sizes):
    knobs, (batch, block_size) = dict(knobs), sizes
    z1, z2 = testing.views(batch, 5)
    if 'labels' in knobs:
      knobs['labels'] = np.arange(batch) % 3

    def loss(z1, z2, traced, block_size):
      values = losses.simclr_loss(
          z1, z2, block_size=block_size, **knobs, **traced
      )
      return values.mean(), values

    both = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True), static_argnums=3)
    for temperature, beta in ((0.5, 1.0), (0.02, 3.0), (0.005, 100.0)):
      traced = {
          'temperature': jnp.float32(temperature), 'beta': jnp.float32(beta)
      }  # fmt: skip
      with self.subTest(temperature=temperature, beta=beta):
        expected_grads, expected = both(z1, z2, traced, 10**6)
        grads, values = both(z1, z2, traced, block_size)
        # Products of other shapes round cosines otherwise, and an ulp of a
        # cosine is magnified by (1 + beta) / t, which is 2e4 in the last case.
        strict = temperature > 0.01
        self.assert_close(values, expected, 2e-5 if strict else 1e-4)
        tolerance = 1e-5 if strict else 3e-4
        self.assert_same_gradient(grads[:2], expected_grads[:2], tolerance)
        for name in traced:
          np.testing.assert_allclose(
              grads[2][name], expected_grads[2][name], rtol=1e-3, atol=1e-5
          )

  def test_the_default_is_blockwise_for_a_large_batch(self):
    z1, z2 = testing.views(400, 8)
    values, grads = _mean_and_grads(losses.simclr_loss, z1, z2)
    expected, expected_grads = _mean_and_grads(
        losses.simclr_loss, z1, z2, block_size=800
    )
    self.assert_close(values, expected)
    self.assert_same_gradient(grads, expected_grads, 1e-5)
    text = str(jax.make_jaxpr(losses.simclr_loss)(z1, z2))
    self.assertNotIn('f32[800,800]', text)
    self.assertIn(
        'f32[800,800]',
        str(jax.make_jaxpr(functools.partial(
            losses.simclr_loss, block_size=800))(z1, z2)),
    )

  def test_labels_drop_same_class_negatives(self):
    z1, z2 = testing.views(8, 3)
    labels = np.array([0, 1, 2, 0, 1, 2, 5, -7])
    knobs = {'temperature': 0.5, 'beta': 1.0, 'tau_plus': 0.1}
    for block_size in (None, 4):
      values, grads = _mean_and_grads(
          losses.simclr_loss, z1, z2, labels=labels, block_size=block_size,
          **knobs,
      )  # fmt: skip
      expected, *expected_grads = reference.simclr(
          z1, z2, labels=labels, **knobs
      )
      self.assert_close(values, expected)
      self.assert_same_gradient(
          grads, tuple(np.array(g) for g in expected_grads), 1e-5
      )

  @parameterized.product(
      block_size=(None, 4),
      sharpness=((0.5, 1.0), (1 / 30, 0.0), (0.5, 14.0), (0.01, 1.0)),
  )
  def test_one_class_has_loss_zero(self, block_size, sharpness):
    temperature, beta = sharpness
    values, grads = _mean_and_grads(
        losses.simclr_loss, *testing.views(6, 3), labels=np.zeros(6, int),
        block_size=block_size, temperature=temperature, beta=beta,
    )  # fmt: skip
    np.testing.assert_array_equal(values, 0)
    for grad in grads:
      np.testing.assert_array_equal(grad, 0)

  @parameterized.product(
      beta=(0.0, 1.0, 100.0), tau_plus=(0.0, 0.5), temperature=(0.01, 0.5),
      block_size=(None, 4),
  )
  def test_identical_embeddings(self, beta, tau_plus, temperature, block_size):
    z = np.tile(testing.normal(1, 5), (6, 1))
    values, grads = _mean_and_grads(
        losses.simclr_loss, z, z, beta=beta, tau_plus=tau_plus,
        temperature=temperature, block_size=block_size,
    )  # fmt: skip
    self.assert_close(values, np.full(6, np.log(11.0)), 1e-5)
    self.assert_same_gradient(
        grads, tuple(0 * z for _ in range(2)), 1e-5, unit=1 / (12 * temperature)
    )

  @parameterized.product(beta=(0.0, 2.0, 1e3), block_size=(None, 4))
  def test_orthonormal_aligned_pairs(self, beta, block_size):
    values = losses.simclr_loss(
        np.eye(6, dtype=np.float32), np.eye(6, dtype=np.float32),
        temperature=0.2, beta=beta, tau_plus=0.0, block_size=block_size,
    )  # fmt: skip
    self.assert_close(values, np.full(6, np.log1p(10 * np.exp(-5.0))), 1e-5)

  @parameterized.product(
      temperature=(0.001, 0.5), block_size=(None, 4), tau_plus=(0.0, 0.1)
  )
  def test_zero_vectors_have_cosine_zero(
      self, temperature, block_size, tau_plus
  ):
    z = np.zeros((4, 3), np.float32)
    values, grads = _mean_and_grads(
        losses.simclr_loss, z, z, temperature=temperature, tau_plus=tau_plus,
        block_size=block_size,
    )  # fmt: skip
    self.assert_close(values, np.full(4, np.log(7.0)), 1e-5)
    for grad in grads:
      np.testing.assert_array_equal(grad, 0)

  @parameterized.product(
      temperature=(0.01, 0.5, 10.0, 1000.0),
      beta=(0.0, 1.0, 100.0, 1e4),
      floor=('none', 'soft'),
  )
  def test_gradients_by_beta_and_tau_plus(self, temperature, beta, floor):
    arrays = testing.views(4, 3)
    knobs = {'temperature': temperature, 'beta': beta, 'tau_plus': 0.01}
    knobs = {name: np.float32(value) for name, value in knobs.items()}

    def slope(name):
      """By central differences with many digits."""
      m = mpmath.mp.clone()
      m.dps = 80
      exact = {name: m.mpf(float(value)) for name, value in knobs.items()}
      step = m.mpf(10) ** -20
      above, below = (
          sum(reference.simclr(
              *arrays, floor=floor, m=m, **{**exact, name: exact[name] + x}
          )[0])
          for x in (step, -step)
      )  # fmt: skip
      return float((above - below) / (2 * step * len(arrays[0])))

    # Weights e^{(beta / t) c} magnify what float32 rounds of a cosine c.
    rounding = 3e-7 * (1 + beta) / temperature
    to_beta, to_tau = slope('beta'), slope('tau_plus')
    for block_size in (None, 4):
      slopes = _slopes(floor, block_size)(knobs, *arrays)
      by_beta, by_tau = slopes['beta'], slopes['tau_plus']
      np.testing.assert_allclose(
          by_tau, to_tau, rtol=1e-5 + 3e-7 / temperature
      )
      if rounding < 0.1:
        np.testing.assert_allclose(
            by_beta, to_beta, rtol=1e-5 + rounding, atol=1e-37
        )

  @parameterized.product(
      size=(8e37, 9e37, 3.3e38), dtype=(np.float32, jnp.bfloat16)
  )
  def test_rows_near_the_largest_number(self, size, dtype):
    z1, z2 = testing.views(6, 3)
    z1 = (z1 * (size / np.abs(z1).max())).astype(dtype)
    values = compiler.optimized(losses.simclr_loss)(z1, z2.astype(dtype))
    expected, *_ = reference.simclr(
        z1.astype(np.float64) / size, z2.astype(dtype).astype(np.float64),
        temperature=0.5, beta=1.0, tau_plus=0.1,
    )  # fmt: skip
    self.assert_close(values, np.array(expected))

  def test_a_zero_row_has_the_gradient_of_the_row_itself(self):
    z1, z2 = testing.views(6, 3)
    z1[2] = 0
    units, transposed = jax.vjp(_vectors.normalize, z1)
    (grad,) = transposed(z2)
    np.testing.assert_array_equal(units[2], 0)
    np.testing.assert_array_equal(grad[2], z2[2])
    values, (grad, _) = _mean_and_grads(losses.simclr_loss, z1, z2)
    expected, expected_grad, _ = reference.simclr(
        z1, z2, temperature=0.5, beta=1.0, tau_plus=0.1
    )
    self.assert_close(values, np.array(expected))
    others = np.arange(6) != 2
    self.assert_same_gradient(grad[others], np.array(expected_grad)[others])
    self.assertGreater(np.abs(grad[2]).max(), 0.01)

  @parameterized.parameters(1e-20, 1e20)
  def test_the_length_of_embeddings_does_not_matter(self, length):
    z1, z2 = testing.views(6, 3)
    expected = losses.simclr_loss(z1, z2)
    values, grads = _mean_and_grads(
        losses.simclr_loss, np.float32(length) * z1, z2
    )
    self.assert_close(values, expected)
    self.assert_finite(grads)

  def test_antipodal_pairs_are_finite(self):
    z1, _ = testing.views(6, 3)
    for temperature in (0.001, 0.5):
      for floor in ('sphere', 'soft', 'none'):
        values, grads = _mean_and_grads(
            losses.simclr_loss, z1, -z1, temperature=temperature, floor=floor
        )
        self.assert_finite((values, grads))

  @parameterized.parameters(None, 4)
  def test_nan_is_never_hidden(self, block_size):
    z1, z2 = testing.views(6, 3)
    for bad in (np.nan, np.inf):
      z1[2, 1] = bad
      for floor in ('sphere', 'soft', 'none'):
        values = losses.simclr_loss(
            z1, z2, floor=floor, block_size=block_size
        )
        self.assertTrue(np.all(np.isnan(values)))

  @parameterized.parameters(None, 4)
  def test_symmetries(self, block_size):
    z1, z2 = testing.views(6, 3)
    loss = functools.partial(losses.simclr_loss, block_size=block_size)
    expected, grads = _mean_and_grads(loss, z1, z2)
    self.assert_close(loss(z2, z1), expected, 1e-6)
    order = np.array([3, 1, 5, 0, 2, 4])
    values, permuted = _mean_and_grads(loss, z1[order], z2[order])
    self.assert_close(values, np.asarray(expected)[order], 1e-6)
    self.assert_same_gradient(permuted[0], grads[0][order], 1e-5)
    rotation = np.linalg.qr(testing.normal(3, 3))[0].astype(np.float32)
    values, rotated = _mean_and_grads(loss, z1 @ rotation, z2 @ rotation)
    self.assert_close(values, expected, 1e-5)
    self.assert_same_gradient(rotated[0], grads[0] @ rotation, 1e-5)

  def test_large_beta_reaches_the_worst_case(self):
    z1, z2 = testing.views(8, 3)
    values = [
        float(losses.simclr_loss(z1, z2, beta=b, tau_plus=0.0).mean())
        for b in (0.0, 1.0, 10.0, 100.0, 1e4)
    ]
    z = np.concatenate([z1, z2])
    z = z / np.linalg.norm(z, axis=1, keepdims=True)
    s = 2 * z @ z.T
    i = np.arange(16)
    hardest = np.where(i[:, None] % 8 == i[None, :] % 8, -9, s).max(axis=1)
    worst = np.logaddexp(0, np.log(14) + hardest - s[i, (i + 8) % 16]).mean()
    gaps = worst - np.array(values)
    self.assertTrue(np.all(np.diff(gaps) < 1e-6))
    self.assertLess(abs(gaps[-1]), 1e-3)

  @parameterized.parameters(None, 4)
  def test_second_derivatives(self, block_size):
    z1, z2 = testing.views(4, 3)

    def loss(z1, block_size):
      return losses.simclr_loss(
          z1, z2, temperature=0.2, beta=1.0, block_size=block_size
      ).mean()

    def plain(z1):
      z = jnp.concatenate([z1, jnp.asarray(z2)])
      z = z / jnp.linalg.norm(z, axis=1, keepdims=True)
      s = 5 * z @ z.T
      i = np.arange(8)
      keep = i[:, None] % 4 != i[None, :] % 4
      s_pos, s_neg = s[i, (i + 4) % 8], s[keep].reshape(8, 6)
      e_neg = jnp.exp(2 * s_neg).sum(1) / jnp.exp(s_neg).sum(1)
      mass = jnp.maximum((e_neg - 0.1 * jnp.exp(s_pos)) / 0.9, np.exp(-5.0))
      return jnp.log1p(6 * mass / jnp.exp(s_pos)).mean()

    expected = jax.jit(jax.hessian(plain))(z1)
    loss = functools.partial(loss, block_size=block_size)
    for hessian in (jax.hessian(loss), jax.jacrev(jax.grad(loss))):
      self.assert_same_gradient(jax.jit(hessian)(z1), expected, 1e-4)

  def test_numerical_gradients(self):
    chex.assert_numerical_grads(
        lambda z1, z2, t: losses.simclr_loss(z1, z2, temperature=t),
        (*testing.views(4, 3), 0.5),
        order=1,
        eps=1e-3,
        atol=0.02,
    )

  @parameterized.product(
      dtype=(jnp.bfloat16, jnp.float16), block_size=(None, 4)
  )
  def test_half_precision_is_upcast(self, dtype, block_size):
    z1, z2 = (jnp.asarray(z, dtype) for z in testing.views(6, 5))
    values, grads = _mean_and_grads(
        losses.simclr_loss, z1, z2, block_size=block_size
    )
    self.assertEqual(values.dtype, jnp.float32)
    self.assertEqual(grads[0].dtype, dtype)
    expected, *_ = reference.simclr(
        np.asarray(z1, np.float64), np.asarray(z2, np.float64),
        temperature=0.5, beta=1.0, tau_plus=0.1,
    )  # fmt: skip
    self.assert_close(values, expected)

  @parameterized.parameters(None, 4)
  def test_one_compilation_over_an_annealing_run(self, block_size):
    chex.clear_trace_counter()

    def loss(z1, z2, beta, tau_plus, temperature):
      return losses.simclr_loss(
          z1, z2, beta=beta, tau_plus=tau_plus, temperature=temperature,
          block_size=block_size,
      ).mean()  # fmt: skip

    step = jax.jit(jax.grad(chex.assert_max_traces(loss, n=1)))
    for k in range(4):
      step(*testing.views(4, 3), k / 2, k / 10, 0.1 + k)

  def test_betas_under_vmap(self):
    z1, z2 = testing.views(6, 3)
    betas = jnp.array([0.0, 1.0, 50.0])
    for block_size in (None, 4):
      loss = functools.partial(losses.simclr_loss, block_size=block_size)
      actual = jax.vmap(lambda b, loss=loss: loss(z1, z2, beta=b))(betas)
      for value, beta in zip(actual, betas, strict=True):
        self.assert_close(value, loss(z1, z2, beta=beta), 1e-6)

  def test_products_ask_for_full_precision(self):
    """On a TPU a default float32 product rounds its inputs to bfloat16."""
    for block_size in (None, 4):
      grad = jax.grad(
          lambda z, b=block_size: losses.simclr_loss(z, z, block_size=b).sum()
      )
      jaxpr = jax.make_jaxpr(grad)(testing.normal(8, 3))
      products = list(_products(jaxpr.jaxpr))
      self.assertGreaterEqual(len(products), 2)
      for precision in products:
        self.assertEqual(set(np.ravel(precision)), {jax.lax.Precision.HIGHEST})

  @hypothesis.settings(max_examples=25, deadline=None)
  @hypothesis.given(
      batch=st.integers(2, 9),
      dim=st.integers(1, 4),
      block_size=st.integers(1, 20),
      beta=st.floats(0, 5),
      tau_plus=st.floats(0, 0.9),
      seed=st.integers(0, 99),
  )
  def test_random_shapes(self, batch, dim, block_size, beta, tau_plus, seed):
    z1, z2 = testing.views(batch, dim, seed=seed)
    knobs = {'temperature': 0.5, 'beta': beta, 'tau_plus': tau_plus}
    expected, *_ = reference.simclr(z1, z2, **knobs)
    loss = functools.partial(losses.simclr_loss, block_size=block_size)
    self.assert_close(jax.jit(loss)(z1, z2, **knobs), expected, 3e-5)


def _products(jaxpr):
  """Precisions of all dot_general, inner programs included."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'dot_general':
      yield eqn.params['precision']
    for param in jax.tree.leaves(
        list(eqn.params.values()), is_leaf=lambda x: hasattr(x, 'jaxpr')
    ):
      inner = getattr(param, 'jaxpr', param)
      if hasattr(inner, 'eqns'):
        yield from _products(inner)


class InBatchLossTest(testing.LossTest):

  @parameterized.product(
      case=(
          (None, {}),
          ((3,), {}),
          ((7, 3), {}),
          ((3,), {'labels': np.array([0, 1, 2, 0, 1, 2, 3])}),
          ((7, 3), {'floor': 'soft'}),
          ((3,), {'stop_gradient_weights': True}),
      ),
      block_size=(None, 4),
  )
  def test_matches_the_oracle(self, case, block_size):
    shape, structure = case
    anchors, positives = testing.views(7, 4)
    negatives = shape and testing.normal(*shape, 4, seed=9)
    loss = functools.partial(
        losses.in_batch_loss, negatives=negatives, block_size=block_size
    )
    for temperature, beta, tau_plus in (
        (0.05, 1.0, 0.0), (0.05, 0.0, 0.0), (0.5, 1.0, 0.3), (0.3, 0.5, 0.5)
    ):  # fmt: skip
      knobs = {'temperature': temperature, 'beta': beta, 'tau_plus': tau_plus}
      with self.subTest(**knobs):
        values, grads = _mean_and_grads(
            loss, anchors, positives, **structure, **knobs
        )
        expected, *expected_grads = reference.in_batch(
            anchors, positives, negatives=negatives, **structure, **knobs
        )
        # Half of the negative sum is taken away in the last case.
        self.assert_close(values, expected, 3e-5)
        self.assert_same_gradient(
            grads, tuple(np.array(g) for g in expected_grads), 3e-5
        )

  @parameterized.parameters(((3, 4),), ((7, 2, 4),))
  def test_explicit_negatives_get_their_gradient(self, shape):
    anchors, positives = testing.views(7, 4)
    negatives = testing.normal(*shape, seed=9)

    def loss(negatives, block_size):
      return losses.in_batch_loss(
          anchors, positives, negatives=negatives, block_size=block_size
      ).mean()

    expected = jax.grad(loss)(negatives, None)
    self.assertGreater(float(jnp.abs(expected).max()), 1e-4)
    self.assert_same_gradient(jax.grad(loss)(negatives, 4), expected, 1e-5)

  def test_is_the_cross_entropy_of_clip(self):
    anchors, positives = testing.views(6, 4)
    units = []
    for rows in (np.float64(anchors), np.float64(positives)):
      units.append(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    logits = np.float32(units[0] @ units[1].T / 0.07)
    expected = optax.softmax_cross_entropy_with_integer_labels(
        logits, np.arange(6)
    )
    actual = losses.in_batch_loss(
        anchors, positives, temperature=0.07, beta=0.0
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)

  def test_temperature_can_be_learned(self):
    anchors, positives = testing.views(6, 4)

    def loss(log_scale, block_size):
      return losses.in_batch_loss(
          anchors, positives, temperature=jnp.exp(-log_scale),
          block_size=block_size,
      ).mean()  # fmt: skip

    h = 1e-2
    for x in (0.5, 2.0, 4.0):
      difference = (loss(x + h, None) - loss(x - h, None)) / (2 * h)
      for block_size in (None, 4):
        np.testing.assert_allclose(
            jax.grad(loss)(x, block_size), difference, rtol=2e-2, atol=1e-4
        )

  def test_one_pair_with_explicit_negatives(self):
    anchors, positives = testing.views(1, 4)
    values = losses.in_batch_loss(
        anchors, positives, negatives=testing.normal(3, 4)
    )
    self.assertEqual(values.shape, (1,))
