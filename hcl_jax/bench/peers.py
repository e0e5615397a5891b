# SPDX-License-Identifier: Apache-2.0
"""Losses of other JAX libraries, to time beside those of hcl_jax."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import importlib.util

import jax
import jax.numpy as jnp

from hcl_jax.bench import harness

TEMPERATURE, BETA, TAU_PLUS = 0.5, 1.0, 0.1

# Makes the candidate of a library, which it imports.
Peer = Callable[[], harness.Candidate]


def optax_ntxent() -> harness.Candidate:
  """Returns optax's standard loss, which broadcasts to ``[2B, 2B, dim]``."""
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

  return harness.Candidate('optax ntxent', function, inputs, need)


PEERS: dict[str, Peer] = {'optax': optax_ntxent}


def find(
    names: Sequence[str], peers: Mapping[str, Peer]
) -> tuple[list[harness.Candidate], list[str]]:
  """Makes the candidates of libraries that are installed.

  Args:
    names: packages to import, each a key of ``peers``.
    peers: what makes a candidate, by the name of its package.

  Returns:
    The candidates, and the names of packages that cannot be imported.
  """
  found, missing = [], []
  for name in names:
    if importlib.util.find_spec(name) is None:
      missing.append(name)
      continue
    try:
      found.append(peers[name]())
    except Exception as error:  # whatever a half-installed package raises
      missing.append(f'{name} (does not import: {error})')
  return found, missing
