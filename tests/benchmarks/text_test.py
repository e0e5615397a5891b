# SPDX-License-Identifier: Apache-2.0
"""The bench of the encoders of sentences, as a user runs it."""

import json
import pathlib
import tempfile

from absl.testing import absltest

from tests.support import commands


class BenchTextTest(absltest.TestCase):

  def test_times_the_encoders(self):
    with tempfile.TemporaryDirectory() as directory:
      path = pathlib.Path(directory) / 'text.json'
      done = commands.run(
          'benchmarks', 'text', '--text_batch=6', '--text_dim=4',
          '--word_dim=3', '--repetitions=1', f'--json={path}',
      )  # fmt: skip
      self.assertEqual(done.status, 0, done.err)
      results = json.loads(path.read_text())
    self.assertIn('on 6 random sentences', done.out)
    places, lanes = results['lanes']
    self.assertEqual(places, 50)
    self.assertGreaterEqual(places * lanes, results['tokens'])
    ours = results['candidates'][0]
    self.assertEqual(ours['name'], 'hcl_jax')
    self.assertAlmostEqual(
        ours['tokens_per_second'] * ours['ms'] / 1e3, results['tokens'],
        places=3,
    )  # fmt: skip

  def test_refuses_what_cannot_be(self):
    done = commands.run('benchmarks', 'text', '--text_dim=5')
    self.assertEqual(done.status, 2)
    self.assertIn('--text_dim must be even, got 5', done.err)
