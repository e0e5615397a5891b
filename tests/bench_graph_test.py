# SPDX-License-Identifier: Apache-2.0
"""The bench of an epoch on graphs, as a user runs it."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest

_ROOT = pathlib.Path(__file__).parent.parent


def _run(*arguments):
  environment = dict(os.environ)
  environment.pop('XLA_FLAGS', None)
  return subprocess.run(
      [sys.executable, '-m', 'hcl_jax.bench', 'graph', *arguments],
      cwd=_ROOT,
      env=environment,
      capture_output=True,
      text=True,
  )


class BenchGraphTest(absltest.TestCase):

  def test_times_an_epoch(self):
    with tempfile.TemporaryDirectory() as directory:
      path = pathlib.Path(directory) / 'graph.json'
      done = _run(
          '--epoch_graphs=12', '--graph_batch=6', '--rounds=1', f'--json={path}'
      )
      self.assertEqual(done.returncode, 0, done.stderr)
      results = json.loads(path.read_text())
    self.assertIn('12 random graphs', done.stdout)
    self.assertEqual(results['kind'], 'random')
    self.assertLessEqual(results['rows'], results['nodes'])
    ours = results['contestants'][0]
    self.assertEqual(ours['name'], 'hcl_jax')
    self.assertGreater(ours['ms'], 0)

  def test_refuses_what_cannot_be(self):
    done = _run('--graph_batch=1')
    self.assertEqual(done.returncode, 2)
    self.assertIn('--graph_batch must be >= 2, got 1', done.stderr)

  def test_refuses_data_that_is_not_there(self):
    with tempfile.TemporaryDirectory() as directory:
      done = _run('--bench_dataset=MUTAG', f'--bench_data_dir={directory}')
    self.assertEqual(done.returncode, 2)
    self.assertIn("data set 'tu_graphs/MUTAG' is not prepared", done.stderr)


if __name__ == '__main__':
  absltest.main()
