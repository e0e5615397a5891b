# SPDX-License-Identifier: Apache-2.0
"""The tfds builder of digit_scenes."""

import dataclasses

from PIL import Image
import tensorflow_datasets as tfds

from hcl_jax.images import scenes
from hcl_jax.storage import catalogue

_CHUNK = 1024


@dataclasses.dataclass
class DigitScenesConfig(tfds.core.BuilderConfig):
  """How many scenes; fewer are the first of the full set."""

  num_train: int = 0
  num_test: int = 0


class DigitScenes(tfds.core.GeneratorBasedBuilder):
  """32x32 colour scenes with a digit; see ``scenes``."""

  VERSION = tfds.core.Version(scenes.VERSION)
  BUILDER_CONFIGS = [
      DigitScenesConfig(name='full', num_train=10240, num_test=2560),
      DigitScenesConfig(name='tiny', num_train=512, num_test=256),
  ]

  def _info(self):
    return tfds.core.DatasetInfo(
        builder=self,
        description=scenes.__doc__,
        features=tfds.features.FeaturesDict({
            'image': tfds.features.Image(
                shape=(scenes.SIZE, scenes.SIZE, 3), encoding_format='png'
            ),
            'label': tfds.features.ClassLabel(num_classes=10),
        }),
        supervised_keys=('image', 'label'),
        disable_shuffling=True,
    )

  def download_and_prepare(self, **options):
    """Draws the scenes."""
    name = f'{self.info.full_name} (no download)'
    with catalogue.announced(f'Drawing {name} to {self.data_dir}'):
      super().download_and_prepare(**options)

  def _split_generators(self, dl_manager):
    del dl_manager
    config = self.builder_config
    return {
        'train': self._generate_examples('train', config.num_train),
        'test': self._generate_examples('test', config.num_test),
    }

  def _generate_examples(self, split, num_scenes):
    for first in range(0, num_scenes, _CHUNK):
      last = min(first + _CHUNK, num_scenes)
      images, labels = scenes.draw(split, first, last)
      for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        # An array would be encoded by TensorFlow, a Pillow image is not.
        yield first + i, {'image': Image.fromarray(image), 'label': int(label)}
