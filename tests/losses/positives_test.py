# SPDX-License-Identifier: Apache-2.0
"""Several positives: supcon_loss with beta, and ids of in_batch_loss."""

import functools
import itertools

from absl.testing import parameterized
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
_NAMES = ('supcon', 'in_batch')
# Less than there are rows; positives are folded by tiles of a quarter.
_BLOCKS = (None, 8)
_LABELS = np.array([5, -7, 2, 5, 2, 5, 11, 5, 0, 2, 1])
_ORACLES = {
    'supcon': reference.hard_supcon,
    'in_batch': lambda a, b, ids, **knobs: reference.in_batch(
        a, b, ids=ids, **knobs
    ),
}


def _loss(name, z1, z2, labels, **knobs):
  if name == 'supcon':
    return losses.supcon_loss(z1, z2, labels, **knobs)
  return losses.in_batch_loss(z1, z2, ids=labels, **knobs)


@functools.cache
def _program(name, block_size, **fixed):
  """Compiles losses and gradients of their mean, by hyperparameters too."""

  def mean(arrays, given, labels, more):
    values = _loss(
        name, *arrays, labels, block_size=block_size, **fixed, **given, **more
    )
    return values.mean(), values

  return jax.jit(jax.grad(mean, (0, 1), has_aux=True))


def _run(
    name, arrays, labels, given, *, block_size=None, more=None, floor=None,
    frozen=False,
):  # fmt: skip
  """Returns losses and gradients by embeddings and by hyperparameters."""
  given = {k: jnp.asarray(v, jnp.float32) for k, v in given.items()}
  fixed = {} if floor is None else {'floor': floor}
  program = _program(name, block_size, stop_gradient_weights=frozen, **fixed)
  (grads, slopes), values = program(arrays, given, labels, more or {})
  return values, grads, slopes


def _given(name, temperature, beta, tau_plus=0.0, weight=1.0):
  given = {'temperature': temperature, 'beta': beta}
  if name == 'in_batch':
    given |= {'tau_plus': tau_plus, 'positive_weight': weight}
  return given


def _slopes(name, arrays, labels, given, **more):
  """Differentiates the oracle's mean by central differences."""
  m = mpmath.mp.clone()
  m.dps = 60
  exact = {k: m.mpf(float(np.float32(v))) for k, v in given.items()}
  step = m.mpf(10) ** -20
  slopes = {}
  for k in given:
    above, below = (
        sum(_ORACLES[name](
            *arrays, labels, m=m, **{**exact, k: exact[k] + x}, **more
        )[0])
        for x in (step, -step)
    )  # fmt: skip
    slopes[k] = float((above - below) / (2 * step * len(arrays[0])))
  return slopes


