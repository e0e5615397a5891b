# SPDX-License-Identifier: Apache-2.0
"""Contrastive learning with hard negative samples, in JAX."""

from hcl_jax import graphs
from hcl_jax import losses
from hcl_jax import schedules
from hcl_jax.losses import clipped_beta
from hcl_jax.losses import debiased_nce_loss
from hcl_jax.losses import hard_nce_loss
from hcl_jax.losses import in_batch_loss
from hcl_jax.losses import infograph_loss
from hcl_jax.losses import moco_loss
from hcl_jax.losses import nce_loss
from hcl_jax.losses import quick_thoughts_clamp_fraction
from hcl_jax.losses import quick_thoughts_loss
from hcl_jax.losses import simclr_loss
from hcl_jax.losses import supcon_loss

__version__ = '0.1.0'

__all__ = (
    *losses.__all__,
    'graphs',
    'losses',
    'schedules',
)
