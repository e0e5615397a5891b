# SPDX-License-Identifier: Apache-2.0
"""Encoders: sizes, normalisation, convolutions and their lowering."""

import functools
import math
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from hcl_jax import models
from hcl_jax.models import convolution
from hcl_jax.models import norm
from hcl_jax.models import resnet
from tests.support import testing

_KEY = jax.random.key(0)


def _normal(*shape, seed=0, mean=0.0, std=1.0):
  rng = np.random.default_rng(seed)
  return rng.normal(mean, std, shape).astype(np.float32)


def _size(tree):
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def _shapes(module, inputs):
  """Abstract variables and results of a module in training."""
  init = functools.partial(module.init, train=False)
  variables = jax.eval_shape(init, _KEY, inputs)
  apply = functools.partial(module.apply, train=True, mutable=['batch_stats'])
  return variables, jax.eval_shape(apply, variables, inputs)


def _images(*shape, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(shape, dtype)


class CreateTest(parameterized.TestCase):

  @parameterized.parameters(
      # Counted by hand for the released ResNet-50; others as published less
      # the classifier, and less 7,680 for the stem.
      ('resnet50', 'cifar', 2048, 23_500_352),
      ('resnet50', 'imagenet', 2048, 25_557_032 - 2_049_000),
      ('resnet34', 'imagenet', 512, 21_797_672 - 513_000),
      ('resnet18', 'imagenet', 512, 11_689_512 - 513_000),
      ('resnet18', 'cifar', 512, 11_689_512 - 513_000 - 7_680),
      ('resnet10', 'strided', 256, 1_226_400),  # by hand
      ('small', 'cifar', 256, 388_896),
  )
  def test_sizes_and_shapes(self, name, stem, width, size):
    encoder = models.create(name, stem=stem)
    variables, (outputs, updates) = _shapes(encoder, _images(4, 48, 40, 3))
    self.assertEqual(_size(variables['params']['backbone']), size)
    self.assertEqual([x.shape for x in outputs], [(4, width), (4, 128)])
    self.assertEqual([x.dtype for x in outputs], [jnp.float32] * 2)
    same = jax.tree.map(
        lambda old, new: old.shape == new.shape,
        variables['batch_stats'], updates['batch_stats'],
    )  # fmt: skip
    self.assertTrue(all(jax.tree.leaves(same)))

  @parameterized.parameters(
      ('simclr', None, 128, 1_115_264),
      ('simclr', 64, 32, 2048 * 64 + 2 * 64 + 64 * 32 + 32),
      ('moco', None, 128, 2048 * 2048 + 2048 + 2048 * 128 + 128),
      ('moco', 64, 128, 2048 * 64 + 64 + 64 * 128 + 128),
      ('linear', None, 128, 2048 * 128 + 128),
  )
  def test_heads(self, head, width, dim, size):
    encoder = models.create(head=head, head_width=width, embedding_dim=dim)
    features = jax.ShapeDtypeStruct((2, 2048), jnp.float32)
    variables, (embeddings, _) = _shapes(encoder.head, features)
    self.assertEqual(_size(variables['params']), size)
    self.assertEqual(embeddings.shape, (2, dim))

  @parameterized.parameters(
      {'name': 'resnet51'}, {'stem': 'tiny'}, {'head': 'mlp'},
      {'norm': 'layer'}, {'dtype': 'float16'}, {'bn_splits': 0},
      {'embedding_dim': 12.5}, {'head_width': -1},
      {'bn_splits': 2, 'bn_axis_name': 'batch'},
      {'name': 'small', 'stem': 'imagenet'},
      {'name': 'small', 'stem': 'strided'},
  )  # fmt: skip
  def test_rejects(self, **knobs):
    argument, value = list(knobs.items())[-1]
    with self.assertRaisesRegex(ValueError, argument) as caught:
      models.create(**knobs)
    self.assertIn(repr(value), str(caught.exception))

  def test_unknown_names_list_the_known(self):
    with self.assertRaisesRegex(ValueError, "'resnet18', .*'small'"):
      models.create('vgg')

  def test_rejects_raw_images(self):
    encoder = models.create('small')
    for images in (_images(2, 8, 8, 3, dtype=jnp.uint8), _images(8, 8, 3)):
      with self.assertRaisesRegex(ValueError, 'images must be'):
        _shapes(encoder, images)


class InitialisationTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    net = resnet.ResNet(
        resnet.BottleneckBlock, (1,), 'cifar', norm.BatchNorm, width=64
    )
    encoder = models.Encoder(net, models.create('small').head)
    init = functools.partial(encoder.init, train=False)
    cls.params = jax.jit(init)(_KEY, jnp.zeros((2, 4, 4, 3)))['params']

  def _assert_uniform(self, values, bound):
    values = np.asarray(values)
    self.assertLessEqual(np.abs(values).max(), bound)
    self.assertGreater(np.abs(values).max(), 0.95 * bound)
    self.assertAlmostEqual(values.std() / bound, 3**-0.5, delta=0.06)

  def test_kept_convolutions_are_he_normal_by_fan_out(self):
    block = self.params['backbone']['stage1_block1']
    for name, fan_out in (
        ('conv1', 64), ('conv2', 9 * 64), ('conv3', 256),
        ('shortcut_conv', 256),
    ):  # fmt: skip
      kernel = np.asarray(block[name]['kernel'])
      std = (2 / fan_out) ** 0.5
      self.assertAlmostEqual(kernel.std() / std, 1, delta=0.03)
      # A normal sample of this size goes beyond three deviations; a truncated
      # one does not.
      self.assertGreater(np.abs(kernel).max(), 3 * std)

  def test_stem_and_head_are_uniform_by_fan_in(self):
    stem = self.params['backbone']['stem_conv']['kernel']
    self._assert_uniform(stem, 27**-0.5)
    head = self.params['head']
    self._assert_uniform(head['hidden']['kernel'], 256**-0.5)
    self._assert_uniform(head['out']['kernel'], 512**-0.5)
    self._assert_uniform(head['out']['bias'], 512**-0.5)
    self.assertNotIn('bias', head['hidden'])

  def test_norms_start_as_the_identity(self):
    block = self.params['backbone']['stage1_block1']
    for name in ('norm1', 'norm2', 'norm3', 'shortcut_norm'):
      np.testing.assert_array_equal(block[name]['scale'], 1)
      np.testing.assert_array_equal(block[name]['bias'], 0)


def _batch_norm(x, scale, bias, epsilon=1e-5):
  """Float64 oracle: normalised values, mean and unbiased variance."""
  x = np.asarray(x, np.float64)
  rows = x.reshape(-1, x.shape[-1])
  mean = rows.sum(0) / len(rows)
  squares = ((rows - mean) ** 2).sum(0)
  y = (x - mean) / np.sqrt(squares / len(rows) + epsilon) * scale + bias
  return y, mean, squares / (len(rows) - 1)


def _bn_variables(channels, seed=0):
  rng = np.random.default_rng(seed)
  draw = lambda: rng.uniform(0.5, 2, channels).astype(np.float32)  # noqa: E731
  return {
      'params': {'scale': draw(), 'bias': draw()},
      'batch_stats': {'mean': draw(), 'var': draw()},
  }


def _apply_bn(x, variables, counts=None, **knobs):
  y, updates = norm.BatchNorm(**knobs).apply(
      variables, x, train=True, counts=counts, mutable=['batch_stats']
  )
  return y, updates['batch_stats']


class BatchNormTest(parameterized.TestCase):

  def _assert_follows(self, new, old, mean, var, rtol=1e-5):
    for name, target in (('mean', mean), ('var', var)):
      expected = 0.9 * old[name] + 0.1 * target
      np.testing.assert_allclose(new[name], expected, rtol)

  @parameterized.parameters(((6, 5, 4, 3),), ((8, 3),))
  def test_training_matches_float64(self, shape):
    variables = _bn_variables(3)
    x = _normal(*shape, mean=0.5, std=2.0)
    y, stats = _apply_bn(x, variables)
    expected, mean, var = _batch_norm(x, **variables['params'])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    self._assert_follows(stats, variables['batch_stats'], mean, var)

  def test_evaluation_uses_the_running_statistics(self):
    variables = _bn_variables(3)
    x = _normal(4, 5, 4, 3)
    y = norm.BatchNorm().apply(variables, x, train=False)
    stats, params = variables['batch_stats'], variables['params']
    expected = (x - stats['mean']) / np.sqrt(stats['var'] + 1e-5)
    expected = expected * params['scale'] + params['bias']
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)

  def test_a_large_mean_does_not_spoil_the_variance(self):
    variables = _bn_variables(3)
    x = _normal(16, 8, 8, 3, mean=3e3)
    y, _ = _apply_bn(x, variables)
    expected, _, _ = _batch_norm(x, **variables['params'])
    np.testing.assert_allclose(y, expected, atol=5e-3)

  def test_gradient_matches_float64_differences(self):
    variables = _bn_variables(2)
    x, cotangent = _normal(3, 2, 2, 2), _normal(3, 2, 2, 2, seed=1)

    def inner(x, params):
      y, _ = _apply_bn(x, {**variables, 'params': params})
      return jnp.sum(y * cotangent)

    def oracle(x, params):
      return np.sum(_batch_norm(x, **params)[0] * cotangent)

    params = variables['params']
    dx, dparams = jax.grad(inner, argnums=(0, 1))(x, params)
    for index in np.ndindex(x.shape):
      step = np.zeros(x.shape)
      step[index] = 1e-5
      change = (oracle(x + step, params) - oracle(x - step, params)) / 2e-5
      self.assertAlmostEqual(dx[index], change, delta=2e-5)
    for name in params:
      step = np.array([1e-5, 0])
      change = oracle(x, {**params, name: params[name] + step})
      change -= oracle(x, {**params, name: params[name] - step})
      self.assertAlmostEqual(dparams[name][0], change / 2e-5, delta=2e-5)

  def test_splits_normalise_each_part_by_itself(self):
    variables = _bn_variables(3)
    x = _normal(6, 4, 4, 3) * np.arange(1, 7).reshape(6, 1, 1, 1)
    x = x.astype(np.float32)
    y, stats = _apply_bn(x, variables, splits=3)
    parts = [
        _batch_norm(part, **variables['params']) for part in np.split(x, 3)
    ]
    expected, means, variances = map(np.stack, zip(*parts, strict=True))
    np.testing.assert_allclose(
        y, expected.reshape(x.shape), rtol=1e-5, atol=1e-5
    )
    self._assert_follows(
        stats, variables['batch_stats'], means.mean(0), variances.mean(0)
    )

  def test_splits_must_divide_the_batch(self):
    with self.assertRaisesRegex(ValueError, 'bn_splits=4 .* got 6'):
      _apply_bn(_normal(6, 2), _bn_variables(2), splits=4)

  def test_a_batch_of_one_value_is_an_error(self):
    with self.assertRaisesRegex(ValueError, 'more than one value'):
      _apply_bn(_normal(1, 2), _bn_variables(2))

  @parameterized.parameters('pmap', 'vmap')
  def test_across_devices_is_the_full_batch(self, mode):
    variables = _bn_variables(3)
    x, cotangent = _normal(8, 2, 4, 4, 3), _normal(8, 2, 4, 4, 3, seed=1)
    # Unequal means between devices, so that their spread matters.
    x = x + np.arange(8, dtype=np.float32).reshape(8, 1, 1, 1, 1)

    def value(x, cotangent, axis_name):
      y, stats = _apply_bn(x, variables, axis_name=axis_name)
      return jnp.sum(y * cotangent), (y, stats)

    def per_device(x, cotangent):
      return jax.grad(value, has_aux=True)(x, cotangent, 'batch')

    mapped = {'pmap': jax.pmap, 'vmap': jax.vmap}[mode](
        per_device, axis_name='batch'
    )
    dx, (y, stats) = mapped(x, cotangent)
    flat = lambda a: np.asarray(a).reshape(16, 4, 4, 3)  # noqa: E731
    expected_dx, (expected, expected_stats) = testing.jitted(
        jax.grad(value, has_aux=True), flat(x), flat(cotangent), axis_name=None
    )
    np.testing.assert_allclose(flat(y), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(flat(dx), expected_dx, rtol=1e-4, atol=1e-5)
    for name in stats:
      for device in range(8):
        np.testing.assert_allclose(
            stats[name][device], expected_stats[name], rtol=1e-5
        )

  @parameterized.parameters(0.0, np.nan)
  def test_a_row_counts_as_often_as_it_says(self, filler):
    variables = _bn_variables(3)
    x, cotangent = _normal(7, 3, mean=2.0), _normal(7, 3, seed=1)
    counts = np.array([1, 3, 1, 2, 0, 1, 0])
    x[counts == 0] = filler

    def value(x, cotangent, counts):
      y, stats = _apply_bn(x, variables, counts=counts)
      weights = 1 if counts is None else counts[:, None]
      y = y if counts is None else jnp.where(weights > 0, y, 0)
      return jnp.sum(y * cotangent * weights), (y, stats)

    both = jax.jit(jax.grad(value, has_aux=True))
    rows = np.repeat(np.arange(7), counts)
    with jax.numpy_dtype_promotion('standard'):
      dx, (y, stats) = both(x, cotangent, counts)
    dx_of_each, (expected, expected_stats) = both(
        x[rows], cotangent[rows], None
    )
    expected_dx = np.zeros((7, 3))
    np.add.at(expected_dx, rows, dx_of_each)
    np.testing.assert_allclose(y[rows], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, expected_dx, rtol=1e-4, atol=1e-6)
    for name in stats:
      np.testing.assert_allclose(stats[name], expected_stats[name], rtol=1e-5)

  def test_counts_across_devices(self):
    variables = _bn_variables(3)
    x = _normal(4, 5, 3) + np.arange(4, dtype=np.float32).reshape(4, 1, 1)
    counts = np.arange(20).reshape(4, 5) % 3
    mapped = jax.vmap(
        lambda x, counts: _apply_bn(
            x, variables, axis_name='batch', counts=counts
        ),
        axis_name='batch',
    )
    y, stats = jax.jit(mapped)(x, counts)
    rows = np.repeat(np.arange(20), counts.ravel())
    repeated = x.reshape(20, 3)[rows]
    expected, mean, var = _batch_norm(repeated, **variables['params'])
    y = np.asarray(y).reshape(20, 3)[rows]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    self._assert_follows(
        jax.tree.map(lambda s: s[2], stats), variables['batch_stats'], mean, var
    )

  def test_counts_that_will_not_do(self):
    x, counts = _normal(4, 3), np.ones(4, int)
    with self.assertRaisesRegex(ValueError, r'shapes \(4,\) and \(4, 2, 3\)'):
      _apply_bn(_normal(4, 2, 3), _bn_variables(3), counts=counts)
    with self.assertRaisesRegex(ValueError, 'counts excludes splits=2'):
      _apply_bn(x, _bn_variables(3), counts=counts, splits=2)

  def test_statistics_are_float32_in_bfloat16(self):
    variables = _bn_variables(3)
    x = jnp.asarray(_normal(64, 8, 8, 3, mean=2.0), jnp.bfloat16)
    y, stats = _apply_bn(x, variables, dtype=jnp.bfloat16)
    self.assertEqual(y.dtype, jnp.bfloat16)
    _, mean, var = _batch_norm(x, **variables['params'])
    self._assert_follows(stats, variables['batch_stats'], mean, var, 1e-5)
    self.assertEqual(stats['var'].dtype, jnp.float32)


class ConvolutionTest(parameterized.TestCase):

  @parameterized.parameters((1, 1), (1, 2), (3, 1), (3, 2), (7, 2))
  def test_matches_numpy(self, size, stride):
    x, kernel = _normal(2, 7, 6, 3), _normal(size, size, 3, 4, seed=1)
    expected = _convolve(x, kernel, stride)
    actual = convolution.convolve(x, kernel, stride)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)

  @parameterized.parameters((1, 1), (1, 4), (2, 2), (2, 3))
  def test_small_maps_match_numpy_and_are_products(self, height, width):
    x, kernel = _normal(2, height, width, 3), _normal(3, 3, 3, 4, seed=1)
    convolve = functools.partial(convolution.convolve, stride=1)
    np.testing.assert_allclose(
        convolve(x, kernel), _convolve(x, kernel, 1), rtol=1e-5, atol=1e-5
    )
    self.assertNotIn('conv_general', str(jax.make_jaxpr(convolve)(x, kernel)))

  def test_plain_convolutions_are_those_of_xla(self):
    x, kernel = _normal(2, 2, 2, 3), _normal(3, 3, 3, 4, seed=1)

    def program():  # a new function, or JAX would remember the last one
      return str(
          jax.make_jaxpr(lambda *args: convolution.convolve(*args, 1))(
              x, kernel
          )
      )

    with convolution.plain():
      self.assertIn('conv_general', program())
    self.assertNotIn('conv_general', program())

  def test_compiler_options_change_no_result(self):
    x, kernel = _normal(2, 16, 16, 32), _normal(3, 3, 32, 32, seed=1)
    convolve = functools.partial(convolution.convolve, stride=1)
    expected = jax.jit(convolve)(x, kernel)
    compiled = jax.jit(convolve).lower(x, kernel).compile(
        compiler_options=models.compiler_options()
    )
    np.testing.assert_allclose(compiled(x, kernel), expected, 1e-4, 1e-4)

  def test_compiler_options_are_none_where_unknown(self):
    clear = convolution.compiler_options.cache_clear
    self.addCleanup(clear)
    clear()
    with mock.patch.object(convolution, '_CPU_OPTIONS', {'xla_no_such': '1'}):
      self.assertEqual(models.compiler_options(), {})
    clear()
    with mock.patch.object(jax, 'default_backend', lambda: 'tpu'):
      self.assertEqual(models.compiler_options(), {})

  @parameterized.product(
      size=(1, 3), stride=(1, 2), dtype=(jnp.float32, jnp.bfloat16)
  )
  def test_backends_agree(self, size, stride, dtype):
    x = jnp.asarray(_normal(2, 7, 6, 8), dtype)
    kernel = jnp.asarray(_normal(size, size, 8, 4, seed=1), dtype)

    def run(x, kernel):
      y, pull = jax.vjp(
          functools.partial(convolution.convolve, stride=stride), x, kernel
      )
      return y, *pull(jnp.cos(y))

    on_cpu = jax.jit(run)(x, kernel)
    with mock.patch.object(jax, 'default_backend', lambda: 'tpu'):
      elsewhere = jax.jit(lambda *args: run(*args))(x, kernel)
    # The gradient of a kernel sums 84 products, in an order of the CPU's.
    tolerance = 3e-5 if dtype == jnp.float32 else 0.05
    for a, b in zip(on_cpu, elsewhere, strict=True):
      self.assertEqual(a.dtype, b.dtype)
      np.testing.assert_allclose(
          a.astype(jnp.float32), b.astype(jnp.float32), tolerance, tolerance
      )


