# SPDX-License-Identifier: Apache-2.0
"""Augmentations against Pillow, colorsys and numpy; their draws; batches."""

import colorsys
import doctest
import functools
import importlib

from absl.testing import parameterized
import jax
from jax import export
import jax.numpy as jnp
import numpy as np
from PIL import Image

from hcl_jax import augment

_PLAIN = {'flip': 0, 'jitter': 0, 'grayscale': 0, 'blur': 0}


def pictures(batch: int, height: int, width: int | None = None) -> np.ndarray:
  """Colours of every kind, also gray, black and white, that vary slowly."""
  width = width or height
  rng = np.random.default_rng(batch + height)
  coarse = rng.integers(0, 256, (batch, 5, 5, 3), dtype=np.uint8)
  coarse[:, 0, 0], coarse[:, 1, 1], coarse[:, 2, 2] = 0, 255, 99
  resized = [
      Image.fromarray(x).resize((width, height), Image.Resampling.NEAREST)
      for x in coarse
  ]
  noise = rng.integers(0, 9, (batch, height, width, 1), dtype=np.uint8)
  return np.maximum(np.stack(resized), noise) - noise


def planar(images: np.ndarray) -> np.ndarray:
  return np.moveaxis(images, -1, -3).astype(np.float64) / 255


# The same operations on [3, H, W] in float64, from their definitions.


def luma(image):
  return np.einsum('c,chw->hw', [0.299, 0.587, 0.114], image)


def blend(image, other, factor):
  return np.clip(factor * image + (1 - factor) * other, 0, 1)


def shift_hue(image, shift):
  result = np.empty_like(image)
  for i in np.ndindex(image.shape[1:]):
    h, s, v = colorsys.rgb_to_hsv(*image[:, *i])
    result[:, *i] = colorsys.hsv_to_rgb((h + shift) % 1, s, v)
  return result


_ADJUST = (
    lambda image, factor: blend(image, 0, factor),
    lambda image, factor: blend(image, luma(image).mean(), factor),
    lambda image, factor: blend(image, luma(image), factor),
    shift_hue,
)


def blur(image, sigma, kernel_size):
  radius = kernel_size // 2
  offsets = np.arange(-radius, radius + 1)
  kernel = np.exp(-(offsets**2) / (2 * sigma**2))
  kernel = np.outer(kernel, kernel) / kernel.sum() ** 2
  padded = np.pad(image, ((0, 0), (radius,) * 2, (radius,) * 2), 'reflect')
  result = np.zeros_like(image)
  _, height, width = image.shape
  for dy, dx in np.ndindex(kernel.shape):
    result += kernel[dy, dx] * padded[:, dy : dy + height, dx : dx + width]
  return result


def resize(image, top, left, height, width, size):
  """Pillow, in floats: planes [3, H, W] to [3, size, size]."""
  box = (left, top, left + width, top + height)
  planes = [Image.fromarray(plane.astype(np.float32)) for plane in image]
  return np.stack([
      plane.crop(box).resize((size, size), Image.Resampling.BILINEAR)
      for plane in planes
  ]).astype(np.float64)


def pipeline(augmentation, draws, image):
  """All operations of one image ``[H, W, 3]`` by its draws."""
  a = augmentation
  image = resize(planar(image), *map(float, draws.crop), a.size)
  if draws.flip:
    image = image[:, :, ::-1]
  if draws.jitter:
    for i in draws.adjustments.order:
      image = _ADJUST[i](image, float(draws.adjustments.strengths[i]))
  if draws.grayscale:
    image = np.stack([luma(image)] * 3)
  if draws.blur:
    image = blur(image, float(draws.sigma), a.blur_kernel)
  return (np.moveaxis(image, 0, -1) - a.mean) / a.std


def keys_of(seed: int, count: int) -> jax.Array:
  return jax.random.split(jax.random.key(seed), count)


def draws_of(augmentation, keys, shape):
  draw = functools.partial(augmentation._draw, shape=shape)
  return jax.tree.map(np.asarray, jax.jit(jax.vmap(draw))(keys))


def row(tree, i):
  return jax.tree.map(lambda x: x[i], tree)


