# SPDX-License-Identifier: Apache-2.0
"""Cross-validated SVM and logistic regression against scikit-learn's own."""

from concurrent import futures
import doctest
import pickle
from unittest import mock
import warnings

from absl.testing import parameterized
import joblib
import numpy as np
from sklearn import linear_model
from sklearn import model_selection
from sklearn import pipeline
from sklearn import preprocessing
from sklearn import svm as sklearn_svm

from hcl_jax import evaluation
from hcl_jax.evaluation import cross_validation
from hcl_jax.evaluation import svm


def _rings(rows=120, noise=0.35, seed=0):
  """Two rings, which only a curved boundary separates, of unequal sizes."""
  rng = np.random.default_rng(seed)
  labels = (np.arange(rows) % 3 == 0).astype(int)
  angle = rng.uniform(0, 2 * np.pi, rows)
  radius = 1 + labels + noise * rng.standard_normal(rows)
  points = radius * np.stack([np.cos(angle), np.sin(angle)])
  return points.T.astype(np.float32), labels


def _nested(model, grid, features, labels, folds, inner_folds, seed):
  """The same protocol by scikit-learn's grid search."""
  features = np.float64(features)
  outer = model_selection.StratifiedKFold(
      folds, shuffle=True, random_state=seed
  )
  results = []
  for train, test in outer.split(features, labels):
    inner = model_selection.StratifiedKFold(
        inner_folds, shuffle=True, random_state=seed
    )
    search = model_selection.GridSearchCV(model, grid, cv=inner)
    search.fit(features[train], labels[train])
    (c,) = search.best_params_.values()
    results.append(
        (search.score(features[test], labels[test]), c, search.best_score_)
    )
  return results


def _rows_of(result):
  keys = 'accuracy', 'c', 'inner_accuracy'
  return [[fold[key] for key in keys] for fold in result['folds']]


class SvmTest(parameterized.TestCase):

  @parameterized.parameters('scale', 'auto', 0.7)
  def test_equals_a_grid_search(self, gamma):
    features, labels = _rings()
    result = evaluation.svm_accuracy(
        features, labels, gamma=gamma, folds=4, inner_folds=3, seed=5
    )
    expected = _nested(
        sklearn_svm.SVC(gamma=gamma), {'C': cross_validation.CS}, features,
        labels, 4, 3, 5,
    )  # fmt: skip
    np.testing.assert_allclose(_rows_of(result), expected, rtol=1e-6)
    accuracies = [row[0] for row in expected]
    self.assertAlmostEqual(result['accuracy'], np.mean(accuracies))
    self.assertAlmostEqual(
        result['deviation'], np.std(accuracies) * np.sqrt(4 / 3)
    )
    self.assertGreater(result['accuracy'], 0.8)

  def test_gamma_is_recorded(self):
    features, labels = _rings(60)
    (train, _), *_ = cross_validation._splits(labels, 3, 0)
    for gamma, expected in (
        ('scale', 1 / (2 * np.float64(features[train]).var())),
        ('auto', 0.5),
        (3.0, 3.0),
    ):
      result = evaluation.svm_accuracy(
          features, labels, gamma=gamma, folds=3, inner_folds=2, cs=[1.0]
      )
      self.assertAlmostEqual(result['folds'][0]['gamma'], expected)

  def test_seeds_divide_and_workers_do_not_matter(self):
    features, labels = _rings(90)
    run = lambda **knobs: evaluation.svm_accuracy(  # noqa: E731
        features, labels, folds=3, inner_folds=2, cs=(0.1, 10.0), **knobs
    )
    counts = []
    one = run(seed=1, workers=1, progress=lambda *done: counts.append(done))
    self.assertEqual(counts, [(1, 3), (2, 3), (3, 3)])
    self.assertEqual(run(seed=1, workers=2), one)
    self.assertNotEqual(run(seed=2), one)

  def test_threads_share_processes(self):
    features, labels = _rings(90)
    # Large enough for joblib to keep in a file, if it may.
    features = np.pad(features, ((0, 0), (0, 2000)))

    def run(seed, **workers):
      return evaluation.svm_accuracy(
          features, labels, folds=3, inner_folds=2, cs=(0.1, 10.0), seed=seed,
          gamma=0.5, **workers,
      )  # fmt: skip

    def run_in_pool(seed):
      with cross_validation.shared_pool(2):
        return run(seed)

    expected = [run(seed, workers=1) for seed in range(6)]
    with (
        mock.patch.object(
            joblib, 'Parallel', side_effect=joblib.Parallel
        ) as parallel,
        futures.ThreadPoolExecutor(3) as pool,
    ):
      found = list(pool.map(run_in_pool, range(6)))
    self.assertEqual(found, expected)
    sizes = {call.kwargs['n_jobs'] for call in parallel.call_args_list}
    self.assertEqual(sizes, {2})

  def test_progress_may_end_it(self):
    features, labels = _rings(60)

    def stop(done, folds):
      if done == 2:
        raise KeyboardInterrupt(f'after {done} of {folds}')

    for workers in (1, 2):
      with warnings.catch_warnings():
        warnings.simplefilter('error')
        # A test run in parallel is a process that may have no children.
        warnings.filterwarnings('ignore', 'Loky-backed')
        with self.assertRaisesRegex(KeyboardInterrupt, 'after 2 of 6'):
          evaluation.svm_accuracy(
              features, labels, folds=6, workers=workers, progress=stop
          )

  def test_constant_features_are_no_error(self):
    result = evaluation.svm_accuracy(
        np.ones((20, 3), np.float32), np.arange(20) % 2, folds=2, inner_folds=2
    )
    self.assertAlmostEqual(result['accuracy'], 0.5, delta=0.1)
    # Every C is as good, so it is the first.
    self.assertEqual([fold['c'] for fold in result['folds']], [1e-3, 1e-3])

  def test_example(self):
    result = doctest.testmod(svm)
    self.assertEqual((result.failed, result.attempted > 0), (0, True))


