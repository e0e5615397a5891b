# SPDX-License-Identifier: Apache-2.0
"""Computes top-1 and top-5 accuracies of class scores."""

import numpy as np


def top_accuracies(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Returns the shares of rows whose class is the best, or in the best five.

  Among classes with equal scores the lower number ranks first. With five
  classes or fewer, top-5 is 1 by definition.

  Args:
    scores: ``[n, classes]``; larger is better, -inf is allowed.
    labels: true classes, ``[n]``.

  Returns:
    ``{'top1': share, 'top5': share}``, between 0 and 1.
  """
  own = np.take_along_axis(scores, labels[:, None], axis=1)
  lower = np.arange(scores.shape[1])[None, :] < labels[:, None]
  rank = np.sum((scores > own) | ((scores == own) & lower), axis=1)
  return {'top1': float(np.mean(rank < 1)), 'top5': float(np.mean(rank < 5))}
