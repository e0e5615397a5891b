# SPDX-License-Identifier: Apache-2.0
"""The bench of mining, and the numpy it runs against."""

import json
import pathlib
import tempfile

from absl.testing import parameterized
import numpy as np

from benchmarks import mining
from tests import reference
from tests.support import commands


class BenchMiningTest(parameterized.TestCase):

  def test_numpy_mines_the_same(self):
    queries, documents = mining.vectors(5, 4, 0), mining.vectors(40, 4, 1)
    expected, _ = reference.mine(queries, documents, 3)
    np.testing.assert_array_equal(
        mining.numpy_mine(queries, documents, 3), expected
    )

  def test_command(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / 'mining.json'
      done = commands.run(
          'benchmarks', 'mining', '--queries=50', '--documents=300',
          '--mining_dim=8', '--mining_k=3', '--repetitions=2', f'--json={path}',
      )  # fmt: skip
      self.assertEqual(done.status, 0, done.err)
      results = json.loads(path.read_text())
    own, peer = results['rows']
    self.assertEqual((own['name'], peer['name']), ('hcl_jax', 'numpy'))
    self.assertEqual(own['agreement'], 1)
    self.assertEqual(peer['times_numpy'], 1)
    self.assertLen(own['repetition_seconds'], 2)
    self.assertIn('50 queries, 300 documents, width 8, k = 3', done.out)

  @parameterized.parameters(
      ('--queries=0', '--queries must be >= 1'),
      ('--documents=9', '--documents must be >= 10'),
  )
  def test_rejects_in_one_line(self, argument, message):
    done = commands.run('benchmarks', 'mining', argument)
    self.assertEqual(done.status, 2)
    self.assertLen(done.err.splitlines(), 1, done.err)
    self.assertIn(message, done.err)
