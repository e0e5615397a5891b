# SPDX-License-Identifier: Apache-2.0
"""Encoders of tokens: what they compute, padding, sizes, errors."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax.models import text_encoder
from tests.support import testing

_ROWS = np.array([
    [3, 1, 4, 1, -1, -1, -1, -1, -1, -1],
    [5, 9, 2, 6, 5, 3, 5, 8, 9, 7],
    [-1] * 10,
    [0] + [-1] * 9,
], np.int32)  # fmt: skip


def _made(name, **sizes):
  module = text_encoder.create(
      name, num_tokens=10, dim=6, width=8, token_dim=4, heads=2, **sizes
  )
  return module, module.init(jax.random.key(0), _ROWS, train=False)


class TextEncodersTest(parameterized.TestCase):

  @parameterized.parameters(*text_encoder.NAMES)
  def test_padding_does_not_matter(self, name):
    module, variables = _made(name)
    apply = jax.jit(lambda rows: module.apply(variables, rows, train=False))
    found = np.asarray(apply(_ROWS))
    self.assertEqual(found.shape, (4, 6))
    self.assertEqual(found.dtype, np.float32)
    self.assertTrue(np.isfinite(found).all())
    longer = np.pad(_ROWS, ((0, 0), (0, 7)), constant_values=-1)
    np.testing.assert_allclose(apply(longer), found, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        apply(_ROWS[:1, :4])[0], found[0], rtol=1e-5, atol=1e-6
    )

  @parameterized.parameters(*text_encoder.NAMES)
  def test_rows_do_not_meet(self, name):
    module, variables = _made(name)
    apply = jax.jit(lambda rows: module.apply(variables, rows, train=True))
    found = apply(_ROWS)
    np.testing.assert_allclose(
        apply(_ROWS[::-1]), found[::-1], rtol=1e-5, atol=1e-6
    )

  @parameterized.parameters('gru', 'transformer')
  def test_order_matters(self, name):
    module, variables = _made(name)
    found = module.apply(variables, _ROWS[:2], train=False)
    turned = module.apply(variables, _ROWS[:2, ::-1], train=False)
    self.assertGreater(np.abs(found[1] - turned[1]).max(), 1e-4)

  def test_a_bag_is_the_sum_of_its_tokens(self):
    module, variables = _made('bag')
    params = jax.tree.map(np.float64, variables['params'])
    total = np.array(
        [params['tokens'][row[row >= 0]].sum(axis=0) for row in _ROWS]
    )
    hidden = np.maximum(
        total @ params['hidden']['kernel'] + params['hidden']['bias'], 0
    )
    expected = hidden @ params['out']['kernel'] + params['out']['bias']
    found = module.apply(variables, _ROWS, train=False)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)

  def test_a_bag_knows_how_many_tokens_it_has(self):
    """Embeddings of a token and of the same twice differ in direction."""
    module, variables = _made('bag')
    rows = np.array([[3, -1, -1], [3, 3, 3]])
    once, often = module.apply(variables, rows, train=False)
    cosine = once @ often / np.sqrt((once @ once) * (often @ often))
    self.assertLess(cosine, 0.999)

  def test_the_gradient_of_a_bag(self):
    table = jnp.asarray(testing.normal(10, 4))
    weights = testing.normal(4, 4, seed=1)

    def plain(table):
      taken = jnp.where(_ROWS[..., None] < 0, 0, table[_ROWS])
      return jnp.sum(weights * jnp.sum(taken, axis=1))

    def ours(table):
      return jnp.sum(weights * text_encoder._sum_of_tokens(table, _ROWS))

    np.testing.assert_allclose(
        jax.grad(ours)(table), jax.grad(plain)(table), rtol=1e-5, atol=1e-6
    )

  def test_memory_of_a_bag_is_small(self):
    module = text_encoder.create('bag', num_tokens=500, token_dim=64)
    rows = jax.ShapeDtypeStruct((256, 256), jnp.int32)
    variables = jax.eval_shape(
        lambda key, x: module.init(key, x, train=False), jax.random.key(0), rows
    )
    compiled = jax.jit(
        jax.grad(lambda v, x: module.apply(v, x, train=True).sum())
    ).lower(variables, rows)
    memory = compiled.compile().memory_analysis()
    vectors = 4 * 256 * 256 * 64
    self.assertLess(memory.temp_size_in_bytes, vectors / 3)

  def test_an_adapter(self):
    module = text_encoder.Adapter(width=8, dim=3)
    rows = testing.normal(5, 7)
    variables = module.init(jax.random.key(0), rows, train=False)
    self.assertEqual(module.apply(variables, rows, train=True).shape, (5, 3))

  def test_half_precision(self):
    # Norms of Flax turn bfloat16 into float32 without saying so.
    self.enter_context(jax.numpy_dtype_promotion('standard'))
    module, variables = _made('transformer', dtype='bfloat16')
    found = module.apply(variables, _ROWS, train=False)
    self.assertEqual(found.dtype, jnp.float32)
    chosen = {x.dtype for x in jax.tree.leaves(variables)}
    self.assertEqual(chosen, {jnp.dtype('float32')})

  @parameterized.parameters(
      ({'name': 'bags'}, "'bag', 'gru', 'transformer'"),
      ({'name': 'gru', 'dim': 5}, 'dim must be even'),
      ({'name': 'transformer', 'width': 10}, 'multiple of 4 and of heads=4'),
      ({'name': 'transformer', 'dtype': 'float16'}, 'dtype'),
  )
  def test_bad_arguments(self, given, message):
    with self.assertRaisesRegex(ValueError, message):
      text_encoder.create(**{'num_tokens': 10, **given})


if __name__ == '__main__':
  absltest.main()
