# SPDX-License-Identifier: Apache-2.0
"""Cross-validates classifiers of frozen features: RBF SVM and logistic."""

import dataclasses
from typing import Any
import warnings

import numpy as np

from hcl_jax.evaluation import cross_validation

_LOGISTIC_ITERATIONS = 200


def svm_accuracy(
    features: Any, labels: Any, *, gamma: str | float = 'scale', **options: Any
) -> dict[str, Any]:
  r"""Computes the accuracy of a support vector machine with an RBF kernel.

  .. math::
    k(x, y) = e^{-\gamma |x - y|^2}

  This is InfoGraph's protocol: 10 stratified folds, C from 1e-3 to 1e3 chosen
  on 5 inner folds, raw features. InfoGraph uses scikit-learn's default for
  gamma, which was ``'auto'`` before version 0.22.

  Args:
    features: ``[n, F]``.
    labels: classes from 0, ``[n]``.
    gamma: ``'scale'``, 1 / (F times the variance of all training features);
      ``'auto'``, 1 / F; or a number > 0.
    **options: ``cs``, ``folds``, ``inner_folds``, ``seed``, ``workers`` and
      ``progress`` of :func:`cross_validation.cross_validate`.

  Returns:
    See :func:`cross_validation.cross_validate`; each fold also has ``gamma``.

  Example:
    >>> import numpy as np
    >>> features = np.float32([[i % 2 + i / 100] for i in range(40)])
    >>> result = svm_accuracy(features, np.arange(40) % 2)
    >>> result['accuracy'], len(result['folds'])
    (1.0, 10)
  """
  if isinstance(gamma, (int, float)) and not isinstance(gamma, bool):
    is_valid = 0 < gamma < np.inf
  else:
    is_valid = isinstance(gamma, str) and gamma in ('scale', 'auto')
  if not is_valid:
    raise ValueError(
        f"gamma must be 'scale', 'auto' or a number > 0, got {gamma!r}."
    )
  return cross_validation.cross_validate(
      _Rbf(gamma), features, labels, **options
  )


def logistic_accuracy(
    features: Any, labels: Any, **options: Any
) -> dict[str, Any]:
  """Computes the accuracy of logistic regression on standardized features.

  Features have mean 0 and standard deviation 1 on the training rows; a fit
  takes at most 200 iterations of L-BFGS.

  Args:
    features: ``[n, F]``.
    labels: classes from 0, ``[n]``.
    **options: see :func:`svm_accuracy`; C is the inverse strength of the L2
      penalty.

  Returns:
    See :func:`cross_validation.cross_validate`.
  """
  return cross_validation.cross_validate(
      _Logistic(), features, labels, **options
  )


@dataclasses.dataclass(frozen=True)
class _Rbf(cross_validation.Classifier):
  """Support vector machine; computes its kernel once for all C."""

  gamma: str | float

  def predictions(self, features, labels, divisions, cs):
    return _one_by_one(self._predict, features, labels, divisions, cs)

  def _predict(self, train, features, cs):
    from sklearn import svm
    from sklearn.metrics import pairwise

    gamma = self.describe(train[0])['gamma']
    kernel = pairwise.rbf_kernel(train[0], gamma=gamma)
    to_train = pairwise.rbf_kernel(features, train[0], gamma=gamma)
    return [
        svm.SVC(C=c, kernel='precomputed')
        .fit(kernel, train[1])
        .predict(to_train)
        for c in cs
    ]

  def describe(self, features):
    gamma = self.gamma
    if gamma == 'auto':
      gamma = 1 / features.shape[1]
    elif gamma == 'scale':
      gamma = 1 / (features.shape[1] * features.var() or 1.0)
    return {'gamma': float(gamma)}


@dataclasses.dataclass(frozen=True)
class _Logistic(cross_validation.Classifier):
  """Logistic regression on standardized features."""

  def predictions(self, features, labels, divisions, cs):
    return _one_by_one(self._predict, features, labels, divisions, cs)

  def _predict(self, train, features, cs):
    from sklearn import exceptions
    from sklearn import linear_model
    from sklearn import preprocessing

    scale = preprocessing.StandardScaler().fit(train[0])
    train_features, features = map(scale.transform, (train[0], features))
    results = []
    for c in cs:
      model = linear_model.LogisticRegression(
          C=c, max_iter=_LOGISTIC_ITERATIONS
      )
      with warnings.catch_warnings():
        warnings.simplefilter('ignore', exceptions.ConvergenceWarning)
        model.fit(train_features, train[1])
      results.append(model.predict(features))
    return results


def _one_by_one(predict, features, labels, divisions, cs):
  """Returns predictions of a classifier that fits each division separately."""
  return [
      predict((features[rest], labels[rest]), features[others], cs)
      for rest, others in divisions
  ]
