# SPDX-License-Identifier: Apache-2.0
"""Folders of images: layouts, splits, formats and broken files."""

import pathlib
import shutil
import tempfile
import unicodedata

from absl.testing import parameterized
import numpy as np
from PIL import Image
import tensorflow_datasets as tfds

from hcl_jax import prepare
from hcl_jax.images import data as image_data
from hcl_jax.images import fitting
from hcl_jax.images import image_folder


def _write(path, color=(200, 100, 50), size=(12, 8), **kwargs):
  path.parent.mkdir(parents=True, exist_ok=True)
  Image.new('RGB', size, color).save(path, **kwargs)


class _FolderTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    tfds.disable_progress_bar()
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    self.folder, self.data_dir = root / 'images', root / 'data'
    self.folder.mkdir()

  def write(self, *names, **kwargs):
    for name in names:
      _write(self.folder / name, **kwargs)

  def touch(self, name, content=b'not an image'):
    path = self.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)

  def found(self, **kwargs):
    """Splits as {split: {key: class}}."""
    splits = image_folder.scan(self.folder, **kwargs).splits
    return {
        split: {file.key: file.class_name for file in files}
        for split, files in splits.items()
    }


class LayoutTest(_FolderTest):

  def test_classes_without_splits(self):
    names = [f'{c}/{i}.png' for c in ('cat', 'dog') for i in range(40)]
    self.write(*names)
    found = self.found(test_fraction=0.25)
    self.assertEqual({**found['train'], **found['test']}, {
        name: name.split('/')[0] for name in names
    })
    self.assertBetween(len(found['test']), 8, 32)
    # What else the folder holds does not change a file's split.
    self.write('cow/new.png')
    again = self.found(test_fraction=0.25)
    self.assertLessEqual(found['test'].items(), again['test'].items())
    self.assertLessEqual(found['train'].items(), again['train'].items())

  def test_split_folders(self):
    self.write('train/a/1.png', 'train/b/1.png', 'val/b/2.png', 'Test/3.png')
    self.assertEqual(self.found(), {
        'train': {'train/a/1.png': 'a', 'train/b/1.png': 'b'},
        'validation': {'val/b/2.png': 'b'},
        'test': {'Test/3.png': None},
    })
    self.assertEqual(image_folder.scan(self.folder).class_names, ['a', 'b'])

  def test_no_classes(self):
    self.write('1.png', '2.png')
    self.assertEqual(
        self.found(test_fraction=0.0), {'train': {'1.png': None, '2.png': None}}
    )

  def test_tiny_imagenet(self):
    self.write('train/n01/images/n01_0.JPEG', 'train/n02/images/n02_0.JPEG')
    self.write('val/images/val_0.JPEG', 'val/images/val_1.JPEG')
    self.write('test/images/test_0.JPEG')
    self.touch('train/n01/n01_boxes.txt')
    self.touch('wnids.txt')
    self.touch(
        'val/val_annotations.txt',
        b'val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n',
    )
    self.assertEqual(self.found(), {
        'train': {
            'train/n01/images/n01_0.JPEG': 'n01',
            'train/n02/images/n02_0.JPEG': 'n02',
        },
        'validation': {
            'val/images/val_0.JPEG': 'n02', 'val/images/val_1.JPEG': 'n01'
        },
        'test': {'test/images/test_0.JPEG': None},
    })  # fmt: skip

  def test_what_is_passed_over(self):
    self.write('a/deep/deeper/1.png', 'a/.hidden.png', '.git/x.png')
    self.write('__MACOSX/a/1.png', 'a/no_ending.png')
    (self.folder / 'a/no_ending.png').rename(self.folder / 'a/no_ending')
    self.touch('a/notes.txt')
    (self.folder / 'empty').mkdir()
    found = image_folder.scan(self.folder, test_fraction=0.0)
    self.assertEqual(
        [file.key for file in found.splits['train']],
        ['a/deep/deeper/1.png', 'a/no_ending'],
    )
    self.assertEqual(found.class_names, ['a'])
    self.assertEqual([path.name for path in found.ignored], ['notes.txt'])

  def test_names_in_unicode(self):
    composed = unicodedata.normalize('NFC', 'é/ü 图.png')
    self.write(unicodedata.normalize('NFD', composed))
    self.assertEqual(self.found(test_fraction=0.0)['train'], {composed: 'é'})
    self.write(composed)  # another file with the same name, for the eye
    self.assertLen(self.found(test_fraction=0.0)['train'], 2)

  def test_folders_that_will_not_do(self):
    with self.assertRaisesRegex(FileNotFoundError, 'holds no images'):
      self.found()
    with self.assertRaisesRegex(FileNotFoundError, 'no folder'):
      image_folder.scan(self.folder / 'nothing')
    self.write('train/a/1.png', 'other/1.png')
    with self.assertRaisesRegex(ValueError, "'other' beside 'train'"):
      self.found()

  def test_images_beside_classes(self):
    self.write('a/1.png', 'loose.png')
    with self.assertRaisesRegex(ValueError, "loose.png.* such as 'a'"):
      self.found()

  def test_one_split_twice(self):
    self.write('val/1.png', 'validation/1.png')
    with self.assertRaisesRegex(ValueError, 'twice'):
      self.found()


