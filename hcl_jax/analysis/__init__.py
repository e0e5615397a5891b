# SPDX-License-Identifier: Apache-2.0
"""What results mean: scores of repeated runs, as tables and figures.

Figures are in ``hcl_jax.analysis.plots``, which is not imported here because it
loads matplotlib.
"""

from hcl_jax.analysis.drawings import graph_picture
from hcl_jax.analysis.drawings import stress_layout
from hcl_jax.analysis.repeats import Repeats
from hcl_jax.analysis.repeats import group_repeats
from hcl_jax.analysis.tables import repeats_caption
from hcl_jax.analysis.tables import repeats_cells
from hcl_jax.analysis.tables import repeats_table
