# SPDX-License-Identifier: Apache-2.0
"""Figures of runs, sweeps and the theory.

The only package that imports matplotlib.
"""

from hcl_jax.report.plots.runs import curves_figure
from hcl_jax.report.plots.runs import effective_negatives_figure
from hcl_jax.report.plots.runs import false_negatives_figure
from hcl_jax.report.plots.runs import gallery_figure
from hcl_jax.report.plots.runs import losses_figure
from hcl_jax.report.plots.runs import margins_figure
from hcl_jax.report.plots.runs import similarity_figure
from hcl_jax.report.plots.style import save
from hcl_jax.report.plots.sweeps import repeated_curves_figure
from hcl_jax.report.plots.sweeps import repeats_figure
from hcl_jax.report.plots.theory import beta_figure
from hcl_jax.report.plots.theory import mixture_figure
from hcl_jax.report.plots.theory import packing_figure
from hcl_jax.report.plots.theory import trajectory_figure
from hcl_jax.report.plots.theory import variance_figure