class LogisticTest(parameterized.TestCase):

  def test_equals_a_grid_search(self):
    features, labels = _rings(noise=0.2)
    features = np.concatenate([1000 * features**2, features], axis=1)
    result = evaluation.logistic_accuracy(
        features, labels, folds=4, inner_folds=3, seed=2
    )
    model = pipeline.make_pipeline(
        preprocessing.StandardScaler(),
        linear_model.LogisticRegression(max_iter=200),
    )
    grid = {'logisticregression__C': cross_validation.CS}
    expected = _nested(model, grid, features, labels, 4, 3, 2)
    np.testing.assert_allclose(_rows_of(result), expected, rtol=1e-6)
    self.assertGreater(result['accuracy'], 0.9)

  def test_travels_to_other_processes(self):
    for classifier in (svm._Logistic(), svm._Rbf('scale')):
      self.assertEqual(pickle.loads(pickle.dumps(classifier)), classifier)


class ArgumentsTest(parameterized.TestCase):

  @parameterized.parameters(
      ({'features': np.zeros((6, 2), int)}, 'features must be a floating'),
      ({'features': np.full((12, 2), np.nan)}, 'features must be finite'),
      ({'labels': [0, 1]}, 'labels must be 12 integers'),
      ({'labels': np.arange(12) / 2}, 'labels must be 12 integers'),
      ({'labels': np.zeros(12, int)}, 'labels must have two classes'),
      ({'labels': np.arange(12) % 2 - 1}, 'labels must lie between'),
      ({'gamma': 'large'}, "gamma must be 'scale', 'auto' or.*'large'"),
      ({'gamma': -1.0}, 'gamma must be .* got -1.0'),
      ({'cs': []}, 'cs must be one or more numbers > 0'),
      ({'cs': [1.0, 0.0]}, 'cs must be one or more numbers > 0'),
      ({'folds': 1}, 'folds must be 2 or more'),
      ({'folds': 7}, 'folds must be at most 6, the rows of class 0; got 7'),
      ({'inner_folds': 5}, 'inner_folds must be at most 4.* got 5'),
      ({'seed': -1}, 'seed must be an int >= 0'),
      ({'workers': 0}, 'workers must be'),
  )
  def test_mistakes_are_named(self, knobs, message):
    good = {
        'features': np.zeros((12, 2), np.float32), 'labels': np.arange(12) % 2,
        'folds': 3, 'inner_folds': 2,
    }  # fmt: skip
    with self.assertRaisesRegex(ValueError, message):
      evaluation.svm_accuracy(**good | knobs)
