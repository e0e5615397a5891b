# SPDX-License-Identifier: Apache-2.0
"""Analysis of results: scores, similarities, negatives and the class prior.

Functions take arrays and return arrays; ``hcl_jax.report.plots`` draws them.
"""

from hcl_jax.analysis.negatives import Gallery
from hcl_jax.analysis.negatives import clamp_fraction
from hcl_jax.analysis.negatives import effective_negatives
from hcl_jax.analysis.negatives import gallery_text
from hcl_jax.analysis.negatives import hard_negative_gallery
from hcl_jax.analysis.negatives import negative_weights
from hcl_jax.analysis.negatives import sample_negatives
from hcl_jax.analysis.negatives import two_view_logits
from hcl_jax.analysis.prior import LabeledPrior
from hcl_jax.analysis.prior import MixtureProportion
from hcl_jax.analysis.prior import mixture_proportion
from hcl_jax.analysis.prior import prior_from_labels
from hcl_jax.analysis.repeats import Curves
from hcl_jax.analysis.repeats import Repeats
from hcl_jax.analysis.repeats import epochs_to_reach
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
