# SPDX-License-Identifier: Apache-2.0
"""Experiments on retrieval: negatives of batches by losses, as sweeps.

  python -m hcl_jax.sweep --config=configs/retrieval.py:random_hard,tune \\
      --workdir=DIR
  python -m hcl_jax.sweep --config=configs/retrieval.py:random_hard ...

Names of molecules find their structures, as in configs/molecules.py. The
argument is BATCHES_METHOD. Batches are

  random    pairs at random
  grouped   isomers in one batch
  mined     at random, each with a negative that was mined every two epochs
  size128   at random, of 128 pairs and not 512; also size2048, size8192

and methods

  standard   beta 0
  hard       beta
  margin     beta, without negatives that are nearly as similar as the positive
  effective  a share of the negatives counts, in place of beta

With tune, eight settings of a method are trained with seed 100, and scored on
the validation part of the prepared division. Without it, the best of them is
trained with seeds 0 and 1 on five other divisions into parts, and tested; mined
batches, which take three times as long, and those of other sizes with seed 0
alone. docs/results/retrieval.md has what came of it; size8192 was not tested.
"""

from typing import NamedTuple

from flax import traverse_util

from hcl_jax.pairs import config as pair_config

_DIVISIONS = (1, 2, 3, 4, 5)
_SEEDS = (0, 1)
_TUNE_SEED = 100
_BATCHES = ('random', 'grouped', 'mined')
# Of batches of other sizes: two rates to choose from, and what else to tune.
_RATES = {
    'size128': (1e-3, 2e-3),
    'size2048': (3e-3, 6e-3),
    'size8192': (3e-3, 6e-3),
}


class _Method(NamedTuple):
  """A loss: what tunes it, and what is the same for all of its runs."""

  tune: dict[str, tuple[float, ...]]
  fixed: dict[str, float] = {}


_METHODS = {
    'standard': _Method(
        {'loss.temperature': (0.03, 0.05, 0.07, 0.1, 0.13, 0.15, 0.2, 0.3)},
        {'loss.beta': 0.0},
    ),
    'hard': _Method(
        {'loss.temperature': (0.1, 0.15), 'loss.beta': (0.2, 0.3, 0.45, 0.6)}
    ),
    'margin': _Method({
        'loss.temperature': (0.1, 0.15),
        'loss.beta': (0.2, 0.45),
        'loss.margin': (-0.1, 0.0),
    }),
    'effective': _Method({
        'loss.temperature': (0.1, 0.15),
        'loss.effective_negatives': (0.7, 0.85, 0.95, 0.98),
    }),
}
_TUNE_OF_SIZES = {
    'standard': {'loss.temperature': (0.07, 0.1, 0.15, 0.2)},
    'hard': {'loss.temperature': (0.1, 0.15), 'loss.beta': (0.2, 0.45)},
}
# What tune chose, by batches and method.
_CHOSEN: dict[str, dict[str, float]] = {
    'random_standard': {'loss.temperature': 0.13},
    'random_hard': {'loss.temperature': 0.1, 'loss.beta': 0.3},
    'random_margin': {
        'loss.temperature': 0.15,
        'loss.beta': 0.45,
        'loss.margin': -0.1,
    },
    'random_effective': {
        'loss.temperature': 0.1,
        'loss.effective_negatives': 0.95,
    },
    'grouped_standard': {'loss.temperature': 0.13},
    'grouped_hard': {'loss.temperature': 0.15, 'loss.beta': 0.3},
    'grouped_margin': {
        'loss.temperature': 0.15,
        'loss.beta': 0.2,
        'loss.margin': -0.1,
    },
    'grouped_effective': {
        'loss.temperature': 0.15,
        'loss.effective_negatives': 0.98,
    },
    'mined_standard': {'loss.temperature': 0.1},
    'mined_hard': {'loss.temperature': 0.15, 'loss.beta': 0.6},
    'mined_margin': {
        'loss.temperature': 0.15,
        'loss.beta': 0.45,
        'loss.margin': -0.1,
    },
    'mined_effective': {
        'loss.temperature': 0.1,
        'loss.effective_negatives': 0.98,
    },
    'size128_standard': {
        'loss.temperature': 0.1,
        'optimizer.learning_rate': 0.002,
    },
    'size128_hard': {
        'loss.temperature': 0.15,
        'loss.beta': 0.45,
        'optimizer.learning_rate': 0.002,
    },
    'size2048_standard': {
        'loss.temperature': 0.1,
        'optimizer.learning_rate': 0.003,
    },
    'size2048_hard': {
        'loss.temperature': 0.15,
        'loss.beta': 0.45,
        'optimizer.learning_rate': 0.003,
    },
}


def get_config(argument='random_hard'):
  name, _, scale = argument.partition(',')
  known = [
      *(f'{x}_{y}' for x in _BATCHES for y in _METHODS),
      *(f'{x}_{y}' for x in _RATES for y in _TUNE_OF_SIZES),
  ]
  if name not in known or scale not in ('', 'tune'):
    raise ValueError(
        'the argument must be BATCHES_METHOD or BATCHES_METHOD,tune with one '
        f'of {", ".join(known)}; got {argument!r}.'
    )
  batches, _, method = name.partition('_')
  config = pair_config.pairs()
  config.data.name = 'molecules'
  config.train.epochs = 6
  config.train.checkpoint_every_epochs = 6.0
  config.evaluate.validation_every_epochs = 2.0
  if batches in ('grouped', 'mined'):
    pair_config.set_variant(config, batches)
  if batches == 'mined':
    config.mining.every_epochs = 2.0
  if batches in _RATES:
    config.data.batch_size = int(batches.removeprefix('size'))
  config.update_from_flattened_dict(_METHODS[method].fixed)
  if scale == 'tune':
    sweep = _grid(batches, method)
    config.seed = _TUNE_SEED
    config.evaluate.validation_every_epochs = 0.0
  else:
    config.update_from_flattened_dict(_CHOSEN.get(name, {}))
    seeds = _SEEDS if batches in ('random', 'grouped') else _SEEDS[:1]
    sweep = {'data.division': _DIVISIONS, 'seed': seeds}
    config.evaluate.protocols = ('validation', 'test')
  config.sweep = traverse_util.unflatten_dict(sweep, sep='.')
  return config


def _grid(batches, method):
  """Returns what tunes a method: eight settings."""
  if batches not in _RATES:
    return dict(_METHODS[method].tune)
  rates = {'optimizer.learning_rate': _RATES[batches]}
  return _TUNE_OF_SIZES[method] | rates
