# SPDX-License-Identifier: Apache-2.0
"""The bench of the train step beside torch's, as a developer runs it."""

import importlib.util
import json
import pathlib
import tempfile

from absl.testing import parameterized

from tests.support import commands

_HAS_TORCH = importlib.util.find_spec('torch') is not None


class BenchmarkTrainTest(parameterized.TestCase):

  @parameterized.parameters(True, False)
  def test_runs_torch_where_installed(self, with_torch):
    network = 'resnet10' if _HAS_TORCH and with_torch else 'small'
    with tempfile.TemporaryDirectory() as directory:
      path = pathlib.Path(directory) / 'train.json'
      done = commands.run(
          'benchmarks', 'train', f'--networks={network}', '--step_batch=4',
          '--loss_batch=8', '--repetitions=1', f'--torch={with_torch}',
          f'--json={path}',
      )  # fmt: skip
      self.assertEqual(done.status, 0, done.err)
      rows = json.loads(path.read_text())['rows']
    names = [row['name'] for row in rows]
    self.assertIn(f'{network} step', names)
    self.assertEqual(
        f'{network} torch' in names, _HAS_TORCH and with_torch
    )
    self.assertEqual(
        'not installed: torch' in done.err, with_torch and not _HAS_TORCH
    )

  def test_rejects_in_one_line(self):
    done = commands.run('benchmarks', 'train', '--networks=vgg')
    self.assertEqual(done.status, 2)
    self.assertIn('--networks must be among', done.err)
    self.assertLen(done.err.strip().splitlines(), 1)
