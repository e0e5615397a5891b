# SPDX-License-Identifier: Apache-2.0
"""What results mean: scores, similarities, negatives, the prior, the theory.

Arrays in, arrays out. Figures are in ``hcl_jax.analysis.plots``, which is not
imported here because it loads matplotlib.
"""

from hcl_jax.analysis.curves import epochs_to_reach
from hcl_jax.analysis.drawings import graph_picture
from hcl_jax.analysis.drawings import stress_layout
from hcl_jax.analysis.galleries import Gallery
from hcl_jax.analysis.galleries import gallery_text
from hcl_jax.analysis.galleries import hard_negative_gallery
from hcl_jax.analysis.packing import Packing
from hcl_jax.analysis.packing import ball_packing
from hcl_jax.analysis.packing import known_angle
from hcl_jax.analysis.packing import packing_value
from hcl_jax.analysis.packing import tammes_packing
from hcl_jax.analysis.prior import LabelledPrior
from hcl_jax.analysis.prior import MixtureProportion
from hcl_jax.analysis.prior import mixture_proportion
from hcl_jax.analysis.prior import prior_from_labels
from hcl_jax.analysis.repeats import Curves
from hcl_jax.analysis.repeats import Repeats
from hcl_jax.analysis.repeats import group_curves
from hcl_jax.analysis.repeats import group_repeats
from hcl_jax.analysis.similarities import FalseNegatives
from hcl_jax.analysis.similarities import PairSimilarities
from hcl_jax.analysis.similarities import SimilarityHistograms
from hcl_jax.analysis.similarities import alignment
from hcl_jax.analysis.similarities import false_negatives
from hcl_jax.analysis.similarities import overlap_coefficient
from hcl_jax.analysis.similarities import pair_similarities
from hcl_jax.analysis.similarities import similarity_histograms
from hcl_jax.analysis.similarities import uniformity
from hcl_jax.analysis.tables import epochs_cells
from hcl_jax.analysis.tables import repeats_caption
from hcl_jax.analysis.tables import repeats_cells
from hcl_jax.analysis.tables import repeats_table
from hcl_jax.analysis.theory import BetaCurve
from hcl_jax.analysis.theory import LimitingLoss
from hcl_jax.analysis.theory import VarianceCurve
from hcl_jax.analysis.theory import convergence_in_beta
from hcl_jax.analysis.theory import least_limiting_loss
from hcl_jax.analysis.theory import limiting_worst_case_loss
from hcl_jax.analysis.theory import one_positive_variance
from hcl_jax.analysis.theory import risk_bound
from hcl_jax.analysis.theory import tilted_loss
from hcl_jax.analysis.theory import variance_against_alignment
from hcl_jax.analysis.theory import worst_case_loss
from hcl_jax.analysis.tilting import clamp_fraction
from hcl_jax.analysis.tilting import effective_negatives
from hcl_jax.analysis.tilting import negative_weights
from hcl_jax.analysis.tilting import sample_negatives
from hcl_jax.analysis.tilting import two_view_logits
from hcl_jax.analysis.toy import Trajectory
from hcl_jax.analysis.toy import train_free_embeddings
