# SPDX-License-Identifier: Apache-2.0
"""The paper's CIFAR-10 run: SimCLR, ResNet-50, 400 epochs of batches of 256.

  python -m hcl_jax.prepare --dataset=cifar10
  python -m hcl_jax.train --config=configs/cifar10.py:hard --workdir=DIR

Variants: hard (default), debiased, standard. Settings are the released ones;
the paper does not say its beta and tau_plus for CIFAR-10, so these are the
released defaults, 1 and 0.1 (ten classes). Meant for a GPU or TPU. Not run to
the end by us: see cifar10_small.py for what two CPU cores can do.
"""

from hcl_jax.images import config as image_config
from hcl_jax.training import config as config_lib


def get_config(variant='hard'):
  config = image_config.simclr()
  config_lib.set_variant(config, variant)
  return config
