# SPDX-License-Identifier: Apache-2.0
"""The bench of the train step, as a user runs it."""

import json
import pathlib
import tempfile

from absl.testing import parameterized

from tests.support import commands
from tests.support import forks

# Peers of another package: one runs, one lacks the network, one is missing.
_WITH_PEERS = """
from hcl_jax.bench import cli
from hcl_jax.bench import train

def make_step(parts):
  first, second = parts.views()
  assert first.shape == second.shape == (4, 32, 32, 3)
  return first.sum

def command():
  'Times peers.'
  peers = {'numpy': make_step, 'jax': lambda parts: None, 'no_such': make_step}
  train.command(peers)

cli.run('peers', {'train': cli.Bench(command, ())})
"""


class BenchTrainTest(parameterized.TestCase):

  def test_times_the_step_and_its_parts(self):
    with tempfile.TemporaryDirectory() as directory:
      path = pathlib.Path(directory) / 'train.json'
      done = commands.run(
          'bench', 'train', '--networks=small', '--step_batch=4',
          '--loss_batch=8', '--repetitions=2', '--plain_convolutions',
          f'--json={path}',
      )  # fmt: skip
      self.assertEqual(done.status, 0, done.err)
      rows = json.loads(path.read_text())['rows']
    names = ['small step', 'small step on views', 'data', 'augmentation',
             'loss', 'plain convolutions']  # fmt: skip
    self.assertEqual([row['name'] for row in rows], names)
    self.assertNotIn('other libraries', done.out)
    self.assertEqual(rows[0]['share'], 1)
    for row in rows:
      self.assertGreater(row['ms'], 0)
      self.assertLen(row['repetition_ms'], 2)
      self.assertIn(f'\n{row["name"]}  ', done.out)
    loss = rows[-2]
    pairs = zip(loss['repetition_ms'], rows[0]['repetition_ms'], strict=True)
    ratio = sum(a / b for a, b in pairs) / 2
    self.assertAlmostEqual(loss['share'], ratio * 4 / 8)

  def test_other_packages_bring_peers(self):
    with tempfile.TemporaryDirectory() as directory:
      path = pathlib.Path(directory) / 'train.json'
      process = forks.start(
          '-c', _WITH_PEERS, 'train', '--networks=small', '--step_batch=4',
          '--loss_batch=8', '--repetitions=1', f'--json={path}',
          environment=commands.environment(),
      )  # fmt: skip
      out, err = process.communicate(timeout=300)
      self.assertEqual(process.wait(), 0, err)
      rows = {r['name']: r for r in json.loads(path.read_text())['rows']}
    self.assertIn('not installed: no_such\n', err)
    self.assertIn('small numpy', rows)
    self.assertNotIn('small jax', rows)
    ours = rows['small step on views']['ms']
    theirs = rows['small numpy']['ms']
    ratios = rows['small step on views']['ratios']
    self.assertEqual(ratios.keys(), {'numpy'})
    self.assertAlmostEqual(ratios['numpy'], ours / theirs)
    self.assertEmpty(rows['small step']['ratios'])
    self.assertIn('  / numpy  ', out)
    self.assertIn('other libraries', out)

  @parameterized.parameters(
      ('--networks=vgg', '--networks must be among'),
      ('--step_batch=1', '--step_batch must be >= 2'),
  )
  def test_rejects_in_one_line(self, argument, message):
    done = commands.run('bench', 'train', argument)
    self.assertEqual(done.status, 2)
    self.assertIn(message, done.err)
    self.assertLen(done.err.strip().splitlines(), 1)
