# SPDX-License-Identifier: Apache-2.0
"""Fetches metrics of steps a little late, and stops at NaN and inf."""

import collections
import math
import pathlib
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from hcl_jax.runs import processes
from hcl_jax.training import task as task_lib

# Fetching the metrics of a step waits for it; those of an older one are there.
_LAG = 2


class NonFiniteError(RuntimeError):
  """Raised where a loss or gradient is NaN or infinite."""


class Watch:
  """Turns metrics on devices into numbers, and stops at those not finite.

  The metrics of a step are the same in all processes, which stop together. The
  batch that failed is saved in the workdir. ``last_checkpoint`` gives the last
  step saved, or None.
  """

  def __init__(self, workdir: pathlib.Path, last_checkpoint):
    self._workdir = workdir
    self._last_checkpoint = last_checkpoint
    self._pending = collections.deque()

  def add(
      self, step: int, batch: task_lib.Batch, metrics: dict[str, Any]
  ) -> list[tuple[int, dict[str, float]]]:
    """Takes a step's metrics; returns those of steps that are known by now."""
    self._pending.append((step, batch, metrics))
    return self._fetch(_LAG)

  def finish(self) -> list[tuple[int, dict[str, float]]]:
    """Waits for all steps taken; before a checkpoint, so that it is good."""
    return self._fetch(0)

  def _fetch(self, left):
    known = []
    while len(self._pending) > left:
      step, batch, metrics = self._pending.popleft()
      values = {name: float(x) for name, x in jax.device_get(metrics).items()}
      self._check(step, batch, values)
      known.append((step, values))
    return known

  def _check(self, step, batch, values):
    bad = [name for name, x in values.items() if not math.isfinite(x)]
    if not bad:
      return
    path = self._workdir / f'not_finite_step_{step}.npz'
    mine = {
        jax.tree_util.keystr(keys, simple=True, separator='.'): np.asarray(x)
        for keys, x in jax.tree_util.tree_leaves_with_path(batch)
    }
    arrays = multihost_utils.process_allgather(mine, tiled=True)
    if processes.is_first():
      np.savez_compressed(path, **arrays)
    last = self._last_checkpoint()
    saved = 'none was saved' if last is None else f'step {last}'
    what = ', '.join(f'{name}={values[name]}' for name in bad)
    rows = ''
    if 'index' in arrays:
      first = [*map(str, arrays['index'][:8])]
      first += ['...'] * (len(arrays['index']) > 8)
      rows = f' (rows {", ".join(first)} of the training split)'
    raise NonFiniteError(
        f'step {step} gave {what}. Its batch is in {path}{rows}. Last good '
        f'checkpoint: {saved}. A lower learning rate, a warm-up or '
        'config.optimizer.clip_norm may help.'
    )
