# SPDX-License-Identifier: Apache-2.0
"""Cross-validates classifiers: chooses C on folds, scores on other folds."""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import contextvars
import functools
from typing import Any
from typing import Protocol
from typing import cast
import warnings

import joblib
import numpy as np

from hcl_jax import _checks

CS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
Progress = Callable[[int, int], None]
Score = Callable[[np.ndarray, np.ndarray], float]
# Indices of rows to fit, and of rows to classify.
Division = tuple[np.ndarray, np.ndarray]

# With fewer rows all folds finish before another process has started.
_ROWS_FOR_PROCESSES = 500
# Folds per task of a process, for any number of processes.
_FOLDS_TOGETHER = 5

# Processes that the threads of a sweep share.
_pool_size: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    'pool_size', default=None
)


@contextlib.contextmanager
def shared_pool(size: int) -> Iterator[None]:
  """Runs cross-validations of several threads in shared processes.

  Their number is the same in all threads. They start with the first
  cross-validation that is not told its ``workers``.
  """
  token = _pool_size.set(size)
  try:
    yield
  finally:
    _pool_size.reset(token)


class Classifier(Protocol):
  """Interface of a classifier to cross-validate; must be picklable."""

  def predictions(
      self,
      features: np.ndarray,
      labels: np.ndarray,
      divisions: Sequence[Division],
      cs: Sequence[float],
  ) -> list[list[np.ndarray]]:
    """Returns classes of rows after fitting others, per division and C.

    Args:
      features: ``[n, F]`` in float64.
      labels: labels of the first m rows, ``[m]``, including all rows to fit.
      divisions: rows to fit and rows to classify.
      cs: inverse strengths of the regularization.
    """
    ...

  def describe(self, features: np.ndarray) -> dict[str, Any]:
    """Returns what the classifier derives from training features, by name."""
    del features
    return {}


