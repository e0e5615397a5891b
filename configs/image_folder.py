# SPDX-License-Identifier: Apache-2.0
"""Your own images: SimCLR, ResNet-50, crops of 224 pixels.

  python -m hcl_jax.prepare --dataset=my_photos --images=FOLDER --image_size=256
  python -m hcl_jax.train --config=configs/image_folder.py:my_photos,hard \\
      --workdir=DIR

my_photos is a name of your choice, in lower case. FOLDER has a sub-folder for
each class, or none; then train with --config.evaluate.protocols='()'
--config.evaluate.knn_every_epochs=0.
Variants: hard (default), debiased, standard. Set config.loss.tau_plus to the
chance that two of your images share a class. Meant for a GPU or TPU.
"""

from hcl_jax.images import config as image_config
from hcl_jax.training import config as config_lib


def get_config(argument='image_folder,hard'):
  name, _, variant = argument.rpartition(',')
  config = image_config.simclr()
  config.data.name = name or 'image_folder'

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
  return config
