# SPDX-License-Identifier: Apache-2.0
"""Scores: their kinds, in memory, between processes and in files."""

import copy
import pathlib
import pickle
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from hcl_jax.runs import scores as scores_lib

Score = scores_lib.Score


class ScoresTest(parameterized.TestCase):

  @parameterized.parameters(
      lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy
  )
  def test_a_copy_has_the_kind(self, make_copy):
    score = make_copy(Score(0.25, 'loss'))
    self.assertIsInstance(score, Score)
    self.assertEqual((score, score.kind), (0.25, 'loss'))

  def test_kinds_are_those_of_numbers_only(self):
    scores = {'svm/accuracy': Score(0.5), 'svm/folds': [0.5], 'step': 3}
    self.assertEqual(scores_lib.kinds(scores), {'svm/accuracy': 'share'})
    self.assertEqual(scores_lib.of_numbers(scores), {'svm/accuracy': 0.5})

  def test_scores_of_a_file_get_their_kinds_back(self):
    found = scores_lib.with_kinds(
        {'a/distance': 2.0, 'a/list': [1.0]}, {'a/distance': 'number'}
    )
    self.assertEqual(found['a/distance'].kind, 'number')
    self.assertEqual(found['a/list'], [1.0])

  def test_names_tell_where_a_file_of_0_1_0_has_no_kinds(self):
    names = 'linear/loss', 'svm/deviation', 'knn/top1'
    found = scores_lib.with_kinds(dict.fromkeys(names, 0.5), {})
    self.assertEqual(
        [found[name].kind for name in names], ['loss', 'number', 'share']
    )

  def test_kinds_are_written_and_read(self):
    with tempfile.TemporaryDirectory() as folder:
      workdir = pathlib.Path(folder)
      self.assertEqual(scores_lib.read_kinds(workdir), {})
      rows = {
          'last step': {'knn/top1': Score(0.5)},
          'best step': {'linear/loss': Score(2.0, 'loss')},
      }
      scores_lib.write(workdir, rows)
      kinds = {'knn/top1': 'share', 'linear/loss': 'loss'}
      self.assertEqual(scores_lib.read_kinds(workdir), kinds)

  @parameterized.parameters('{', '[]', '3', '{}', '{"kinds": 3}')
  def test_a_file_without_kinds_has_none(self, text):
    with tempfile.TemporaryDirectory() as folder:
      workdir = pathlib.Path(folder)
      (workdir / 'scores.json').write_text(text, encoding='utf-8')
      self.assertEqual(scores_lib.read_kinds(workdir), {})


if __name__ == '__main__':
  absltest.main()
