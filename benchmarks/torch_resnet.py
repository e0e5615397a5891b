# SPDX-License-Identifier: Apache-2.0
"""The same train step in torch, as a peer: two views, loss, Adam."""

from collections.abc import Callable
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

_STAGES = {
    'resnet10': (1, 1, 1, 1),
    'resnet18': (2, 2, 2, 2),
    'resnet50': (3, 4, 6, 3),
}


def make_step(
    network: str,
    views: tuple[np.ndarray, np.ndarray],
    threads: int,
    *,
    stem_stride: int = 1,
) -> Callable[[], float]:
  """A function that takes one step on fixed views and returns the loss.

  Args:
    network: ``'resnet10'``, ``'resnet18'`` or ``'resnet50'``, with the stem
      for small images and the released head.
    views: two normalised views ``[batch, height, width, 3]``.
    threads: of torch.
    stem_stride: of the first convolution.

  Returns:
    The function. Arrays are channels_last, which is faster on a CPU.
  """
  torch.set_num_threads(threads)
  torch.manual_seed(0)
  model = _encoder(network, stem_stride).to(memory_format=torch.channels_last)
  optimizer = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-6)
  views = [
      torch.tensor(view.transpose(0, 3, 1, 2)).to(
          memory_format=torch.channels_last
      )
      for view in views
  ]

  def step():
    optimizer.zero_grad(set_to_none=True)
    loss = _hard_loss(*(model(view) for view in views))
    loss.backward()
    optimizer.step()
    return loss.item()

  return step


def _hard_loss(z1, z2, temperature=0.5, beta=1.0, tau_plus=0.1):
  """The released formula."""
  batch = z1.shape[0]
  count = 2 * batch - 2
  rows = functional.normalize(torch.cat([z1, z2]), dim=-1)
  pair = torch.arange(2 * batch) % batch
  negative = pair[:, None] != pair[None, :]
  neg = torch.exp(rows @ rows.T / temperature)
  neg = neg.masked_select(negative).view(2 * batch, count)
  pos = torch.exp((rows[:batch] * rows[batch:]).sum(-1) / temperature)
  pos = pos.repeat(2)
  weights = neg**beta
  estimate = (weights * neg).sum(-1) / weights.mean(-1)
  estimate = (estimate - tau_plus * count * pos) / (1 - tau_plus)
  estimate = estimate.clamp(min=count * math.exp(-1 / temperature))
  return -(pos / (pos + estimate)).log().mean()


def _encoder(network: str, stem_stride: int) -> nn.Module:
  block = _Bottleneck if network == 'resnet50' else _Basic
  channels = first = 32 if network == 'resnet10' else 64
  layers = [_convolution(3, channels, 3, stem_stride), nn.ReLU(inplace=True)]
  for stage, blocks in enumerate(_STAGES[network]):
    for i in range(blocks):
      width, stride = first * 2**stage, 2 if stage and not i else 1
      layers.append(block(channels, width, stride))
      channels = width * block.expansion
  head = [
      nn.Linear(channels, 512, bias=False),
      nn.BatchNorm1d(512),
      nn.ReLU(inplace=True),
      nn.Linear(512, 128),
  ]
  return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)


def _convolution(inputs, outputs, size, stride=1):
  return nn.Sequential(
      nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False),
      nn.BatchNorm2d(outputs),
  )


class _Residual(nn.Module):
  """A branch beside a shortcut, which is a convolution where shapes change."""

  expansion = 1

  def __init__(self, inputs, width, stride):
    super().__init__()
    outputs = width * self.expansion
    self.branch = nn.Sequential(*self._layers(inputs, width, stride))
    self.shortcut = nn.Identity()
    if stride > 1 or inputs != outputs:
      self.shortcut = _convolution(inputs, outputs, 1, stride)

  def forward(self, x):
    return functional.relu(self.branch(x) + self.shortcut(x), inplace=True)


class _Basic(_Residual):

  def _layers(self, inputs, width, stride):
    yield _convolution(inputs, width, 3, stride)
    yield nn.ReLU(inplace=True)
    yield _convolution(width, width, 3)


class _Bottleneck(_Residual):

  expansion = 4

  def _layers(self, inputs, width, stride):
    yield _convolution(inputs, width, 1)
    yield nn.ReLU(inplace=True)
    yield _convolution(width, width, 3, stride)
    yield nn.ReLU(inplace=True)
    yield _convolution(width, 4 * width, 1)
