# SPDX-License-Identifier: Apache-2.0
"""Two-way GRU encoders of sentences in torch, as a peer."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn.utils import rnn


def make_step(
    tokens: np.ndarray,
    length: np.ndarray,
    *,
    vocabulary_size: int,
    word_dim: int,
    dim: int,
    packed: bool,
    threads: int,
) -> Callable[[], float]:
  """A function that embeds sentences twice and differentiates the embeddings.

  Args:
    tokens: padded sentences ``[B, L]``.
    length: words of each, ``[B]``.
    vocabulary_size: number of words.
    word_dim: of the vectors of words.
    dim: of an embedding, half for each direction.
    packed: as ``pack_padded_sequence``, which skips padding; otherwise padding
      is read like words.
    threads: of torch.

  Returns:
    The function; gives the sum of squares of all embeddings.
  """
  torch.set_num_threads(threads)
  torch.manual_seed(0)
  encoders = [_Encoder(vocabulary_size, word_dim, dim // 2) for _ in range(2)]
  tokens = torch.tensor(tokens.T.copy()).long()
  length = torch.tensor(length).long() if packed else None

  def step():
    loss = sum((encoder(tokens, length) ** 2).sum() for encoder in encoders)
    for encoder in encoders:
      encoder.zero_grad(set_to_none=True)
    loss.backward()
    return loss.item()

  return step


class _Encoder(nn.Module):

  def __init__(self, vocabulary_size, word_dim, width):
    super().__init__()
    self.words = nn.Embedding(vocabulary_size, word_dim)
    self.gru = nn.GRU(word_dim, width, bidirectional=True)

  def forward(self, tokens, length):
    x = self.words(tokens)
    if length is not None:
      x = rnn.pack_padded_sequence(x, length, enforce_sorted=False)
    _, last = self.gru(x)
    return torch.cat([last[0], last[1]], dim=1)
