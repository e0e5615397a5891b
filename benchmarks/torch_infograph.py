# SPDX-License-Identifier: Apache-2.0
"""InfoGraph with hard negatives in plain torch, as a peer.

Written as one would at first: edges by ``index_add``, and the mask of positive
pairs filled in node by node, in every step.
"""

from collections.abc import Callable
from collections.abc import Sequence
import math

import torch
from torch import nn
from torch.nn import functional

from hcl_jax.models import graph_batch as graphs_lib


def make_epoch(
    batches: Sequence[graphs_lib.GraphBatch],
    *,
    width: int,
    num_layers: int,
    beta: float,
    threads: int,
) -> Callable[[], float]:
  """A function that takes a step on each batch and returns the last loss.

  Args:
    batches: of numpy arrays, with a row for each node; padding is dropped.
    width: of a layer.
    num_layers: number of layers.
    beta: concentration.
    threads: of torch.

  Returns:
    The function.
  """
  torch.set_num_threads(threads)
  torch.manual_seed(0)
  tensors = [_unpadded(batch) for batch in batches]
  model = _InfoGraph(tensors[0][0].shape[1], width, num_layers)
  optimizer = torch.optim.Adam(model.parameters(), 1e-3)

  def epoch():
    for nodes, edges, graph_ids, num_graphs in tensors:
      optimizer.zero_grad(set_to_none=True)
      local, pooled = model(nodes, edges, graph_ids, num_graphs)
      loss = _released_loss(local, pooled, graph_ids, beta)
      loss.backward()
      optimizer.step()
    return loss.item()

  return epoch


def _unpadded(batch):
  there = batch.senders < len(batch.nodes)
  edges = [torch.tensor(x[there]).long()
           for x in (batch.senders, batch.receivers)]  # fmt: skip
  return (
      torch.tensor(batch.nodes[batch.node_counts > 0]),
      edges,
      torch.tensor(batch.graph_ids[batch.member_counts > 0]).long(),
      int(batch.graph_mask.sum()),
  )


def _released_loss(local, pooled, graph_ids, beta, tau=0.5):
  """The released formula."""
  num_nodes, num_graphs = local.shape[0], pooled.shape[0]
  positive = torch.zeros(num_nodes, num_graphs)
  negative = torch.ones(num_nodes, num_graphs)
  for node, graph in enumerate(graph_ids.tolist()):
    positive[node, graph] = 1.0
    negative[node, graph] = 0.0
  scores = local @ pooled.T
  p, q = scores * positive, scores * negative
  prior = tau / (1 - tau)
  e_pos = math.log(2) - functional.softplus(-p) - prior * functional.softplus(p)
  tilts = torch.exp(-2 * beta * q / q.abs().max())
  weights = tilts / tilts.mean(dim=1, keepdim=True)
  e_neg = weights * functional.softplus(q) / (1 - tau) - math.log(2)
  pairs = num_nodes * (num_graphs - 1)
  return e_neg.sum() / pairs - e_pos.sum() / num_nodes


class _InfoGraph(nn.Module):

  def __init__(self, features, width, num_layers):
    super().__init__()
    sizes = [features] + [width] * num_layers
    self.layers = nn.ModuleList(
        nn.Sequential(
            nn.Linear(size, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.BatchNorm1d(width),
        )
        for size in sizes[:-1]
    )
    self.local_head = _FeedForward(width * num_layers)
    self.global_head = _FeedForward(width * num_layers)

  def forward(self, x, edges, graph_ids, num_graphs):
    senders, receivers = edges
    rows = []
    for layer in self.layers:
      x = layer(x.index_add(0, receivers, x[senders]))
      rows.append(x)
    nodes = torch.cat(rows, dim=1)
    zeros = torch.zeros(num_graphs, nodes.shape[1])
    pooled = zeros.index_add(0, graph_ids, nodes)
    return self.local_head(nodes), self.global_head(pooled)


class _FeedForward(nn.Module):

  def __init__(self, dim):
    super().__init__()
    layers = []
    for _ in range(3):
      layers += [nn.Linear(dim, dim), nn.ReLU()]
    self.block = nn.Sequential(*layers)
    self.shortcut = nn.Linear(dim, dim)

  def forward(self, x):
    return self.block(x) + self.shortcut(x)
