# SPDX-License-Identifier: Apache-2.0
"""Is the room of graphs: batches, data, InfoGraph, evaluation."""

from hcl_jax.graphs.data import GraphBatches
from hcl_jax.graphs.data import Graphs
from hcl_jax.graphs.data import common_paddings
from hcl_jax.graphs.data import load_graphs
from hcl_jax.models.graph_batch import GraphBatch
from hcl_jax.models.graph_batch import Padding
from hcl_jax.models.graph_batch import masked_nodes
from hcl_jax.models.graph_batch import sum_neighbors
from hcl_jax.models.graph_batch import sum_nodes
