# SPDX-License-Identifier: Apache-2.0
"""The bench of two towers, as a user runs it."""

import json
import pathlib
import tempfile

from absl.testing import absltest

from tests.support import commands


class BenchPairsTest(absltest.TestCase):

  def test_times_steps(self):
    with tempfile.TemporaryDirectory() as directory:
      path = pathlib.Path(directory) / 'pairs.json'
      done = commands.run(
          'benchmarks', 'pairs', '--bench_dataset=molecules_tiny',
          f'--bench_data_dir={directory}', '--pairs_batch=64',
          '--pairs_steps=2', '--repetitions=2', f'--json={path}',
      )  # fmt: skip
      self.assertEqual(done.status, 0, done.err)
      results = json.loads(path.read_text())
    self.assertIn('Steps of 64 pairs of molecules_tiny', done.out)
    ours = results['candidates'][0]
    self.assertEqual(ours['name'], 'hcl_jax')
    self.assertAlmostEqual(
        ours['pairs_per_second'] * ours['ms'] / 1e3, 64, places=3
    )
    self.assertLen(ours['repetition_ms'], 2)

  def test_refuses_what_cannot_be(self):
    done = commands.run('benchmarks', 'pairs', '--pairs_batch=1')
    self.assertEqual(done.status, 2)
    self.assertIn('--pairs_batch must be >= 2, got 1', done.err)


if __name__ == '__main__':
  absltest.main()
