# SPDX-License-Identifier: Apache-2.0
"""The bench of sweeps, its parts and as a user runs it."""

import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import tensorflow_datasets as tfds

from benchmarks import sweep
from hcl_jax import prepare
from tests.support import commands
from tests.support import tu


class PartsTest(parameterized.TestCase):

  @parameterized.parameters(
      (4, 40, [0, 13, 26, 39]),
      (1, 40, [0]),
      (2, 3, [0, 2]),
      (0, 3, [0, 1, 2]),
      (9, 3, [0, 1, 2]),
  )
  def test_runs_are_chosen_from_end_to_end(self, number, count, expected):
    self.assertEqual(sweep.choose_evenly(range(count), number), expected)

  def test_curves_are_compared_where_both_are(self):
    found = sweep.compare_curves(
        {10: 4.0, 20: 2.5, 30: 1.0}, {10: 4.5, 20: 2.0, 40: 9.0}
    )
    self.assertEqual(found['difference'], 0.5)
    self.assertEqual(found['relative'], 0.25)
    self.assertAlmostEqual(found['first_relative'], 0.5 / 4.5)
    self.assertEqual(
        set(sweep.compare_curves({}, {10: 1.0}).values()), {None}
    )

  def test_the_report_says_what_was_scaled(self):
    results = {
        'runs': 40, 'timed': 4, 'dataset': 'MUTAG', 'epochs': 200,
        'jax': '0', 'device_kind': 'cpu', 'cores': 1, 'clock': 'wall time',
        'sweep_seconds': 200.0, 'sequential_seconds': 800.0, 'ratio': 0.25,
        'rows': [],
    }  # fmt: skip
    text = sweep.report(results)
    self.assertIn('; 4 of these were timed, and their mean', text)
    self.assertRegex(text, r'one by one +800.0 +20.0\n')
    self.assertNotIn('were timed', sweep.report(results | {'timed': 40}))


class BenchSweepTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory())
    )

  def _run(self, *arguments):
    return commands.run(
        'benchmarks', 'sweep', '--bench_dataset=tu_graphs/TOY',
        f'--bench_data_dir={self.root}', *arguments,
    )  # fmt: skip

  def test_times_a_sweep_and_single_runs(self):
    tfds.disable_progress_bar()
    tu.write_graphs(self.root / 'TOY', tu.random_graphs(40))
    prepare.prepare(
        'tu_graphs/TOY', data_dir=self.root, graphs=str(self.root / 'TOY')
    )
    path = self.root / 'sweep.json'
    done = self._run(
        '--bench_betas=0,2', '--bench_seeds=2', '--bench_epochs=2',
        '--sequential=2', '--curve_steps=1', f'--json={path}',
    )  # fmt: skip
    self.assertEqual(done.status, 0, done.err)
    results = json.loads(path.read_text())
    self.assertEqual((results['runs'], results['timed']), (4, 2))
    first, last = results['rows']
    self.assertEqual(first['name'], 'loss.beta=0.0, seed=0')
    self.assertEqual(last['name'], 'loss.beta=2.0, seed=1')
    mean = (first['seconds'] + last['seconds']) / 2
    self.assertAlmostEqual(results['sequential_seconds'], 4 * mean)
    self.assertAlmostEqual(
        results['ratio'], results['sweep_seconds'] / (4 * mean)
    )
    for row in results['rows']:
      self.assertLess(row['relative'], 1e-3)
    self.assertIn('A sweep of 4 runs on tu_graphs/TOY', done.out)

  def test_refuses_what_cannot_be(self):
    done = self._run('--bench_betas=0,-1')
    self.assertEqual(done.status, 2)
    self.assertIn('--bench_betas must be numbers >= 0', done.err)
    self.assertIn("got '0,-1'", done.err)
    done = self._run('--sequential=1')
    self.assertEqual(done.status, 2)
    self.assertRegex(
        done.err, 'hcl_jax.sweep failed: .*--dataset=tu_graphs/TOY'
    )