class OperationsTest(parameterized.TestCase):

  def test_adjustments(self):
    image = planar(pictures(1, 9, 7))[0]
    for operation, expected, strengths in (
        (augment.adjust_brightness, _ADJUST[0], (0, 0.6, 1, 1.4)),
        (augment.adjust_contrast, _ADJUST[1], (0, 0.6, 1, 1.4)),
        (augment.adjust_saturation, _ADJUST[2], (0, 0.6, 1, 1.4)),
        (augment.adjust_hue, _ADJUST[3], (-0.5, -0.3, -0.1, 0, 0.1, 0.5)),
    ):
      actual = jax.jit(jax.vmap(operation, in_axes=(None, 0)))(
          np.float32(image), np.float32(strengths)
      )
      for value, strength in zip(actual, strengths, strict=True):
        with self.subTest(operation.__name__, strength=strength):
          np.testing.assert_allclose(
              value, expected(image, strength), atol=2e-6
          )

  def test_grayscale(self):
    image = planar(pictures(1, 9, 7))[0]
    actual = augment.to_grayscale(np.float32(image))
    np.testing.assert_allclose(actual, [luma(image)] * 3, atol=1e-6)

  def test_every_order_of_jitter(self):
    image = planar(pictures(1, 6))[0]
    strengths = np.float32([1.4, 0.7, 1.3, 0.08])
    actual = jax.jit(jax.vmap(augment.jitter_color, in_axes=(None, 0, None)))(
        np.float32(image), augment.ORDERS, strengths
    )
    self.assertLen({*map(tuple, augment.ORDERS)}, 24)
    for value, order in zip(actual, augment.ORDERS, strict=True):
      expected = image
      for i in order:
        expected = _ADJUST[i](expected, float(strengths[i]))
      np.testing.assert_allclose(value, expected, atol=1e-5)
    self.assertGreater(np.ptp(np.asarray(actual), axis=0).max(), 0.1)

  @parameterized.parameters((3, 6), (5, 5), (9, 5), (23, 40))
  def test_blur(self, kernel_size, side):
    image = planar(pictures(1, side, side + 1))[0]
    for matmul in (True, False):
      operation = jax.jit(functools.partial(
          augment.gaussian_blur, kernel_size=kernel_size, matmul=matmul
      ))  # fmt: skip
      for sigma in (0.1, 0.7, 2.0):
        np.testing.assert_allclose(
            operation(np.float32(image), np.float32(sigma)),
            blur(image, sigma, kernel_size),
            atol=2e-6,
        )

  @parameterized.parameters(
      ((32, 32), 32), ((96, 96), 32), ((40, 60), 33), ((7, 5), 9)
  )
  def test_crop_is_pillows_crop_and_resize(self, shape, size):
    image = pictures(1, *shape)[0]
    rows, columns = shape
    operation = jax.jit(functools.partial(augment.crop, size=size))
    rng = np.random.default_rng(0)
    boxes = [(0, 0, rows, columns), (rows - 1, columns - 1, 1, 1)]
    for _ in range(10):
      height, width = rng.integers(1, rows + 1), rng.integers(1, columns + 1)
      top = rng.integers(rows - height + 1)
      left = rng.integers(columns - width + 1)
      boxes.append((top, left, height, width))
    for box in boxes:
      actual = operation(image, *map(np.float32, box))
      expected = resize(255 * planar(image), *box, size)
      np.testing.assert_allclose(actual, expected, atol=2e-3)
      flipped = operation(image, *map(np.float32, box), flip=True)
      np.testing.assert_allclose(flipped, expected[:, :, ::-1], atol=2e-3)

  def test_crop_of_bytes_is_pillows_within_rounding(self):
    image, box = pictures(1, 96)[0], (10, 5, 71, 88)
    crop = jax.jit(augment.crop, static_argnames='size')
    actual = crop(image, *map(float, box), size=32)
    cropped = Image.fromarray(image).crop((5, 10, 5 + 88, 10 + 71))
    resized = cropped.resize((32, 32), Image.Resampling.BILINEAR)
    difference = np.moveaxis(np.asarray(actual), 0, -1) - np.asarray(resized)
    self.assertLess(np.abs(difference).max(), 1.1)

  def test_whole_image_is_unchanged(self):
    image = pictures(1, 8)[0]
    crop = jax.jit(augment.crop, static_argnames='size')
    actual = crop(image, 0, 0, 8, 8, size=8)
    np.testing.assert_allclose(actual, 255 * planar(image), atol=1e-4)

  def test_normalize(self):
    images = pictures(2, 5)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    actual = augment.normalize(images, mean, std)
    self.assertEqual(actual.dtype, jnp.float32)
    np.testing.assert_allclose(actual, (images / 255 - mean) / std, atol=1e-6)
    self.assertEqual(augment.normalize(images[0]).shape, images[0].shape)

  @parameterized.parameters(4, 9, 16)
  def test_normalize_resizes_as_a_crop_of_all(self, size):
    images = pictures(2, 9)
    unit = {'mean': (0, 0, 0), 'std': (1, 1, 1)}
    actual = jax.jit(
        functools.partial(augment.normalize, **unit, size=size)
    )(images)
    for image, small in zip(images, actual, strict=True):
      crop = jax.jit(functools.partial(augment.crop, size=size))(
          image, 0, 0, 9, 9
      )
      planes = 255 * jnp.transpose(small, (2, 0, 1))
      np.testing.assert_allclose(planes, crop, atol=1e-3)
    with self.assertRaisesRegex(ValueError, 'size must be .* got 0'):
      augment.normalize(images, size=0)


