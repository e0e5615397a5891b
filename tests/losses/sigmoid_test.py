# SPDX-License-Identifier: Apache-2.0
"""sigmoid_loss, dense, blockwise and on devices."""

import functools
import itertools

from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import mpmath
import numpy as np

from hcl_jax import losses
from tests import reference
from tests.support import testing

P = jax.sharding.PartitionSpec
_MP = mpmath.mp.clone()
_MP.dps = 30
_BLOCKS = (None, 4)
_ROWS = np.arange(7)
_LABELS = np.array([0, 1, 2, 0, 1, 2, -7])


def _given(logit_scale, logit_bias, beta):
  return {'logit_scale': logit_scale, 'logit_bias': logit_bias, 'beta': beta}


_DEFAULT = _given(10.0, -10.0, 1.0)


@functools.cache
def _program(block_size, frozen):
  """Compiles losses and gradients of their mean, by hyperparameters too."""

  def mean(z1, z2, given, labels):
    values = losses.sigmoid_loss(
        z1, z2, labels=labels, block_size=block_size,
        stop_gradient_weights=frozen, **given,
    )  # fmt: skip
    return values.mean(), values

  return jax.jit(jax.grad(mean, (0, 1, 2), has_aux=True))


def _run(z1, z2, given, *, labels=_ROWS, block_size=None, frozen=False):
  """Returns losses, gradients by embeddings and by hyperparameters."""
  given = {k: jnp.float32(v) for k, v in given.items()}
  (*by_z, slopes), values = _program(block_size, frozen)(z1, z2, given, labels)
  return values, tuple(by_z), [slopes[k] for k in given]


@functools.cache
def _exact_views(scale, bias, beta, labels, frozen):
  return _exact(
      *testing.views(7, 3), _given(scale, bias, beta), labels=labels,
      stop_gradient_weights=frozen,
  )  # fmt: skip


def _exact(z1, z2, given, **structure):
  """Returns what _run does, by the oracle."""
  if 'm' in structure:
    given = {k: _MP.mpf(float(np.float32(v))) for k, v in given.items()}
  values, by_z1, by_z2, *slopes = reference.sigmoid(
      z1, z2, **given, **structure
  )
  by_z = tuple(np.array(x, float) for x in (by_z1, by_z2))
  return np.array(values, float), by_z, [float(x) for x in slopes]


