# SPDX-License-Identifier: Apache-2.0
"""The paper's STL-10 run: SimCLR, ResNet-50, 400 epochs of batches of 256.

  python -m hcl_jax.prepare --dataset=stl10
  python -m hcl_jax.train --config=configs/stl10.py:hard --workdir=DIR

Variants: hard (default), debiased, standard. Trains on crops of 32 pixels of
the labeled and unlabeled images, evaluates on whole ones of 96 pixels, and
normalizes by the statistics of CIFAR-10, all as released. The memory of 105,000
images is 2.9 GB. Meant for a GPU or TPU; not run to the end by us.
"""

from hcl_jax.images import config as image_config
from hcl_jax.training import config as config_lib


def get_config(variant='hard'):
  config = image_config.simclr()
  config.data.name = 'stl10'
  config.data.train_split = 'train+unlabelled'
  config_lib.set_variant(config, variant)
  return config