class PositivesTest(testing.LossTest):

  def _check(self, name, actual, expected, tolerance=1e-5):
    values, grads, _ = actual
    expected, *expected_grads = expected
    # Any weight but 1 lets the loss be near 0, by a difference.
    np.testing.assert_allclose(
        values, expected, rtol=tolerance, atol=tolerance
    )
    self.assert_same_gradient(
        grads, tuple(np.array(g) for g in expected_grads), 2 * tolerance
    )

  @parameterized.product(
      name=_NAMES, case=((None, False), (8, False), (8, True))
  )
  def test_matches_the_oracle(self, name, case):
    block_size, frozen = case
    arrays = testing.views(11, 3)
    for temperature, beta, tau_plus, weight in (
        (0.2, 0.0, 0.0, 1.0), (0.2, 2.0, 0.0, 1.0), (1.0, 0.5, 0.2, 1.0),
        (0.3, 10.0, 0.05, 0.3), (0.5, 1.0, 0.1, 0.0), (0.03, 3.0, 0.0, 1.0),
    ):  # fmt: skip
      given = _given(name, temperature, beta, tau_plus, weight)
      with self.subTest(**given):
        actual = _run(
            name, arrays, _LABELS, given, block_size=block_size, frozen=frozen
        )
        expected = _ORACLES[name](
            *arrays, _LABELS, stop_gradient_weights=frozen, **given
        )
        rounding = 3e-7 * (1 + beta) / temperature
        self._check(name, actual, expected, 1e-5 + rounding)

  @parameterized.product(name=_NAMES, block_size=_BLOCKS)
  def test_gradients_by_hyperparameters(self, name, block_size):
    arrays = testing.views(11, 3)
    for temperature, beta in ((0.5, 2.0), (0.02, 2.0)):
      given = _given(name, temperature, beta, 0.05, 0.5)
      *_, slopes = _run(
          name, arrays, _LABELS, given, block_size=block_size
      )
      for k, expected in _slopes(name, arrays, _LABELS, given).items():
        np.testing.assert_allclose(slopes[k], expected, rtol=1e-4, atol=1e-6)

  @parameterized.product(name=_NAMES, labels=(3, 11, 40))
  def test_blocks_change_nothing(self, name, labels):
    """Groups that are larger than a block, smaller, and mostly of one row."""
    rng = np.random.default_rng(labels)
    labels = rng.integers(-labels, labels, 45).astype(np.int32)
    arrays = testing.views(45, 5)
    for temperature, beta in ((0.5, 1.0), (0.02, 3.0)):
      beta = jnp.linspace(0.0, beta, 45)
      given = _given(name, temperature, beta, 0.05)
      dense, tiled = (
          _run(name, arrays, labels, given, block_size=b) for b in (200, 8)
      )
      self._check(name, tiled, (dense[0], *dense[1]), 2e-5)
      for k, slope in dense[2].items():
        size = np.max(np.abs(slope))
        np.testing.assert_allclose(tiled[2][k], slope, 1e-3, 2e-5 * size)

  @parameterized.product(name=_NAMES, geometry=tuple(testing.geometries()))
  def test_extremes_are_finite_and_exact(self, name, geometry, block_size=3):
    arrays = testing.geometries()[geometry]
    labels = np.array([0, 1, 0, 2])
    pairs = len(labels)
    for temperature, beta, tau_plus in itertools.product(
        (1e-3, 0.1, 1e3), (0.0, 2.0, 1e4), (0.0, 0.5)
    ):
      if name == 'supcon' and tau_plus:
        continue
      given = _given(name, temperature, beta, tau_plus)
      with self.subTest(**given):
        actual = _run(name, arrays, labels, given, block_size=block_size)
        self.assert_finite(actual)
        if (1 + beta) / temperature > 1e3 or (beta and temperature < 0.1):
          continue
        exact = {k: _MP.mpf(float(np.float32(v))) for k, v in given.items()}
        values, *grads = _ORACLES[name](*arrays, labels, m=_MP, **exact)
        np.testing.assert_allclose(
            actual[0], np.array(values, float), rtol=1e-5,
            atol=1e-6 / temperature,
        )  # fmt: skip
        error = testing.gradient_error(
            np.stack(actual[1]), np.array(grads, float),
            unit=1 / (2 * pairs * temperature),
        )  # fmt: skip
        self.assertLessEqual(error, 2e-4)

  @parameterized.product(name=_NAMES, block_size=_BLOCKS)
  def test_without_negatives_positives_remain(self, name, block_size):
    arrays = testing.views(11, 3)
    labels = np.zeros(11, int)
    for temperature, beta in ((0.5, 1.0), (0.02, 5.0)):
      given = _given(name, temperature, beta, 0.1, 0.3)
      actual = _run(name, arrays, labels, given, block_size=block_size)
      self._check(name, actual, _ORACLES[name](*arrays, labels, **given))
      slopes = _slopes(name, arrays, labels, given)
      for k, slope in actual[2].items():
        np.testing.assert_allclose(slope, slopes[k], rtol=1e-4)

  def test_one_positive_and_no_negatives_have_loss_0(self):
    """As without ids."""
    arrays = testing.views(1, 3)
    more = {'negatives': arrays[0] + 1, 'where': np.array([False])}
    for temperature in (0.5, 0.02):
      values, *slopes = _run(
          'in_batch', arrays, np.array([3]),
          _given('in_batch', temperature, 1.0, 0.1, 0.0),
          block_size=1, more=more,
      )  # fmt: skip
      for x in jax.tree.leaves((values, slopes)):
        np.testing.assert_array_equal(x, 0)

  def test_different_ids_are_one_positive(self, block_size=8):
    arrays = testing.views(11, 3)
    ids = np.array([4, 9, -2, 0, 100, 7, 1, 5, 3, 2, -9])
    more = {'negatives': testing.normal(5, 3, seed=8)}
    for temperature, tau_plus in ((0.5, 0.3), (0.02, 0.0)):
      given = _given('in_batch', temperature, 2.0, tau_plus, 0.7)
      values, grads, slopes = _run(
          'in_batch', arrays, ids, given, block_size=block_size, more=more
      )
      mean = lambda arrays, given: losses.in_batch_loss(  # noqa: E731
          *arrays, block_size=block_size, **given, **more
      ).mean()
      expected = testing.jitted(jax.value_and_grad(mean, (0, 1)), arrays, given)
      self.assert_close(values.mean(), expected[0])
      self.assert_same_gradient(grads, expected[1][0])
      for k, slope in slopes.items():
        np.testing.assert_allclose(slope, expected[1][1][k], 2e-5, 1e-6)

  @parameterized.parameters(('shared', 8), ('own', None), ('own', 8))
  def test_ids_work_with_every_option(self, case, block_size):
    arrays = testing.views(11, 3, noise=1.5)
    oracle = {'floor': 'soft' if case == 'shared' else 'sphere'}
    if case == 'shared':
      more = {
          'negatives': testing.normal(3, 3, seed=9),
          'where': np.array([True, False, True]),
          'margin': -0.1,
      }
      oracle |= more
    else:
      guide = testing.views(11, 2, seed=4)
      more = {
          'negatives': testing.normal(11, 2, 3, seed=9),
          'where': np.arange(22).reshape(11, 2) % 3 > 0,
      }
      oracle |= {**more, 'margin': 0.5, 'relative': True, 'guide': guide}
      more['margin'] = losses.Margin(0.5, relative=True, guide=guide)
    for beta, tau_plus in ((1.0, 0.1), (0.5, 0.6)):
      given = _given('in_batch', 0.5, beta, tau_plus)
      actual = _run(
          'in_batch', arrays, _LABELS, given, block_size=block_size, more=more,
          floor=oracle['floor'],
      )  # fmt: skip
      expected = reference.in_batch(*arrays, ids=_LABELS, **oracle, **given)
      self._check('in_batch', actual, expected, 3e-5)

  @parameterized.parameters(*_BLOCKS)
  def test_both_directions(self, block_size):
    z1, z2 = testing.views(11, 4)
    given = {
        'temperature': 0.3, 'beta': 1.5, 'tau_plus': 0.1,
        'negatives': testing.normal(3, 4, seed=2),
    }  # fmt: skip

    def mean(z1, z2):
      values = losses.in_batch_loss(
          z1, z2, ids=_LABELS, bidirectional=True, block_size=block_size,
          **given,
      )  # fmt: skip
      return values.mean(), values

    grads, values = jax.jit(jax.grad(mean, (0, 1), has_aux=True))(z1, z2)
    expected, *expected_grads = reference.in_batch(
        z1, z2, ids=_LABELS, bidirectional=True, **given
    )
    self.assert_close(values, expected)
    self.assert_same_gradient(
        grads, tuple(np.array(g) for g in expected_grads), 1e-5
    )

  def test_effective_negatives(self):
    z1, z2 = testing.views(24, 6)
    ids = np.arange(24) % 9
    loss = functools.partial(
        losses.in_batch_loss, z1, z2, ids=ids, temperature=0.2, tau_plus=0.05,
        block_size=8,
    )  # fmt: skip
    cosines = np.array(reference.cosines(np.concatenate([z1, z2])))
    betas = losses.beta_for_perplexity(
        np.float32(cosines[:24, 24:] / 0.2), 0.6,
        where=ids[:, None] != ids[None, :],
    )  # fmt: skip
    self.assert_close(loss(effective_negatives=0.6), loss(beta=betas), 1e-3)

  @parameterized.parameters(*_BLOCKS, 'ring')
  def test_effective_negatives_of_classes(self, block_size):
    """Each anchor has the beta that bisection finds, and its gradient."""
    arrays = testing.views(24, 6)
    labels = np.arange(24) % 5
    temperature = 0.3
    units = [reference.unit(row) for z in arrays for row in z.tolist()]
    betas = []
    for i, unit in enumerate(units):
      others = [
          reference.dot(unit, other) / temperature
          for j, other in enumerate(units)
          if labels[j % 24] != labels[i % 24]
      ]
      betas.append(reference.beta_for_perplexity(others, 0.6))
    expected, *expected_grads = reference.hard_supcon(
        *arrays, labels, temperature=temperature, beta=betas,
        # Betas are detached, the weights are not.
        stop_gradient_weights=False,
    )  # fmt: skip

    def mean(z1, z2, labels, **where):
      values = losses.supcon_loss(
          z1, z2, labels, temperature=temperature, effective_negatives=0.6,
          **where,
      )  # fmt: skip
      return values.mean(), values

    if block_size == 'ring':
      mesh = jax.sharding.Mesh(np.array(jax.devices()), ('batch',))

      def of_device(*rows):
        value, values = mean(*rows, axis_name='batch', block_size=2)
        return jax.lax.pmean(value, 'batch'), values

      whole = jax.shard_map(
          of_device, mesh=mesh, in_specs=P('batch'), out_specs=(P(), P('batch'))
      )
    else:
      whole = functools.partial(mean, block_size=block_size)
    grads, values = jax.jit(jax.grad(whole, (0, 1), has_aux=True))(
        *arrays, labels
    )
    # The perplexity is met to a part in a thousand, so beta nearly so.
    self.assert_close(values, expected, 1e-3)
    self.assert_same_gradient(
        grads, tuple(np.array(g) for g in expected_grads), 5e-3
    )

  @parameterized.product(name=_NAMES, block_size=_BLOCKS)
  def test_permutation_and_length_do_not_matter(self, name, block_size):
    z1, z2 = testing.views(11, 3)
    order = np.array([3, 1, 6, 0, 2, 5, 4, 10, 8, 7, 9])
    given = _given(name, 0.5, 1.0, 0.1)
    run = functools.partial(_run, name, given=given, block_size=block_size)
    values, (_, grad), _ = run((z1, z2), _LABELS)
    others, (_, other_grad), _ = run(
        (z1[order], 1e10 * z2[order]), _LABELS[order] * 3
    )
    self.assert_close(others, values[order])
    self.assert_same_gradient(1e10 * other_grad, grad[order])

  def test_half_precision_is_upcast(self, name='in_batch', block_size=8):
    arrays = tuple(jnp.asarray(z, jnp.bfloat16) for z in testing.views(11, 3))
    given = _given(name, 0.5, 1.0, 0.1)
    values, grads, _ = _run(
        name, arrays, _LABELS, given, block_size=block_size
    )
    self.assertEqual(values.dtype, jnp.float32)
    self.assertEqual(grads[0].dtype, jnp.bfloat16)
    self.assert_finite(grads)
    expected, *_ = _ORACLES[name](
        *(np.float64(z) for z in arrays), _LABELS, **given
    )
    self.assert_close(values, expected)

  @parameterized.product(name=_NAMES, block_size=_BLOCKS)
  def test_nan_is_never_hidden(self, name, block_size):
    z1, z2 = testing.views(11, 3)
    z2[2, 1] = np.nan
    values, *_ = _run(
        name, (z1, z2), _LABELS, _given(name, 0.5, 1.0), block_size=block_size
    )
    self.assertTrue(np.all(np.isnan(values)))

  @parameterized.parameters(*_NAMES)
  def test_tiles_are_all_that_is_in_memory(self, name):
    shape = jax.ShapeDtypeStruct((600, 8), jnp.float32)
    labels = jax.ShapeDtypeStruct((600,), jnp.int32)

    def text(block_size):
      mean = lambda *a: _loss(name, *a, block_size=block_size).mean()  # noqa: E731
      return str(jax.make_jaxpr(jax.grad(mean, (0, 1)))(shape, shape, labels))

    n = 1200 if name == 'supcon' else 600
    self.assertNotIn(f'[{n},{n}]', text(None))
    self.assertIn(f'[{n},{n}]', text(n))

  @parameterized.parameters(('supcon', 3), ('in_batch', None))
  def test_hessian(self, name, block_size):
    z1, z2 = testing.views(4, 3)
    labels = np.array([0, 1, 0, 2])
    columns = labels if name == 'in_batch' else np.tile(labels, 2)
    same = columns[:, None] == columns[None, :]

    def mean(z1):
      return _loss(
          name, z1, z2, labels, temperature=0.5, beta=1.0, block_size=block_size
      ).mean()

    def plain(z1):
      units = [
          z / jnp.linalg.norm(z, axis=1, keepdims=True)
          for z in (z1, jnp.asarray(z2))
      ]
      if name == 'supcon':
        units = [jnp.concatenate(units)] * 2
      scores = jnp.exp(2 * jnp.matmul(units[0], units[1].T))
      positive = same & ~(np.eye(8, dtype=bool) & (name == 'supcon'))[
          : len(same), : len(same)]
      total = jnp.sum(jnp.where(positive, scores, 0), 1)
      low, high = (
          jnp.sum(jnp.where(same, 0, scores**k), 1) for k in (1, 2)
      )
      logs = jnp.where(positive, jnp.log(scores), 0)
      hard = np.float32(np.sum(~same, 1)) * high / low
      number = np.float32(np.sum(positive, 1))
      return jnp.mean(jnp.log(total + hard) - jnp.sum(logs, 1) / number)

    self.assert_same_gradient(
        testing.jitted(jax.hessian(mean), z1),
        testing.jitted(jax.hessian(plain), z1),
        1e-4,
    )

  def test_betas_and_ids_under_vmap(self):
    z1, z2 = testing.views(11, 3)
    betas = jnp.array([0.0, 1.0, 50.0])
    labels = jnp.stack([_LABELS, jnp.zeros(11, int), jnp.arange(11)])
    loss = lambda b, i: losses.in_batch_loss(  # noqa: E731
        z1, z2, beta=b, ids=i, block_size=8
    )
    values = jax.jit(jax.vmap(loss))(betas, labels)
    for value, beta, ids in zip(values, betas, labels, strict=True):
      np.testing.assert_allclose(value, loss(beta, ids), 1e-5, 1e-6)

  def test_ids_need_cosines(self):
    with self.assertRaisesRegex(ValueError, 'normalize must be True'):
      losses.in_batch_loss(
          *testing.views(4, 3), ids=np.array([0, 0, 1, 2]), normalize=False
      )

  def test_bad_arguments(self):
    z1, z2 = testing.views(4, 3)
    for bad, message in (
        (
            {'ids': np.arange(4), 'labels': np.arange(4)},
            'ids and labels exclude each other.*positives of each other',
        ),
        ({'ids': np.arange(3)}, r'ids must have shape \(4,\).*got \(3,\)'),
        ({'ids': np.ones(4)}, 'ids must be an integer array; got dtype'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        losses.in_batch_loss(z1, z2, **bad)
    with self.assertRaisesRegex(ValueError, 'exclude each other; got beta=2'):
      losses.supcon_loss(
          z1, z2, np.arange(4), beta=2.0, effective_negatives=0.5
      )


# --- Devices ----------------------------------------------------------------


def _local(name, weights, given, images, labels, **options):
  """Returns the mean loss of one device's rows."""
  z = jnp.tanh(jnp.matmul(images, weights))
  if name == 'in_batch':
    options['negatives'] = z[:, 0, ::-1] + 0.5
    options['tau_plus'] = 0.05
  return _loss(name, z[:, 0], z[:, 1], labels, **given, **options).mean()


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


def _shard_map_step(local):
  step = jax.value_and_grad(lambda *a: _pmean(local(*a)), (0, 1))
  mesh = jax.sharding.Mesh(np.array(jax.devices()), ('batch',))
  rows = P('batch')
  return jax.jit(jax.shard_map(
      step, mesh=mesh, in_specs=(P(), P(), rows, rows), out_specs=P(),
  ))  # fmt: skip


_MODES = {
    'pmap': _pmap_step,
    'shard_map': _shard_map_step,
}


@functools.cache
def _on_one_device(name):
  return jax.jit(jax.value_and_grad(functools.partial(_local, name), (0, 1)))


class PositivesDevicesTest(testing.LossTest):

  @parameterized.parameters(
      ('supcon', 'pmap', 4), ('supcon', 'shard_map', None),
      ('supcon', 'shard_map', 4), ('in_batch', 'shard_map', None),
      ('in_batch', 'shard_map', 4),
  )  # fmt: skip
  def test_eight_devices_have_value_and_gradient_of_one(
      self, name, mode, block_size
  ):
    local = functools.partial(
        _local, name, axis_name='batch', block_size=block_size
    )
    step = _MODES[mode](local)
    # The two temperatures take the two ways of folding a tile.
    for temperature, groups in ((0.5, 5), (0.02, 17)):
      given = {
          'temperature': jnp.float32(temperature), 'beta': jnp.float32(2.0)
      }  # fmt: skip
      args = testing.normal(7, 6), given, testing.normal(24, 2, 7, seed=1)
      labels = np.arange(24) % groups
      (value, grads), (expected, expected_grads) = (
          f(*args, labels) for f in (step, _on_one_device(name))
      )
      self.assert_close(value, expected)
      self.assert_same_gradient(grads, expected_grads)

  @parameterized.parameters(*_NAMES)
  def test_tiles_are_shared_over_a_mesh(self, name):
    """Gathered tiles, which only large batches have."""
    arrays = testing.views(800, 4)
    labels = np.arange(800) % 37

    def mean(z1, z2, labels, mesh, block_size):
      return _loss(
          name, z1, z2, labels, temperature=0.3, beta=2.0, mesh=mesh,
          block_size=block_size,
      ).mean()  # fmt: skip

    step = jax.jit(jax.value_and_grad(mean, (0, 1)), static_argnums=(3, 4))
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ('batch',))
    rows = jax.sharding.NamedSharding(mesh, P('batch'))
    sharded = jax.device_put((*arrays, labels), rows)
    value, grads = step(*sharded, mesh, None)
    expected, expected_grads = step(*arrays, labels, None, 1600)
    self.assert_close(value, expected)
    self.assert_same_gradient(grads, expected_grads)
