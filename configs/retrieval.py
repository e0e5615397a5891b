# SPDX-License-Identifier: Apache-2.0
"""Experiments on retrieval: negatives of batches by losses, as sweeps.

  python -m hcl_jax.sweep --config=configs/retrieval.py:random_hard --jobs=2 \\
      --workdir=DIR
  python -m hcl_jax.sweep --config=configs/retrieval.py:random_hard,tune ...

Names of molecules find their structures, as in configs/molecules.py. The
argument is BATCHES_METHOD. Batches are

  random   pairs at random
  grouped  isomers in one batch
  mined    at random, each with a negative that was mined every two epochs

and methods

  standard   beta 0
  hard       beta
  margin     beta, without negatives that are nearly as similar as the positive
  effective  a share of the negatives counts, in place of beta

each at the temperature and the numbers that suit it best on the validation
part; tune sweeps such with seed 100, and docs/results/retrieval.md lists what
was tried. Without tune, seeds 0 to 4 are trained and tested. batch_standard and
batch_hard are random batches of 128 to 8,192 pairs, which were not run by us.
docs/results/retrieval.md has what came of the others.
"""

from typing import NamedTuple

from flax import traverse_util

from hcl_jax.pairs import config as pair_config

_SEEDS = (0, 1, 2, 3, 4)
_TUNE_SEED = 100
_BATCHES = ('random', 'grouped', 'mined')
_SIZES = (128, 512, 2048, 8192)


class _Method(NamedTuple):
  """A loss: what tunes it, and what is the same for all of its runs."""

  tune: dict[str, tuple[float, ...]]
  fixed: dict[str, float] = {}


_METHODS = {
    'standard': _Method(
        {'loss.temperature': (0.07, 0.1, 0.15)}, {'loss.beta': 0.0}
    ),
    'hard': _Method(
        {'loss.temperature': (0.1, 0.15), 'loss.beta': (0.2, 0.3, 0.45, 0.6)}
    ),
    # At the temperature and beta of hard.
    'margin': _Method({'loss.margin': (-0.1, 0.0, 0.1)}),
    'effective': _Method({
        'loss.temperature': (0.1, 0.15),
        'loss.effective_negatives': (0.7, 0.85, 0.95),
    }),
}
# What tune chose, by batches and method.
_CHOSEN: dict[str, dict[str, float]] = {
    'random_standard': {'loss.temperature': 0.1},
    'random_hard': {'loss.temperature': 0.1, 'loss.beta': 0.2},
    'random_margin': {'loss.margin': -0.1},
    'random_effective': {
        'loss.temperature': 0.1,
        'loss.effective_negatives': 0.95,
    },
    'grouped_standard': {'loss.temperature': 0.15},
    'grouped_hard': {'loss.temperature': 0.15, 'loss.beta': 0.45},
    'mined_standard': {'loss.temperature': 0.1},
    'mined_hard': {'loss.temperature': 0.15, 'loss.beta': 0.45},
}


def get_config(argument='random_hard'):
  name, _, scale = argument.partition(',')
  batches, _, method = name.partition('_')
  by_size = batches == 'batch'
  known = [f'{x}_{y}' for x in (*_BATCHES, 'batch') for y in _METHODS]
  if name not in known or scale not in ('', 'tune'):
    raise ValueError(
        'the argument must be BATCHES_METHOD or BATCHES_METHOD,tune with one '
        f'of {", ".join(known)}; got {argument!r}.'
    )
  config = pair_config.pairs()
  config.data.name = 'molecules'
  config.train.epochs = 6
  config.train.checkpoint_every_epochs = 6.0
  config.evaluate.validation_every_epochs = 2.0
  if batches in ('grouped', 'mined'):
    pair_config.set_variant(config, batches)
  if batches == 'mined':
    config.mining.every_epochs = 2.0
  of = f'random_{method}' if by_size else name
  numbers = dict(_METHODS[method].fixed)
  if method == 'margin':
    numbers |= _CHOSEN.get(of.replace('margin', 'hard'), {})
  if scale == 'tune':
    sweep = dict(_METHODS[method].tune)
    config.seed = _TUNE_SEED
    config.evaluate.validation_every_epochs = 0.0
  else:
    numbers |= _CHOSEN.get(of, {})
    sweep = {'seed': _SEEDS}
    config.evaluate.protocols = ('validation', 'test')
  if by_size:
    sweep['data.batch_size'] = _SIZES
  config.update_from_flattened_dict(numbers)
  config.sweep = traverse_util.unflatten_dict(sweep, sep='.')
  return config
