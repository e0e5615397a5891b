# SPDX-License-Identifier: Apache-2.0
"""in_batch_loss in both directions, dense, in tiles and on devices."""

import functools

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import losses
from tests import reference
from tests.support import testing

P = jax.sharding.PartitionSpec
_BLOCKS = None, 3
_KNOBS = (
    {'temperature': 0.5, 'beta': 1.0, 'tau_plus': 0.1},
    {'temperature': 0.02, 'beta': 3.0, 'tau_plus': 0.0},
    {'temperature': 0.3, 'beta': 0.0, 'tau_plus': 0.3},
)
_GUIDE = testing.normal(7, 6, seed=30), testing.normal(7, 6, seed=31)
_CASES = {
    'plain': {},
    'shared': {
        'negatives': testing.normal(4, 4, seed=9),
        'where': np.array([True, False, True, True]),
    },
    'own': {
        'negatives': testing.normal(7, 3, 4, seed=9),
        'labels': np.array([0, 1, 2, 0, 1, 2, 3]),
        'floor': 'soft',
        'stop_gradient_weights': True,
    },
    'margin': {'margin': 0.3, 'negatives': testing.normal(2, 4, seed=9)},
    'guide': {'margin': 0.1, 'relative': True, 'guide': _GUIDE},
    'products': {'normalize': False, 'floor': 'none', 'positive_weight': 0.3},
}


def _given(case):
  """Returns the arguments of the loss from those of the oracle."""
  given = dict(_CASES[case])
  if 'margin' in given:
    names = 'relative', 'guide'
    of_margin = {k: given.pop(k) for k in names if k in given}
    given['margin'] = losses.Margin(given['margin'], **of_margin)
  return given


def _grad(case, block_size):
  def mean(arrays, knobs):
    values = losses.in_batch_loss(
        *arrays, bidirectional=True, block_size=block_size, **_given(case),
        **knobs,
    )  # fmt: skip
    return values.mean(), values

  return jax.jit(jax.grad(mean, (0, 1), has_aux=True))


