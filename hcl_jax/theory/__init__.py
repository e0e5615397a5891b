# SPDX-License-Identifier: Apache-2.0
"""Numerical checks of the paper's theory: packings, bounds, toy training."""

from hcl_jax.theory.bounds import BetaCurve
from hcl_jax.theory.bounds import LimitingLoss
from hcl_jax.theory.bounds import VarianceCurve
from hcl_jax.theory.bounds import convergence_in_beta
from hcl_jax.theory.bounds import least_limiting_loss
from hcl_jax.theory.bounds import limiting_worst_case_loss
from hcl_jax.theory.bounds import one_positive_variance
from hcl_jax.theory.bounds import risk_bound
from hcl_jax.theory.bounds import tilted_loss
from hcl_jax.theory.bounds import variance_against_alignment
from hcl_jax.theory.bounds import worst_case_loss
from hcl_jax.theory.packing import Packing
from hcl_jax.theory.packing import Trajectory
from hcl_jax.theory.packing import ball_packing
from hcl_jax.theory.packing import known_angle
from hcl_jax.theory.packing import packing_value
from hcl_jax.theory.packing import tammes_packing
from hcl_jax.theory.packing import train_free_embeddings