def accuracy(labels: np.ndarray, predicted: np.ndarray) -> float:
  """Returns the share of rows that are classified correctly."""
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
  """Computes the accuracy on held-out folds, with C chosen without them.

  For each fold, the other rows are divided into inner folds, and C is the first
  of ``cs`` with the best mean accuracy over these. Then the classifier is
  fitted to all the other rows and scored on the fold.

  Args:
    classifier: classifier to fit.
    features: ``[n, F]``.
    labels: classes from 0, ``[n]``.
    cs: values of C to choose from.
    folds: number of folds.
    inner_folds: number of folds to choose C on.
    seed: seed of both stratified divisions, >= 0; None: folds are consecutive
      rows.
    workers: number of processes; None: one per core, or only this one for fewer
      than 500 rows. The result does not depend on it.
    progress: called after each fold with the number done and ``folds``; an
      exception from it cancels the remaining folds.

  Returns:
    ``accuracy``, the mean over folds, from 0 to 1; ``deviation``, the unbiased
    standard deviation; and ``folds``, each with ``accuracy``, the chosen ``c``,
    its ``inner_accuracy`` and what the classifier describes.
  """
  features, labels, cs = _read(features, labels, cs, seed)
  check_folds(folds, inner_folds, labels, stratified=seed is not None)
  run_fold = functools.partial(
      _run_fold, cs=cs, inner_folds=inner_folds, seed=seed
  )
  done = _in_processes(
      run_fold,
      [
          (classifier, features, labels, division)
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
  """Predicts classes of new rows, with C chosen on folds of the training rows.

  Args:
    classifier: classifier to fit.
    train_features: ``[m, F]``.
    train_labels: classes from 0, ``[m]``.
    features: features of the new rows, ``[n, F]``.
    cs: values of C to choose from.
    folds: number of folds to choose C on.
    seed: see :func:`cross_validate`.
    score: function of labels and predicted classes; the first C with the best
      mean score over folds is chosen.
    workers: see :func:`cross_validate`.
    progress: see :func:`cross_validate`.

  Returns:
    Classes ``[n]``; the chosen ``c`` and its ``inner_score``.
  """
  train_features, labels, cs = _read(train_features, train_labels, cs, seed)
  features = _checks.features('features', features, train_features.shape[1])
  _check_count('folds', folds, len(labels))
  divisions = _splits(labels, folds, seed)
  starts = range(0, folds, _FOLDS_TOGETHER)
  parts = [slice(start, start + _FOLDS_TOGETHER) for start in starts]
  inner = _in_processes(
      functools.partial(_inner_scores, cs=cs, score=score),
      [(classifier, train_features, labels, divisions[x]) for x in parts],
      _read_workers(workers, len(labels), folds),
      _by_fold(progress, folds),
  )
  c, mean = _choose(cs, np.concatenate(inner))
  rows, first = np.arange(len(labels) + len(features)), len(labels)
  ((predicted,),) = classifier.predictions(
      np.concatenate([train_features, features]),
      labels,
      [(rows[:first], rows[first:])],
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
        f'{classes[counts.argmin()]} outside a fold; got {inner_folds}.'
    )


def _check_count(name, folds, rows):
  _checks.positive_int(name, folds)
  if folds < 2:
    raise ValueError(f'{name} must be 2 or more, got {folds}.')
  if folds > rows:
    raise ValueError(
        f'{name} must be at most {rows}, the number of rows; got {folds}.'
    )


def _run_fold(classifier, features, labels, division, *, cs, inner_folds, seed):
  """Chooses C on the rows outside a fold and scores on the fold."""
  rest, held_out = division
  train = features[rest], labels[rest]
  inner = _splits(labels[rest], inner_folds, seed)
  scores = _inner_scores(classifier, *train, inner, cs=cs, score=accuracy)
  c, mean = _choose(cs, scores)
  ((predicted,),) = classifier.predictions(features, labels, [division], [c])
  return {
      'accuracy': accuracy(labels[held_out], predicted),
      'c': c,
      'inner_accuracy': mean,
      **classifier.describe(train[0]),
  }


def _inner_scores(classifier, features, labels, divisions, *, cs, score):
  """Returns the score on each fold, for each C."""
  predictions = classifier.predictions(features, labels, divisions, cs)
  return [
      [score(labels[held_out], predicted) for predicted in by_c]
      for (_, held_out), by_c in zip(divisions, predictions, strict=True)
  ]


def _choose(cs, inner):
  """Returns the first C with the best mean over folds, and that mean."""
  means = np.mean(inner, axis=0)
  best = int(np.argmax(means))
  return cs[best], float(means[best])


def _splits(labels, folds, seed):
  from sklearn import model_selection  # slow to import

  divide = model_selection.KFold(folds)
  if seed is not None:
    divide = model_selection.StratifiedKFold(
        folds, shuffle=True, random_state=seed
    )
  return list(divide.split(np.zeros((len(labels), 1)), labels))


def _by_fold(progress, folds):
  """Returns a progress function of tasks that reports folds."""
  if progress is None:
    return None

  def after_part(done, _):
    last = min(done * _FOLDS_TOGETHER, folds)
    for fold in range((done - 1) * _FOLDS_TOGETHER, last):
      progress(fold + 1, folds)

  return after_part


def _in_processes(function, arguments, workers, progress):
  """Returns results of a function for each tuple of arguments, in order."""
  # Threads that share processes must not share folders of large arrays.
  parallel = joblib.Parallel(
      n_jobs=workers,
      return_as='generator',
      max_nbytes='1M' if _pool_size.get() is None else None,
  )
  results = cast(
      Generator[Any, None, None],
      parallel(joblib.delayed(function)(*each) for each in arguments),
  )
  done = []
  with warnings.catch_warnings(), contextlib.closing(results):
    # From cancelled folds, if progress raises.
    warnings.filterwarnings('ignore', '.*cancelled', UserWarning)
    for result in results:
      done.append(result)
      if progress is not None:
        progress(len(done), len(arguments))
  return done


def _read(features, labels, cs, seed):
  features = _checks.features('features', features).astype(np.float64)
  labels = _checks.classes('labels', labels, len(features))
  if len(np.unique(labels)) < 2:
    raise ValueError(
        f'labels must have two classes or more, got only {labels[0]}.'
    )
  cs = [float(c) for c in cs]
  if not cs or not all(0 < c < np.inf for c in cs):
    raise ValueError(f'cs must be one or more numbers > 0, got {cs}.')
  is_int = isinstance(seed, int) and not isinstance(seed, bool)
  if seed is not None and not (is_int and seed >= 0):
    raise ValueError(f'seed must be an int >= 0, got {seed!r}.')
  return features, labels, cs


def _read_workers(workers, rows, folds):
  if workers is None:
    workers = _pool_size.get()
  if workers is None:
    many = rows >= _ROWS_FOR_PROCESSES
    workers = min(joblib.cpu_count(), folds) if many else 1
  _checks.positive_int('workers', workers)
  return workers