class BidirectionalTest(testing.LossTest):

  @parameterized.product(case=tuple(_CASES), block_size=_BLOCKS)
  def test_matches_the_oracle(self, case, block_size):
    arrays = tuple(np.float32(0.3) * z for z in testing.views(7, 4))
    both = _grad(case, block_size)
    for knobs in _KNOBS:
      knobs = {k: np.float32(v) for k, v in knobs.items()}
      with self.subTest(**knobs):
        (grads, slopes), values = both(arrays, knobs)

        def oracle(knobs=knobs):
          return reference.in_batch(
              *arrays, bidirectional=True, **_CASES[case],
              **{k: float(v) for k, v in knobs.items()},
          )  # fmt: skip

        expected, *expected_grads = oracle()
        self.assert_close(values, expected, 3e-5)
        self.assert_same_gradient(
            grads, tuple(np.array(g) for g in expected_grads), 3e-5
        )
        if 'stop_gradient_weights' in _CASES[case]:
          continue
        for name in ('temperature', 'beta'):
          if not knobs[name]:
            continue
          step = 1e-5 * float(knobs[name])
          ends = [
              np.mean(oracle(knobs | {name: float(knobs[name]) + x})[0])
              for x in (step, -step)
          ]
          np.testing.assert_allclose(
              slopes[name], (ends[0] - ends[1]) / (2 * step), rtol=1e-3,
              atol=1e-5,
          )  # fmt: skip

  @parameterized.product(number=(7, 14), block_size=_BLOCKS)
  def test_each_anchor_has_its_beta(self, number, block_size):
    arrays = testing.views(7, 4)
    betas = np.random.default_rng(5).uniform(0, 4, number).astype(np.float32)
    knobs = {'temperature': 0.3, 'tau_plus': 0.1, 'beta': betas}
    (grads, slopes), values = _grad('margin', block_size)(arrays, knobs)

    def oracle(betas):
      return reference.in_batch(
          *arrays, bidirectional=True, **_CASES['margin'],
          **{**knobs, 'beta': [float(x) for x in betas] * (14 // number)},
      )  # fmt: skip

    expected, *expected_grads = oracle(betas)
    self.assert_close(values, expected, 3e-5)
    self.assert_same_gradient(
        grads, tuple(np.array(g) for g in expected_grads), 3e-5
    )
    for place in (2, number - 1):
      step = np.zeros(number)
      step[place] = 1e-4
      slope = np.mean(oracle(betas + step)[0]) - np.mean(
          oracle(betas - step)[0]
      )
      np.testing.assert_allclose(
          slopes['beta'][place], slope / 2e-4, rtol=1e-3, atol=1e-6
      )

  @parameterized.parameters(2, 4)
  def test_betas_that_would_fold_tiles_in_two_ways(self, block_size):
    """Some tiles alone would be folded relative to 1, others to peaks."""
    z1, z2 = testing.views(16, 4)
    betas = np.float32(3 * np.tile([1, 1, 0, 0], 8))
    for loss in (
        losses.simclr_loss,
        functools.partial(losses.in_batch_loss, bidirectional=True),
    ):
      given = {'beta': betas, 'temperature': 0.05, 'tau_plus': 0.0}
      self.assert_close(
          loss(z1, z2, block_size=block_size, **given),
          loss(z1, z2, block_size=100, **given),
          1e-4,
      )

  def test_other_numbers_of_betas_are_refused(self):
    z1, z2 = testing.views(7, 4)
    with self.assertRaisesRegex(ValueError, r'\(7,\) or \(14,\); got \(8,\)'):
      losses.in_batch_loss(z1, z2, beta=np.ones(8), bidirectional=True)
    with self.assertRaisesRegex(ValueError, r'shape \(7,\); got \(14,\)'):
      losses.in_batch_loss(z1, z2, beta=np.ones(14))
    with self.assertRaisesRegex(ValueError, 'bidirectional must be one of'):
      losses.in_batch_loss(z1, z2, bidirectional='both')

  @parameterized.parameters(None, 7)
  def test_is_the_mean_of_two_calls(self, block_size):
    z1, z2 = testing.views(24, 6)
    own = testing.normal(24, 2, 6, seed=3)
    margin = testing.views(24, 5, seed=4)
    for knobs in (
        {'effective_negatives': 0.6},
        {'beta': 1e3, 'temperature': 1e-3},
        {'beta': 0.0, 'temperature': 1e3},
    ):
      given = {'block_size': block_size, 'tau_plus': 0.1, **knobs}
      value = losses.in_batch_loss(
          z1, z2, negatives=own, margin=losses.Margin(0.1, guide=margin),
          bidirectional=True, **given,
      )  # fmt: skip
      expected = losses.in_batch_loss(
          z1, z2, negatives=own, margin=losses.Margin(0.1, guide=margin),
          **given,
      )  # fmt: skip
      expected += losses.in_batch_loss(
          z2, z1, margin=losses.Margin(0.1, guide=margin[::-1]), **given
      )
      self.assert_close(value, expected / 2, 1e-4)

  @parameterized.product(
      block_size=(None, 2), case=('betas', 'shares'), check_vma=(False, True)
  )
  def test_devices_change_nothing(self, block_size, case, check_vma):
    z1, z2 = testing.views(24, 6)
    betas = np.random.default_rng(5).uniform(0, 4, (24, 2)).astype(np.float32)
    labels = np.arange(24) % 20
    guide = testing.views(24, 5, seed=4)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ('batch',))

    def mean(z1, z2, temperature, betas, labels, guide, **where):
      if case == 'betas':
        own = jnp.stack([z1[:, ::-1] + 0.5, z2[:, ::-1]], axis=1)
        knobs = {'beta': betas.T.reshape(-1), 'negatives': own}
        knobs['margin'] = losses.Margin(0.1, guide=guide)
      else:
        knobs = {'effective_negatives': 0.7, 'negatives': z1[:, ::-1] + 0.5}
      return losses.in_batch_loss(
          z1, z2, temperature=temperature, tau_plus=0.1, labels=labels,
          bidirectional=True, **knobs, **where,
      ).mean()  # fmt: skip

    local = functools.partial(mean, axis_name='batch', block_size=block_size)
    split = P('batch')
    shard = functools.partial(
        jax.shard_map, mesh=mesh, check_vma=check_vma,
        in_specs=(split, split, P(), split, split, (split, split)),
    )  # fmt: skip

    def averaged(*args):
      return jax.lax.pmean(local(*args), 'batch')

    whole = jax.jit(
        jax.value_and_grad(shard(averaged, out_specs=P()), (0, 1, 2, 3))
    )
    one = jax.jit(jax.value_and_grad(mean, (0, 1, 2, 3)))
    tolerance = 1e-5 if case == 'betas' else 1e-4
    for temperature in (0.5, 0.02):
      args = z1, z2, jnp.float32(temperature), betas, labels, guide
      (value, grads), (expected, expected_grads) = whole(*args), one(*args)
      self.assert_close(value, expected, tolerance)
      self.assert_same_gradient(grads, expected_grads, tolerance)

  @parameterized.parameters(None, 2)
  def test_a_mesh_changes_nothing(self, block_size):
    z1, z2 = testing.views(16, 4)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ('batch',))
    given = {
        'beta': np.linspace(0, 3, 32, dtype=np.float32),
        'negatives': testing.normal(5, 4, seed=3),
        'bidirectional': True,
    }  # fmt: skip
    self.assert_close(
        losses.in_batch_loss(
            z1, z2, mesh=mesh, block_size=block_size, **given
        ),
        losses.in_batch_loss(z1, z2, **given),
        2e-5,
    )

  def test_directions_share_products(self):
    """A tile serves both directions: two products more for the gradient."""
    z = testing.normal(8, 3)
    for block_size, number in ((None, 3), (4, 4)):
      grad = jax.grad(
          lambda a, b, block_size=block_size: losses.in_batch_loss(
              a, b, bidirectional=True, block_size=block_size
          ).sum(),
          (0, 1),
      )
      text = str(jax.make_jaxpr(grad)(z, z))
      self.assertEqual(text.count(' dot_general['), number)

  def test_second_and_forward_derivatives(self):
    z1, z2 = testing.views(4, 3)

    def two(z1):
      given = {'temperature': 0.2, 'tau_plus': 0.1}
      values = losses.in_batch_loss(z1, z2, **given)
      return (values + losses.in_batch_loss(z2, z1, **given)).mean() / 2

    def one(z1):
      return losses.in_batch_loss(
          z1, z2, temperature=0.2, tau_plus=0.1, bidirectional=True
      ).mean()

    expected = jax.jit(jax.hessian(two))(z1)
    self.assert_same_gradient(jax.jit(jax.hessian(one))(z1), expected, 1e-4)

  @parameterized.parameters(*_BLOCKS)
  def test_half_precision_is_upcast(self, block_size):
    z1, z2 = (jnp.asarray(z, jnp.bfloat16) for z in testing.views(7, 5))
    values = losses.in_batch_loss(
        z1, z2, beta=1.0, bidirectional=True, block_size=block_size
    )
    self.assertEqual(values.dtype, jnp.float32)
    expected, *_ = reference.in_batch(
        np.asarray(z1, np.float64), np.asarray(z2, np.float64), beta=1.0,
        temperature=0.05, tau_plus=0.0, bidirectional=True,
    )  # fmt: skip
    self.assert_close(values, expected, 3e-5)
