# SPDX-License-Identifier: Apache-2.0
"""digit_scenes."""

import hashlib

from absl.testing import absltest
import numpy as np

from hcl_jax.images import digit_scenes

# Of the first 64 scenes. If only these change, the JPEG decoder may differ.
_SHA256 = {
    'train': '8608ef476b727ed9e986ddb27e45322080f001fd1fe8338653674f1b34080072',
    'test': '14e2cf683a8aefa7d66f57916e4412a60224e5f4449bfead3d04f9c2b0bc3d4b',
}


class DigitScenesTest(absltest.TestCase):

  def test_scenes_are_the_same_everywhere(self):
    for split, expected in _SHA256.items():
      images, labels = digit_scenes.draw(split, 0, 64)
      content = images.tobytes() + labels.astype('<i4').tobytes()
      self.assertEqual(hashlib.sha256(content).hexdigest(), expected, split)

  def test_shapes_and_dtypes(self):
    images, labels = digit_scenes.draw('train', 0, 600)
    self.assertEqual((images.shape, images.dtype), ((600, 32, 32, 3), np.uint8))
    self.assertEqual((labels.shape, labels.dtype), ((600,), np.int32))
    self.assertGreater(np.bincount(labels, minlength=10).min(), 30)

  def test_a_scene_depends_on_its_number_only(self):
    images, labels = digit_scenes.draw('test', 0, 530)
    more, more_labels = digit_scenes.draw('test', 500, 530)
    np.testing.assert_array_equal(more, images[500:])
    np.testing.assert_array_equal(more_labels, labels[500:])

  def test_splits_share_neither_digits_nor_photographs(self):
    train, test = ({d.tobytes() for d in digit_scenes._digits(s)[0]}
                   for s in digit_scenes.SPLITS)  # fmt: skip
    self.assertEmpty(train & test)
    columns = digit_scenes._COLUMNS
    (_, last), (first, _) = columns['train'], columns['test']
    self.assertLess(last, first)

  def test_the_digit_stands_out_of_its_background(self):
    # Its strokes are the brightest large part of a scene.
    images, _ = digit_scenes.draw('train', 0, 256)
    bright = images.max(axis=-1) > 200
    self.assertGreater(bright.mean(axis=(1, 2)).min(), 0.015)
    self.assertLess(bright.mean(axis=(1, 2)).max(), 0.6)
