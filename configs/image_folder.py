# SPDX-License-Identifier: Apache-2.0
"""Your own images: SimCLR, a small encoder for a CPU, or a ResNet-50.

  python -m hcl_jax.prepare --dataset=my_photos --images=FOLDER
  python -m hcl_jax.train --config=configs/image_folder.py:my_photos,small \\
      --workdir=DIR

my_photos is a name of your choice, in lower case. FOLDER has a sub-folder for
each class, or none; without classes nothing is scored. After the name come, in
any order and if you like, the size, small or nothing for a ResNet-50 on crops
of 224 pixels (meant for a GPU or TPU), and the variant, hard (default),
debiased or standard. Set config.loss.tau_plus to the chance that two of your
images share a class.

small has crops of 48 pixels and 60 epochs of batches of 32.
"""

from hcl_jax.images import config as image_config
from hcl_jax.training import config as config_lib


def get_config(argument='image_folder'):
  name, is_small, variant = _parse(argument)
  config = image_config.simclr()
  config.data.name = name

  config.augment.size = 224
  config.augment.blur_kernel = 23
  config.augment.mean = (0.485, 0.456, 0.406)
  config.augment.std = (0.229, 0.224, 0.225)

  config.model.stem = 'imagenet'
  config.loss.tau_plus = 0.1
  config_lib.set_variant(config, variant)

  config.optimizer.warmup_epochs = 10.0
  config.optimizer.schedule = 'cosine'
  config.train.epochs = 200
  if is_small:
    config.data.batch_size = 32
    config.augment.size = 48
    config.augment.blur_kernel = 5
    config.augment.scale = (0.2, 1.0)

    config.model.name = 'small'
    config.model.stem = 'cifar'
    config.model.head_width = 128
    config.model.embedding_dim = 64

    config.optimizer.warmup_epochs = 2.0
    config.train.epochs = 60
    config.train.checkpoint_every_epochs = 20.0
    config.evaluate.knn_every_epochs = 20.0
    config.evaluate.batch_size = 64
    config.evaluate.image_size = 48
    config.evaluate.knn_k = 20
  return config


def _parse(argument):
  """Returns the name, whether it is the small size, and the variant."""
  words = argument.split(',')
  sizes = [word for word in words if word == 'small']
  variants = [word for word in words if word in config_lib.VARIANTS]
  names = [word for word in words if word not in sizes + variants]
  if '' in names or max(map(len, (sizes, variants, names))) > 1:
    raise ValueError(
        'the argument must be NAME,small,VARIANT or a part of it, with a '
        f'variant of {", ".join(config_lib.VARIANTS)}; got {argument!r}.'
    )
  name, variant = [*names, 'image_folder'][0], [*variants, 'hard'][0]
  return name, bool(sizes), variant
