# SPDX-License-Identifier: Apache-2.0
"""MoCo-v2 on CIFAR-10 with hard negatives from the queue.

  python -m hcl_jax.prepare --dataset=cifar10
  python -m hcl_jax.train --config=configs/moco_cifar10.py:hard --workdir=DIR

Variants: hard (default), debiased, standard. Of its MoCo run the paper says 200
epochs, batches of 128, 65,536 keys, beta = 0.2 and tau_plus = 0 (so debiased
and standard are the same), and not its encoder, temperature or learning rate.
These are MoCo-v2's: temperature 0.2, SGD at 0.03 for 256 images, m = 0.999,
a cosine. ResNet-18 with BatchNorm in eight parts, so that shuffled keys hide
their batch on one device, is MoCo's own choice for CIFAR-10. The queue is
longer than the data set, so older keys of the query's own image are masked. The
linear probe is MoCo's. Meant for a GPU or TPU; not run to the end by us.
"""

from hcl_jax.images import config as image_config
from hcl_jax.training import config as config_lib


def get_config(variant='hard'):
  config = image_config.moco()
  config_lib.set_variant(config, variant)
  return config
