# SPDX-License-Identifier: Apache-2.0
"""Times the loss as ``hcl_jax.bench loss`` does, with torch and lightly.

  python -m benchmarks loss --peers=torch,lightly --batch_sizes=256,1024

Neither is a dependency; each is imported only where it is installed.
"""

from collections.abc import Callable
import math
from typing import Any

import joblib
import numpy as np

from hcl_jax.bench import harness
from hcl_jax.bench import loss as bench
from hcl_jax.bench import peers

_TEMPERATURE = peers.TEMPERATURE


def torch_hard() -> harness.Candidate:
  """Returns the hard loss in torch, by the formula of the released code."""
  import torch

  def loss(z1, z2):
    batch = z1.shape[0]
    count = 2 * batch - 2
    pair = torch.arange(2 * batch) % batch
    is_negative = pair[:, None] != pair[None, :]
    rows = torch.cat([z1, z2])
    neg = torch.exp(rows @ rows.T / _TEMPERATURE)
    neg = neg.masked_select(is_negative).view(2 * batch, count)
    pos = torch.exp((z1 * z2).sum(-1) / _TEMPERATURE).repeat(2)
    importance = (peers.BETA * neg.log()).exp()
    reweighted = (importance * neg).sum(-1) / importance.mean(-1)
    estimate = reweighted - peers.TAU_PLUS * count * pos
    estimate = estimate / (1 - peers.TAU_PLUS)
    estimate = estimate.clamp(min=count * math.exp(-1 / _TEMPERATURE))
    return -(pos / (pos + estimate)).log().mean()

  return _torch_candidate('torch hard', loss, is_reference=True)


def lightly_ntxent() -> harness.Candidate:
  """Returns lightly's standard loss."""
  from lightly import loss

  return _torch_candidate(
      'lightly NTXentLoss', loss.NTXentLoss(temperature=_TEMPERATURE)
  )


def _torch_candidate(
    name: str, loss: Callable[..., Any], is_reference: bool = False
) -> harness.Candidate:
  """Runs a loss on the CPU, with a thread for each core of the process."""
  import torch

  torch.set_num_threads(joblib.cpu_count())

  def function(z1, z2):
    value = loss(z1, z2)
    return value.detach(), torch.autograd.grad(value, (z1, z2))

  def inputs(z1, z2):
    return tuple(
        torch.tensor(np.asarray(z)).requires_grad_() for z in (z1, z2)
    )

  # Measured for torch_hard: 26 to 36 bytes per entry.
  return harness.Candidate(
      name,
      function,
      inputs,
      harness.matrices(40),
      is_jax=False,
      is_reference=is_reference,
  )


PEERS = peers.PEERS | {'torch': torch_hard, 'lightly': lightly_ntxent}


def command() -> None:
  """Times the loss beside matrix products, optax, torch and lightly."""
  bench.command(PEERS)
