# SPDX-License-Identifier: Apache-2.0
"""Top-1 and top-5 accuracy of class scores."""

import numpy as np


def top_accuracies(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Shares of rows whose class has the best, or one of the five best, scores.

  Of classes with equal scores the lower number ranks first. With five classes
  or fewer, top-5 is 1 by definition.

  Args:
    scores: larger is better, -inf allowed, ``[n, classes]``.
    labels: the right classes, ``[n]``.

  Returns:
    ``{'top1': share, 'top5': share}``, between 0 and 1.
  """
  own = np.take_along_axis(scores, labels[:, None], axis=1)
  lower = np.arange(scores.shape[1])[None, :] < labels[:, None]
  rank = np.sum((scores > own) | ((scores == own) & lower), axis=1)
  return {'top1': float(np.mean(rank < 1)), 'top5': float(np.mean(rank < 5))}