def _convolve(x, kernel, stride):
  """Float64 oracle: the sum over the kernel's taps, zero-padded by half."""
  x, kernel = np.asarray(x, np.float64), np.asarray(kernel, np.float64)
  pad = kernel.shape[0] // 2
  padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
  height, width = x.shape[1:3]
  return sum(
      padded[:, i : i + height, j : j + width][:, ::stride, ::stride]
      @ kernel[i, j]
      for i in range(kernel.shape[0])
      for j in range(kernel.shape[1])
  )


class _NumpyResNet:
  """Float64 oracle of a residual network in training."""

  def __init__(self, params, bottleneck):
    self.params = params
    self.bottleneck = bottleneck

  def __call__(self, images, stages, stem):
    x = self._conv_norm(images, self.params, 'stem_', 1 + (stem != 'cifar'))
    x = np.maximum(x, 0)
    if stem == 'imagenet':
      x = self._max_pool(x)
    for stage, num_blocks in enumerate(stages):
      for index in range(num_blocks):
        name = f'stage{stage + 1}_block{index + 1}'
        stride = 2 if stage and not index else 1
        x = self._block(x, self.params[name], stride)
    return x.mean((1, 2))

  def _block(self, x, params, stride):
    strides = (1, stride, 1) if self.bottleneck else (stride, 1)
    y = x
    for number, step in enumerate(strides, 1):
      y = self._conv_norm(y, params, '', step, number)
      y = np.maximum(y, 0) if number < len(strides) else y
    if 'shortcut_conv' in params:
      x = self._conv_norm(x, params, 'shortcut_', stride)
    return np.maximum(x + y, 0)

  def _conv_norm(self, x, params, prefix, stride, number=''):
    kernel = params[f'{prefix}conv{number}']['kernel']
    y = _convolve(x, kernel, stride)
    return _batch_norm(y, **params[f'{prefix}norm{number}'])[0]

  def _max_pool(self, x):
    padding = ((0, 0), (1, 1), (1, 1), (0, 0))
    padded = np.pad(x, padding, constant_values=-np.inf)
    height, width = x.shape[1:3]
    taps = [
        padded[:, i : i + height, j : j + width][:, ::2, ::2]
        for i in range(3)
        for j in range(3)
    ]
    return np.max(taps, axis=0)


