# SPDX-License-Identifier: Apache-2.0
"""Nested cross-validation: folds to score on, folds inside to choose C on."""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import os
from typing import Any
from typing import Protocol
import warnings

import numpy as np

from hcl_jax.evaluation import _arguments
from hcl_jax.losses import _arguments as _numbers

CS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
Progress = Callable[[int, int], None]

# With fewer rows all folds are done before another process has started.
_ROWS_FOR_PROCESSES = 500


class Classifier(Protocol):
  """What is cross-validated; it goes to other processes by pickling."""

  def accuracies(
      self,
      train: tuple[np.ndarray, np.ndarray],
      test: tuple[np.ndarray, np.ndarray],
      cs: Sequence[float],
  ) -> list[float]:
    """Shares of ``test`` classified rightly after fitting ``train``, by C.

    Args:
      train: features ``[m, F]`` in float64 and labels ``[m]``.
      test: the same of other rows.
      cs: inverse strengths of the regularisation.
    """

  def describe(self, features: np.ndarray) -> dict[str, Any]:
    """What the classifier derives from features to fit, for the record."""


def cross_validate(
    classifier: Classifier,
    features: Any,
    labels: Any,
    *,
    cs: Sequence[float] = CS,
    folds: int = 10,
    inner_folds: int = 5,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
  """Accuracy on held-out folds, with C chosen without them.

  The rows are divided into stratified folds. For each of them, the other rows
  are divided into inner folds, and C is the first of ``cs`` with the best mean
  accuracy over these; then the classifier is fitted to all the other rows and
  scored on the fold.

  Args:
    classifier: what to fit.
    features: ``[n, F]``.
    labels: classes from 0, ``[n]``.
    cs: values of C to choose from.
    folds: number of folds.
    inner_folds: number of folds that C is chosen on.
    seed: of both divisions, >= 0.
    workers: processes; None: one for each core, or this one alone for fewer
      than 500 rows. The result does not depend on it.
    progress: called after each fold with the number done and ``folds``; what
      it raises ends the folds that are under way.

  Returns:
    ``accuracy``, the mean over folds, between 0 and 1; ``deviation``, their
    standard deviation (unbiased); and ``folds``, for each its ``accuracy``, the
    chosen ``c``, its ``inner_accuracy`` and what the classifier derived.
  """
  import joblib

  features = _arguments.features('features', features).astype(np.float64)
  labels = _read_labels(labels, len(features))
  cs = _read_cs(cs)
  check_folds(folds, inner_folds, labels)
  _check_seed(seed)
  if workers is None:
    many = len(features) >= _ROWS_FOR_PROCESSES
    workers = min(usable_cores(), folds) if many else 1
  _numbers.positive_int('workers', workers)
  run = joblib.delayed(_run_fold)
  results = joblib.Parallel(n_jobs=workers, return_as='generator')(
      run(classifier, features, labels, split, cs, inner_folds, seed)
      for split in _splits(labels, folds, seed)
  )
  done = []
  with warnings.catch_warnings(), contextlib.closing(results):
    # Of folds given up where progress raises.
    warnings.filterwarnings('ignore', '.*cancelled', UserWarning)
    for result in results:
      done.append(result)
      if progress is not None:
        progress(len(done), folds)
  accuracies = [fold['accuracy'] for fold in done]
  return {
      'accuracy': float(np.mean(accuracies)),
      'deviation': float(np.std(accuracies, ddof=1)),
      'folds': done,
  }


def check_folds(folds: int, inner_folds: int, labels: np.ndarray) -> None:
  """Raises a ValueError if a class has too few rows for the folds."""
  for name, value in (('folds', folds), ('inner_folds', inner_folds)):
    _numbers.positive_int(name, value)
    if value < 2:
      raise ValueError(f'{name} must be 2 or more, got {value}.')
  classes, counts = np.unique(labels, return_counts=True)
  least = int(counts.min())
  if folds > least:
    raise ValueError(
        f'folds must be at most {least}, the rows of class '
        f'{classes[counts.argmin()]}; got {folds}.'
    )
  left = least - -(-least // folds)
  if inner_folds > left:
    raise ValueError(
        f'inner_folds must be at most {left}, the rows of class '
        f'{classes[counts.argmin()]} left by a fold; got {inner_folds}.'
    )


def _run_fold(classifier, features, labels, split, cs, inner_folds, seed):
  rest, held_out = split
  features_rest, labels_rest = features[rest], labels[rest]
  inner = [
      classifier.accuracies(
          (features_rest[train], labels_rest[train]),
          (features_rest[test], labels_rest[test]),
          cs,
      )
      for train, test in _splits(labels_rest, inner_folds, seed)
  ]
  means = np.mean(inner, axis=0)
  best = int(np.argmax(means))
  (accuracy,) = classifier.accuracies(
      (features_rest, labels_rest),
      (features[held_out], labels[held_out]),
      cs[best : best + 1],
  )
  return {
      'accuracy': float(accuracy),
      'c': cs[best],
      'inner_accuracy': float(means[best]),
      **classifier.describe(features_rest),
  }


def _splits(labels, folds, seed):
  from sklearn import model_selection  # Slow to import.

  divide = model_selection.StratifiedKFold(
      folds, shuffle=True, random_state=seed
  )
  return list(divide.split(np.zeros((len(labels), 1)), labels))


def usable_cores() -> int:
  """Cores that this process may run on."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _read_labels(labels, rows):
  labels = np.asarray(labels)
  whole = labels.dtype.kind in 'iu' and labels.size
  num_classes = max(int(labels.max()) + 1, 1) if whole else 1
  labels = _arguments.labels('labels', labels, rows, num_classes)
  if len(np.unique(labels)) < 2:
    raise ValueError(
        f'labels must hold two classes or more, got only {labels[0]}.'
    )
  return labels


def _read_cs(cs):
  cs = [float(c) for c in cs]
  if not cs or not all(0 < c < np.inf for c in cs):
    raise ValueError(f'cs must be one or more numbers > 0, got {cs}.')
  return cs


def _check_seed(seed):
  if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
    raise ValueError(f'seed must be a whole number >= 0, got {seed!r}.')
