# SPDX-License-Identifier: Apache-2.0
"""Quick start: names of molecules find their structures among 68,790.

  python -m hcl_jax.train --config=configs/molecules.py --workdir=/tmp/molecules
"""

from hcl_jax.pairs import config as pair_config
from hcl_jax.training import config as config_lib

VARIANTS = ('standard', 'hard', 'grouped', 'mined')


def get_config(variant=None):
  config = pair_config.pairs()
  if variant is None:
    config.compare = ('standard', 'hard')
    config.compare_jobs = 2
  config.data.name = 'molecules'
  config.loss.temperature = 0.2
  config.loss.standard_temperature = 0.1
  config.loss.beta = 1.2
  if variant == 'grouped':
    config.data.order = 'grouped'
  elif variant == 'mined':
    config.mining.every_epochs = 1.0
    config.data.num_negatives = 1
  elif variant is not None:
    config_lib.set_variant(config, variant)
  config.evaluate.protocols = ('test',)
  config.evaluate.measures = ('R@1', 'MRR', 'group R@1')
  return config
