# SPDX-License-Identifier: Apache-2.0
"""The bench of an epoch on graphs, as a user runs it."""

import json
import pathlib
import tempfile

from absl.testing import absltest

from tests.support import commands


class BenchGraphTest(absltest.TestCase):

  def test_times_an_epoch(self):
    with tempfile.TemporaryDirectory() as directory:
      path = pathlib.Path(directory) / 'graph.json'
      done = commands.run(
          'benchmarks', 'graph', '--epoch_graphs=12', '--graph_batch=6',
          '--repetitions=1', f'--json={path}',
      )  # fmt: skip
      self.assertEqual(done.status, 0, done.err)
      results = json.loads(path.read_text())
    self.assertIn('12 random graphs', done.out)
    self.assertEqual(results['kind'], 'random')
    self.assertLessEqual(results['rows'], results['nodes'])
    ours = results['candidates'][0]
    self.assertEqual(ours['name'], 'hcl_jax')
    self.assertGreater(ours['ms'], 0)

  def test_refuses_what_cannot_be(self):
    done = commands.run('benchmarks', 'graph', '--graph_batch=1')
    self.assertEqual(done.status, 2)
    self.assertIn('--graph_batch must be >= 2, got 1', done.err)

  def test_refuses_data_that_is_not_there(self):
    with tempfile.TemporaryDirectory() as directory:
      done = commands.run(
          'benchmarks', 'graph', '--bench_dataset=MUTAG',
          f'--bench_data_dir={directory}',
      )
    self.assertEqual(done.status, 2)
    self.assertIn("data set 'tu_graphs/MUTAG' is not prepared", done.err)
