# SPDX-License-Identifier: Apache-2.0
"""Loading prepared data sets, and the one that prepares itself."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow_datasets as tfds

from hcl_jax.images import data as image_data
from hcl_jax.images import digit_scenes
from hcl_jax.images import prepare as image_prepare
from hcl_jax.storage import locations

_TINY = 'digit_scenes/tiny'


def _flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 0x10
  path.write_bytes(content)


def _cut(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


class LoadTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    tfds.disable_progress_bar()
    cls.data_dir = cls.enterClassContext(tempfile.TemporaryDirectory())
    image_data.load(_TINY, 'train', data_dir=cls.data_dir)

  def _load(self, split='train', **kwargs):
    return image_data.load(_TINY, split, data_dir=self.data_dir, **kwargs)

  def test_another_process_may_be_first(self):
    prepare = image_prepare.DigitScenes.download_and_prepare

    def prepare_too_late(scenes_builder):
      prepare(scenes_builder)
      raise OSError('Directory not empty')

    with (
        tempfile.TemporaryDirectory() as data_dir,
        mock.patch.object(
            image_prepare.DigitScenes, 'download_and_prepare', prepare_too_late
        ),
    ):
      self.assertLen(image_data.load(_TINY, 'test', data_dir=data_dir), 256)

  def test_other_versions_are_passed_over(self):
    with tempfile.TemporaryDirectory() as data_dir:
      for version in ('0.9.0', '9.0.0'):
        folder = pathlib.Path(data_dir, _TINY, version)
        folder.mkdir(parents=True)
        (folder / 'dataset_info.json').write_text('{}')
      self.assertLen(image_data.load(_TINY, 'test', data_dir=data_dir), 256)

  def test_a_folder_that_cannot_be_written(self):
    with tempfile.NamedTemporaryFile() as file, self.assertRaises(OSError):
      image_data.load(_TINY, 'test', data_dir=file.name)

  def test_images_and_labels_are_the_scenes(self):
    images = self._load()
    expected, labels = digit_scenes.draw('train', 0, 512)
    np.testing.assert_array_equal(images.array, expected)
    np.testing.assert_array_equal(images.labels, labels)
    self.assertEqual(images.labels.dtype, np.int32)
    self.assertEqual(images.image_shape, (32, 32, 3))
    self.assertLen(images, 512)
    self.assertEqual(images.num_classes, 10)
    self.assertEqual(images.class_names, tuple('0123456789'))

  def test_the_second_time_is_the_same(self):
    np.testing.assert_array_equal(self._load().array, self._load().array)

  def test_streamed_is_the_same(self):
    images, streamed = self._load(), self._load(max_bytes_in_memory=10**6)
    self.assertTrue(images.in_memory)
    self.assertFalse(streamed.in_memory)
    self.assertIsNone(streamed.array)
    np.testing.assert_array_equal(streamed.labels, images.labels)
    rows = np.array([3, 511, 3, 0])
    np.testing.assert_array_equal(streamed.rows(rows), images.rows(rows))
    arguments = {
        'seed': 0, 'batch_size': 100, 'first_step': 3, 'num_steps': 4
    }  # fmt: skip
    for a, b in zip(
        image_data.batches(images, **arguments),
        image_data.batches(streamed, **arguments),
        strict=True,
    ):
      np.testing.assert_array_equal(a['image'], b['image'])

  @parameterized.parameters(
      ('train[:25%]', slice(0, 128)), ('train[500:]', slice(500, 512))
  )
  def test_parts_of_a_split(self, split, part):
    images, whole = self._load(split), self._load()
    np.testing.assert_array_equal(images.array, whole.array[part])
    np.testing.assert_array_equal(images.labels, whole.labels[part])
    cache = pathlib.Path(self.data_dir, _TINY, '1.0.0', 'hcl_jax_cache')
    self.assertEmpty(list(cache.glob('*[[]*')))

  @parameterized.parameters(b'', b'\x93NUMPY', b'nothing', None)
  def test_what_is_kept_is_made_anew_where_it_is_damaged(self, content):
    images = self._load()
    path = pathlib.Path(self.data_dir, _TINY, '1.0.0', 'hcl_jax_cache')
    for name, array in (
        ('train_images', images.array), ('train_labels', images.labels)
    ):  # fmt: skip
      if content is None:
        np.savez(path / f'{name}.npz', array=array[:7])  # of another set
      else:
        (path / f'{name}.npz').write_bytes(content)
    np.testing.assert_array_equal(self._load().array, images.array)
    np.testing.assert_array_equal(self._load().labels, images.labels)
    with np.load(path / 'train_labels.npz') as kept:
      np.testing.assert_array_equal(kept['array'], images.labels)

  @parameterized.parameters('dataset_info.json', 'features.json')
  def test_damaged_descriptions(self, name):
    path = pathlib.Path(self.data_dir, _TINY, '1.0.0', name)
    self.addCleanup(path.write_bytes, path.read_bytes())
    for content in (b'', b'{"fileFormat": ', b'[]'):
      path.write_bytes(content)
      with self.assertRaisesRegex(OSError, 'tiny/1.0.0.* is damaged'):
        self._load()

  def test_sums_of_splits(self):
    both = self._load('train[:10]+test')
    self.assertLen(both, 266)
    np.testing.assert_array_equal(both.array[10:], self._load('test').array)

  def test_a_split_that_is_not_there(self):
    for split in ('valid', 'train+valid', 'train[:x]'):
      with self.assertRaisesRegex(ValueError, f"train, test.*got '{split[:5]}"):
        self._load(split)

  def test_a_missing_data_set_names_the_command(self):
    start = time.time()
    with self.assertRaisesRegex(
        FileNotFoundError,
        'python -m hcl_jax.prepare --dataset=cifar10 '
        f'--data_dir={self.data_dir}$',
    ):
      image_data.load('cifar10', 'train', data_dir=self.data_dir)
    self.assertLess(time.time() - start, 2)

  def test_names_and_configs_that_are_wrong(self):
    with self.assertRaisesRegex(ValueError, "got 'CIFAR-10'"):
      image_data.load('CIFAR-10', 'train')
    with self.assertRaisesRegex(ValueError, 'full, tiny'):
      image_data.load('digit_scenes/huge', 'train', data_dir=self.data_dir)

  def test_tfrecord_files_are_refused(self):
    folder = pathlib.Path(self.data_dir, 'old', '1.0.0')
    folder.mkdir(parents=True)
    info = {'name': 'old', 'fileFormat': 'tfrecord'}
    (folder / 'dataset_info.json').write_text(json.dumps(info))
    with self.assertRaisesRegex(ValueError, 'tfrecord.*hcl_jax.prepare'):
      image_data.load('old', 'train', data_dir=self.data_dir)

  def test_importing_loads_neither_tfds_nor_tensorflow(self):
    script = (
        'import sys, hcl_jax.images.data\n'
        'heavy = "tensorflow", "tensorflow_datasets", "grain", "sklearn"\n'
        'sys.exit(", ".join(m for m in heavy if m in sys.modules) or 0)\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', script], capture_output=True, text=True
    )
    self.assertEqual(done.returncode, 0, done.stderr)


class DamageTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    tfds.disable_progress_bar()
    cls.prepared = cls.enterClassContext(tempfile.TemporaryDirectory())
    for split in ('train', 'test'):
      image_data.load(_TINY, split, data_dir=cls.prepared)

  def setUp(self):
    super().setUp()
    self.data_dir = self.enter_context(tempfile.TemporaryDirectory())
    shutil.copytree(self.prepared, self.data_dir, dirs_exist_ok=True)
    self.folder = pathlib.Path(self.data_dir, _TINY, '1.0.0')

  def _file(self, part):
    (path,) = self.folder.glob(f'*{part}*')
    return path

  def _load(self, split, **kwargs):
    return image_data.load(_TINY, split, data_dir=self.data_dir, **kwargs)

  @parameterized.product(
      (
          {'part': 'train.array', 'damage': _flip},
          {'part': 'train.array', 'damage': _cut},
          {'part': 'train.array', 'damage': pathlib.Path.unlink},
          {'part': 'dataset_info', 'damage': _cut},
      ),
      split=('train', 'test+train'),
  )
  def test_a_damaged_file_is_named(self, part, damage, split):
    shutil.rmtree(self.folder / 'hcl_jax_cache')
    path = self._file(part)
    damage(path)
    with self.assertRaisesRegex(
        OSError, f'{path} is damaged .*; delete {self.folder} and prepare'
    ):
      self._load(split)

  def test_a_damaged_list_of_features(self):
    _cut(self._file('features'))
    with self.assertRaisesRegex(OSError, f'{self.folder} is damaged'):
      self._load('train')

  def test_damage_met_while_streaming(self):
    images = self._load('train', max_bytes_in_memory=1)
    _flip(self._file('train.array'))
    batches = image_data.batches(
        images, seed=0, batch_size=128, first_step=0, num_steps=4
    )
    with self.assertRaisesRegex(OSError, r'train.array_record.* is damaged'):
      list(batches)

  @parameterized.parameters(_flip, _cut)
  def test_what_is_kept_beside_the_records_is_made_anew(self, damage):
    expected = self._load('train').array
    damage(self._file('hcl_jax_cache') / 'train_images.npz')
    with self.assertLogs('absl', 'WARNING') as logs:
      np.testing.assert_array_equal(self._load('train').array, expected)
    self.assertRegex(logs.output[0], 'train_images.npz is damaged .*made anew')
    with self.assertNoLogs('absl', 'WARNING'):
      np.testing.assert_array_equal(self._load('train').array, expected)

  def test_lost_information_is_told_of(self):
    self._file('dataset_info').unlink()
    with self.assertRaisesRegex(FileNotFoundError, 'is not prepared in'):
      self._load('train')


class ImagesTest(absltest.TestCase):

  def test_arrays_of_ones_own(self):
    images = image_data.Images(np.zeros((4, 8, 6, 3), np.uint8), [0, 2, 1, 0])
    self.assertEqual((len(images), images.num_classes), (4, 3))
    self.assertEqual(images.rows([1, 2]).shape, (2, 8, 6, 3))
    unlabelled = image_data.Images(np.zeros((4, 8, 6, 3), np.uint8))
    np.testing.assert_array_equal(unlabelled.labels, -1)
    self.assertEqual(unlabelled.num_classes, 0)

  def test_wrong_arrays(self):
    with self.assertRaisesRegex(ValueError, 'got float32'):
      image_data.Images(np.zeros((4, 8, 8, 3), np.float32))
    with self.assertRaisesRegex(ValueError, r'4 images, got shape \(3,\)'):
      image_data.Images(np.zeros((4, 8, 8, 3), np.uint8), [0, 1, 2])


class LocationsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory())
    )

  def _make(self, *names):
    for name in names:
      folder = self.root / name
      folder.mkdir(parents=True)
      (folder / 'dataset_info.json').touch()

  def _find(self, name):
    found = locations.find(name, self.root)
    return found and found.relative_to(self.root).as_posix()

  def test_the_highest_version(self):
    self._make('a/1.9.0', 'a/1.10.0')
    (self.root / 'a/2.0.0').mkdir()  # not complete
    self.assertEqual(self._find('a'), 'a/1.10.0')
    self.assertEqual(self._find('a:1.9.0'), 'a/1.9.0')
    self.assertIsNone(self._find('a:1.8.0'))
    self.assertIsNone(self._find('b'))

  def test_configs(self):
    self._make('a/x/1.0.0')
    self.assertEqual(self._find('a'), 'a/x/1.0.0')
    self._make('a/y/1.0.0')
    self.assertEqual(self._find('a/y'), 'a/y/1.0.0')
    with self.assertRaisesRegex(ValueError, 'a/x, a/y'):
      self._find('a')
    (self.root / 'a/.config').mkdir()
    text = json.dumps({'default_config_name': 'y'})
    (self.root / 'a/.config/metadata.json').write_text(text)
    self.assertEqual(self._find('a'), 'a/y/1.0.0')
