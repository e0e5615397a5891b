# SPDX-License-Identifier: Apache-2.0
"""What batches take from the state: when, from where, and what is kept."""

import pathlib
import tempfile
import types

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import refreshing


def _batches(first, num, found=None):
  """Steps, each with what was computed last."""
  for step in range(first, first + num):
    yield step, None if found is None else int(found['x'])


class RefreshingTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.workdir = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory())
    )
    self.step = 0
    self.computed, self.said = [], []
    self.saved = []

  def _take(self, first, num, every=3, total=10):
    """Takes some batches from a step on, as the loop does."""

    def compute(state, poll):
      del poll
      self.computed.append(state)
      return {'x': np.array(100 + state)}

    experiment = types.SimpleNamespace(
        total_steps=total,
        refresh=every and experiment_lib.Refresh(every, compute, 'found'),
        batches=_batches,
    )
    self.step = first
    taken = []
    for batch in refreshing.batches(
        experiment,
        self.workdir,
        first,
        lambda: self.step,
        poll=lambda *_: None,
        say=self.said.append,
        saved_steps=lambda: self.saved,
    ):
      taken.append(batch)
      self.step += 1
      if len(taken) == num:
        break
    return taken

  def _files(self):
    return sorted(x.stem for x in (self.workdir / 'refreshed').glob('*'))

  def test_without_any(self):
    self.assertEqual(self._take(4, 9, every=None), [
        (step, None) for step in range(4, 10)
    ])  # fmt: skip

  def test_is_computed_every_so_many_steps(self):
    taken = self._take(0, 99)
    known = [None] * 3 + [103] * 3 + [106] * 3 + [109]
    self.assertEqual(taken, list(enumerate(known)))
    self.assertEqual(self.computed, [3, 6, 9])
    self.assertEqual(self.said[0], 'found after step 3')

  @parameterized.parameters(3, 4, 5, 6, 8)
  def test_a_resumed_run_goes_on_with_it(self, stop):
    whole = self._take(0, 99)
    self.setUp()
    first = self._take(0, stop)
    self.saved = [stop]
    self.assertEqual(first + self._take(stop, 99), whole)

  def test_files_that_no_checkpoint_needs_are_removed(self):
    self.saved = [4]
    self._take(0, 8)
    self.assertEqual(self._files(), ['3', '6'])
    self.saved = [7]
    self._take(7, 99)
    self.assertEqual(self._files(), ['6', '9'])

  def test_a_file_that_is_gone_or_damaged(self):
    self._take(0, 5)
    path = self.workdir / 'refreshed' / '3.npz'
    path.write_bytes(b'nothing')
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'step 3.*cannot be'):
      self._take(5, 99)
    path.unlink()
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'later steps'):
      self._take(5, 99)


if __name__ == '__main__':
  absltest.main()
