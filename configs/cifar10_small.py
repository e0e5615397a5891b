# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 at the scale of two CPU cores: a small encoder, few epochs.

  python -m hcl_jax.prepare --dataset=cifar10
  python -m hcl_jax.train --config=configs/cifar10_small.py:hard --workdir=DIR

Variants: hard (default), debiased, standard. Apart from encoder, length and
cosine, the released settings. Not run to the end by us yet; digits.py trains
the same encoder at about 1,700 images/s on two idle cores.
"""

from hcl_jax.training import config as config_lib


def get_config(variant='hard'):
  config = config_lib.image_config()
  config_lib.set_variant(config, variant)

  config.model.name = 'small'
  config.optimizer.schedule = 'cosine'
  config.train.epochs = 20
  config.train.checkpoint_every_epochs = 5
  config.evaluate.knn_every_epochs = 5
  return config