class SamplersTest(parameterized.TestCase):

  def _crops(self, shape, count=20000, **knobs):
    sample = functools.partial(augment.sample_crop, shape=shape, **knobs)
    crops = jax.jit(jax.vmap(sample))(keys_of(0, count))
    return jax.tree.map(np.asarray, crops)

  def test_crops_of_a_square(self):
    top, left, height, width = self._crops((1000, 1000), scale=(0.1, 0.5))
    for x in (top, left, height, width):
      np.testing.assert_array_equal(x, np.round(x))
    self.assertGreaterEqual(min(top.min(), left.min()), 0)
    self.assertLessEqual(max((top + height).max(), (left + width).max()), 1000)
    # Nothing of this scale can be too large: both draws are uniform.
    area = (height * width / 1e6 - 0.1) / 0.4
    ratio = np.log(width / height) / (2 * np.log(4 / 3)) + 0.5
    place = top / (1000 - height), left / (1000 - width)
    for x in (area, ratio, *place):
      quantiles = np.quantile(x, np.linspace(0, 1, 11))
      np.testing.assert_allclose(quantiles, np.linspace(0, 1, 11), atol=0.02)
    correlations = np.corrcoef([area, ratio, *place]) - np.eye(4)
    self.assertLess(np.abs(correlations).max(), 0.03)

  def test_crops_are_redrawn_until_they_fit(self):
    crops = self._crops((32, 32))
    rng = np.random.default_rng(0)
    area = 1024 * rng.uniform(0.08, 1, (200000, 1))
    ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), area.shape))
    sides = np.round(np.sqrt(area * np.hstack([1 / ratio, ratio])))
    fit = (sides <= 32).all(axis=1)  # all but 1 in 10^6 fit within ten tries
    for side, expected in zip(
        (crops.height, crops.width), sides[fit].T, strict=True
    ):
      self.assertBetween(side.min(), 7, 9)
      self.assertEqual(side.max(), 32)
      self.assertAlmostEqual(side.mean(), expected.mean(), delta=0.2)
      self.assertAlmostEqual(side.std(), expected.std(), delta=0.15)
    whole = (crops.height == 32) & (crops.width == 32)
    self.assertEqual(crops.top[whole].max(), 0)
    small = crops.height == 16
    self.assertEqual({*crops.top[small]}, {*range(17)})

  @parameterized.parameters(
      ((10, 400), (0.9, 1.0), (3 / 4, 4 / 3), (0, 193, 10, 13)),
      ((400, 10), (0.9, 1.0), (3 / 4, 4 / 3), (193, 0, 13, 10)),
      ((11, 10), (1.0, 1.0), (1.2, 1.3), (1, 0, 8, 10)),
      ((10, 10), (1.0, 1.0), (0.5, 0.6), (0, 2, 10, 6)),
      ((10, 10), (1.0, 1.0), (1e-9, 1e9), (0, 0, 10, 10)),
  )
  def test_center_crop_where_nothing_fits(self, shape, scale, ratio, expected):
    crops = self._crops(shape, count=4, scale=scale, ratio=ratio)
    for crop in zip(*crops, strict=True):
      self.assertEqual(crop, expected)

  def test_jitter(self):
    sample = functools.partial(
        augment.sample_jitter, brightness=0.2, contrast=2.0, hue=0.3
    )
    order, strengths = jax.jit(jax.vmap(sample))(keys_of(0, 24000))
    _, counts = np.unique(order, axis=0, return_counts=True)
    self.assertLen(counts, 24)
    self.assertLess(((counts - 1000) ** 2 / 1000).sum(), 60)  # chi2(23) mostly
    low, high = np.array([(0.8, 1.2), (0, 3), (0.6, 1.4), (-0.3, 0.3)]).T
    uniform = (np.asarray(strengths) - low) / (high - low)
    for x in uniform.T:
      quantiles = np.quantile(x, np.linspace(0, 1, 11))
      np.testing.assert_allclose(quantiles, np.linspace(0, 1, 11), atol=0.02)
    correlations = np.corrcoef(uniform.T) - np.eye(4)
    self.assertLess(np.abs(correlations).max(), 0.03)