class SigmoidLossTest(testing.LossTest):

  def _check(self, actual, expected, tolerance=1e-5):
    self.assert_close(actual[0], expected[0], tolerance)
    self.assert_same_gradient(actual[1], expected[1], tolerance)
    np.testing.assert_allclose(
        actual[2], expected[2], rtol=3 * tolerance, atol=tolerance
    )

  @parameterized.product(
      labels=(_ROWS, _LABELS), frozen=(False, True), block_size=_BLOCKS
  )
  def test_matches_the_oracle(self, labels, frozen, block_size):
    arrays = testing.views(7, 3)
    for given in itertools.product(
        (0.1, 10.0, 50.0), (-10.0, 3.0), (0.0, 1.0, 10.0)
    ):
      with self.subTest(given):
        actual = _run(
            *arrays, _given(*given), labels=labels, block_size=block_size,
            frozen=frozen,
        )  # fmt: skip
        expected = _exact_views(*given, tuple(labels), frozen)
        # An ulp of a cosine is magnified by (1 + beta) scale.
        scale, _, beta = given
        self._check(actual, expected, 1e-5 + 2e-7 * (1 + beta) * scale)

  @chex.variants(with_jit=True, without_jit=True)
  def test_defaults_are_those_of_siglip(self):
    z1, z2 = testing.views(6, 4)
    units = [
        z / np.linalg.norm(z, axis=1, keepdims=True)
        for z in (np.float64(z1), np.float64(z2))
    ]
    logits = 10 * units[0] @ units[1].T - 10
    signs = 2 * np.eye(6) - 1
    expected = np.log1p(np.exp(-signs * logits)).sum() / 6
    for arrays in ((z1, z2), (z2, z1)):
      values = self.variant(losses.sigmoid_loss)(*arrays)
      self.assert_close(values.mean(), expected, 1e-6)

  def test_the_default_is_blockwise_for_a_large_batch(self):
    shape = jax.ShapeDtypeStruct((600, 8), jnp.float32)

    def text(block_size):
      def mean(z1, z2):
        return losses.sigmoid_loss(
            z1, z2, beta=1.0, block_size=block_size
        ).mean()

      return str(jax.make_jaxpr(jax.grad(mean, (0, 1)))(shape, shape))

    self.assertNotIn('[600,600]', text(None))
    self.assertIn('[600,600]', text(600))

  @parameterized.product(block_size=_BLOCKS, beta=(0.0, 1.0, 1e3))
  def test_a_row_without_negatives_has_only_its_positive(
      self, block_size, beta
  ):
    z1, z2 = testing.views(7, 3)
    given = _given(10.0, 2.0, beta)
    actual = _run(
        z1, z2, given, labels=np.zeros(7, int), block_size=block_size
    )
    self._check(actual, _exact(z1, z2, _given(10, 2, 0), labels=[0] * 7))
    self.assertEqual(actual[2][2], 0)

  def test_one_pair(self):
    z1, z2 = testing.views(1, 3)
    self.assert_close(
        losses.sigmoid_loss(z1, z2), _exact(z1, z2, _DEFAULT)[0]
    )

  @parameterized.product(
      block_size=_BLOCKS, geometry=tuple(testing.geometries())
  )
  def test_extremes_are_finite_and_exact(self, block_size, geometry):
    z1, z2 = testing.geometries()[geometry]
    for given in (
        (1e4, -10.0, 0.0), (1e4, 50.0, 1.0), (10.0, -10.0, 1e4), (1e-3, 0, 1e4),
        (1e4, -1e4, 1e4), (0.5, -1e4, 100.0), (0.5, 1e4, 100.0),
    ):  # fmt: skip
      with self.subTest(given):
        actual = _run(
            z1, z2, _given(*given), labels=np.arange(len(z1)),
            block_size=block_size,
        )  # fmt: skip
        self.assert_finite(actual)
        scale, _, beta = given
        if (1 + beta) * scale > 3e4:
          continue
        expected = _exact(z1, z2, _given(*given), m=_MP)
        slack = 1e-6 * scale
        np.testing.assert_allclose(
            actual[0], expected[0], rtol=1e-5, atol=slack
        )
        if (1 + beta) * scale < 100:
          self.assert_same_gradient(
              actual[1], expected[1], 2e-4, unit=scale / len(z1)
          )

  @parameterized.parameters(*_BLOCKS)
  def test_zero_vectors_have_cosine_zero(self, block_size):
    z = np.zeros((7, 3), np.float32)
    for beta in (0.0, 1e3):
      values, grads, _ = _run(
          z, z, _given(1e4, 0.0, beta), block_size=block_size
      )
      self.assert_close(values, np.full(7, 7 * np.log(2)))
      for grad in grads:
        np.testing.assert_array_equal(grad, 0)

  @parameterized.parameters((jnp.bfloat16, 4), (jnp.float16, None))
  def test_half_precision_is_upcast(self, dtype, block_size):
    z1, z2 = (jnp.asarray(z, dtype) for z in testing.views(7, 3))
    values, grads, _ = _run(z1, z2, _DEFAULT, block_size=block_size)
    self.assertEqual(values.dtype, jnp.float32)
    self.assertEqual(grads[0].dtype, dtype)
    self.assert_finite(grads)
    expected, *_ = _exact(np.float32(z1), np.float32(z2), _DEFAULT)
    self.assert_close(values, expected)

  @parameterized.product(block_size=_BLOCKS, beta=(0.0, 1.0))
  def test_nan_is_never_hidden(self, block_size, beta):
    z1, z2 = testing.views(7, 3)
    for bad in (np.nan, np.inf):
      z2[2, 1] = bad
      values, *_ = _run(
          z1, z2, _given(10.0, -10.0, beta), block_size=block_size
      )
      self.assertTrue(np.all(np.isnan(values)))

  @parameterized.parameters(*_BLOCKS)
  def test_permutation_and_length_do_not_matter(self, block_size):
    z1, z2 = testing.views(7, 3)
    order = np.array([3, 1, 6, 0, 2, 5, 4])
    values, (grad, _), _ = _run(z1, z2, _DEFAULT, block_size=block_size)
    others, (other_grad, _), _ = _run(
        1e10 * z1[order], z2[order], _DEFAULT, block_size=block_size
    )
    self.assert_close(others, values[order])
    self.assert_same_gradient(1e10 * other_grad, grad[order])

  def test_labels_have_the_effect_of_deleting_negatives(self):
    z1, z2 = testing.views(7, 3)
    labels = np.where(_ROWS == 3, 0, _ROWS)  # 0 and 3 are one class
    values, *_ = _run(z1, z2, _DEFAULT, labels=labels)
    expected, *_ = _exact(*(np.delete(z, 3, 0) for z in (z1, z2)), _DEFAULT)
    self.assert_close(values[0], expected[0])

  def test_large_beta_is_the_hardest_negative(self):
    z1, z2 = testing.views(7, 3)
    cosines = np.array(
        [[reference.dot(reference.unit(a), reference.unit(b)) for b in z2]
         for a in z1]
    )  # fmt: skip
    logits = 10 * cosines - 10
    hardest = np.where(np.eye(7), -np.inf, logits).max(1)
    expected = np.log1p(np.exp(-np.diag(logits)))
    expected += 6 * np.log1p(np.exp(hardest))
    for block_size in _BLOCKS:
      values, *_ = _run(
          z1, z2, _given(10.0, -10.0, 1e5), block_size=block_size
      )
      self.assert_close(values, expected)

  def test_second_derivatives_of_the_dense_form(self):
    z1, z2 = testing.views(4, 3)

    def mean(z1, given):
      return losses.sigmoid_loss(z1, z2, **_given(*given)).mean()

    def plain(z1, given):
      scale, bias, beta = given
      a, b = (
          z / jnp.linalg.norm(z, axis=1, keepdims=True)
          for z in (z1, jnp.asarray(z2))
      )
      scaled = scale * a @ b.T
      others = ~np.eye(4, dtype=bool)
      weights = jax.nn.softmax(beta * scaled, axis=1, where=others)
      costs = jax.nn.softplus(scaled + bias)
      own = jax.nn.softplus(-jnp.diag(scaled) - bias)
      return jnp.mean(own + 3 * jnp.sum(weights * costs, axis=1))

    args = z1, jnp.float32([2.0, -1.0, 0.7])
    self.assert_same_gradient(
        testing.jitted(jax.hessian(mean, (0, 1)), *args),
        testing.jitted(jax.hessian(plain, (0, 1)), *args),
        1e-4,
    )

  @parameterized.parameters(*_BLOCKS)
  def test_one_compilation_over_an_annealing_run(self, block_size):
    chex.clear_trace_counter()

    def loss(z1, z2, given):
      return losses.sigmoid_loss(
          z1, z2, block_size=block_size, **given
      ).mean()

    step = jax.jit(chex.assert_max_traces(loss, n=1))
    for k in range(3):
      step(*testing.views(7, 3), _given(1.0 + k, -k / 2, k / 2))

  def test_bad_arguments(self):
    z = testing.normal(4, 3)
    for bad, message in (
        ({'logit_scale': 0.0}, r'logit_scale must be > 0, got 0\.0.*jnp.exp'),
        ({'logit_scale': -1}, 'logit_scale must be > 0, got -1'),
        ({'logit_scale': np.nan}, 'logit_scale must be finite, got nan'),
        ({'logit_scale': np.ones(2)}, 'logit_scale must be a scalar'),
        ({'logit_bias': np.inf}, 'logit_bias must be finite, got inf'),
        ({'logit_bias': 'x'}, "logit_bias must be a real number, got 'x'"),
    ):
      with self.subTest(message):
        with self.assertRaisesRegex(ValueError, message):
          losses.sigmoid_loss(z, z, **bad)


