# SPDX-License-Identifier: Apache-2.0
"""Preparing catalogue data sets without TensorFlow and without a network."""

import configparser
import io
import pathlib
import socket
import sys
import tarfile
import tempfile
import time
import types
from unittest import mock
import urllib.request
import zipfile

from absl.testing import parameterized
import numpy as np
from PIL import Image
import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import download_manager

from hcl_jax import prepare
from hcl_jax.images import data as images_lib
from hcl_jax.storage import catalogue


def _pixels(*shape):
  return np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)


def _write_tar(path, files):
  with tarfile.open(path, 'w:gz') as archive:
    for name, content in files.items():
      member = tarfile.TarInfo(name)
      member.size = len(content)
      archive.addfile(member, io.BytesIO(content))


class NamesTest(parameterized.TestCase):

  @parameterized.parameters(
      'core.lazy_imports_utils.tensorflow',
      'core.download.download_manager.NonMatchingChecksumError',
      'core.download.extractor.ExtractError',
      # These tests alone use it.
      'core.download.download_manager.DownloadManager'
      '._register_or_validate_checksums',
  )
  def test_names_that_tfds_does_not_document(self, name):
    found = tfds
    for part in name.split('.'):
      found = getattr(found, part, None)
    self.assertIsNotNone(
        found,
        f'tensorflow-datasets {tfds.__version__} has no tfds.{name}, which '
        'hcl_jax/storage/catalogue.py or its test needs and tfds 4.9.10 has. '
        'Find what stands for it now, or bound the version in setup.cfg.',
    )

  def test_the_version_that_has_them_is_bounded(self):
    setup = configparser.ConfigParser()
    setup.read(pathlib.Path(__file__).parents[2] / 'setup.cfg')
    self.assertIn(
        'tensorflow-datasets>=4.9.10,<4.10\n',
        setup['options.extras_require']['train'],
    )


class CatalogueTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.data_dir = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory())
    )
    # Where tfds looks for archives that were fetched by hand.
    self.archives = self.data_dir / 'downloads' / 'manual'
    self.archives.mkdir(parents=True)
    self.enter_context(
        mock.patch.object(
            socket, 'create_connection', side_effect=OSError('no network')
        )
    )
    # The archives of these tests are small ones.
    self.enter_context(
        mock.patch.object(
            download_manager.DownloadManager, '_register_or_validate_checksums'
        )
    )

  def _load(self, name, split):
    return images_lib.load(name, split, data_dir=self.data_dir)

  def _assert_same_rows(self, images, expected, labels):
    found = {row.tobytes(): i for i, row in enumerate(images.array)}
    self.assertLen(found, len(expected))
    order = [found[row.tobytes()] for row in expected]
    np.testing.assert_array_equal(images.labels[order], labels)

  def test_cifar10_from_its_archive(self):
    pixels = _pixels(12, 32, 32, 3)
    labels = np.arange(12, dtype=np.uint8) % 10
    records = [
        bytes([label]) + image.transpose(2, 0, 1).tobytes()
        for label, image in zip(labels, pixels, strict=True)
    ]
    folder = 'cifar-10-batches-bin/'
    files = {
        f'{folder}data_batch_{i + 1}.bin': b''.join(records[2 * i : 2 * i + 2])
        for i in range(5)
    }
    files[f'{folder}test_batch.bin'] = b''.join(records[10:])
    names = [f'class {i}' for i in range(10)]
    files[f'{folder}batches.meta.txt'] = '\n'.join(names).encode()
    _write_tar(self.archives / 'cifar-10-binary.tar.gz', files)
    prepare.prepare('cifar10', data_dir=self.data_dir)
    train, test = self._load('cifar10', 'train'), self._load('cifar10', 'test')
    self._assert_same_rows(train, pixels[:10], labels[:10])
    self._assert_same_rows(test, pixels[10:], labels[10:])
    self.assertEqual(train.class_names, tuple(names))

  def test_stl10_with_its_unlabelled_images(self):
    pixels = _pixels(6, 96, 96, 3)
    columns = pixels.transpose(0, 3, 2, 1)
    folder = 'stl10_binary/'
    files = {
        f'{folder}train_X.bin': columns[:2].tobytes(),
        f'{folder}train_y.bin': bytes([1, 10]),
        f'{folder}test_X.bin': columns[2:3].tobytes(),
        f'{folder}test_y.bin': bytes([3]),
        f'{folder}unlabeled_X.bin': columns[3:].tobytes(),
        f'{folder}class_names.txt': '\n'.join('abcdefghij').encode(),
    }
    _write_tar(self.archives / 'stl10_binary.tar.gz', files)
    prepare.prepare('stl10', data_dir=self.data_dir)
    both = self._load('stl10', 'train+unlabelled')
    expected = np.concatenate([pixels[:2], pixels[3:]])
    self._assert_same_rows(both, expected, [0, 9, -1, -1, -1])
    self.assertEqual(both.num_classes, 10)

  def test_imagenet_resized(self):
    pixels = _pixels(5, 8, 8, 3)
    rows = pixels.transpose(0, 3, 1, 2).reshape(5, -1)
    for split, part in (('train', slice(3)), ('val', slice(3, 5))):
      content = io.BytesIO()
      np.savez(content, data=rows[part], labels=np.arange(1, 6)[part])
      path = self.archives / f'Imagenet8_{split}_npz.zip'
      with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr(f'{split}.npz', content.getvalue())
    prepare.prepare('imagenet_resized/8x8', data_dir=self.data_dir)
    train = self._load('imagenet_resized/8x8', 'train')
    self._assert_same_rows(train, pixels[:3], [0, 1, 2])

  def test_a_download_without_network_fails_at_once_and_leaves_nothing(self):
    start = time.time()
    with self.assertRaisesRegex(catalogue.OfflineError, 'cs.toronto.edu'):
      prepare.prepare('cifar100', data_dir=self.data_dir)
    self.assertLess(time.time() - start, 30)
    self.assertEmpty(list(self.data_dir.rglob('*cifar*')))

  def test_others_are_as_before_afterwards(self):
    replaced = (
        lambda: tfds.features.Image.encode_example,
        lambda: requests.adapters.HTTPAdapter.send,
        lambda: urllib.request.urlopen,
        lambda: 'tensorflow' in sys.modules,
    )
    before = [get() for get in replaced]
    with self.assertRaises(catalogue.OfflineError):
      prepare.prepare('cifar100', data_dir=self.data_dir)
    self.assertEqual([get() for get in replaced], before)

  def _prepare_by(self, function):
    """Prepares a data set whose builder does nothing but this."""
    catalogue.download_and_prepare(
        types.SimpleNamespace(
            data_dir=str(self.data_dir / 'mine' / '1.0.0'),
            builder_config=None,
            download_and_prepare=lambda file_format: function(),
        )
    )

  @parameterized.parameters('http', 'https', 'ftp')
  def test_no_answer_by_any_protocol(self, scheme):
    url = f'{scheme}://nowhere.example/x.zip'
    manager = tfds.download.DownloadManager(download_dir=self.data_dir)
    with self.assertRaisesRegex(catalogue.OfflineError, 'nowhere.example'):
      self._prepare_by(lambda: manager.download(url))

  def test_what_only_tensorflow_has(self):
    with self.assertRaisesRegex(ModuleNotFoundError, 'tf.data') as refused:
      self._prepare_by(lambda: tfds.core.lazy_imports_utils.tensorflow.data)
    self.assertEqual(refused.exception.name, 'tensorflow')

  @parameterized.parameters(1, 3)
  def test_arrays_are_encoded(self, channels):
    pixels = _pixels(4, 6, channels)
    feature = tfds.features.Image(shape=(4, 6, channels))
    encoded = []
    self._prepare_by(lambda: encoded.append(feature.encode_example(pixels)))
    with Image.open(io.BytesIO(encoded[0])) as image:
      np.testing.assert_array_equal(
          np.asarray(image).reshape(pixels.shape), pixels
      )

  def test_sets_that_will_not_do_are_named_before_any_download(self):
    for name, message in (
        ('imagenet_resized', 'imagenet_resized/64x64'),
        ('imagenet_resized/65x65', 'imagenet_resized/64x64'),
        ('cifar10/large', 'it has none'),
        ('nothing_like_it', 'not in the catalogue'),
        ('tiny_imagenet', '--images'),
        ('ag_news_subset', 'no images'),
        ('dtd', 'of one size'),
    ):
      with self.subTest(name), self.assertRaisesRegex(ValueError, message):
        prepare.prepare(name, data_dir=self.data_dir)
