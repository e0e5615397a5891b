# SPDX-License-Identifier: Apache-2.0
"""Makes two towers of bags of tokens in torch, as a peer."""

from collections.abc import Callable
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

Batch = dict[str, np.ndarray]


class Bag(nn.Module):
  """Sums vectors of tokens, with a hidden layer behind."""

  def __init__(self, num_tokens, token_dim, width, dim, sparse=False):
    super().__init__()
    self.tokens = nn.EmbeddingBag(
        num_tokens, token_dim, mode='sum', sparse=sparse
    )
    nn.init.normal_(self.tokens.weight, std=0.02)  # as ours
    self.out = nn.Sequential(
        nn.Linear(token_dim, width), nn.ReLU(), nn.Linear(width, dim)
    )

  def forward(self, tokens, starts):
    return self.out(self.tokens(tokens, starts))


def make_epoch(
    batches: Callable[[], Sequence[Batch]],
    *,
    num_tokens: int,
    token_dim: int,
    width: int,
    dim: int,
    temperature: float,
    learning_rate: float,
    threads: int,
    sparse: bool = False,
) -> Callable[[], float]:
  """Makes a function that takes a step of Adam on each of some batches.

  Args:
    batches: makes them, of int32 ``query`` and ``document [b, length]``, -1 for
      padding, which is not read.
    num_tokens: of each tower; so are the next three.
    token_dim: width of a token's vector.
    width: of the hidden layer.
    dim: of an embedding.
    temperature: of the standard loss in both directions.
    learning_rate: of Adam.
    threads: of torch.
    sparse: whether Adam updates only tokens that a batch has.

  Returns:
    The function; gives the last loss.
  """
  torch.set_num_threads(threads)
  torch.manual_seed(0)
  towers = nn.ModuleList(
      [Bag(num_tokens, token_dim, width, dim, sparse) for _ in range(2)]
  )
  optimizers = _optimizers(towers, learning_rate, sparse)

  def epoch():
    for batch in batches():
      query, document = (
          F.normalize(tower(*flat(batch[side])))
          for tower, side in zip(towers, ('query', 'document'), strict=True)
      )
      logits = query @ document.T / temperature
      rows = torch.arange(len(logits))
      loss = F.cross_entropy(logits, rows) + F.cross_entropy(logits.T, rows)
      for optimizer in optimizers:
        optimizer.zero_grad()
      (loss / 2).backward()
      for optimizer in optimizers:
        optimizer.step()
    return loss.item()

  return epoch


def _optimizers(towers, rate, sparse):
  if not sparse:
    return [torch.optim.Adam(towers.parameters(), lr=rate)]
  named = dict(towers.named_parameters())
  tables = {name: x for name, x in named.items() if 'tokens' in name}
  return [
      torch.optim.SparseAdam(list(tables.values()), lr=rate),
      torch.optim.Adam([named[x] for x in named if x not in tables], lr=rate),
  ]


def flat(rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
  """Returns tokens without padding, and where each row begins."""
  there = rows >= 0
  counts = there.sum(axis=1)
  starts = np.cumsum(counts) - counts
  return torch.from_numpy(rows[there]), torch.from_numpy(
      starts.astype(np.int32)
  )
