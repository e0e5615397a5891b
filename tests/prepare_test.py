# SPDX-License-Identifier: Apache-2.0
"""The command that prepares data sets, and arrays as its source."""

import contextlib
import io
import pathlib
import shlex
import sys
import tempfile
import types
from unittest import mock

from absl import flags
from absl.testing import flagsaver
from absl.testing import parameterized
import numpy as np
from PIL import Image
import tensorflow_datasets as tfds

from hcl_jax import command
from hcl_jax import configurations
from hcl_jax import domains
from hcl_jax import prepare
from hcl_jax.images import data as image_data
from tests.support import commands
from tests.support import tu


class _Test(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    tfds.disable_progress_bar()
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    self.folder, self.data_dir = root / 'arrays', root / 'data'
    self.folder.mkdir()
    rng = np.random.default_rng(0)
    self.pixels = rng.integers(256, size=(30, 5, 6, 3), dtype=np.uint8)
    self.labels = np.arange(30) % 4

  def save(self, **arrays):
    for name, array in arrays.items():
      np.save(self.folder / f'{name}.npy', array)

  def save_all(self):
    self.save(
        train_images=self.pixels[:20], train_labels=self.labels[:20],
        test_images=self.pixels[20:], test_labels=self.labels[20:],
    )  # fmt: skip

  def prepare(self, name='mine', **kwargs):
    return prepare.prepare(
        name, data_dir=self.data_dir, arrays=str(self.folder), **kwargs
    )

  def load(self, split, name='mine'):
    return image_data.load(name, split, data_dir=self.data_dir)


class ArraysTest(_Test):

  def test_images_and_labels(self):
    self.save_all()
    self.prepare()
    for split, part in (('train', slice(20)), ('test', slice(20, 30))):
      images = self.load(split)
      found = {row.tobytes(): i for i, row in enumerate(images.array)}
      order = [found[row.tobytes()] for row in self.pixels[part]]
      self.assertLen(images, len(order))
      np.testing.assert_array_equal(images.labels[order], self.labels[part])
    self.assertEqual(images.class_names, ('0', '1', '2', '3'))

  def test_a_set_of_the_catalogue_reads_as_if_downloaded(self):
    pixels = np.random.default_rng(0).integers(256, size=(9, 32, 32, 3))
    pixels = pixels.astype(np.uint8)
    self.save(train_images=pixels, train_labels=np.arange(9))
    names = [f'class {i}' for i in range(10)]
    (self.folder / 'classes.txt').write_text('\n'.join(names) + '\n')
    directory = self.prepare('cifar10')
    version = tfds.builder_cls('cifar10').VERSION
    self.assertEqual(directory, self.data_dir / 'cifar10' / str(version))
    source = tfds.data_source('cifar10', split='train', data_dir=self.data_dir)
    for example in source:
      row = example['label']
      self.assertEqual(example['id'].decode(), f'train_{row:05d}')
      np.testing.assert_array_equal(example['image'], pixels[row])
    images = self.load('train', 'cifar10')
    self.assertEqual(images.class_names, tuple(names))
    np.testing.assert_array_equal(images.array, [e['image'] for e in source])

  def test_grey_and_unlabelled_images(self):
    self.save(
        train_images=self.pixels[..., 0], extra_images=self.pixels[..., 1:2]
    )
    self.prepare()
    np.testing.assert_array_equal(self.load('train+extra').labels, [-1] * 60)
    image = self.load('train').array[0]
    np.testing.assert_array_equal(image[..., 0], image[..., 2])

  def test_arrays_that_will_not_do(self):
    with self.assertRaisesRegex(FileNotFoundError, 'train_images.npy'):
      self.prepare()
    for arrays, message in (
        ({'train_images': self.pixels / 255}, 'uint8.*got float64'),
        ({'train_images': self.pixels.transpose(0, 3, 1, 2)}, 'height, width'),
        ({'train_images': np.array([{}])}, 'not a plain .npy'),
        ({'train_images': self.pixels[:0]}, 'holds no image'),
        ({'train_images': self.pixels[:, :0]}, 'holds no image'),
        ({'train_images': self.pixels, 'train_labels': self.labels[1:]},
         r'integers \[30\]'),
        ({'train_labels': self.labels / 2}, r'integers \[30\]'),
        ({'train_labels': self.labels - 2}, '-1 or more'),
        ({'train_labels': self.labels + 10**9}, 'number the classes through'),
        ({'train_labels': self.labels, 'test_images': self.pixels[:, 1:]},
         'one size'),
    ):  # fmt: skip
      self.save(**arrays)
      with self.subTest(message), self.assertRaisesRegex(ValueError, message):
        self.prepare()
    self.assertFalse(self.data_dir.exists())

  def test_too_few_names_of_classes(self):
    self.save_all()
    (self.folder / 'classes.txt').write_text('a\nb\n')
    with self.assertRaisesRegex(ValueError, 'names 2 classes.*up to 3'):
      self.prepare()

  def test_what_is_there_is_left_alone(self):
    self.save_all()
    directory = self.prepare()
    before = {p: p.stat().st_mtime_ns for p in directory.rglob('*')}
    self.assertEqual(self.prepare(), directory)
    self.save(train_images=self.pixels[:1], train_labels=self.labels[:1])
    with self.assertRaisesRegex(ValueError, 'from another source: bytes was'):
      self.prepare()
    after = {p: p.stat().st_mtime_ns for p in directory.rglob('*')}
    self.assertEqual(before, after)


class CommandTest(_Test):

  def setUp(self):
    super().setUp()
    flags.FLAGS.mark_as_parsed()

  def run_command(self, *arguments):
    return commands.run('prepare', *arguments)

  def test_prepares_and_says_how_to_use_it(self):
    self.save_all()
    done = self.run_command(
        '--dataset=mine', f'--data_dir={self.data_dir}',
        f'--arrays={self.folder}',
    )  # fmt: skip
    self.assertEqual(done.status, 0, done.err)
    written, ready, train = done.out.splitlines()
    self.assertStartsWith(written, 'Writing mine/1.0.0 to ')
    self.assertEmpty(done.err)  # nothing of tfds
    call = ready.split('): ')[-1]
    self.assertIn(str(self.data_dir / 'mine' / '1.0.0'), ready)
    self.assertLen(eval(call, {'hcl_jax': sys.modules['hcl_jax']}), 20)  # noqa: S307
    self.assertEqual(
        train,
        'Train with: hcl_jax train --config=image_folder:mine,small '
        '--config.data.batch_size=16 '
        f'--config.data.dir={self.data_dir} --workdir=runs/mine',
    )

  def test_a_mistake_is_one_line(self):
    done = self.run_command('--dataset=x', '--images=/nowhere')
    self.assertEqual(done.status, 2)
    self.assertLen(done.err.splitlines(), 1)
    self.assertStartsWith(
        done.err, 'hcl_jax.prepare: there is no folder /nowhere'
    )
    self.assertEmpty(done.out)

  def test_options_that_there_are_not(self):
    with self.assertRaisesRegex(TypeError, "the option 'image', only.*images"):
      prepare.prepare('x', data_dir=self.data_dir, image='x')

  def test_a_package_that_is_no_room(self):
    module = types.ModuleType('odd.prepare')
    module.FLAGS = {}
    packages = {'odd': types.ModuleType('odd'), 'odd.prepare': module}
    with (
        mock.patch.dict(sys.modules, packages),
        self.assertRaisesRegex(ValueError, '--domain=odd: .* has no full_name'),
    ):
      prepare.prepare('x', data_dir=self.data_dir, domain='odd')

  @flagsaver.flagsaver
  def test_mistakes(self):
    for flag_values, argv, message in (
        ({'dataset': 'mine', 'min_count': 2}, [],
         '--min_count needs --dataset=sentences/NAME; got mine, which takes '
         'its files by --images or --arrays.'),
        ({'dataset': 'MUTAG', 'arrays': 'x', 'image_size': 8}, [],
         '--arrays needs --dataset=NAME, .*; got MUTAG, .* by --graphs.'),
        ({}, [], '--dataset=NAME is needed'),
        ({'dataset': 'x'}, ['stray'], "unexpected argument 'stray'"),
        ({'dataset': 'X'}, [], 'a name of a-z'),
        ({'images': '/nowhere', 'dataset': 'x', 'image_size': 8}, [],
         'no folder /nowhere'),
    ):  # fmt: skip
      with (
          self.subTest(message),
          flagsaver.flagsaver(**flag_values),
          self.assertRaisesRegex(command.UsageError, message),
      ):
        prepare.main(argv)


class NextCommandTest(_Test):
  """The last line of the command makes an experiment as it stands."""

  def setUp(self):
    super().setUp()
    flags.FLAGS.mark_as_parsed()

  def follow(self, dataset, **options):
    printed = io.StringIO()
    with (
        flagsaver.flagsaver(
            dataset=dataset, data_dir=str(self.data_dir), **options
        ),
        contextlib.redirect_stdout(printed),
    ):
      prepare.main([])
    start = 'Train with: hcl_jax train '
    last = printed.getvalue().splitlines()[-1]
    self.assertStartsWith(last, start)
    config, *arguments, _ = shlex.split(last.removeprefix(start))
    config = configurations.read(config.removeprefix('--config='), arguments)
    return domains.make_experiment(config)

  @parameterized.parameters(
      (40, ('cats/', 'dogs/'), ('knn', 'linear')),
      (20, ('',), ()),
      (20, ('train/', 'val/'), ()),
  )
  def test_folders(self, count, folders, protocols):
    for i in range(count):
      path = self.folder / f'{folders[i % len(folders)]}{i}.png'
      path.parent.mkdir(exist_ok=True)
      Image.new('RGB', (40 + i, 70), (i, 2 * i, 255)).save(path)
    experiment = self.follow('photos', images=str(self.folder))
    self.assertEqual(experiment.data.train.image_shape, (40, 40, 3))
    self.assertEqual(experiment.protocols, protocols)

  def test_arrays_without_a_test_split(self):
    self.save(train_images=self.pixels, train_labels=self.labels)
    experiment = self.follow('mine', arrays=str(self.folder))
    self.assertLen(experiment.data.train, 27)
    self.assertLen(experiment.data.test, 3)

  @parameterized.parameters((20, 32), (200, 64))
  def test_texts(self, count, batch_size):
    file = self.folder / 'prose.txt'
    paragraphs = [f'It was {i}. So it was.' for i in range(count)]
    file.write_text('\n\n'.join(paragraphs))
    experiment = self.follow('tales', text=str(file), split_sentences=True)
    self.assertEqual(experiment.config.data.name, 'sentences/tales')
    self.assertEqual(experiment.rows_per_step, batch_size)

  def test_graphs(self):
    path = self.folder / 'TOY'
    tu.write_graphs(path, tu.random_graphs(24))
    experiment = self.follow('TOY', graphs=str(path))
    self.assertEqual(experiment.config.data.name, 'tu_graphs/TOY')
