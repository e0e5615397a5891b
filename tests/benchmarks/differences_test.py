# SPDX-License-Identifier: Apache-2.0
"""Differences of sweeps: by run and by unit, and files that do not fit."""

import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from benchmarks import differences
from hcl_jax import command as command_lib

_HEADER = 'run,data.division,seed,loss.beta,test/R@1,test/R@1_error'
_SCORES = ['test/R@1']


class DifferencesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.root = pathlib.Path(folder)

  def write(self, name, scores, header=_HEADER):
    """Writes runs of divisions 1, 2, ... with seeds 0, 1."""
    rows = [
        f'{i},{1 + i // 2},{i % 2},0.5,{score},0.1'
        for i, score in enumerate(scores)
    ]
    path = self.root / f'{name}.csv'
    path.write_text('\n'.join([header, *rows]), encoding='utf-8')
    return path

  @parameterized.parameters('', 'data.division')
  def test_is_paired(self, unit):
    rng = np.random.default_rng(0)
    first = rng.random(6) / 2
    gains = np.array([0.1, 0.2, 0.3, 0.1, 0.2, 0.6])
    paths = [self.write('a', first), self.write('b', first + gains)]
    scores, found = differences.tables(paths, _SCORES, unit)
    means = gains.reshape(3, 2).mean(axis=1) if unit else gains
    error = means.std(ddof=1) / np.sqrt(len(means))
    self.assertIn(f'{100 * means.mean():+.2f} ± {100 * error:.2f}', found)
    self.assertIn('b - a', found)
    units = first.reshape(3, 2).mean(axis=1) if unit else first
    spread = units.std(ddof=1)
    self.assertIn(f'{100 * units.mean():.2f} ± {100 * spread:.2f}', scores)

  def test_order_of_runs_is_no_matter(self):
    first = self.write('a', [0.1, 0.2, 0.3, 0.4])
    lines = first.read_text().splitlines()
    second = self.root / 'b.csv'
    second.write_text('\n'.join([lines[0], *reversed(lines[1:])]))
    _, found = differences.tables([first, second], _SCORES, '')
    self.assertIn('+0.00 ± 0.00', found)

  def test_what_does_not_fit(self):
    first = self.write('a', [0.1, 0.2, 0.3, 0.4])
    for name, scores, unit, message in (
        ('fewer', [0.1, 0.2], 'data.division', 'must be of the same runs'),
        ('same', [0.1] * 4, 'fold', '--unit must be a field of all sweeps'),
    ):
      with self.assertRaisesRegex(command_lib.UsageError, message):
        differences.tables([first, self.write(name, scores)], _SCORES, unit)
    with self.assertRaisesRegex(command_lib.UsageError, "no column 'test/X'"):
      differences.tables([first, first], ['test/X'], '')
    with self.assertRaisesRegex(command_lib.UsageError, 'cannot be read'):
      differences.tables([self.root / 'none.csv'], _SCORES, '')
    twice = self.root / 'twice.csv'
    twice.write_text('run,seed,test/R@1\n0,1,0.5\n1,1,0.6\n')
    with self.assertRaisesRegex(command_lib.UsageError, 'two runs of seed=1'):
      differences.tables([twice], _SCORES, '')


if __name__ == '__main__':
  absltest.main()