class ReadSquareTest(_FolderTest):

  def _read(self, image, name='x.png', size=4, **kwargs):
    path = self.folder / name
    image.save(path, **kwargs)
    return np.asarray(fitting.read(path, (size, size)))

  def test_the_middle_at_the_size_of_the_shorter_side(self):
    # Three stripes; the middle square covers the second only.
    pixels = np.zeros((8, 24, 3), np.uint8)
    pixels[:, 8:16] = 100, 150, 200
    for image in (pixels, pixels.transpose(1, 0, 2)):
      found = self._read(Image.fromarray(image))
      self.assertEqual(found.shape, (4, 4, 3))
      expected = np.full((2, 2, 3), (100, 150, 200))
      np.testing.assert_allclose(found[1:3, 1:3], expected, atol=4)

  def test_reduction_is_antialiased(self):
    fine = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    found = self._read(Image.fromarray(fine))
    np.testing.assert_allclose(found, 127, atol=2)

  def test_an_image_of_the_size_is_left_alone(self):
    pixels = np.random.default_rng(0).integers(256, size=(4, 4, 3))
    pixels = pixels.astype(np.uint8)
    np.testing.assert_array_equal(self._read(Image.fromarray(pixels)), pixels)

  def test_orientation_of_cameras(self):
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter to the right
    found = self._read(Image.fromarray(pixels), exif=exif)
    np.testing.assert_array_equal(found, np.rot90(pixels, -1))

  @parameterized.parameters('L', '1', 'P', 'RGBA', 'LA', 'CMYK', 'I;16')
  def test_every_mode_becomes_rgb(self, mode):
    grey = Image.new('L', (6, 4), 255)
    image = grey.convert(mode)
    if mode == 'I;16':
      image = Image.fromarray(np.full((4, 6), 0xFFFF, np.uint16))
    name = 'x.tif' if mode == 'CMYK' else 'x.png'
    found = self._read(image, name)
    np.testing.assert_allclose(found, np.full((4, 4, 3), 255), atol=1)


