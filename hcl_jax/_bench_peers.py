# SPDX-License-Identifier: Apache-2.0
"""What a contestant of ``bench loss`` is, and those of other libraries.

Each peer is imported only when asked for; none is a dependency.
"""

from collections.abc import Callable
import importlib.util
import math
import os
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

TEMPERATURE, BETA, TAU_PLUS = 0.5, 1.0, 0.1


class Contestant(NamedTuple):
  """One row of the tables.

  Attributes:
    name: what to print.
    function: what to time; its first output is the loss, if it is a scalar.
    inputs: makes the arguments of ``function`` of two views ``[batch, dim]``.
    need: about how many bytes it takes, of batch and dim; None if so few that
      it is always run.
    is_jax: whether ``function`` can be compiled, and its memory be known.
  """

  name: str
  function: Callable[..., Any]
  inputs: Callable[..., tuple[Any, ...]]
  need: Callable[[int, int], float] | None = None
  is_jax: bool = True


def matrices(bytes_per_entry: int) -> Callable[[int, int], float]:
  """The need of something that holds matrices of all rows by all rows."""
  return lambda batch, dim: bytes_per_entry * (2 * batch) ** 2


def usable_cores() -> int:
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def optax_ntxent() -> Contestant:
  """The standard loss of optax, which broadcasts to ``[2B, 2B, dim]``."""
  import optax

  def function(z1, z2, labels):
    def loss(z1, z2):
      both = jnp.concatenate([z1, z2])
      return optax.losses.ntxent(both, labels, TEMPERATURE)

    return jax.value_and_grad(loss, argnums=(0, 1))(z1, z2)

  def inputs(z1, z2):
    return z1, z2, jnp.tile(jnp.arange(z1.shape[0]), 2)

  def need(batch, dim):
    return 12 * (2 * batch) ** 2 * dim

  return Contestant('optax ntxent', function, inputs, need)


def torch_hard() -> Contestant:
  """The hard loss in torch, by the formula of the paper's released code."""
  import torch

  def loss(z1, z2):
    batch = z1.shape[0]
    count = 2 * batch - 2
    pair = torch.arange(2 * batch) % batch
    is_negative = pair[:, None] != pair[None, :]
    rows = torch.cat([z1, z2])
    neg = torch.exp(rows @ rows.T / TEMPERATURE)
    neg = neg.masked_select(is_negative).view(2 * batch, count)
    pos = torch.exp((z1 * z2).sum(-1) / TEMPERATURE).repeat(2)
    importance = (BETA * neg.log()).exp()
    reweighted = (importance * neg).sum(-1) / importance.mean(-1)
    estimate = (reweighted - TAU_PLUS * count * pos) / (1 - TAU_PLUS)
    estimate = estimate.clamp(min=count * math.exp(-1 / TEMPERATURE))
    return -(pos / (pos + estimate)).log().mean()

  return _torch_contestant('torch hard', loss)


def lightly_ntxent() -> Contestant:
  """The standard loss of lightly."""
  from lightly import loss

  return _torch_contestant(
      'lightly NTXentLoss', loss.NTXentLoss(temperature=TEMPERATURE)
  )


def _torch_contestant(name, loss):
  """On the CPU, with as many threads as the process has cores."""
  import torch

  torch.set_num_threads(usable_cores())

  def function(z1, z2):
    value = loss(z1, z2)
    return value.detach(), torch.autograd.grad(value, (z1, z2))

  def inputs(z1, z2):
    return tuple(
        torch.tensor(np.asarray(z)).requires_grad_() for z in (z1, z2)
    )

  # Measured for torch_hard: 26 to 36 bytes per entry.
  return Contestant(name, function, inputs, matrices(40), is_jax=False)


PEERS = {
    'optax': optax_ntxent,
    'torch': torch_hard,
    'lightly': lightly_ntxent,
}


def find(names: list[str]) -> tuple[list[Contestant], list[str]]:
  """The contestants of the peers that import, and which do not."""
  found, missing = [], []
  for name in names:
    if importlib.util.find_spec(name) is None:
      missing.append(name)
      continue
    try:
      found.append(PEERS[name]())
    except Exception as error:  # whatever a half-installed package raises
      missing.append(f'{name} (does not import: {error})')
  return found, missing
