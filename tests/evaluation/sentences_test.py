# SPDX-License-Identifier: Apache-2.0
"""Scores of sentence embeddings against loops over plain numpy."""

import pickle
import types
from unittest import mock
import warnings

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from sklearn import linear_model
from sklearn import metrics

from hcl_jax import evaluation
from hcl_jax.evaluation import _logistic
from hcl_jax.evaluation import cross_validation
from hcl_jax.evaluation import sentences

_CS = (0.25, 2.0, 64.0)


def _fit(features, signs, c):
  """Minimises |w|^2 / 2 + c sum log(1 + exp(-sign w x)) by Newton's method."""
  weights = np.zeros(features.shape[1])
  for _ in range(50):
    margins = signs * (features @ weights)
    p = 1 / (1 + np.exp(margins))
    gradient = weights - c * features.T @ (signs * p)
    curvature = (p * (1 - p))[:, None] * features
    hessian = np.eye(len(weights)) + c * features.T @ curvature
    weights -= np.linalg.solve(hessian, gradient)
  return weights


def _classify(train, labels, test, c):
  """One class against the rest, with a feature that is 1."""
  add = lambda x: np.concatenate([x, np.ones((len(x), 1))], 1)  # noqa: E731
  train, test = add(np.float64(train)), add(np.float64(test))
  scores = [
      test @ _fit(train, np.where(labels == k, 1.0, -1.0), c)
      for k in range(labels.max() + 1)
  ]
  return np.argmax(scores, axis=0)


def _folds(rows, count):
  """Rows to fit and rows to score, in parts of rows that follow each other."""
  for part in np.array_split(np.arange(rows), count):
    yield np.setdiff1d(np.arange(rows), part), part


def _choose(features, labels, folds, score):
  """The first C with the best mean score, and that score."""
  means = [
      np.mean([
          score(labels[test],
                _classify(features[train], labels[train], features[test], c))
          for train, test in _folds(len(labels), folds)
      ])  # fmt: skip
      for c in _CS
  ]
  return _CS[np.argmax(means)], max(means)


def _shuffled(*arrays, seed=1234):
  order = np.arange(len(arrays[0]))
  np.random.RandomState(seed).shuffle(order)
  return [array[order] for array in arrays]


def _points(rows, num_classes, seed=0, noise=1.2):
  """Features around a centre for each class, classes of unequal sizes."""
  rng = np.random.default_rng(seed)
  labels = rng.integers(num_classes + 1, size=rows) % num_classes
  centres = rng.standard_normal((num_classes, 5))
  features = centres[labels] + noise * rng.standard_normal((rows, 5))
  return features.astype(np.float32), labels.astype(np.int32)


def _accuracy(labels, predicted):
  return sum(labels == predicted) / len(labels)


