# SPDX-License-Identifier: Apache-2.0
"""Quick start: names of molecules find their structures among 68,790.

  python -m hcl_jax.train --config=configs/molecules.py --workdir=/tmp/molecules

The pairs are made of the package chemicals at their first use. Trains two small
towers with standard and with hard negatives from the same seed, side by side on
two cores, and compares them with tf-idf and with towers that have learned
nothing. One variant alone: configs/molecules.py:standard, :hard, :grouped
(isomers in one batch) or :mined. Each loss is at its best temperature on the
validation part, and beta / temperature is 3; docs/results/retrieval.md has ten
runs, on five divisions of the data.
"""

from hcl_jax.pairs import config as pair_config


def get_config(variant=None):
  config = pair_config.pairs()
  if variant is None:
    config.compare = ('standard', 'hard')
    config.compare_jobs = 2
  config.data.name = 'molecules'
  config.loss.temperature = 0.1
  config.loss.standard_temperature = 0.13
  config.loss.beta = 0.3
  config.train.epochs = 6
  config.train.checkpoint_every_epochs = 3.0
  config.evaluate.validation_every_epochs = 2.0
  config.evaluate.protocols = ('test',)
  config.evaluate.measures = ('R@1', 'MRR', 'group R@1')
  if variant is not None:
    pair_config.set_variant(config, variant)
  return config
