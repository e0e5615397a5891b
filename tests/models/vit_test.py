# SPDX-License-Identifier: Apache-2.0
"""Vision transformers: sizes, positions, gradients and dtypes."""

import functools
import math

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import models
from hcl_jax.models import vit

_KEY = jax.random.key(0)


def _images(*shape):
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


class _Test(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # Norms of Flax turn bfloat16 into float32 without saying so.
    self.enter_context(jax.numpy_dtype_promotion('standard'))


class SizesTest(_Test):

  @parameterized.parameters(
      # As published, less the classifier, the class token and its positions.
      ('vit_s16', 16, 384, 22_050_664 - 385_000 - 198 * 384),
      ('vit_b16', 16, 768, 86_567_656 - 769_000 - 198 * 768),
      ('vit_l16', 16, 1024, 304_326_632 - 1_025_000 - 198 * 1024),
      # By hand: four blocks, patches of 48 numbers, and the last norm.
      ('vit_tiny', 4, 128, 4 * (12 * 128 + 13) * 128 + 49 * 128 + 256),
  )
  def test_parameters_and_features(self, name, patch, width, size):
    encoder = models.create(name, dtype='bfloat16')
    images = jax.ShapeDtypeStruct((2, 3 * patch, 2 * patch, 3), jnp.float32)
    out, variables = jax.eval_shape(
        functools.partial(encoder.init_with_output, train=False), _KEY, images
    )
    params = jax.tree.leaves(variables['params']['backbone'])
    self.assertEqual(sum(math.prod(x.shape) for x in params), size)
    self.assertEqual([x.shape for x in out], [(2, width), (2, 128)])
    for x in (*params, *out):
      self.assertEqual(x.dtype, jnp.float32)
    self.assertEqual(models.patch_size(name), patch)

  def test_what_a_transformer_cannot_have(self):
    with self.assertRaisesRegex(ValueError, "stem must be 'cifar' for name='v"):
      models.create('vit_tiny', stem='imagenet')
    with self.assertRaisesRegex(ValueError, 'patch of 4 pixels.*got 6 x 8'):
      models.create('vit_tiny').init(_KEY, _images(2, 6, 8, 3), train=False)


class TransformerTest(_Test):

  def setUp(self):
    super().setUp()
    self.net = vit.VisionTransformer(patch=4, width=16, depth=2, heads=2)
    self.images = _images(3, 8, 12, 3)
    init = functools.partial(self.net.init, train=False)
    self.variables = jax.jit(init)(_KEY, self.images)

  def _features(self, net, images):
    apply = functools.partial(net.apply, train=True)
    return np.asarray(jax.jit(apply)(self.variables, images))

  def test_matches_numpy(self):
    expected = _transform(self.variables['params'], self.images, 4)
    actual = self._features(self.net, self.images)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)

  def test_images_may_have_another_size(self):
    images = _images(2, 16, 4, 3)
    expected = _transform(self.variables['params'], images, 4)
    actual = self._features(self.net, images)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)

  def test_gradients_reach_all_parameters(self):
    def value(variables):
      features = self.net.apply(variables, self.images, train=True)
      return jnp.sum(jnp.sin(features))

    for path, x in jax.tree_util.tree_leaves_with_path(
        jax.jit(jax.grad(value))(self.variables)
    ):
      name = jax.tree_util.keystr(path)
      self.assertTrue(np.isfinite(x).all(), name)
      # What all scores of a query have in common, the softmax ignores.
      if "['key']['bias']" not in name:
        self.assertGreater(np.abs(x).max(), 1e-7, name)

  def test_bfloat16_is_close(self):
    wide = self._features(self.net, self.images)
    net = self.net.clone(dtype=jnp.bfloat16)
    narrow = self._features(net, self.images)
    self.assertEqual(narrow.dtype, np.float32)
    error = np.abs(wide - narrow).max() / np.abs(wide).max()
    self.assertBetween(error, 1e-5, 0.05)

  def test_positions_match_loops(self):
    found = vit.positions(2, 3, 12)
    self.assertEqual((found.shape, found.dtype), ((2, 3, 12), np.float32))
    for row, column in np.ndindex(2, 3):
      expected = [
          wave(place / 10_000 ** (k / 2))
          for place in (column, row)
          for wave in (math.sin, math.cos)
          for k in range(3)
      ]
      np.testing.assert_allclose(found[row, column], expected, rtol=1e-5)


def _transform(params, images, patch):
  """Float64 oracle, one image after another."""
  params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  return np.stack([_transform_one(params, x, patch) for x in images])


def _transform_one(params, image, patch):
  rows, columns = (n // patch for n in image.shape[:2])
  width = params['norm']['scale'].size
  places = vit.positions(rows, columns, width).reshape(-1, width)
  patches = [
      image[patch * i : patch * (i + 1), patch * j : patch * (j + 1)].ravel()
      for i in range(rows)
      for j in range(columns)
  ]
  x = _linear(params['patches'], np.stack(patches)) + places
  for index in range(len(params) - 2):
    block = params[f'block{index + 1}']
    x = x + _attend(block['attention'], _norm(block['norm1'], x))
    y = _linear(block['hidden'], _norm(block['norm2'], x))
    gelu = y * (1 + np.tanh((2 / np.pi) ** 0.5 * (y + 0.044715 * y**3))) / 2
    x = x + _linear(block['out'], gelu)
  return _norm(params['norm'], x).mean(0)


def _attend(params, x):
  out = params['out']['bias'].copy()
  for head in range(params['query']['bias'].shape[0]):
    q, k, v = (
        x @ params[name]['kernel'][:, head] + params[name]['bias'][head]
        for name in ('query', 'key', 'value')
    )
    weights = np.exp(q @ k.T / q.shape[1] ** 0.5)
    weights /= weights.sum(1, keepdims=True)
    out = out + weights @ v @ params['out']['kernel'][head]
  return out


def _linear(params, x):
  return x @ params['kernel'] + params['bias']


def _norm(params, x):
  centered = x - x.mean(-1, keepdims=True)
  std = np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6)
  return centered / std * params['scale'] + params['bias']
