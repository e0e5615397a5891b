# SPDX-License-Identifier: Apache-2.0
"""Times the loss as ``hcl_jax.bench loss`` does, with torch and lightly.

  python -m benchmarks loss --peers=torch,lightly --batch_sizes=256,1024

Neither is a dependency; each is imported only where it is installed. With
``--towers`` it times ``in_batch_loss`` in both directions instead: one call
beside two, in tiles and dense. With ``--options=simclr`` or ``in_batch`` it
times the loss with each of its options beside the loss without.
"""

from collections.abc import Callable
import math
from typing import Any
from typing import NamedTuple

from absl import flags
import jax
import jax.numpy as jnp
import joblib
import numpy as np

import hcl_jax
from hcl_jax.bench import harness
from hcl_jax.bench import loss as bench
from hcl_jax.bench import peers

_TOWERS = flags.DEFINE_bool(
    'towers', False, 'Time both directions of in_batch_loss: one call, or two.'
)
_OPTIONS = flags.DEFINE_enum(
    'options',
    None,
    ['simclr', 'in_batch'],
    'Time a loss with each of its options beside the loss without.',
)
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


def towers(
    name: str, *, calls: int, dense: bool = False, is_reference: bool = False
) -> harness.Candidate:
  """Returns ``in_batch_loss`` in both directions, by one call or by two."""

  def inputs(z1, z2):
    return z1, z2, np.float32(peers.BETA), np.float32(peers.TAU_PLUS)

  def function(z1, z2, beta, tau_plus):
    def mean(*z):
      given = {
          'temperature': _TEMPERATURE, 'beta': beta, 'tau_plus': tau_plus,
          'block_size': z1.shape[0] if dense else None,
      }  # fmt: skip
      if calls == 1:
        return hcl_jax.in_batch_loss(*z, bidirectional=True, **given).mean()
      both = (hcl_jax.in_batch_loss(*x, **given) for x in (z, z[::-1]))
      return sum(x.mean() for x in both) / 2

    return jax.value_and_grad(mean, argnums=(0, 1))(z1, z2)

  # [B, B] matrices, a quarter of those of two views.
  need = harness.matrices(6) if dense else None
  return harness.Candidate(
      name, function, inputs, need, is_reference=is_reference
  )


def tower_candidates() -> list[harness.Candidate]:
  """Returns what --towers times."""
  return [
      towers('both', calls=1),
      towers('two calls', calls=2, is_reference=True),
      towers('dense both', calls=1, dense=True),
      towers('dense two', calls=2, dense=True, is_reference=True),
  ]


class Option(NamedTuple):
  """Describes a loss with an option, or the loss without it.

  Attributes:
    name: what to print.
    given: makes keyword arguments, arrays, from the two views.
    is_base: whether others are compared with it.
  """

  name: str
  given: Callable[[jax.Array, jax.Array], dict[str, Any]]
  is_base: bool = False


def loss_options(loss: str) -> list[Option]:
  """Returns the options of a loss, after what they are compared with."""
  anchors = 2 if loss == 'simclr' else 1

  def with_negatives(z1, z2, **more):
    return {'beta': peers.BETA, 'negatives': z1[::4] + z2[::4], **more}

  options = [
      Option(loss, lambda *_: {'beta': peers.BETA}, True),
      Option('margin', lambda *_: {'beta': peers.BETA, 'margin': 0.7}),
      Option(
          'positive_weight',
          lambda *_: {'beta': peers.BETA, 'positive_weight': 0.5},
      ),
      Option(
          'beta of anchors',
          lambda z1, _: {'beta': jnp.full(anchors * z1.shape[0], peers.BETA)},
      ),
      Option('effective_negatives', lambda *_: {'effective_negatives': 0.8}),
  ]
  if loss == 'simclr':
    return options
  return [
      *options,
      Option('negatives', with_negatives, True),
      Option(
          'where',
          lambda z1, z2: with_negatives(
              z1, z2, where=jnp.arange(z1[::4].shape[0]) % 2 == 0
          ),
      ),
  ]


def option_candidate(
    loss: str, option: Option, *, dense: bool
) -> harness.Candidate:
  """Returns a loss with an option; arrays that it gets are traced."""
  function = getattr(hcl_jax, f'{loss}_loss')

  def inputs(z1, z2):
    given = option.given(z1, z2)
    return z1, z2, {k: jnp.asarray(x) for k, x in given.items()}

  def value_and_grad(z1, z2, given):
    def mean(z1, z2):
      return function(
          z1,
          z2,
          temperature=_TEMPERATURE,
          tau_plus=peers.TAU_PLUS,
          block_size=2 * z1.shape[0] if dense else None,
          **given,
      ).mean()

    return jax.value_and_grad(mean, argnums=(0, 1))(z1, z2)

  return harness.Candidate(
      f'dense {option.name}' if dense else option.name,
      value_and_grad,
      inputs,
      harness.matrices(12) if dense else None,
      is_reference=option.is_base,
  )


def option_candidates() -> list[harness.Candidate]:
  """Returns what --options times, in tiles and dense."""
  loss = _OPTIONS.value
  return [
      option_candidate(loss, option, dense=dense)
      for dense in (False, True)
      for option in loss_options(loss)
  ]


PEERS = peers.PEERS | {'torch': torch_hard, 'lightly': lightly_ntxent}


def command() -> None:
  """Times the loss beside matrix products, optax, torch and lightly."""
  if _TOWERS.value:
    bench.command({}, tower_candidates)
  elif _OPTIONS.value:
    bench.command({}, option_candidates)
  else:
    bench.command(PEERS)