class AugmentationTest(parameterized.TestCase):

  @parameterized.parameters(
      ({}, (32, 32), 16),
      ({}, (96, 96), 4),
      ({'size': 20, 'blur_kernel': 5, 'scale': [0.5, 1]}, (28, 17), 6),
      ({'size': 224, 'blur_kernel': 23, 'jitter': 0}, (256, 256), 2),
  )
  def test_matches_the_definition(self, knobs, shape, batch):
    augmentation = augment.Augmentation(**knobs)
    images, keys = pictures(batch, *shape), keys_of(3, batch)
    actual = augmentation(keys, images)
    side = augmentation.size
    self.assertEqual(actual.shape, (batch, side, side, 3))
    self.assertEqual(actual.dtype, jnp.float32)
    draws = draws_of(augmentation, keys, shape)
    for i in range(batch):
      expected = pipeline(augmentation, row(draws, i), images[i])
      np.testing.assert_allclose(actual[i], expected, atol=1e-4)

  def test_operations_act_with_their_probabilities(self):
    draws = draws_of(augment.Augmentation(), keys_of(1, 20000), (32, 32))
    acts = np.stack([draws.flip, draws.jitter, draws.grayscale, draws.blur])
    np.testing.assert_allclose(acts.mean(1), (0.5, 0.8, 0.2, 0.5), atol=0.015)
    order, strengths = draws.adjustments
    independent = [
        *acts, *strengths.T, draws.sigma, draws.crop.height, order[:, 0]
    ]  # fmt: skip
    correlations = np.corrcoef(independent) - np.eye(len(independent))
    self.assertLess(np.abs(correlations).max(), 0.035)
    sigma = np.quantile(draws.sigma, np.linspace(0, 1, 5))
    np.testing.assert_allclose(sigma, np.linspace(0.1, 2, 5), atol=0.03)

  def test_accelerators_and_cpus_compute_the_same(self):
    augmentation = augment.Augmentation(size=16)
    images, keys = pictures(24, 20), keys_of(0, 24)
    draws = draws_of(augmentation, keys, (20, 20))
    for x in (draws.flip, draws.jitter, draws.grayscale, draws.blur):
      self.assertBetween(x.sum(), 1, 23)
    one_by_one = jax.jit(augmentation._one_by_one)(draws, images)
    at_once = jax.jit(augmentation._at_once)(draws, images)
    np.testing.assert_allclose(one_by_one, at_once, atol=2e-6)

  def test_a_row_depends_on_its_own_key_and_image_only(self):
    augmentation = augment.Augmentation(size=8)
    images, keys = pictures(16, 12), keys_of(0, 16)
    augmented = augmentation(keys, images)
    order = np.random.default_rng(0).permutation(16)
    shuffled = augmentation(keys[order], images[order])
    np.testing.assert_array_equal(shuffled, augmented[order])
    per_device = jax.pmap(augmentation.__call__)(
        keys.reshape(8, 2), images.reshape(8, 2, 12, 12, 3)
    )
    np.testing.assert_allclose(
        per_device.reshape(augmented.shape), augmented, atol=2e-6
    )

  def test_probability_zero_compiles_nothing_and_changes_no_draw(self):
    images, keys = pictures(4, 8), keys_of(5, 4)
    plain = augment.Augmentation(size=8, **_PLAIN)
    text = str(jax.make_jaxpr(plain.__call__)(keys, images))
    full = str(jax.make_jaxpr(augment.Augmentation(size=8).__call__)(
        keys, images
    ))  # fmt: skip
    # One cond remains, which chooses by platform.
    self.assertEqual(text.count('cond['), 1)
    self.assertGreater(full.count('cond['), 5)
    flipped = augment.Augmentation(size=8, **{**_PLAIN, 'flip': 1})
    np.testing.assert_allclose(
        flipped(keys, images), plain(keys, images)[:, :, ::-1], atol=1e-5
    )
    gray = augment.Augmentation(size=8, **{**_PLAIN, 'grayscale': 1.0})
    pixels = gray(keys, images) * np.float32(gray.std).reshape(1, 1, 1, 3)
    pixels += np.float32(gray.mean).reshape(1, 1, 1, 3)
    self.assertLess(np.ptp(np.asarray(pixels), axis=-1).max(), 1e-6)

  @parameterized.parameters('tpu', 'cuda')
  def test_lowers_for_accelerators_without_a_loop_over_images(self, platform):
    exported = export.export(
        jax.jit(augment.Augmentation().__call__), platforms=(platform,)
    )(keys_of(0, 4), jax.ShapeDtypeStruct((4, 96, 96, 3), jnp.uint8))
    module = exported.mlir_module()
    self.assertEqual(module.count('stablehlo.while'), 0)
    self.assertEqual(module.count('stablehlo.dot_general'), 4)

  def test_lowers_for_all_platforms_at_once(self):
    exported = export.export(
        jax.jit(augment.Augmentation(size=8).__call__),
        platforms=('cpu', 'cuda', 'tpu'),
    )(keys_of(0, 2), jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.uint8))
    self.assertGreater(exported.mlir_module().count('stablehlo.while'), 0)

  def test_example(self):
    module = importlib.import_module('hcl_jax.augment._pipeline')
    result = doctest.testmod(module)
    self.assertGreater(result.attempted, 0)
    self.assertEqual(result.failed, 0)


