# SPDX-License-Identifier: Apache-2.0
"""Contrastive losses: arrays in, one loss per example out."""

from hcl_jax.losses._clip import clip_loss
from hcl_jax.losses._in_batch import in_batch_loss
from hcl_jax.losses._infograph import infograph_loss
from hcl_jax.losses._margin import Margin
from hcl_jax.losses._nce import clipped_beta
from hcl_jax.losses._nce import debiased_nce_loss
from hcl_jax.losses._nce import hard_nce_loss
from hcl_jax.losses._nce import nce_loss
from hcl_jax.losses._perplexity import beta_for_perplexity
from hcl_jax.losses._queue import moco_loss
from hcl_jax.losses._quick_thoughts import quick_thoughts_clamp_fraction
from hcl_jax.losses._quick_thoughts import quick_thoughts_loss
from hcl_jax.losses._sigmoid import sigmoid_loss
from hcl_jax.losses._simclr import simclr_loss
from hcl_jax.losses._supcon import supcon_loss

__all__ = (
    'Margin',
    'beta_for_perplexity',
    'clip_loss',
    'clipped_beta',
    'debiased_nce_loss',
    'hard_nce_loss',
    'in_batch_loss',
    'infograph_loss',
    'moco_loss',
    'nce_loss',
    'quick_thoughts_clamp_fraction',
    'quick_thoughts_loss',
    'sigmoid_loss',
    'simclr_loss',
    'supcon_loss',
)
