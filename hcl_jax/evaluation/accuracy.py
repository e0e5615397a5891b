# SPDX-License-Identifier: Apache-2.0
"""Computes top-1 and top-5 accuracies of class scores."""

import numpy as np


def top_accuracies(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Returns the shares of rows whose class is the best, or in the best five.

  Among classes with equal scores the lower number ranks first. With five
  classes or fewer there is no top-5, which would be 1.

  Args:
    scores: ``[n, classes]``; larger is better, -inf is allowed.
    labels: true classes, ``[n]``.

  Returns:
    ``{'top1': share, 'top5': share}``, between 0 and 1.
  """
  own = np.take_along_axis(scores, labels[:, None], axis=1)
  lower = np.arange(scores.shape[1])[None, :] < labels[:, None]
  rank = np.sum((scores > own) | ((scores == own) & lower), axis=1)
  ks = (1, 5) if scores.shape[1] > 5 else (1,)
  return {f'top{k}': float(np.mean(rank < k)) for k in ks}