class ErrorsTest(parameterized.TestCase):

  @parameterized.parameters(
      ({'size': 0}, 'size'),
      ({'size': 32.0}, 'size'),
      ({'scale': 0.5}, 'scale'),
      ({'scale': (0.0, 1.0)}, 'scale'),
      ({'scale': (0.5, 0.2)}, 'scale'),
      ({'scale': (0.5, 1.5)}, 'scale'),
      ({'ratio': (1.0,)}, 'ratio'),
      ({'ratio': (-1.0, 1.0)}, 'ratio'),
      ({'flip': 1.5}, 'flip'),
      ({'jitter': -0.1}, 'jitter'),
      ({'grayscale': float('nan')}, 'grayscale'),
      ({'blur': '0.5'}, 'blur'),
      ({'brightness': -1}, 'brightness'),
      ({'contrast': float('inf')}, 'contrast'),
      ({'saturation': None}, 'saturation'),
      ({'hue': 0.6}, 'hue'),
      ({'blur_kernel': 4}, 'blur_kernel'),
      ({'blur_kernel': 65}, 'blur_kernel'),
      ({'blur_sigma': (0.0, 1.0)}, 'blur_sigma'),
      ({'mean': (0.5, 0.5)}, 'mean'),
      ({'std': (1.0, 0.0, 1.0)}, 'std'),
  )
  def test_rejects_settings(self, knobs, name):
    with self.assertRaisesRegex(ValueError, name):
      augment.Augmentation(**knobs)

  def test_rejects_images(self):
    augmentation, keys = augment.Augmentation(size=4), keys_of(0, 2)
    for images, message in (
        (np.zeros((2, 4, 4, 3), np.float32), 'uint8'),
        (np.zeros((2, 4, 4, 1), np.uint8), 'shape'),
        (np.zeros((4, 4, 3), np.uint8), 'shape'),
        (np.zeros((2, 0, 4, 3), np.uint8), 'shape'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        augmentation(keys, images)
    with self.assertRaisesRegex(ValueError, 'uint8'):
      augment.normalize(np.zeros((2, 4, 4, 3), np.float32))
    with self.assertRaisesRegex(ValueError, 'std'):
      augment.normalize(np.zeros((4, 4, 3), np.uint8), std=(1, 1, 0))

  def test_rejects_keys(self):
    augmentation = augment.Augmentation(size=4)
    images = np.zeros((2, 4, 4, 3), np.uint8)
    for keys in (
        jax.random.key(0),
        keys_of(0, 3),
        jax.random.key_data(keys_of(0, 2)),
        None,
    ):
      with self.assertRaisesRegex(ValueError, 'keys'):
        augmentation(keys, images)

  def test_is_a_value(self):
    first = augment.Augmentation(scale=[0.2, 1.0], mean=[0.5, 0.5, 0.5])
    second = augment.Augmentation(scale=(0.2, 1.0), mean=(0.5, 0.5, 0.5))
    self.assertEqual(hash(first), hash(second))
    self.assertEqual(first, second)
