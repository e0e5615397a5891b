# SPDX-License-Identifier: Apache-2.0
"""Curves of scores over training: when a run reaches what another ended at."""

from typing import Any

import numpy as np

from hcl_jax import _checks


def epochs_to_reach(
    epochs: Any, scores: Any, target: float, *, interpolate: bool = False
) -> float | None:
  """The first epoch at which a score is at least a target.

  With another run's final accuracy as the target, this is the paper's
  comparison of speed: hard negatives reach in 60 epochs of STL10 what SimCLR
  does in 400 (Robinson et al., 2021).

  Args:
    epochs: at which the score was measured, rising, ``[n]``.
    scores: ``[n]``.
    target: the score to reach.
    interpolate: the straight line between two measurements counts too; without
      it only measurements do.

  Returns:
    The epoch, or None if the curve stays below.

  Example:
    >>> epochs_to_reach([10, 20, 30], [0.2, 0.6, 0.7], 0.4)
    20.0
    >>> epochs_to_reach([10, 20, 30], [0.2, 0.6, 0.7], 0.4, interpolate=True)
    15.0
  """
  epochs = _checks.numbers('epochs', epochs)
  scores = _checks.numbers('scores', scores)
  if epochs.shape != scores.shape:
    raise ValueError(
        'epochs and scores must have the same length; got '
        f'{len(epochs)} and {len(scores)}.'
    )
  if np.any(np.diff(epochs) <= 0):
    raise ValueError(f'epochs must rise; got {epochs}. Sort both first.')
  reached = np.flatnonzero(scores >= target)
  if not len(reached):
    return None
  i = reached[0]
  if i == 0 or not interpolate:
    return float(epochs[i])
  part = (target - scores[i - 1]) / (scores[i] - scores[i - 1])
  return float(epochs[i - 1] + part * (epochs[i] - epochs[i - 1]))
