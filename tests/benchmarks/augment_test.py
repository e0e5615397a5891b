# SPDX-License-Identifier: Apache-2.0
"""The bench of the augmentations, and the Pillow it runs against."""

import json
import math
import os
import pathlib
import random
import tempfile

from absl.testing import parameterized
import numpy as np

from benchmarks import augment as bench_augment
from benchmarks import pillow_augment
from hcl_jax import augment
from tests.support import commands
from tests.support import forks

_WITHOUT_PILLOW = """
import importlib.util
import sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *args: (
    None if name in ('PIL', 'sklearn') else find_spec(name, *args)
)
from benchmarks import __main__
from hcl_jax.bench import cli
cli.run("benchmarks", __main__.BENCHES)
"""


def run(*arguments: str, start: tuple[str, ...] = ('-m', 'benchmarks')):
  process = forks.start(
      *start, 'augment', *arguments, environment=commands.environment()
  )
  out, err = process.communicate(timeout=300)
  return commands.Done(process.wait(), out, err)


class BenchAugmentTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    directory = tempfile.TemporaryDirectory()
    self.addCleanup(directory.cleanup)
    self.directory = pathlib.Path(directory.name)
    self.json = self.directory / 'augment.json'

  def test_table_and_json(self):
    done = run(
        '--augment_batch=4',
        '--sides=32',
        '--repetitions=2',
        f'--json={self.json}',
    )
    self.assertEqual(done.status, 0, done.err)
    self.assertEqual(os.listdir(self.directory), [self.json.name])
    rows = json.loads(self.json.read_text())['rows']
    self.assertEqual(
        [(r['name'], r['side'], r['blur']) for r in rows],
        [(n, 32, b) for b in (True, False) for n in ('hcl_jax', 'Pillow')],
    )
    for r in rows:
      self.assertEqual(done.out.count(f'\n{r["name"]}  '), 2)
      self.assertLen(r['repetition_ms'], 2)
      self.assertTrue(math.isfinite(r['images_per_second']))
      self.assertGreater(r['times_pillow'], 0)
      if r['name'] == 'Pillow':
        self.assertEqual(r['times_pillow'], 1)
      else:
        self.assertGreater(r['temp_bytes'], 0)
        self.assertGreater(r['compile_seconds'], 0)

  def test_without_pillow(self):
    done = run(
        '--augment_batch=2',
        '--sides=8',
        '--repetitions=1',
        f'--json={self.json}',
        start=('-c', _WITHOUT_PILLOW),
    )
    self.assertEqual(done.status, 0, done.err)
    self.assertIn('pip install pillow', done.err)
    rows = json.loads(self.json.read_text())['rows']
    self.assertEqual({r['name'] for r in rows}, {'hcl_jax'})
    self.assertEqual({r['times_pillow'] for r in rows}, {None})

  @parameterized.parameters(
      (['--augment_batch=0'], '--augment_batch'),
      (['--sides=32,x'], '--sides'),
      (['--sides='], '--sides'),
      (['--repetitions=0'], '--repetitions'),
  )
  def test_rejects_in_one_line(self, arguments, message):
    done = run(*arguments, f'--json={self.json}')
    self.assertEqual(done.status, 2)
    self.assertLen(done.err.splitlines(), 1, done.err)
    self.assertIn(message, done.err)
    self.assertEmpty(os.listdir(self.directory))

  def test_both_make_images_of_the_same_kind(self):
    images = bench_augment.pictures(64, 32)
    self.assertEqual((images.shape, images.dtype), ((64, 32, 32, 3), np.uint8))
    self.assertGreater(images.std(), 30)
    augmentation = augment.Augmentation()
    by_pillow = np.concatenate([
        pillow_augment.augment_batch(images, augmentation, random.Random(i))
        for i in range(8)
    ])
    own = np.asarray(bench_augment.own_run(images, augmentation).call())
    self.assertEqual(by_pillow.shape[1:], own.shape[1:])
    for statistic in (np.mean, np.std):
      self.assertAlmostEqual(statistic(by_pillow), statistic(own), delta=0.2)

  def test_pillow_changes_nothing_if_told_so(self):
    images = bench_augment.pictures(2, 32)
    plain = augment.Augmentation(
        scale=(1, 1), ratio=(1, 1), flip=0, jitter=0, grayscale=0, blur=0
    )
    augmented = pillow_augment.augment_batch(images, plain, random.Random(0))
    np.testing.assert_allclose(
        augmented, augment.normalize(images), atol=1e-5
    )
