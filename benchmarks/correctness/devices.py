# SPDX-License-Identifier: Apache-2.0
"""Losses in JAX over simulated devices, against the whole batch."""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.correctness import loading
from benchmarks.correctness import oracle
from benchmarks.correctness import processes
import hcl_jax

DEVICES = 8
_AXIS = 'batch'
_P = jax.sharding.PartitionSpec


def _hard(loss):
  """Fixes the hyperparameters of a hard loss, so that they are in the test."""
  return functools.partial(loss, beta=1.0, tau_plus=0.1)


_HARD = oracle.Setting(0.1, 1.0, 0.1)


def _sigmoid(z1, z2, *, temperature, **more):
  return hcl_jax.sigmoid_loss(
      z1, z2, logit_scale=1 / temperature, logit_bias=-10.0, **more
  )


def _supcon(z1, z2, *, temperature, **more):
  # One pair to a device, and a class of its own to each.
  labels = jax.lax.axis_index(_AXIS) + jnp.arange(len(z1))
  return hcl_jax.supcon_loss(z1, z2, labels, temperature=temperature, **more)


def _own() -> list[tuple[processes.Shared, Callable[..., Any]]]:
  ring = {'block_size': 1}
  shared = processes.Shared
  simclr, in_batch = _hard(hcl_jax.simclr_loss), _hard(hcl_jax.in_batch_loss)
  return [
      (shared('simclr_loss', oracle.hard, simclr, setting=_HARD), {}),
      (shared('simclr_loss, ring', oracle.hard, simclr, setting=_HARD), ring),
      (shared('in_batch_loss', oracle.hard_in_batch, in_batch,
              setting=_HARD), {}),
      (shared('in_batch_loss, ring', oracle.hard_in_batch, in_batch,
              setting=_HARD), ring),
      (shared('sigmoid_loss', oracle.sigmoid, _sigmoid), {}),
      (shared('sigmoid_loss, ring', oracle.sigmoid, _sigmoid), ring),
      (shared('supcon_loss', oracle.nt_xent, _supcon), {}),
  ]  # fmt: skip


def own() -> list[processes.Outcome]:
  """Runs the losses of this library on eight devices, in two modes.

  Returns:
    Outcomes: ``grad`` outside of ``shard_map``, and the mean over devices of
    the gradients that ``pmap`` has inside.
  """
  results = []
  for shared, more in _own():
    loss = functools.partial(
        shared.loss,
        temperature=shared.setting.temperature,
        axis_name=_AXIS,
        **more,
    )

    def local(z1, z2, loss=loss):
      return loss(z1, z2).mean()

    for mode, run in (('shard_map', _outside), ('pmap', _inside)):
      named = shared._replace(name=f'{shared.name}, {mode}')
      results.append(_outcome(named, 'hcl_jax', run(local)))
  return results


def tevax() -> list[processes.Outcome]:
  """Runs p_contrastive_loss of tevatron's JAX half in ``pmap``."""
  loading.bare('tevatron', 'tevatron.tevax')
  loss = loading.module('tevatron.tevax.loss').p_contrastive_loss
  shared = processes.Shared(
      'tevax p_contrastive_loss, pmap', oracle.in_batch, loss, True
  )

  def local(z1, z2):
    return loss(z1 / shared.setting.temperature, z2, axis=_AXIS).mean()

  return [_outcome(shared, 'tevatron', _inside(local, unit=True))]


def _outcome(shared, package, ran):
  value, grads = ran
  return processes.outcome(shared, package, DEVICES, value, grads)


def _outside(local, unit=False):
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:DEVICES]), (_AXIS,))
  mean = jax.shard_map(
      lambda *z: jax.lax.pmean(local(*z), _AXIS),
      mesh=mesh,
      in_specs=(_P(_AXIS), _P(_AXIS)),
      out_specs=_P(),
  )
  case = processes.batch(unit)
  value, grads = jax.jit(jax.value_and_grad(mean, (0, 1)))(case.z1, case.z2)
  return float(value), np.asarray(grads)


def _inside(local, unit=False):
  """Returns the gradient of parameters' mean: that of rows over devices."""
  case = processes.batch(unit)
  step = jax.pmap(
      jax.value_and_grad(local, (0, 1)),
      axis_name=_AXIS,
      devices=jax.devices()[:DEVICES],
  )
  values, grads = step(
      *(z.reshape(DEVICES, -1, z.shape[-1]) for z in (case.z1, case.z2))
  )
  grads = np.stack([
      np.asarray(g).reshape(-1, g.shape[-1]) for g in grads
  ])
  return float(np.mean(values)), grads / DEVICES
