# SPDX-License-Identifier: Apache-2.0
"""Scores: kinds and errors, in memory, between processes and in files."""

import copy
import json
import pathlib
import pickle
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from hcl_jax.runs import reporting
from hcl_jax.runs import scores as scores_lib

Score = scores_lib.Score


class ScoresTest(parameterized.TestCase):

  @parameterized.parameters(
      lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy
  )
  def test_a_copy_has_kind_and_error(self, make_copy):
    score = make_copy(Score(0.25, 'loss', 0.5))
    self.assertIsInstance(score, Score)
    self.assertEqual((score, score.kind, score.error), (0.25, 'loss', 0.5))

  def test_the_error_of_a_share_is_binomial(self):
    score = scores_lib.share(0.2, 400)
    self.assertEqual((score, score.kind), (0.2, 'share'))
    self.assertAlmostEqual(score.error, 0.02)
    self.assertEqual(scores_lib.share(1.0, 13).error, 0.0)

  def test_errors_are_those_that_are_known(self):
    scores = {'a/x': Score(1.0), 'a/y': Score(1.0, error=0.5), 'a/list': []}
    self.assertEqual(scores_lib.errors(scores), {'a/y': 0.5})

  def test_kinds_are_those_of_numbers_only(self):
    scores = {'svm/accuracy': Score(0.5), 'svm/folds': [0.5], 'step': 3}
    self.assertEqual(scores_lib.kinds(scores), {'svm/accuracy': 'share'})
    self.assertEqual(scores_lib.of_numbers(scores), {'svm/accuracy': 0.5})

  def test_scores_of_a_file_get_their_kinds_back(self):
    found = scores_lib.with_kinds(
        {'a/distance': 2.0, 'a/list': [1.0]},
        {'a/distance': 'number'},
        {'a/distance': 0.5},
    )
    self.assertEqual(found['a/distance'].kind, 'number')
    self.assertEqual(found['a/distance'].error, 0.5)
    self.assertEqual(found['a/list'], [1.0])

  def test_names_tell_where_a_file_of_0_1_0_has_no_kinds(self):
    names = 'linear/loss', 'svm/deviation', 'knn/top1'
    found = scores_lib.with_kinds(dict.fromkeys(names, 0.5), {}, {})
    self.assertEqual(
        [found[name].kind for name in names], ['loss', 'number', 'share']
    )

class FilesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.workdir = pathlib.Path(folder)

  def _check_equal(self, found, expected):
    self.assertEqual(found, expected)
    for row, scores in expected.items():
      self.assertEqual(
          scores_lib.kinds(found[row]), scores_lib.kinds(scores)
      )
      self.assertEqual(
          scores_lib.errors(found[row]), scores_lib.errors(scores)
      )

  def test_scores_are_written_and_read(self):
    self.assertEqual(scores_lib.read(self.workdir), {})
    rows = {
        'standard': {'knn/top1': Score(0.5, error=0.1), 'knn/list': [1]},
        'hard': {
            'knn/top1': Score(0.6, error=0.2),
            'linear/loss': Score(2.0, 'loss'),
        },
    }
    evaluated = {'step': 3, 'protocols': ('knn', 'linear')}
    scores_lib.write(self.workdir, rows, evaluated)
    self._check_equal(scores_lib.read(self.workdir), rows)
    self._check_equal(scores_lib.read(self.workdir, evaluated), rows)
    for other in ({'step': 4}, {'protocols': ('knn',)}):
      found = scores_lib.read(self.workdir, evaluated | other)
      self.assertEqual(found, {})

  def test_a_file_of_before_has_neither_errors_nor_how(self):
    text = '{"last step": {"svm/deviation": 0.5}, "kinds": {}}'
    (self.workdir / 'scores.json').write_text(text, encoding='utf-8')
    expected = {'last step': {'svm/deviation': Score(0.5, 'number')}}
    self._check_equal(scores_lib.read(self.workdir), expected)
    self.assertEqual(scores_lib.read(self.workdir, {'step': 3}), {})

  @parameterized.parameters('{', '[]', '3', '{}', '{"kinds": 3}', '{"a": 3}')
  def test_a_file_without_scores_has_none(self, text):
    (self.workdir / 'scores.json').write_text(text, encoding='utf-8')
    self.assertEqual(scores_lib.read(self.workdir), {})

  def test_evaluations_of_other_runs_steps_and_scores_stay(self):
    path = self.workdir / 'evaluation.json'
    score = Score(0.5, error=0.1)
    for run, step, name in (
        ('a', 3, 'knn/top1'), ('a', 3, 'linear/top1'), ('a', 5, 'knn/top1'),
        ('b', 3, 'knn/top1'),
    ):  # fmt: skip
      scores_lib.add_evaluations(path, {run: {step: {name: score}}})
    newer = Score(0.75, error=0.2)
    scores_lib.add_evaluations(path, {'a': {3: {'knn/top1': newer}}})
    found = scores_lib.read_evaluations(path)
    self.assertEqual(set(found), {'a', 'b'})
    self._check_equal(found['a'], {
        '3': {'knn/top1': newer, 'linear/top1': score},
        '5': {'knn/top1': score},
    })
    self._check_equal(found['b'], {'3': {'knn/top1': score}})

  def test_evaluations_are_added_to_a_file_of_before(self):
    path = self.workdir / 'evaluation.json'
    path.write_text('{"a": {"step": 3, "knn/top1": 0.5, "knn/list": [1]}}')
    scores_lib.add_evaluations(path, {'a': {3: {'linear/loss': Score(1.0)}}})
    found = json.loads(path.read_text())
    self.assertEqual(
        found['a']['3'], {'knn/top1': 0.5, 'knn/list': [1], 'linear/loss': 1.0}
    )

  @parameterized.parameters('', '{', '[]', '3', '{"a": 3}', '{"a": {"3": 4}}')
  def test_a_file_of_something_else_is_left_alone(self, text):
    path = self.workdir / 'evaluation.json'
    path.write_text(text)
    with self.assertRaisesRegex(ValueError, 'move it away, or write elsewhere'):
      scores_lib.add_evaluations(path, {'a': {3: {'knn/top1': Score(0.5)}}})
    self.assertEqual(path.read_text(), text)


class FormatTest(parameterized.TestCase):

  @parameterized.parameters(
      (Score(0.593, error=0.0097), '59.30 ± 0.97 %'),
      (Score(0.593), '59.30 %'),
      (Score(4.15812, 'loss', 0.01), '4.1581 ± 0.0100'),
      (Score(0.05, 'number'), '0.0500'),
      (None, '-'),
  )
  def test_scores_have_their_errors(self, score, text):
    self.assertEqual(reporting.score(score), text)


if __name__ == '__main__':
  absltest.main()
