# SPDX-License-Identifier: Apache-2.0
"""The bench of the encoders of sentences, as a user runs it."""

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
      [sys.executable, '-m', 'hcl_jax.bench', 'text', *arguments],
      cwd=_ROOT,
      env=environment,
      capture_output=True,
      text=True,
  )


class BenchTextTest(absltest.TestCase):

  def test_times_the_encoders(self):
    with tempfile.TemporaryDirectory() as directory:
      path = pathlib.Path(directory) / 'text.json'
      done = _run(
          '--text_batch=6', '--text_dim=4', '--word_dim=3', '--rounds=1',
          f'--json={path}',
      )  # fmt: skip
      self.assertEqual(done.returncode, 0, done.stderr)
      results = json.loads(path.read_text())
    self.assertIn('on 6 random sentences', done.stdout)
    places, lanes = results['lanes']
    self.assertEqual(places, 50)
    self.assertGreaterEqual(places * lanes, results['tokens'])
    ours = results['contestants'][0]
    self.assertEqual(ours['name'], 'hcl_jax')
    self.assertAlmostEqual(
        ours['tokens_per_second'] * ours['ms'] / 1e3, results['tokens'],
        places=3,
    )  # fmt: skip

  def test_refuses_what_cannot_be(self):
    done = _run('--text_dim=5')
    self.assertEqual(done.returncode, 2)
    self.assertIn('--text_dim must be even, got 5', done.stderr)


if __name__ == '__main__':
  absltest.main()
