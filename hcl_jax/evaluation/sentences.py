# SPDX-License-Identifier: Apache-2.0
"""Scores sentence embeddings on the tasks of skip-thoughts and its successors.

The classifier is always logistic regression with C from 2^0 to 2^8, as in
liblinear, which the released evaluations use: the L2 penalty includes the
intercept, and each class is fitted against the rest. The solver differs, so
that all six tasks take minutes. On CR, with 512 features per sentence from bags
of words, all folds fitted separately had the same C and accuracies as a float64
solution accurate to 1e-11; two inner folds of MR, fitted together, had the same
predictions for every C.
"""

import dataclasses
from typing import Any
from typing import Protocol

import numpy as np

from hcl_jax import _checks
from hcl_jax.evaluation import _logistic
from hcl_jax.evaluation import cross_validation

CS = tuple(2.0**power for power in range(9))
# As in the released evaluations.
SEED = 1234


class Task(Protocol):
  """Interface of a task, such as ``hcl_jax.sentences.SentenceTask``.

  Attributes:
    labels: classes from 0, ``[n]``, one per sentence or pair.
    num_train: number of first rows to fit, the others are scored; None:
      cross-validate.
    is_pairs: whether rows are pairs of sentences.
  """

  labels: np.ndarray
  num_train: int | None
  is_pairs: bool


def sentence_scores(
    embeddings: Any, task: Task, **options: Any
) -> dict[str, Any]:
  """Scores embeddings on one of the six tasks by the task's protocol.

  Options and results are those of :func:`sentence_accuracy`,
  :func:`question_accuracy` or :func:`paraphrase_scores`.

  Args:
    embeddings: one per row of ``task.sentences``, ``[n, F]``; for a task of
      pairs ``[2 n, F]``, all first sentences before all second ones.
    task: the task.
    **options: options of the function that scores the task.
  """
  embeddings = np.asarray(embeddings)
  num_sentences = len(task.labels) * (2 if task.is_pairs else 1)
  if len(embeddings) != num_sentences:
    raise ValueError(
        f'embeddings must have one row for each of the {num_sentences} '
        f'sentences of the task; got shape {embeddings.shape}.'
    )
  if task.num_train is None:
    return sentence_accuracy(embeddings, task.labels, **options)
  rows = slice(task.num_train), slice(task.num_train, None)
  train_labels, test_labels = (task.labels[part] for part in rows)
  if not task.is_pairs:
    train, test = (embeddings[part] for part in rows)
    return question_accuracy(train, train_labels, test, test_labels, **options)
  first, second = np.split(embeddings, 2)
  train, test = ((first[part], second[part]) for part in rows)
  return paraphrase_scores(train, train_labels, test, test_labels, **options)


def sentence_accuracy(
    embeddings: Any,
    labels: Any,
    *,
    folds: int = 10,
    seed: int = SEED,
    **options: Any,
) -> dict[str, Any]:
  """Computes the accuracy by nested cross-validation: MR, CR, SUBJ and MPQA.

  Rows are shuffled. Folds, and inner folds to choose C on, are consecutive rows
  of them, not stratified.

  Args:
    embeddings: ``[n, F]``.
    labels: classes from 0, ``[n]``.
    folds: number of folds, and of inner folds.
    seed: seed of the shuffle.
    **options: ``cs``, ``workers`` and ``progress`` of
      :func:`cross_validation.cross_validate`.

  Returns:
    See :func:`cross_validation.cross_validate`. The accuracy is the mean over
    all folds. (The released evaluation prints that of the first fold.)
  """
  embeddings, labels = _shuffle(embeddings, labels, seed)
  options.setdefault('cs', CS)
  return cross_validation.cross_validate(
      _Logistic(), embeddings, labels, folds=folds, inner_folds=folds,
      seed=None, **options,
  )  # fmt: skip


def question_accuracy(
    train_embeddings: Any,
    train_labels: Any,
    test_embeddings: Any,
    test_labels: Any,
    *,
    folds: int = 10,
    seed: int = SEED,
    **options: Any,
) -> dict[str, Any]:
  """Computes the accuracy on a test set, with C chosen on the other: TREC.

  Args:
    train_embeddings: ``[m, F]``.
    train_labels: classes from 0, ``[m]``.
    test_embeddings: ``[n, F]``.
    test_labels: ``[n]``.
    folds: number of folds of the shuffled training set to choose C on, by
      accuracy.
    seed: seed of the shuffle.
    **options: ``cs``, ``workers`` and ``progress`` of
      :func:`cross_validation.predict`.

  Returns:
    ``accuracy``, the chosen ``c`` and its ``inner_score``.
  """
  train = _shuffle(train_embeddings, train_labels, seed)
  test_labels, predicted, chosen = _predict(
      train, test_embeddings, test_labels, folds=folds, **options
  )
  accuracy = cross_validation.accuracy(test_labels, predicted)
  return {'accuracy': accuracy, **chosen}


