# SPDX-License-Identifier: Apache-2.0
"""Cross-validation: folds to choose C on, perhaps inside folds to score on."""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
from typing import Any
from typing import Protocol
import warnings

import joblib
import numpy as np

from hcl_jax import _checks

CS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
Progress = Callable[[int, int], None]
Score = Callable[[np.ndarray, np.ndarray], float]
# Numbers of rows to fit, and of rows to classify then.
Division = tuple[np.ndarray, np.ndarray]

# With fewer rows all folds are done before another process has started.
_ROWS_FOR_PROCESSES = 500
# Folds that a process is given at a time, whatever the number of processes.
_FOLDS_TOGETHER = 5


class Classifier(Protocol):
  """What is cross-validated; it goes to other processes by pickling."""

  def predictions(
      self,
      features: np.ndarray,
      labels: np.ndarray,
      divisions: Sequence[Division],
      cs: Sequence[float],
  ) -> list[list[np.ndarray]]:
    """Classes of some rows after fitting others, for each division and C.

    Args:
      features: ``[n, F]`` in float64.
      labels: ``[m]``, of the first rows at least; any row that is fitted is
        among these.
      divisions: which rows to fit and which to classify.
      cs: inverse strengths of the regularisation.
    """

  def describe(self, features: np.ndarray) -> dict[str, Any]:
    """What the classifier derives from features to fit, for the record."""


def accuracy(labels: np.ndarray, predicted: np.ndarray) -> float:
  """The share of rows that are classified rightly."""
  return float(np.mean(predicted == labels))


