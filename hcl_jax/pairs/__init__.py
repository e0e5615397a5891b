# SPDX-License-Identifier: Apache-2.0
"""Is the room of pairs: queries and documents, two towers, retrieval."""

from hcl_jax.pairs.data import Pairs
from hcl_jax.pairs.data import load_pairs