class PrepareTest(_FolderTest):

  def prepare(self, name='photos', **kwargs):
    kwargs = {
        'image_size': 8, 'test_fraction': 0.0, 'images': str(self.folder),
        **kwargs,
    }  # fmt: skip
    return prepare.prepare(name, data_dir=self.data_dir, **kwargs)

  def load(self, split='train', name='photos'):
    return image_data.load(name, split, data_dir=self.data_dir)

  def test_images_and_labels(self):
    for name, color in (('red', (255, 0, 0)), ('blue', (0, 0, 255))):
      self.write(*(f'{name}/{i}.bmp' for i in range(3)), color=color)
    self.write('blue/photo.jpg', color=(0, 0, 255), size=(40, 60))
    self.prepare()
    images = self.load()
    self.assertEqual(images.class_names, ('blue', 'red'))
    self.assertLen(images, 7)
    self.assertEqual(images.image_shape, (8, 8, 3))
    for image, label in zip(images.array, images.labels, strict=True):
      expected = [(0, 0, 255), (255, 0, 0)][label]
      np.testing.assert_allclose(image, np.full((8, 8, 3), expected), atol=2)

  def test_unlabelled(self):
    self.write('1.png', '2.gif')
    self.prepare()
    np.testing.assert_array_equal(self.load().labels, [-1, -1])
    self.assertEqual(self.load().num_classes, 0)

  def test_a_split_may_lack_labels(self):
    self.write('train/a/1.png', 'test/1.png')
    self.prepare()
    np.testing.assert_array_equal(self.load('train+test').labels, [0, -1])

  def test_broken_files_are_named_and_nothing_is_written(self):
    self.write('a/good.png', 'a/cut.png')
    self.touch('a/text.jpg')
    cut = self.folder / 'a/cut.png'
    cut.write_bytes(cut.read_bytes()[:-30])
    with self.assertRaisesRegex(ValueError, r'2 unreadable.*cut.*text'):
      self.prepare()
    self.assertFalse(self.data_dir.exists())
    self.prepare(skip_unreadable=True)
    self.assertLen(self.load(), 1)

  def test_where_no_file_can_be_read_none_can_be_skipped(self):
    self.touch('a/text.jpg')
    with self.assertRaisesRegex(ValueError, r'1 unreadable.*text'):
      self.prepare(skip_unreadable=True)
    self.assertFalse(self.data_dir.exists())

  def test_tiny_imagenet_has_64_pixels(self):
    self.write('train/n01/images/1.JPEG', size=(64, 64))
    self.prepare('tiny_imagenet', image_size=None)
    self.assertEqual(self.load(name='tiny_imagenet').image_shape, (64, 64, 3))

  def test_configs_keep_folders_apart(self):
    self.write('1.png')
    self.prepare('image_folder/first')
    self.write('2.png')
    self.prepare('image_folder/second')
    self.assertLen(self.load(name='image_folder/first'), 1)
    self.assertLen(self.load(name='image_folder/second'), 2)

  def test_a_folder_is_not_taken_for_another(self):
    self.write('a/1.png', 'a/2.png')
    directory = self.prepare()
    self.assertEqual(self.prepare(), directory)
    self.assertEqual(
        prepare.prepare('photos', data_dir=self.data_dir), directory
    )
    other = self.folder.with_name('other')
    shutil.copytree(self.folder, other)
    for kwargs, message in (
        ({'images': str(other)}, "path was '.*images' and is '.*other'"),
        ({'image_size': 9}, 'image_size was 8 and is 9'),
        ({'test_fraction': 0.5}, 'test_fraction was 0.0 and is 0.5'),
        ({'skip_unreadable': True}, 'skip_unreadable was False and is True'),
    ):
      with self.subTest(message), self.assertRaisesRegex(ValueError, message):
        self.prepare(**kwargs)
    self.write('a/3.png')
    with self.assertRaisesRegex(ValueError, 'files was 2 and is 3; bytes was'):
      self.prepare()
    self.assertLen(self.load(), 2)
    self.prepare('more')
    self.assertLen(self.load(name='more'), 3)

  def test_a_source_that_was_not_recorded(self):
    self.write('1.png')
    directory = self.prepare()
    (directory / 'metadata.json').unlink()  # as versions before wrote it
    with self.assertRaisesRegex(ValueError, 'without a record of its source'):
      self.prepare()

  def test_links_count_as_what_they_lead_to(self):
    self.write('a/1.png')
    other = self.folder.with_name('other')
    other.mkdir()
    (other / 'a').symlink_to(self.folder / 'a')
    (other / 'gone.png').symlink_to(self.folder / 'nothing')
    self.prepare(images=str(other))
    self.write('a/2.png')
    with self.assertRaisesRegex(ValueError, 'files was 1 and is 2'):
      self.prepare(images=str(other))

  def test_the_name_alone_is_not_the_last_config(self):
    self.write('1.png')
    self.prepare('photos/a')
    self.assertLen(self.load(name='photos'), 1)  # the only one
    self.write('2.png')
    self.prepare('photos/b')
    with self.assertRaisesRegex(ValueError, 'photos/a, photos/b'):
      self.load(name='photos')
    self.touch('broken.png')
    with self.assertRaisesRegex(ValueError, 'unreadable'):
      self.prepare('photos/c')
    with self.assertRaisesRegex(ValueError, 'photos/a, photos/b'):
      self.load(name='photos')

  def test_bad_arguments(self):
    self.write('1.png')
    for kwargs, message in (
        ({'image_size': 0}, '--image_size must be 1 or more, got 0'),
        ({'test_fraction': 1.0}, 'test_fraction'),
        ({'name': 'cifar10'}, 'name of their own'),
        ({'arrays': 'x'}, 'give one of --images'),
    ):
      with self.subTest(message), self.assertRaisesRegex(ValueError, message):
        self.prepare(**kwargs)