class ResNetTest(parameterized.TestCase):

  @parameterized.parameters(
      (False, 'cifar'), (False, 'strided'), (True, 'imagenet')
  )
  def test_matches_numpy(self, bottleneck, stem):
    block = resnet.BottleneckBlock if bottleneck else resnet.BasicBlock
    net = resnet.ResNet(block, (1, 2), stem, norm.BatchNorm, width=4)
    images = _normal(3, 12, 15, 3)
    init = functools.partial(net.init, train=False)
    shapes = jax.eval_shape(init, _KEY, images)
    rng = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda leaf: rng.normal(0.5, 0.5, leaf.shape).astype(np.float32),
        shapes,
    )
    apply = functools.partial(net.apply, train=True, mutable=['batch_stats'])
    features, _ = jax.jit(apply)(variables, images)
    oracle = _NumpyResNet(variables['params'], bottleneck)
    expected = oracle(images, (1, 2), stem)
    np.testing.assert_allclose(features, expected, rtol=2e-4, atol=2e-5)


class EncoderTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.images = _normal(8, 16, 16, 3)
    init = functools.partial(models.create('small').init, train=False)
    cls.variables = jax.jit(init)(_KEY, cls.images)

  def _train(self, images, **knobs):
    encoder = models.create('small', **knobs)
    variables = self.variables
    if knobs.get('norm') == 'group':
      init = functools.partial(encoder.init, train=False)
      variables = jax.jit(init)(_KEY, images)
    apply = functools.partial(
        encoder.apply, train=True, mutable=['batch_stats']
    )
    return jax.jit(apply)(variables, images)

  def test_views_in_two_calls_have_their_own_statistics(self):
    views = self.images, 3 * self.images + 1
    joint, _ = self._train(np.concatenate(views))
    split, _ = self._train(np.concatenate(views), bn_splits=2)
    for index, view in enumerate(views):
      alone, _ = self._train(view)
      rows = slice(8 * index, 8 * index + 8)
      np.testing.assert_allclose(
          split[0][rows], alone[0], rtol=1e-4, atol=1e-5
      )
      self.assertGreater(jnp.abs(joint[0][rows] - alone[0]).max(), 0.05)

  def test_group_norm_does_not_depend_on_the_batch(self):
    whole, updates = self._train(self.images, norm='group')
    part, _ = self._train(self.images[:2], norm='group')
    self.assertEmpty(updates)
    for a, b in zip(whole, part, strict=True):
      np.testing.assert_allclose(a[:2], b, rtol=1e-5, atol=1e-5)

  def test_bfloat16_keeps_parameters_and_statistics_in_float32(self):
    wide, _ = self._train(self.images)
    narrow, updates = self._train(self.images, dtype='bfloat16')
    encoder = models.create('resnet18', dtype='bfloat16')
    variables, (_, abstract) = _shapes(encoder, _images(2, 8, 8, 3))
    for leaf in jax.tree.leaves((variables, abstract, updates, narrow)):
      self.assertEqual(leaf.dtype, jnp.float32)
    text = str(
        jax.make_jaxpr(functools.partial(encoder.apply, train=False))(
            variables, _images(2, 8, 8, 3)
        )
    )
    self.assertIn('bf16', text)
    for a, b in zip(wide, narrow, strict=True):
      error = np.abs(a - b).max() / np.abs(a).max()
      self.assertBetween(error, 1e-5, 0.05)


class LoweringTest(absltest.TestCase):

  def test_resnet50_lowers_with_plain_convolutions_elsewhere(self):
    encoder = models.create('resnet50', dtype='bfloat16')
    images = _images(2, 32, 32, 3)
    variables, _ = _shapes(encoder, images)
    apply = functools.partial(encoder.apply, train=False)
    with mock.patch.object(jax, 'default_backend', lambda: 'tpu'):
      exported = jax.export.export(jax.jit(apply), platforms=['tpu', 'cuda'])(
          variables, images
      )
    shapes = [x.shape for x in exported.out_avals]
    self.assertEqual(shapes, [(2, 2048), (2, 128)])
    # Both platforms may share the text or have their own.
    count = exported.mlir_module().count('stablehlo.convolution')
    self.assertIn(count, (53, 2 * 53))
