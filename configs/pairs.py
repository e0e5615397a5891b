# SPDX-License-Identifier: Apache-2.0
"""Two towers on pairs of your own: queries and documents.

  python -m hcl_jax.prepare --dataset=questions --pairs=questions.tsv
  python -m hcl_jax.train --config=configs/pairs.py:hard --workdir=DIR \\
      --config.data.name=questions

The argument is standard, debiased, hard (the default), grouped (pairs of a
group in one batch) or mined (hard negatives of the training documents, anew
every epoch). Encoders read hashed n-grams of characters; of vectors,
--config.model.encoder=adapter, and of images small.
"""

from hcl_jax.pairs import config as pair_config


def get_config(variant='hard'):
  config = pair_config.pairs()
  pair_config.set_variant(config, variant)
  config.data.name = 'questions'
  return config