class SentenceAccuracyTest(parameterized.TestCase):

  @parameterized.parameters(2, 3)
  def test_equals_loops(self, num_classes):
    features, labels = _points(60, num_classes)
    result = evaluation.sentence_accuracy(features, labels, folds=4, cs=_CS)
    x, y = _shuffled(features, labels)
    expected = []
    for train, test in _folds(60, 4):
      c, inner = _choose(x[train], y[train], 4, _accuracy)
      predicted = _classify(x[train], y[train], x[test], c)
      expected.append((_accuracy(y[test], predicted), c, inner))
    found = [
        (fold['accuracy'], fold['c'], fold['inner_accuracy'])
        for fold in result['folds']
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    self.assertAlmostEqual(
        result['accuracy'], np.mean([accuracy for accuracy, *_ in expected])
    )
    self.assertGreater(len({c for _, c, _ in expected}), 1)
    self.assertNotEqual(found[0][0], result['accuracy'])

  def test_the_seed_decides_the_folds(self):
    features, labels = _points(40, 2)
    run = lambda **knobs: evaluation.sentence_accuracy(  # noqa: E731
        features, labels, folds=3, cs=[1.0], **knobs
    )
    self.assertEqual(run(), run(seed=1234, workers=2))
    self.assertNotEqual(run(), run(seed=1))

  def test_powers_of_two_by_default(self):
    features, labels = _points(30, 2)
    cs = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    self.assertEqual(sentences.CS, cs)
    self.assertEqual(
        evaluation.sentence_accuracy(features, labels, folds=2),
        evaluation.sentence_accuracy(features, labels, folds=2, cs=cs),
    )


class QuestionAccuracyTest(absltest.TestCase):

  def test_equals_loops(self):
    features, labels = _points(90, 4, seed=2)
    train, test = slice(60), slice(60, 90)
    counts = []
    result = evaluation.question_accuracy(
        features[train], labels[train], features[test], labels[test], folds=5,
        cs=_CS, progress=lambda *done: counts.append(done),
    )  # fmt: skip
    x, y = _shuffled(features[train], labels[train])
    c, inner = _choose(x, y, 5, _accuracy)
    predicted = _classify(x, y, features[test], c)
    self.assertEqual(result['c'], c)
    self.assertAlmostEqual(result['inner_score'], inner)
    self.assertAlmostEqual(
        result['accuracy'], _accuracy(labels[test], predicted)
    )
    self.assertEqual(counts, [(done + 1, 5) for done in range(5)])


class ParaphraseScoresTest(absltest.TestCase):

  def test_equals_loops(self):
    rng = np.random.default_rng(3)
    labels = (rng.random(90) < 0.7).astype(int)
    u = rng.standard_normal((90, 3)).astype(np.float32)
    v = np.where(labels[:, None], u, 0) + rng.standard_normal((90, 3))
    v = v.astype(np.float32)
    result = evaluation.paraphrase_scores(
        (u[:60], v[:60]), labels[:60], (u[60:], v[60:]), labels[60:], folds=4,
        cs=_CS,
    )  # fmt: skip
    features = np.array([
        [abs(a - b) for a, b in zip(*pair, strict=True)]
        + [a * b for a, b in zip(*pair, strict=True)]
        for pair in zip(u, v, strict=True)
    ])
    x, y = _shuffled(features[:60], labels[:60])
    c, inner = _choose(x, y, 4, metrics.f1_score)
    predicted = _classify(x, y, features[60:], c)
    self.assertEqual(result['c'], c)
    self.assertAlmostEqual(result['inner_score'], inner)
    self.assertAlmostEqual(
        result['accuracy'], _accuracy(labels[60:], predicted)
    )
    self.assertAlmostEqual(
        result['f1'], metrics.f1_score(labels[60:], predicted)
    )
    self.assertNotEqual(result['f1'], result['accuracy'])

  def test_f1(self):
    self.assertEqual(sentences.f1(np.zeros(3), np.zeros(3)), 0.0)
    self.assertAlmostEqual(
        sentences.f1(np.array([1, 1, 0, 0]), np.array([1, 0, 1, 1])), 0.4
    )

  def test_shapes_must_agree(self):
    with self.assertRaisesRegex(ValueError, r'\(2, 3\) and \(2, 4\)'):
      sentences.pair_features(np.zeros((2, 3)), np.zeros((2, 4)))


class SentenceScoresTest(absltest.TestCase):

  def test_follows_the_protocol_of_the_task(self):
    x, y = _points(60, 2)
    knobs = {'folds': 3, 'cs': [1.0, 8.0]}
    make = lambda train, pairs: types.SimpleNamespace(  # noqa: E731
        labels=y, num_train=train, is_pairs=pairs
    )
    self.assertEqual(
        evaluation.sentence_scores(x, make(None, False), **knobs),
        evaluation.sentence_accuracy(x, y, **knobs),
    )
    self.assertEqual(
        evaluation.sentence_scores(x, make(40, False), **knobs),
        evaluation.question_accuracy(x[:40], y[:40], x[40:], y[40:], **knobs),
    )
    z = x[::-1]
    self.assertEqual(
        evaluation.sentence_scores(
            np.concatenate([x, z]), make(40, True), **knobs
        ),
        evaluation.paraphrase_scores(
            (x[:40], z[:40]), y[:40], (x[40:], z[40:]), y[40:], **knobs
        ),
    )
    with self.assertRaisesRegex(ValueError, r'each of the 120 sent.*\(60, 5\)'):
      evaluation.sentence_scores(x, make(40, True))


class SolverTest(parameterized.TestCase):

  @parameterized.parameters(1.0, 30.0)
  def test_is_near_a_tight_solution_of_liblinear(self, scale):
    features, labels = _points(300, 2, noise=2.0)
    features *= scale
    (found,) = sentences._decisions(
        sentences._with_ones(features),
        labels[:200],
        1,
        [np.split(np.arange(300), [200])],
        sentences.CS,
    )
    for c, decisions in zip(sentences.CS, found, strict=True):
      model = linear_model.LogisticRegression(
          C=c, solver='liblinear', tol=1e-10, max_iter=10_000
      ).fit(np.float64(features[:200]), labels[:200])
      expected = model.decision_function(np.float64(features[200:]))
      np.testing.assert_allclose(
          decisions, expected, atol=1e-3 * np.abs(expected).max()
      )

  @parameterized.product(rows=(40, 400), noise=(0.3, 3.0))
  def test_is_the_minimum(self, rows, noise):
    # More features than rows in one case, and classes far apart in another.
    features, labels = _points(rows, 2, noise=noise)
    rng = np.random.default_rng(0)
    features = features @ rng.standard_normal((5, 60))
    features += 0.1 * rng.standard_normal(features.shape)
    features = sentences._with_ones(features / 10)
    # Selections of all rows, of most, and of a half.
    is_fitted = np.ones((4, rows), bool)
    is_fitted[1, : rows // 10] = is_fitted[2, rows // 2 :] = False
    is_fitted[3, ::3] = False
    found = _logistic.fit_paths(
        features, labels == 1, is_fitted, sentences.CS
    )
    self.assertEqual(found.dtype, np.float32)
    signs = np.where(labels == 1, 1.0, -1.0)
    for selected, path in zip(is_fitted, found, strict=True):
      x = np.float64(features[selected])
      for c, weights in zip(sentences.CS, path, strict=True):
        expected = x @ _fit(x, signs[selected], c)
        np.testing.assert_allclose(
            x @ weights, expected, atol=2e-4 * np.abs(expected).max()
        )

  @parameterized.parameters(0.0, 0.3)
  def test_features_that_do_not_differ(self, value):
    # As of encoders that collapsed. Only the share of the classes is left.
    features = sentences._with_ones(np.full((3000, 64), value))
    is_positive = np.arange(3000) % 4 == 0
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      weights = _logistic.fit_paths(
          features, is_positive, np.ones((2, 3000), bool), [256.0]
      )
    shares = 1 / (1 + np.exp(-(weights @ features[0])))
    np.testing.assert_allclose(shares, 0.25, atol=5e-5)

  def test_says_if_it_does_not_get_there(self):
    features, labels = _points(60, 2)
    with (
        mock.patch.object(_logistic, '_ITERATIONS', 1),
        self.assertWarnsRegex(UserWarning, 'stopped after 1 iterations'),
    ):
      _logistic.fit_paths(features, labels == 1, np.ones((1, 60), bool), [8.0])

  def test_a_class_that_is_not_fitted_is_not_predicted(self):
    features, labels = _points(60, 3)
    rest = np.flatnonzero(labels != 2)
    ((predicted,),) = sentences._Logistic().predictions(
        features, labels, [(rest, np.arange(60))], [1.0]
    )
    self.assertContainsSubset(predicted.tolist(), (0, 1))
    expected = _classify(features[rest], labels[rest], features, 1.0)
    np.testing.assert_array_equal(predicted, expected)

  def test_travels_to_other_processes(self):
    classifier = sentences._Logistic()
    self.assertEqual(pickle.loads(pickle.dumps(classifier)), classifier)


class ArgumentsTest(parameterized.TestCase):

  @parameterized.parameters(
      ({'folds': 1}, 'folds must be 2 or more, got 1'),
      ({'folds': 13}, 'folds must be at most 12, the number of rows; got 13'),
      ({'folds': 12}, 'inner_folds must be at most 11'),
      ({'labels': [0, 1]}, 'labels must be 12 integers'),
      ({'labels': np.zeros(12, int)}, 'labels must have two classes'),
      ({'embeddings': np.full((12, 2), np.nan)}, 'must be finite'),
      ({'cs': [-1]}, 'cs must be'),
  )
  def test_mistakes_are_named(self, knobs, message):
    good = {'embeddings': np.eye(12), 'labels': np.arange(12) % 2, 'folds': 3}
    with self.assertRaisesRegex(ValueError, message):
      evaluation.sentence_accuracy(**good | knobs)

  @parameterized.parameters(
      ({'test_labels': [0]}, 'test_labels must be 4 integers'),
      ({'test_labels': [0, 1, 1, -1]}, 'test_labels must lie between'),
      ({'test_embeddings': np.eye(4)}, 'must have 12 features'),
      ({'folds': 13}, 'folds must be at most 12, the number of rows; got 13'),
  )
  def test_mistakes_of_test_sets(self, knobs, message):
    good = {
        'train_embeddings': np.eye(12), 'train_labels': np.arange(12) % 2,
        'test_embeddings': np.eye(12)[:4], 'test_labels': np.arange(4) % 2,
        'folds': 3, 'cs': [1.0],
    }  # fmt: skip
    evaluation.question_accuracy(**good)
    with self.assertRaisesRegex(ValueError, message):
      evaluation.question_accuracy(**good | knobs)

  def test_seeds(self):
    with self.assertRaisesRegex(ValueError, 'seed must be an int'):
      cross_validation.cross_validate(
          sentences._Logistic(), np.eye(12), np.arange(12) % 2, seed=-1
      )
