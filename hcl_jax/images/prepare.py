# SPDX-License-Identifier: Apache-2.0
"""Prepares images: of the tfds catalogue, of a folder, or of arrays.

  python -m hcl_jax.prepare --dataset=cifar10
  python -m hcl_jax.prepare --dataset=imagenet_resized/64x64 --data_dir=DIR
  python -m hcl_jax.prepare --dataset=cifar10 --arrays=FOLDER
  python -m hcl_jax.prepare --dataset=tiny_imagenet --images=tiny-imagenet-200
  python -m hcl_jax.prepare --dataset=my_photos --images=FOLDER
  python -m hcl_jax.prepare --dataset=my_photos --images=FOLDER --image_size=96

The first two download what the tfds catalogue names. --arrays takes a folder
with train_images.npy, train_labels.npy, test_images.npy and so on (see
hcl_jax/images/arrays.py), --images one with image files of any size in folders
of classes, or in none (see hcl_jax/images/image_folder.py).
"""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

from PIL import Image
import tensorflow_datasets as tfds

from hcl_jax.images import arrays
from hcl_jax.images import digit_scenes
from hcl_jax.images import image_folder
from hcl_jax.storage import catalogue
from hcl_jax.storage import locations
from hcl_jax.storage import preparing
from hcl_jax.storage import records
from hcl_jax.storage import sources
from hcl_jax.storage.preparing import Flag

FLAGS = {
    'images': Flag(str, None, 'Folder with image files.', is_source=True),
    'image_size': Flag(
        int, None,
        'Height and width of the images of --images; by default 256, or the '
        'smallest side of all if that is less.',
    ),
    'test_fraction': Flag(
        float, 0.1,
        'Share of the test split, where --images has none of its own.',
    ),
    'skip_unreadable': Flag(
        bool, False, 'Leave out image files that cannot be read.'
    ),
    'arrays': Flag(str, None, 'Folder with .npy files.', is_source=True),
}  # fmt: skip
DATASETS = 'NAME, of the tfds catalogue or of your choice'

full_name = digit_scenes.full_name

_TINY_IMAGENET = 'tiny_imagenet'  # not in the catalogue
_SCENES_AT_A_TIME = 1024
# By data set, where image_folder is not meant for it.
_CONFIGS = {
    'digit_scenes': 'digits',
    'cifar10': 'cifar10',
    'cifar100': 'cifar100',
    'stl10': 'stl10',
    _TINY_IMAGENET: 'tiny_imagenet',
}


def owns(dataset: str) -> bool:
  """Returns whether a name can only be one of images."""
  return dataset.partition('/')[0] in ('digit_scenes', _TINY_IMAGENET)


def source(
    dataset: str, options: Mapping[str, Any]
) -> Mapping[str, Any] | None:
  """Returns what tells the given files, and what is made of them, apart."""
  if options['images']:
    size = _image_size(dataset, options)
    return sources.measure(
        options['images'],
        # What is not asked for is not compared with what was.
        **({} if size is None else {'image_size': size}),
        test_fraction=options['test_fraction'],
        skip_unreadable=options['skip_unreadable'],
    )
  return sources.measure(options['arrays']) if options['arrays'] else None


def builder(
    dataset: str,
    options: Mapping[str, Any],
    source: Mapping[str, Any] | None,
    **where: Any,
) -> Any:
  """Returns the builder of a folder, of arrays, or of the catalogue."""
  name, config, _ = locations.parse(full_name(dataset))
  if options['images']:
    return _image_folder(name, config, options, source, **where)
  if options['arrays']:
    return arrays.Arrays(
        name=name,
        config=config,
        folder=pathlib.Path(options['arrays']),
        version=catalogue.version(name, config) or '1.0.0',
        source=source,
        **where,
    )
  return _from_catalogue(name, config, where)


def describe(dataset: str, info: Any, where: str) -> str:
  """Returns the number of images and how to load them."""
  splits = info.splits
  counts = ', '.join(f'{k} {v.num_examples}' for k, v in splits.items())
  split = 'train' if 'train' in splits else next(iter(splits))
  return (
      f'({counts} images): hcl_jax.images.load({dataset!r}, {split!r}{where})'
  )


