# SPDX-License-Identifier: Apache-2.0
"""Small pairs that can be learned: a word and its spelling backwards."""

import numpy as np

from hcl_jax.pairs import config as pair_config
from hcl_jax.pairs import data as pair_data

_LETTERS = np.array(list('abcdefghij'))


def columns(count=300, seed=0):
  """Returns words, what they are backwards in capitals, and groups of four."""
  rng = np.random.default_rng(seed)
  words = [''.join(rng.choice(_LETTERS, 7)) + f'{i:03d}' for i in range(count)]
  return {
      'query': words,
      'document': [word[::-1].upper() for word in words],
      'group': [f'g{i // 4}' for i in range(count)],
  }


def pairs(**more) -> pair_data.Pairs:
  return pair_data.collect({**columns(), **more})


def config(**fields):
  """Returns a configuration of few small arrays."""
  made = pair_config.pairs()
  made.update_from_flattened_dict({
      'data.name': 'toy',
      'data.batch_size': 32,
      'model.dim': 8,
      'model.width': 16,
      'model.token_dim': 8,
      'model.buckets': 512,
      'model.length': 24,
      'model.ngrams': (1, 2),
      'loss.beta': 1.0,
      'train.epochs': 2,
      'train.log_every_steps': 1,
      'evaluate.batch_size': 64,
      'evaluate.validation_every_epochs': 0.0,
      'evaluate.protocols': ('validation', 'test'),
      **fields,
  })
  return made
