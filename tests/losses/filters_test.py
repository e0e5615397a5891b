# SPDX-License-Identifier: Apache-2.0
"""Which negatives count, and how much: margin, where, beta of each anchor."""

import functools

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import losses
from tests import reference
from tests.support import testing

_KNOBS = {'temperature': 0.3, 'tau_plus': 0.1}
_BLOCKS = None, 4


def _value_and_grads(loss, *arrays, **knobs):
  def mean(*arrays):
    values = loss(*arrays, **_KNOBS, **knobs)
    return values.mean(), values

  numbers = tuple(range(len(arrays)))
  return jax.grad(mean, numbers, has_aux=True)(*arrays)[::-1]


def _betas(number):
  return np.random.default_rng(5).uniform(0, 4, number).astype(np.float32)


def _guide(*rows):
  return tuple(testing.normal(n, 6, seed=30 + i) for i, n in enumerate(rows))


class FiltersTest(testing.LossTest):

  def check(self, name, arrays, knobs, expected_knobs, block_size):
    values, grads = _value_and_grads(
        getattr(losses, f'{name}_loss'), *arrays, block_size=block_size,
        **knobs,
    )  # fmt: skip
    expected, *expected_grads = getattr(reference, name)(
        *arrays, **_KNOBS, **expected_knobs
    )
    self.assert_close(values, expected, 2e-5)
    for grad, exact in zip(grads, expected_grads, strict=False):
      self.assert_same_gradient(grad, np.array(exact), 2e-5)

  @parameterized.product(
      kind=('absolute', 'guide_relative'),
      name=('simclr', 'in_batch', 'moco'),
      block_size=_BLOCKS,
  )
  def test_margin_drops_what_the_oracle_drops(self, kind, name, block_size):
    arrays = testing.views(9, 4, noise=0.9)
    if name == 'moco':
      arrays += (testing.normal(11, 4, seed=7),)
    relative = 'relative' in kind
    guide = _guide(*map(len, arrays)) if 'guide' in kind else None
    margin = losses.Margin(0.3, relative=relative, guide=guide)
    expected = {'margin': 0.3, 'relative': relative, 'beta': 1.0}
    if guide is not None:
      expected['guide'] = guide
    if kind == 'absolute':
      margin = 0.3
    given = {'beta': 1.0, 'margin': margin}
    self.check(name, arrays, given, expected, block_size)

  def test_margin_is_right_for_a_negative_positive(self):
    positive = -0.5
    for relative, limit in ((False, -0.7), (True, -0.6)):
      margin = losses.Margin(0.2, relative=relative)
      self.assert_close(margin.limits(jnp.float32(positive)), limit)

  @parameterized.parameters(*_BLOCKS)
  def test_margin_spares_explicit_negatives(self, block_size):
    anchors, positives = testing.views(9, 4)
    for negatives in (positives[:5], np.tile(positives[:2], (9, 1, 1))):
      self.check(
          'in_batch', (anchors, positives),
          {'beta': 1.0, 'margin': 0.5, 'negatives': negatives},
          {'beta': 1.0, 'margin': 0.5, 'negatives': negatives},
          block_size,
      )  # fmt: skip

  @parameterized.parameters(*_BLOCKS)
  def test_margin_that_drops_all_gives_0(self, block_size):
    z1, z2 = testing.views(9, 4)
    for name in ('simclr', 'in_batch'):
      values, grads = _value_and_grads(
          getattr(losses, f'{name}_loss'), z1, z2, margin=2.5,
          positive_weight=0.3, block_size=block_size,
      )  # fmt: skip
      np.testing.assert_array_equal(values, 0.0)
      for grad in grads:
        np.testing.assert_array_equal(grad, 0.0)

  def test_margin_has_no_gradient(self):
    z1, z2 = testing.views(9, 4)

    def loss(margin, guide):
      return losses.in_batch_loss(
          z1, z2, margin=losses.Margin(margin, guide=guide)
      ).sum()

    to_margin, to_guide = jax.jit(jax.grad(loss, (0, 1)))(0.1, _guide(9, 9))
    self.assertEqual(to_margin, 0.0)
    for grad in to_guide:
      np.testing.assert_array_equal(grad, 0.0)

  def test_margin_needs_a_fitting_guide(self):
    z1, z2 = testing.views(9, 4)
    for guide, message in (
        (_guide(9), r'must have 2 arrays, in place of \(z1, z2\); got 1'),
        (_guide(9, 8), 'guide of z2 must have its 9 rows'),
        ((z1, z2[:, :3]), 'must have one width'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        losses.simclr_loss(z1, z2, margin=losses.Margin(0.1, guide=guide))
    with self.assertRaisesRegex(ValueError, 'margin must be finite'):
      losses.simclr_loss(z1, z2, margin=float('nan'))

  @parameterized.product(
      name=('simclr', 'in_batch', 'moco'), block_size=_BLOCKS
  )
  def test_each_anchor_has_its_beta(self, name, block_size):
    arrays = testing.views(9, 4)
    if name == 'moco':
      arrays += (testing.normal(11, 4, seed=7),)
    for number in (9, 18) if name == 'simclr' else (9,):
      betas = _betas(number)
      oracle = [float(x) for x in betas]
      if name == 'simclr' and number == 9:
        oracle *= 2
      knobs = {'beta': betas}
      self.check(name, arrays, knobs, {'beta': oracle}, block_size)

  @parameterized.parameters(('simclr', 18), ('in_batch', 9))
  def test_gradient_by_each_beta(self, name, number):
    arrays = testing.views(9, 4)
    betas = _betas(number)
    loss = getattr(losses, f'{name}_loss')

    @functools.partial(jax.jit, static_argnames='block_size')
    def slopes(betas, block_size):
      return jax.grad(
          lambda b: loss(*arrays, beta=b, block_size=block_size, **_KNOBS).sum()
      )(betas)

    dense = slopes(betas, 100)
    self.assert_same_gradient(slopes(betas, 4), dense, 1e-5)
    step = np.zeros_like(betas)
    step[3] = 1e-2
    ends = [
        sum(getattr(reference, name)(
            *arrays, beta=[float(x) for x in betas + s * step], **_KNOBS
        )[0])
        for s in (1, -1)
    ]  # fmt: skip
    self.assertAlmostEqual(dense[3], (ends[0] - ends[1]) / 2e-2, delta=1e-4)

  def test_logits_with_a_beta_for_each_anchor(self):
    pos, neg = testing.normal(5, 2), testing.normal(5, 9, seed=1)
    betas = _betas(5)
    values = losses.hard_nce_loss(pos, neg, beta=betas, tau_plus=0.1)
    self.assert_close(values, [
        reference.hard_nce(p.tolist(), n.tolist(), float(b), 0.1)
        for p, n, b in zip(pos, neg, betas, strict=True)
    ])  # fmt: skip

  def test_betas_of_another_number_are_refused(self):
    z1, z2 = testing.views(9, 4)
    with self.assertRaisesRegex(
        ValueError, r'beta must be a scalar or.* \(9,\) or \(18,\); got \(8,\)'
    ):
      losses.simclr_loss(z1, z2, beta=_betas(8))

  @parameterized.product(
      separate=(False, True), rank=(1, 2), block_size=_BLOCKS
  )
  def test_where_drops_explicit_negatives(self, separate, rank, block_size):
    anchors, positives = testing.views(9, 4)
    negatives = testing.normal(*((9, 7) if separate else (7,)), 4, seed=3)
    rng = np.random.default_rng(2)
    where = rng.random((9, 7) if rank == 2 else 7) < 0.6
    dropped = ~(where if rank == 1 or separate else where.any(axis=0))
    poisoned = negatives.copy()
    if separate:
      poisoned[np.broadcast_to(dropped, (9, 7))] = np.nan
    else:
      poisoned[dropped] = np.nan
    values, grads = _value_and_grads(
        losses.in_batch_loss, anchors, positives, beta=1.0, where=where,
        negatives=poisoned, block_size=block_size,
    )  # fmt: skip
    expected, *expected_grads = reference.in_batch(
        anchors, positives, beta=1.0, where=where, negatives=negatives, **_KNOBS
    )
    self.assert_close(values, expected, 2e-5)
    self.assert_same_gradient(
        grads, tuple(np.array(g) for g in expected_grads), 2e-5
    )

  def test_where_needs_negatives(self):
    z1, z2 = testing.views(9, 4)
    with self.assertRaisesRegex(ValueError, 'negatives is None'):
      losses.in_batch_loss(z1, z2, where=np.ones(3, bool))
    with self.assertRaisesRegex(ValueError, 'where must broadcast'):
      losses.in_batch_loss(
          z1, z2, negatives=z1[:4], where=np.ones(3, bool)
      )
