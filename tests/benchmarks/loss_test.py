# SPDX-License-Identifier: Apache-2.0
"""The bench of the loss beside torch and lightly, as a developer runs it."""

import importlib.util
import json
import pathlib
import tempfile

from absl.testing import absltest

from tests.support import commands

_SAME = {
    'torch hard': 'hard',
    'optax ntxent': 'standard',
    'lightly NTXentLoss': 'standard',
}


class BenchmarkLossTest(absltest.TestCase):

  def test_runs_all_peers_that_are_installed(self):
    with tempfile.TemporaryDirectory() as directory:
      path = pathlib.Path(directory) / 'loss.json'
      done = commands.run(
          'benchmarks', 'loss', '--batch_sizes=8', '--repetitions=1',
          f'--json={path}',
      )  # fmt: skip
      self.assertEqual(done.status, 0, done.err)
      rows = json.loads(path.read_text())['rows']
    losses = {row['name']: row['loss'] for row in rows}
    self.assertIn('optax ntxent', losses)
    for package, name in (
        ('torch', 'torch hard'), ('lightly', 'lightly NTXentLoss')
    ):  # fmt: skip
      if importlib.util.find_spec(package) is None:
        self.assertRegex(done.err, f'not installed: .*{package}')
      else:
        self.assertIn(name, losses)
    # Those that compute the same loss get the same number.
    for name in _SAME.keys() & losses.keys():
      self.assertAlmostEqual(losses[name], losses[_SAME[name]], places=4)

  def test_times_options_beside_the_loss_without(self):
    with tempfile.TemporaryDirectory() as directory:
      path = pathlib.Path(directory) / 'loss.json'
      done = commands.run(
          'benchmarks', 'loss', '--options=in_batch', '--batch_sizes=8',
          '--repetitions=1', f'--json={path}',
      )  # fmt: skip
      self.assertEqual(done.status, 0, done.err)
      rows = json.loads(path.read_text())['rows']
    bases = ['in_batch', 'negatives', 'dense in_batch', 'dense negatives']
    for row in rows:
      self.assertEqual(list(row['ratios']), bases)
    losses = {row['name']: row['loss'] for row in rows}
    # Options that change the loss do, and one beta for all does not.
    for name, base, changes in (
        ('beta of anchors', 'in_batch', False), ('margin', 'in_batch', True),
        ('positive_weight', 'in_batch', True),
        ('effective_negatives', 'in_batch', True),
        ('negatives', 'in_batch', True), ('where', 'negatives', True),
    ):  # fmt: skip
      self.assertAlmostEqual(losses[name], losses[f'dense {name}'], places=5)
      same = abs(losses[name] - losses[base]) < 1e-5
      self.assertEqual(same, not changes, name)

  def test_knows_the_names_of_peers(self):
    done = commands.run('benchmarks', 'loss', '--peers=numpy')
    self.assertEqual(done.status, 2)
    self.assertIn(
        "--peers must be among optax, torch, lightly; got 'numpy'", done.err
    )
    self.assertLen(done.err.strip().splitlines(), 1)