def cross_validate(
    classifier: Classifier,
    features: Any,
    labels: Any,
    *,
    cs: Sequence[float] = CS,
    folds: int = 10,
    inner_folds: int = 5,
    seed: int | None = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
  """Accuracy on held-out folds, with C chosen without them.

  The rows are divided into folds. For each of them, the other rows are divided
  into inner folds, and C is the first of ``cs`` with the best mean accuracy
  over these; then the classifier is fitted to all the other rows and scored on
  the fold.

  Args:
    classifier: what to fit.
    features: ``[n, F]``.
    labels: classes from 0, ``[n]``.
    cs: values of C to choose from.
    folds: number of folds.
    inner_folds: number of folds that C is chosen on.
    seed: of both divisions, >= 0, which are stratified; None: folds are rows
      that follow each other.
    workers: processes; None: one for each core, or this one alone for fewer
      than 500 rows. The result does not depend on it.
    progress: called after each fold with the number done and ``folds``; what
      it raises ends the folds that are under way.

  Returns:
    ``accuracy``, the mean over folds, between 0 and 1; ``deviation``, their
    standard deviation (unbiased); and ``folds``, for each its ``accuracy``, the
    chosen ``c``, its ``inner_accuracy`` and what the classifier derived.
  """
  features, labels, cs = _read(features, labels, cs)
  _check_seed(seed)
  check_folds(folds, inner_folds, labels, stratified=seed is not None)
  done = _in_processes(
      _run_fold,
      [
          (classifier, features, labels, division, cs, inner_folds, seed)
          for division in _splits(labels, folds, seed)
      ],
      _read_workers(workers, len(features), folds),
      progress,
  )
  accuracies = [fold['accuracy'] for fold in done]
  return {
      'accuracy': float(np.mean(accuracies)),
      'deviation': float(np.std(accuracies, ddof=1)),
      'folds': done,
  }


def predict(
    classifier: Classifier,
    train_features: Any,
    train_labels: Any,
    features: Any,
    *,
    cs: Sequence[float] = CS,
    folds: int = 10,
    seed: int | None = 0,
    score: Score = accuracy,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
  """Classes of other rows, with C chosen on folds of those that are fitted.

  Args:
    classifier: what to fit.
    train_features: ``[m, F]``.
    train_labels: classes from 0, ``[m]``.
    features: of the other rows, ``[n, F]``.
    cs: values of C to choose from.
    folds: number of folds that C is chosen on.
    seed: as of :func:`cross_validate`.
    score: the first C with the best mean of this over folds is chosen; a
      function of labels and predicted classes.
    workers: as of :func:`cross_validate`.
    progress: as of :func:`cross_validate`.

  Returns:
    Classes ``[n]``; the chosen ``c`` and its ``inner_score``.
  """
  train_features, labels, cs = _read(train_features, train_labels, cs)
  features = _checks.features('features', features, train_features.shape[1])
  _check_seed(seed)
  _check_count('folds', folds, len(labels))
  divisions = _splits(labels, folds, seed)
  inner = _in_processes(
      _inner_scores,
      [
          (classifier, train_features, labels, some, cs, score)
          for some in _in_parts(divisions, _FOLDS_TOGETHER)
      ],
      _read_workers(workers, len(labels), folds),
      _by_fold(progress, folds),
  )
  c, mean = _choose(cs, np.concatenate(inner))
  rows = np.arange(len(labels) + len(features))
  ((predicted,),) = classifier.predictions(
      np.concatenate([train_features, features]),
      labels,
      [np.split(rows, [len(labels)])],
      [c],
  )
  return predicted, {'c': c, 'inner_score': mean}


def check_folds(
    folds: int, inner_folds: int, labels: np.ndarray, *, stratified: bool = True
) -> None:
  """Raises a ValueError if there are too few rows for the folds."""
  left = len(labels) - -(-len(labels) // max(folds, 1))
  _check_count('folds', folds, len(labels))
  _check_count('inner_folds', inner_folds, left)
  if not stratified:
    return
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


def _check_count(name, folds, rows):
  _checks.positive_int(name, folds)
  if folds < 2:
    raise ValueError(f'{name} must be 2 or more, got {folds}.')
  if folds > rows:
    raise ValueError(f'{name} must be at most {rows}, the rows; got {folds}.')


def _run_fold(classifier, features, labels, division, cs, inner_folds, seed):
  """Chooses C on the rows outside a fold and scores on the fold."""
  rest, held_out = division
  train = features[rest], labels[rest]
  inner = _splits(labels[rest], inner_folds, seed)
  c, mean = _choose(cs, _inner_scores(classifier, *train, inner, cs, accuracy))
  ((predicted,),) = classifier.predictions(features, labels, [division], [c])
  return {
      'accuracy': accuracy(labels[held_out], predicted),
      'c': c,
      'inner_accuracy': mean,
      **classifier.describe(train[0]),
  }


def _inner_scores(classifier, features, labels, divisions, cs, score):
  """The score on each fold, for each C."""
  predictions = classifier.predictions(features, labels, divisions, cs)
  return [
      [score(labels[held_out], predicted) for predicted in by_c]
      for (_, held_out), by_c in zip(divisions, predictions, strict=True)
  ]


def _choose(cs, inner):
  """The first C with the best mean over folds, and that mean."""
  means = np.mean(inner, axis=0)
  best = int(np.argmax(means))
  return cs[best], float(means[best])


def _splits(labels, folds, seed):
  from sklearn import model_selection  # Slow to import.

  divide = model_selection.KFold(folds)
  if seed is not None:
    divide = model_selection.StratifiedKFold(
        folds, shuffle=True, random_state=seed
    )
  return list(divide.split(np.zeros((len(labels), 1)), labels))


def _in_parts(items, size):
  return [items[i : i + size] for i in range(0, len(items), size)]


def _by_fold(progress, folds):
  """Counts folds where parts of them are counted."""
  if progress is None:
    return None

  def after_part(done, _):
    last = min(done * _FOLDS_TOGETHER, folds)
    for fold in range((done - 1) * _FOLDS_TOGETHER, last):
      progress(fold + 1, folds)

  return after_part


def _in_processes(function, arguments, workers, progress):
  """The function of each of some arguments, in order."""
  results = joblib.Parallel(n_jobs=workers, return_as='generator')(
      joblib.delayed(function)(*each) for each in arguments
  )
  done = []
  with warnings.catch_warnings(), contextlib.closing(results):
    # Of folds given up where progress raises.
    warnings.filterwarnings('ignore', '.*cancelled', UserWarning)
    for result in results:
      done.append(result)
      if progress is not None:
        progress(len(done), len(arguments))
  return done


def _read(features, labels, cs):
  features = _checks.features('features', features).astype(np.float64)
  return features, _read_labels(labels, len(features)), _read_cs(cs)


def _read_workers(workers, rows, folds):
  if workers is None:
    many = rows >= _ROWS_FOR_PROCESSES
    workers = min(joblib.cpu_count(), folds) if many else 1
  _checks.positive_int('workers', workers)
  return workers


def _read_labels(labels, rows):
  labels = np.asarray(labels)
  whole = labels.dtype.kind in 'iu' and labels.size
  num_classes = max(int(labels.max()) + 1, 1) if whole else 1
  labels = _checks.classes('labels', labels, rows, num_classes)
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
  if seed is None:
    return
  if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
    raise ValueError(f'seed must be a whole number >= 0, got {seed!r}.')