def paraphrase_scores(
    train_pairs: tuple[Any, Any],
    train_labels: Any,
    test_pairs: tuple[Any, Any],
    test_labels: Any,
    *,
    folds: int = 10,
    seed: int = SEED,
    **options: Any,
) -> dict[str, Any]:
  r"""Computes accuracy and F1 on a test set of pairs: MRPC (also named MSRP).

  The features of a pair with embeddings u and v are, elementwise,

  .. math::
    (|u - v|, u \cdot v)

  Args:
    train_pairs: embeddings of first and of second sentences, ``[m, F]`` each.
    train_labels: 1 for paraphrases, 0 for others, ``[m]``.
    test_pairs: the same for the test set, ``[n, F]`` each.
    test_labels: ``[n]``.
    folds: number of folds of the shuffled training set to choose C on, by F1.
    seed: seed of the shuffle.
    **options: ``cs``, ``workers`` and ``progress`` of
      :func:`cross_validation.predict`.

  Returns:
    ``accuracy``, ``f1``, the chosen ``c`` and its ``inner_score``, an F1.
  """
  train = _shuffle(pair_features(*train_pairs), train_labels, seed)
  test = pair_features(*test_pairs)
  test_labels, predicted, chosen = _predict(
      train, test, test_labels, folds=folds, score=f1, **options
  )
  accuracy = cross_validation.accuracy(test_labels, predicted)
  return {'accuracy': accuracy, 'f1': f1(test_labels, predicted), **chosen}


def pair_features(first: Any, second: Any) -> np.ndarray:
  """Returns elementwise distances and products, ``[n, 2 F]``."""
  first, second = np.asarray(first), np.asarray(second)
  if first.shape != second.shape:
    raise ValueError(
        'both sentences of a pair must have embeddings of one shape; got '
        f'{first.shape} and {second.shape}.'
    )
  return np.concatenate([np.abs(first - second), first * second], axis=1)


def f1(labels: np.ndarray, predicted: np.ndarray) -> float:
  """Returns the harmonic mean of precision and recall of class 1, or 0."""
  both = np.sum((labels == 1) & (predicted == 1))
  either = np.sum(labels == 1) + np.sum(predicted == 1)
  return float(2 * both / either) if either else 0.0


def _shuffle(features, labels, seed):
  features, labels = np.asarray(features), np.asarray(labels)
  # The legacy generator gives the order of the released evaluations.
  order = np.random.RandomState(seed).permutation(len(features))
  if labels.shape != order.shape:
    raise ValueError(
        f'labels must be {len(order)} integers, one per row of features; got '
        f'shape {labels.shape}.'
    )
  return features[order], labels[order]


def _predict(train, test, test_labels, *, cs=CS, **options):
  """Returns labels of the test set, predicted ones, and what was chosen."""
  features, labels = train
  predicted, chosen = cross_validation.predict(
      _Logistic(), features, labels, test, cs=cs, seed=None, **options
  )
  test_labels = _checks.classes('test_labels', test_labels, len(predicted))
  return test_labels, predicted, chosen


@dataclasses.dataclass(frozen=True)
class _Logistic(cross_validation.Classifier):
  """Logistic regression of each class against the rest."""

  def predictions(self, features, labels, divisions, cs):
    classes = np.unique(labels)
    # Two classes need one regression only.
    positives = classes[1:] if len(classes) == 2 else classes
    by_class = [
        _decisions(_with_ones(features), labels, positive, divisions, cs)
        for positive in positives
    ]
    results = []
    for scores in zip(*by_class, strict=True):
      if len(classes) == 2:
        chosen = (scores[0] > 0).astype(int)
      else:
        chosen = np.argmax(scores, axis=0)
      results.append(list(classes[chosen]))
    return results


def _with_ones(features):
  """Adds a column of ones for the intercept, whose weight is penalized too."""
  ones = np.ones((len(features), 1))
  return np.concatenate([features, ones], axis=1).astype(np.float32)


def _decisions(features, labels, positive, divisions, cs):
  """Returns logits of a class against the rest, per division ``[len(cs), n]``.

  Logits are -inf if no row of the class is fitted.
  """
  is_positive = labels == positive
  is_fitted = np.zeros((len(divisions), len(labels)), bool)
  for selected, (rest, _) in zip(is_fitted, divisions, strict=True):
    selected[rest] = True
  weights = _logistic.fit_paths(
      features[: len(labels)], is_positive, is_fitted, cs
  )
  return [
      of_division @ features[others].T
      if is_positive[rest].any()
      else np.full((len(cs), len(others)), -np.inf)
      for of_division, (rest, others) in zip(weights, divisions, strict=True)
  ]
