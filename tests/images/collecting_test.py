# SPDX-License-Identifier: Apache-2.0
"""Images at hand as the data of an experiment."""

import contextlib
import io
import tempfile

from absl.testing import parameterized
import numpy as np
from PIL import Image

import hcl_jax
from hcl_jax.images import collecting
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.training import loop


def _pixels(count=40, size=(8, 9), seed=0):
  rng = np.random.default_rng(seed)
  return rng.integers(256, size=(count, *size, 3), dtype=np.uint8)


def _config():
  return hcl_jax.read_config('image_folder:mine,small', **{
      'data.batch_size': 8, 'augment.size': 8, 'evaluate.image_size': 8,
  })  # fmt: skip


class CollectTest(parameterized.TestCase):

  def test_an_array_is_divided(self):
    pixels, labels = _pixels(), np.arange(40) % 3
    splits = collecting.collect((pixels, labels))
    self.assertEqual({k: len(x) for k, x in splits.items()},
                     {'train': 36, 'test': 4})  # fmt: skip
    found = np.concatenate([x.array for x in splits.values()])
    np.testing.assert_array_equal(
        np.unique(found.reshape(40, -1), axis=0),
        np.unique(pixels.reshape(40, -1), axis=0),
    )
    for images in splits.values():
      self.assertEqual(images.class_names, ('0', '1', '2'))
      for image, label in zip(images.array, images.labels, strict=True):
        row = np.flatnonzero(np.all(pixels == image, axis=(1, 2, 3)))
        self.assertEqual(labels[row], label)

  def test_an_iterable_of_images_of_any_size(self):
    images = [
        np.full((6, 9, 3), 10, np.uint8), np.full((7, 5), 20, np.uint8),
        Image.new('L', (12, 30), 30),
    ]  # fmt: skip
    labeled = zip(images, (1, 0, 1), strict=True)
    splits = collecting.collect({'train': iter(images), 'test': labeled})
    for images in splits.values():
      self.assertEqual(images.array.shape, (3, 5, 5, 3))  # the smallest side
      np.testing.assert_array_equal(images.array[:, 0, 0, 0], [10, 20, 30])
    np.testing.assert_array_equal(splits['train'].labels, [-1, -1, -1])
    np.testing.assert_array_equal(splits['test'].labels, [1, 0, 1])

  def test_gray_arrays(self):
    gray = _pixels()[..., :1]
    train = collecting.collect({'train': gray})['train']
    np.testing.assert_array_equal(train.array, np.repeat(gray, 3, axis=-1))

  @parameterized.parameters(
      (_pixels().astype(float), ValueError,
       r'data must be uint8 images .*got float64 \[40, 8, 9, 3\]'),
      (_pixels()[0], ValueError, r'got uint8 \[8, 9, 3\]'),
      (_pixels()[:0], ValueError, r'got uint8 \[0, 8, 9, 3\]'),
      ([], ValueError, 'data has no image'),
      (7, TypeError, 'data must be .*got int'),
      ('photos', TypeError, 'data must be .*got str'),
      (['a.png'], TypeError, r'data\[0\] must be a PIL image .*got str'),
      ([np.zeros((4, 4, 3))], TypeError, r'data\[0\] .*float64 \[4, 4, 3\]'),
      ({'test': [np.zeros(4, np.uint8)]}, TypeError,
       r"data\['test'\]\[0\] must be .*got uint8 \[4\]"),
      ((_pixels(), np.arange(39)), ValueError, r'labels of data .*\[40\]'),
      ((_pixels(), np.zeros(40)), ValueError, 'must be integers.*float64'),
  )  # fmt: skip
  def test_unsuitable_data(self, data, error, message):
    with self.assertRaisesRegex(error, message):
      collecting.collect(data)


class ExperimentTest(parameterized.TestCase):

  def test_other_data_do_not_continue_a_run(self):
    root = self.enter_context(tempfile.TemporaryDirectory())
    pixels, labels = _pixels(), np.arange(40) % 2
    make = lambda *data: hcl_jax.make_experiment(  # noqa: E731
        _config(), data=data
    )
    first = make(pixels, labels)
    self.assertLen(first.data.train, 36)
    loop.open_workdir(root, first.config, first.inputs)
    again = make(pixels.copy(), labels)
    loop.open_workdir(root, again.config, again.inputs)
    like = hcl_jax.make_experiment(_config(), like=first)
    loop.open_workdir(root, like.config, like.inputs)
    for other in (make(_pixels(seed=1), labels), make(pixels, 1 - labels)):
      with self.assertRaisesRegex(workdir_lib.WorkdirError, 'data_digest'):
        loop.open_workdir(root, other.config, other.inputs)

  def test_images_without_labels_are_not_scored(self):
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
      experiment = hcl_jax.make_experiment(_config(), data=_pixels())
    self.assertEqual(
        printed.getvalue(),
        'mine has no labels: it is not scored by kNN or linear probes.\n',
    )
    self.assertEmpty(experiment.protocols)
    self.assertEqual(experiment.config.evaluate.knn_every_epochs, 0)
    self.assertNotEmpty(_config().evaluate.protocols)  # that of the user stays

  def test_splits_that_are_missing(self):
    with self.assertRaisesRegex(ValueError, "no split 'test', only 'train'"):
      hcl_jax.make_experiment(_config(), data={'train': _pixels()})
    with self.assertRaisesRegex(ValueError, 'give --config.data.batch_size=4'):
      hcl_jax.make_experiment(_config(), data=_pixels(6))
