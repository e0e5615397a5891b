# SPDX-License-Identifier: Apache-2.0
"""Inputs of the table of correctness: ordinary, degenerate, large, small."""

from typing import NamedTuple

import numpy as np

TEMPERATURES = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
LOW = 0.05  # Temperatures below are reported apart.
_DIM = 8


class Case(NamedTuple):
  """Pairs of embeddings.

  Attributes:
    name: what is special about them.
    z1: first views, ``[batch, dim]``, float32.
    z2: second views.
    is_ordinary: whether training meets such a batch.
    has_scale: whether it is about norms, so that unit rows have no such case.
  """

  name: str
  z1: np.ndarray
  z2: np.ndarray
  is_ordinary: bool = False
  has_scale: bool = False

  @property
  def rows(self) -> np.ndarray:
    return np.concatenate([self.z1, self.z2])


def _normal(batch, seed):
  rng = np.random.default_rng(seed)
  z1, z2 = rng.standard_normal((2, batch, _DIM)).astype(np.float32)
  return z1, z2


def _close(batch, seed):
  """Returns pairs as a trained encoder gives them: cosines of about .95."""
  z1, noise = _normal(batch, seed)
  return z1, (z1 + np.float32(0.3) * noise).astype(np.float32)


def ordinary() -> list[Case]:
  """Returns random and close pairs, in batches of 2, 4 and 8."""
  cases = [
      Case(f'random, {n} pairs', *_normal(n, n), is_ordinary=True)
      for n in (2, 4, 8)
  ]
  return [*cases, Case('close pairs, 8', *_close(8, 9), is_ordinary=True)]


def degenerate() -> list[Case]:
  """Returns what real batches have now and then."""
  z1, z2 = _normal(4, 11)
  same1, same2 = z1.copy(), z2.copy()
  same1[1], same2[1] = same1[0], same2[0]
  eye = np.eye(4, _DIM, dtype=np.float32)
  zero = z1.copy()
  zero[2] = 0
  return [
      Case('duplicate pair', same1, same2),
      Case('orthogonal', eye, eye.copy()),
      Case('antipodal', z1, -z1),
      Case('all rows equal', np.ones_like(z1), np.ones_like(z1)),
      Case('row of zeros', zero, z2),
      Case('norms of 1e4', z1 * np.float32(1e4), z2 * 1e4, has_scale=True),
      Case('norms of 1e20', z1 * np.float32(1e20), z2 * 1e20, has_scale=True),
      Case('norms of 1e-20', z1 * np.float32(1e-20), z2 * 1e-20,
           has_scale=True),
  ]  # fmt: skip


def unit(case: Case) -> Case:
  """Returns the case with rows of norm 1, as losses of unit rows expect."""

  def scaled(z):
    z = z.astype(np.float64)
    norm = np.linalg.norm(z, axis=1, keepdims=True)
    return (z / np.where(norm == 0, 1, norm)).astype(np.float32)

  return case._replace(z1=scaled(case.z1), z2=scaled(case.z2))


def rounded(case: Case, dtype) -> Case:
  """Returns the case with numbers that the dtype has."""
  z1, z2 = (
      z.astype(dtype).astype(np.float32) for z in (case.z1, case.z2)
  )
  return case._replace(z1=z1, z2=z2)
