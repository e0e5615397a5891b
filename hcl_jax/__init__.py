# SPDX-License-Identifier: Apache-2.0
"""Contrastive learning with hard negative samples, in JAX.

Losses, mining, schedules and chunked gradients load at once; other packages
load when they are used.
"""

import importlib
import sys
from typing import Any

from hcl_jax import _extras
from hcl_jax import losses
from hcl_jax import schedules
from hcl_jax.chunking import chunked_value_and_grad
from hcl_jax.losses import Margin
from hcl_jax.losses import beta_for_perplexity
from hcl_jax.losses import clip_loss
from hcl_jax.losses import clipped_beta
from hcl_jax.losses import debiased_nce_loss
from hcl_jax.losses import hard_nce_loss
from hcl_jax.losses import in_batch_loss
from hcl_jax.losses import infograph_loss
from hcl_jax.losses import moco_loss
from hcl_jax.losses import nce_loss
from hcl_jax.losses import quick_thoughts_clamp_fraction
from hcl_jax.losses import quick_thoughts_loss
from hcl_jax.losses import sigmoid_loss
from hcl_jax.losses import simclr_loss
from hcl_jax.losses import supcon_loss
from hcl_jax.mining import mine_hard_negatives

__version__ = '0.1.0'

_LAZY = (
    'analysis',
    'augment',
    'domains',
    'evaluation',
    'graphs',
    'images',
    'models',
    'momentum',
    'report',
    'sentences',
    'theory',
)

# Functions, by the module that has them.
_FUNCTIONS = {
    'fit': 'sweeps.comparison',
    'load': 'domains',
    'make_experiment': 'domains',
    'read_config': 'configurations',
}

__all__ = (
    *losses.__all__,
    'chunked_value_and_grad',
    'losses',
    'mine_hard_negatives',
    'schedules',
)

if sys.argv[:1] == ['-m']:  # python -m hcl_jax.COMMAND, not imported yet
  _extras.explain_to_commands()


def __getattr__(name: str) -> Any:
  if name not in _LAZY and name not in _FUNCTIONS:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  path = f'{__name__}.{_FUNCTIONS.get(name, name)}'
  try:
    module = importlib.import_module(path)
  except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith(__name__):
      raise
    raise ModuleNotFoundError(
        f'{__name__}.{name} {_extras.advice(error.name)}', name=error.name
    ) from error
  return getattr(module, name) if name in _FUNCTIONS else module


def __dir__() -> list[str]:
  return sorted({*globals(), *_LAZY, *_FUNCTIONS})
