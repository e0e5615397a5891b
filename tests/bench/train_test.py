# SPDX-License-Identifier: Apache-2.0
"""The bench of the train step, as a user runs it."""

import json
import pathlib
import tempfile

from absl.testing import parameterized

from tests.support import commands


class BenchTrainTest(parameterized.TestCase):

  def test_times_the_step_and_its_parts(self):
    with tempfile.TemporaryDirectory() as directory:
      path = pathlib.Path(directory) / 'train.json'
      done = commands.run(
          'bench', 'train', '--networks=small', '--step_batch=4',
          '--loss_batch=8', '--rounds=2', '--plain_convolutions',
          f'--json={path}',
      )  # fmt: skip
      self.assertEqual(done.status, 0, done.err)
      rows = json.loads(path.read_text())['rows']
    names = ['small step', 'small step on views', 'data', 'augmentation',
             'loss', 'plain convolutions']  # fmt: skip
    self.assertEqual([row['name'] for row in rows], names)
    self.assertEqual(rows[0]['share'], 1)
    for row in rows:
      self.assertGreater(row['ms'], 0)
      self.assertLen(row['round_ms'], 2)
      self.assertIn(f'\n{row["name"]}  ', done.out)
    loss = rows[-2]
    pairs = zip(loss['round_ms'], rows[0]['round_ms'], strict=True)
    ratio = sum(a / b for a, b in pairs) / 2
    self.assertAlmostEqual(loss['share'], ratio * 4 / 8)

  @parameterized.parameters(
      ('--networks=vgg', '--networks must be among'),
      ('--step_batch=1', '--step_batch must be >= 2'),
  )
  def test_rejects_in_one_line(self, argument, message):
    done = commands.run('bench', 'train', argument)
    self.assertEqual(done.status, 2)
    self.assertIn(message, done.err)
    self.assertLen(done.err.strip().splitlines(), 1)
