# SPDX-License-Identifier: Apache-2.0
"""Traces of steps: which, only one at a time, also of runs that stop early."""

import pathlib
import tempfile

from absl.testing import absltest
import jax.numpy as jnp

from hcl_jax.runs import profiling


class ProfileTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.root = pathlib.Path(folder)
    self.said = []

  def profile(self, steps, name='run'):
    return profiling.Profile(self.root / name, steps, self.said.append)

  def traces(self, name='run'):
    return list((self.root / name / 'profile').rglob('*.xplane.pb'))

  def test_traces_the_steps_that_were_asked_for(self):
    profile = self.profile((1, 3))
    found = []
    for step in range(4):
      profile.before(step)
      profile.after(step, jnp.ones(2) + step)
      found.append(len(self.traces()))
    self.assertEqual(found, [0, 0, 1, 1])
    self.assertLen(self.said, 1)
    self.assertIn(str(self.root / 'run' / 'profile'), self.said[0])

  def test_a_run_that_stops_early_or_resumes_within(self):
    profile = self.profile((1, 9))
    profile.before(4)
    other = self.profile((0, 9), 'other')
    other.before(0)
    other.before(1)
    other.after(1, {})
    other.close()
    self.assertRegex(self.said[0], 'not traced')
    profile.after(4, {})
    self.assertEmpty(self.traces())
    profile.close()
    profile.close()
    self.assertLen(self.traces(), 1)
    self.assertLen(self.said, 2)

  def test_none(self):
    profile = self.profile(())
    profile.before(0)
    profile.after(0, {})
    profile.close()
    self.assertEmpty(self.said)
    self.assertFalse((self.root / 'run').exists())


if __name__ == '__main__':
  absltest.main()
