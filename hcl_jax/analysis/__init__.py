# SPDX-License-Identifier: Apache-2.0
"""What results mean: scores of repeated runs, as tables and figures.

Figures are in ``hcl_jax.analysis.plots``, which is not imported here because it
loads matplotlib.
"""

from hcl_jax.analysis.repeats import Repeats
from hcl_jax.analysis.repeats import group_repeats
from hcl_jax.analysis.tables import repeats_table