# --- Devices ----------------------------------------------------------------


def _local(weights, given, images, labels, **options):
  """Returns the mean loss of one device's rows."""
  z = jnp.tanh(jnp.matmul(images, weights))
  return losses.sigmoid_loss(
      z[:, 0], z[:, 1], labels=labels, **given, **options
  ).mean()


def _pmean(tree):
  return jax.tree.map(lambda x: jax.lax.pmean(x, 'batch'), tree)


def _pmap_step(local):
  step = jax.pmap(
      lambda *a: _pmean(jax.value_and_grad(local, (0, 1))(*a)),
      axis_name='batch', in_axes=(None, None, 0, 0), out_axes=None,
  )  # fmt: skip
  return lambda w, given, *rows: step(
      w, given, *(x.reshape(8, -1, *x.shape[1:]) for x in rows)
  )


def _shard_map_step(local, *, check_vma):
  if check_vma:
    step = jax.value_and_grad(lambda *a: _pmean(local(*a)), (0, 1))
  else:
    step = lambda *a: _pmean(jax.value_and_grad(local, (0, 1))(*a))  # noqa: E731
  mesh = jax.sharding.Mesh(np.array(jax.devices()), ('batch',))
  rows = P('batch')
  return jax.jit(jax.shard_map(
      step, mesh=mesh, in_specs=(P(), P(), rows, rows), out_specs=P(),
      check_vma=check_vma,
  ))  # fmt: skip


_MODES = {
    'pmap': _pmap_step,
    'checked': functools.partial(_shard_map_step, check_vma=True),
    'unchecked': functools.partial(_shard_map_step, check_vma=False),
}
_on_one_device = jax.jit(jax.value_and_grad(_local, (0, 1)))


class SigmoidDevicesTest(testing.LossTest):

  @parameterized.product(mode=tuple(_MODES), block_size=(None, 2))
  def test_eight_devices_have_value_and_gradient_of_one(self, mode, block_size):
    local = functools.partial(_local, axis_name='batch', block_size=block_size)
    step = _MODES[mode](local)
    for beta, labels in ((0.0, np.arange(24)), (2.0, np.arange(24) % 5)):
      given = {k: jnp.float32(v) for k, v in _given(8.0, -4.0, beta).items()}
      args = testing.normal(7, 6), given, testing.normal(24, 2, 7, seed=1)
      (value, grads), (expected, expected_grads) = (
          f(*args, labels) for f in (step, _on_one_device)
      )
      self.assert_close(value, expected)
      self.assert_same_gradient(grads, expected_grads)
