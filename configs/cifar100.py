# SPDX-License-Identifier: Apache-2.0
"""The paper's CIFAR-100 run: SimCLR, ResNet-50, 400 epochs of batches of 256.

  python -m hcl_jax.prepare --dataset=cifar100
  python -m hcl_jax.train --config=configs/cifar100.py:hard --workdir=DIR

Variants: hard (default), debiased, standard. tau_plus is one over the number
of classes; the paper does not say what it took (0.05 is worth a try). For its
ablation with true positives add --config.data.true_label_positives. Meant for a
GPU or TPU; not run to the end by us.
"""

from hcl_jax.images import config as image_config
from hcl_jax.training import config as config_lib


def get_config(variant='hard'):
  config = image_config.simclr()
  config.data.name = 'cifar100'
  config.loss.tau_plus = 0.01
  config_lib.set_variant(config, variant)
  return config
