# SPDX-License-Identifier: Apache-2.0
"""Tiny-ImageNet: SimCLR, ResNet-50, tau_plus = 0.01 and beta = 1 (the paper).

  python -m hcl_jax.prepare --dataset=tiny_imagenet --images=tiny-imagenet-200
  python -m hcl_jax.train --config=configs/tiny_imagenet.py:hard --workdir=DIR

Variants: hard (default), debiased, standard. The paper gives tau_plus and beta
and released neither loader nor crop; crops of the full 64 pixels, a blur of a
tenth of that and ImageNet's statistics are our choice. Meant for a GPU or TPU;
not run to the end by us.
"""

from hcl_jax.images import config as image_config
from hcl_jax.training import config as config_lib


def get_config(variant='hard'):
  config = image_config.simclr()
  config.data.name = 'tiny_imagenet'
  config.data.test_split = 'validation'

  config.augment.size = 64
  config.augment.blur_kernel = 7
  config.augment.mean = (0.485, 0.456, 0.406)
  config.augment.std = (0.229, 0.224, 0.225)

  config.loss.tau_plus = 0.01
  config_lib.set_variant(config, variant)
  return config
