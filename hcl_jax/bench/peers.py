# SPDX-License-Identifier: Apache-2.0
"""The losses of other libraries, as contestants.

Each is imported only when asked for; none is a dependency.
"""

import importlib.util
import math

import jax
import jax.numpy as jnp
import joblib
import numpy as np

from hcl_jax.bench import harness

TEMPERATURE, BETA, TAU_PLUS = 0.5, 1.0, 0.1


def optax_ntxent() -> harness.Contestant:
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

  return harness.Contestant('optax ntxent', function, inputs, need)


def torch_hard() -> harness.Contestant:
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


def lightly_ntxent() -> harness.Contestant:
  """The standard loss of lightly."""
  from lightly import loss

  return _torch_contestant(
      'lightly NTXentLoss', loss.NTXentLoss(temperature=TEMPERATURE)
  )


def _torch_contestant(name, loss):
  """On the CPU, with as many threads as the process has cores."""
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
  return harness.Contestant(
      name, function, inputs, harness.matrices(40), is_jax=False
  )


PEERS = {
    'optax': optax_ntxent,
    'torch': torch_hard,
    'lightly': lightly_ntxent,
}


def find(names: list[str]) -> tuple[list[harness.Contestant], list[str]]:
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