def train_flags(dataset: str, info: Any) -> list[str]:
  """Returns the configuration that trains on images."""
  name, _, _ = locations.parse(full_name(dataset))
  if name in _CONFIGS:
    named = [] if dataset == name else [f'--config.data.name={dataset}']
    return [f'--config={_CONFIGS[name]}:hard', *named]
  splits = {k: x.num_examples for k, x in info.splits.items()}
  count, flags = splits.get('train', 0), []
  if 'validation' in splits and 'test' not in splits:
    flags = ['--config.data.test_split=validation']
  elif 'test' not in splits:
    count = count * 9 // 10
    flags = [
        '--config.data.train_split=train[:90%]',
        '--config.data.bank_split=train[:90%]',
        '--config.data.test_split=train[90%:]',
    ]
  if count < 2:
    return []
  flags = [*flags, *preparing.batch_size_flags(count, 32)]
  return [f'--config=image_folder:{dataset},small', *flags]


@dataclasses.dataclass
class DigitScenesConfig(tfds.core.BuilderConfig):
  """Numbers of scenes; fewer are the first of the full set."""

  num_train: int = 0
  num_test: int = 0


class DigitScenes(tfds.core.GeneratorBasedBuilder):
  """32x32 color scenes with a digit, which join the catalogue of tfds."""

  VERSION = tfds.core.Version(digit_scenes.VERSION)
  BUILDER_CONFIGS = [
      DigitScenesConfig(name='full', num_train=10240, num_test=2560),
      DigitScenesConfig(name='tiny', num_train=512, num_test=256),
  ]

  def _info(self):
    return tfds.core.DatasetInfo(
        builder=self,
        description=digit_scenes.__doc__,
        features=tfds.features.FeaturesDict({
            'image': tfds.features.Image(
                shape=(digit_scenes.SIZE, digit_scenes.SIZE, 3),
                encoding_format='png',
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
    for first in range(0, num_scenes, _SCENES_AT_A_TIME):
      last = min(first + _SCENES_AT_A_TIME, num_scenes)
      images, labels = digit_scenes.draw(split, first, last)
      for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        # An array would be encoded by TensorFlow, a Pillow image is not.
        yield first + i, {'image': Image.fromarray(image), 'label': int(label)}


def _image_size(dataset, options):
  size = options['image_size']
  if size is None and locations.parse(dataset)[0] == _TINY_IMAGENET:
    return 64
  return size


def _image_folder(name, config, options, source, **where):
  folder = pathlib.Path(options['images'])
  if catalogue.builder_class(name):
    raise ValueError(
        f'--dataset={name} names a known data set; give the images of '
        f'{folder} a name of their own.'
    )
  image_size = _image_size(name, options)
  if image_size is not None and image_size < 1:
    raise ValueError(f'--image_size must be 1 or more, got {image_size}.')
  layout = image_folder.scan(folder, test_fraction=options['test_fraction'])
  counts = ', '.join(f'{k} {len(v)}' for k, v in layout.splits.items())
  classes = f'{len(layout.class_names)} classes' * bool(layout.class_names)
  print(f'Found images: {counts}; {classes or "no classes"}.')
  if layout.ignored:
    print(
        f'Passed over {len(layout.ignored)} files that are no images, such '
        f'as {layout.ignored[0]}.'
    )
  if image_size is None:
    image_size = image_folder.common_size(layout)
    print(
        f'Images become {image_size} x {image_size} squares; --image_size sets '
        'another size.'
    )
  return image_folder.ImageFolder(
      name=name,
      config=config,
      layout=layout,
      image_size=image_size,
      source={**source, 'image_size': image_size},
      skip_unreadable=options['skip_unreadable'],
      **where,
  )


def _from_catalogue(name, config, where):
  builder_class = catalogue.builder_class(name)
  if name == _TINY_IMAGENET:
    raise ValueError(
        'tiny_imagenet is not in the catalogue of tfds; unpack '
        'tiny-imagenet-200.zip and give its folder with --images.'
    )
  if builder_class is None:
    raise ValueError(
        f'--dataset={name} is not in the catalogue of tfds; for images of '
        'your own give --images=FOLDER or --arrays=FOLDER.'
    )
  configs = [c.name for c in builder_class.BUILDER_CONFIGS]
  if config not in configs and (config or len(configs) > 1):
    raise ValueError(
        f'--dataset={name} needs one of its configs: '
        + (', '.join(f'{name}/{c}' for c in configs) or 'it has none')
        + '.'
    )
  made = builder_class(config=config, **where)
  records.check_features(made.info)
  return made
