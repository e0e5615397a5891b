# SPDX-License-Identifier: Apache-2.0
"""Losses in JAX: those of hcl_jax, and of libraries that are installed."""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.correctness import compare
from benchmarks.correctness import loading
from benchmarks.correctness import oracle
import hcl_jax

# beta and tau_plus of the hard loss.
HARD = ((0.0, 0.0), (1.0, 0.0), (1.0, 0.1), (5.0, 0.1))
_OWN = 'hcl_jax'


def classes(batch: int) -> tuple[int, ...]:
  """Returns labels: two pairs to a class, one where there are only two."""
  return tuple(i // 2 if batch > 2 else i for i in range(batch))


def runner(loss: Callable[..., Any]) -> compare.Run:
  """Returns what runs a loss of ``(z1, z2, temperature, beta, tau_plus)``.

  Hyperparameters are traced, so that a shape compiles once.
  """
  function = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))

  def run(z1, z2, setting):
    return function(z1, z2, *map(np.float32, setting))

  return run


def _simclr(z1, z2, t, beta, tau_plus, **options):
  return hcl_jax.simclr_loss(
      z1, z2, temperature=t, beta=beta, tau_plus=tau_plus, **options
  ).mean()


def _hard_nce(z1, z2, t, beta, tau_plus):
  """Gives all logits of simclr_loss to hard_nce_loss."""
  z = jnp.concatenate([z1, z2]).astype(jnp.float32)
  batch = len(z1)
  rows = np.arange(2 * batch)
  others = np.stack([
      [j for j in rows if j % batch != i % batch] for i in rows
  ])
  logits = jnp.matmul(z, z.T, precision='highest') / t
  return hcl_jax.hard_nce_loss(
      logits[rows, (rows + batch) % (2 * batch)],
      logits[rows[:, None], others],
      beta=beta,
      tau_plus=tau_plus,
      log_floor=-1 / t,
  ).mean()


def _in_batch(z1, z2, t, beta, tau_plus, **options):
  return hcl_jax.in_batch_loss(
      z1, z2, temperature=t, beta=beta, tau_plus=tau_plus, **options
  ).mean()


def _sigmoid(z1, z2, t, beta, tau_plus, **options):
  del beta, tau_plus
  return hcl_jax.sigmoid_loss(
      z1, z2, logit_scale=1 / t, logit_bias=-10.0, **options
  ).mean()


def _supcon(z1, z2, t, beta, tau_plus):
  del beta, tau_plus
  labels = jnp.array(classes(len(z1)))
  return hcl_jax.supcon_loss(z1, z2, labels, temperature=t).mean()


def own() -> list[compare.Implementation]:
  """Returns the losses of this library, dense and in tiles."""
  tiles = {'block_size': 2}

  def implementation(name, definition, loss, **more):
    return compare.Implementation(name, _OWN, definition, runner(loss), **more)

  return [
      implementation('simclr_loss', oracle.hard, _simclr, settings=HARD),
      implementation(
          'simclr_loss, in tiles',
          oracle.hard,
          functools.partial(_simclr, **tiles),
          settings=HARD,
      ),
      implementation(
          'simclr_loss, positive_weight=0',
          oracle.decoupled,
          functools.partial(_simclr, positive_weight=0.0),
      ),
      implementation(
          'hard_nce_loss',
          oracle.hard,
          _hard_nce,
          settings=HARD,
          takes_unit_rows=True,
      ),
      implementation(
          'in_batch_loss', oracle.hard_in_batch, _in_batch, settings=HARD
      ),
      implementation(
          'in_batch_loss, in tiles',
          oracle.hard_in_batch,
          functools.partial(_in_batch, **tiles),
          settings=HARD,
      ),
      implementation('sigmoid_loss', oracle.sigmoid, _sigmoid),
      implementation(
          'sigmoid_loss, in tiles',
          oracle.sigmoid,
          functools.partial(_sigmoid, **tiles),
      ),
      implementation('supcon_loss', oracle.supcon, _supcon, labels=classes),
  ]


def exp_space() -> compare.Implementation:
  """Returns the paper's equation as printed, in exp space, in float32."""

  def loss(z1, z2, t, beta, tau_plus):
    batch = len(z1)
    z = jnp.concatenate([z1, z2])
    pair = np.arange(2 * batch) % batch
    negative = jnp.asarray(pair[:, None] != pair[None])
    n = 2 * batch - 2
    sims = jnp.exp(jnp.matmul(z, z.T, precision='highest') / t)
    pos = jnp.tile(jnp.exp(jnp.sum(z1 * z2, axis=1) / t), 2)
    weights = jnp.where(negative, sims**beta, 0)
    reweighted = jnp.sum(weights * sims, axis=1) / (weights.sum(axis=1) / n)
    mass = (reweighted - tau_plus * n * pos) / (1 - tau_plus)
    mass = jnp.maximum(mass, n * jnp.exp(-1 / t))
    return -jnp.log(pos / (pos + mass)).mean()

  return compare.Implementation(
      'equation in exp space (JAX)', 'jax', oracle.hard, runner(loss),
      settings=HARD, takes_unit_rows=True,
      why='as in torch; and the derivative of x / y in JAX has y^2, which '
      'overflows first: the gradient is finite and wrong',
  )  # fmt: skip


def optax_ntxent() -> list[compare.Implementation]:
  """Returns optax's loss, on pairs and on classes."""
  import optax

  def loss(labels, z1, z2, t, beta, tau_plus):
    del beta, tau_plus
    labels = jnp.tile(jnp.array(labels(len(z1))), 2)
    return optax.losses.ntxent(jnp.concatenate([z1, z2]), labels, t)

  def of(labels):
    return runner(functools.partial(loss, labels))

  why = (
      'the gradient is NaN where a positive is more than 87 logits above every '
      'negative: masked entries have log(0), whose derivative a where keeps'
  )
  return [
      compare.Implementation(
          'ntxent', 'optax', oracle.nt_xent, of(lambda n: tuple(range(n))),
          why=why,
      ),
      compare.Implementation(
          'ntxent, classes of 2 pairs', 'optax', oracle.labeled_nt_xent,
          of(classes), labels=classes, why=why,
      ),
  ]  # fmt: skip


def easydel() -> list[compare.Implementation]:
  """Returns infonce_loss of EasyDeL's trainer of embeddings."""
  name = 'easydel'
  loading.bare(
      name, f'{name}.infra', f'{name}.trainers', f'{name}.trainers.trainer',
      f'{name}.trainers.embedding_trainer',
  )  # fmt: skip
  # The step that trains imports these; the loss calls none.
  loading.stub(f'{name}.infra.base_state', EasyDeLState=object)
  loading.stub(f'{name}.infra.loss_utils', LossMetrics=object)
  steps = (
      'make_assertions_and_get_sizes', 'minibatch_call', 'update_metrics',
      'update_state_respectfully', 'with_sharding_constraint',
  )  # fmt: skip
  loading.stub(f'{name}.trainers.trainer._fn', **dict.fromkeys(steps))
  infonce = loading.module(
      f'{name}.trainers.embedding_trainer._fn'
  ).infonce_loss

  def loss(z1, z2, t, beta, tau_plus):
    del beta, tau_plus
    return infonce(z1, z2, temperature=t)[0]

  return [
      compare.Implementation(
          'infonce_loss', name, oracle.in_batch, runner(loss),
          takes_unit_rows=True,
      )
  ]  # fmt: skip


PEERS = {'optax': optax_ntxent, 'easydel': easydel}
