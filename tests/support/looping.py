# SPDX-License-Identifier: Apache-2.0
"""What the tests of the training loop on graphs and on sentences share."""

import dataclasses
import os
import pathlib
import signal
import tempfile

from absl.testing import parameterized
import chex
import jax

from hcl_jax.training import loop


def open_checkpoints(workdir, experiment):
  return loop.open_checkpoints(workdir, experiment.config, experiment.score)


class LoopTest(parameterized.TestCase):
  """Runs an experiment in a folder of its own, and stops and resumes it."""

  def setUp(self):
    super().setUp()
    self.enter_context(jax.numpy_dtype_promotion('standard'))
    self.enter_context(jax.numpy_rank_promotion('allow'))

  def workdir(self) -> pathlib.Path:
    """Where a run may be; nothing is there yet."""
    folder = self.enter_context(tempfile.TemporaryDirectory())
    return pathlib.Path(folder) / 'run'

  def last_state(self, experiment, workdir):
    with open_checkpoints(workdir, experiment) as checkpoints:
      return jax.device_get(loop.restore(experiment, checkpoints))

  def check_resuming(self, experiment):
    """Stopping every five steps changes neither scores nor the last state."""
    whole, parts = self.workdir(), self.workdir()
    expected = loop.train(experiment, whole)

    taken = 0

    def batches_that_signal(*given):
      nonlocal taken
      for batch in experiment.batches(*given):
        taken += 1
        if taken % 5 == 0:
          os.kill(os.getpid(), signal.SIGTERM)
        yield batch

    signals = dataclasses.replace(experiment, batches=batches_that_signal)
    for _ in range(2):
      with self.assertRaisesRegex(loop.Interrupted, 'stopped after step'):
        loop.train(signals, parts)
    self.assertEqual(taken, 10)
    self.assertEqual(loop.train(experiment, parts), expected)
    chex.assert_trees_all_equal(
        self.last_state(experiment, parts), self.last_state(experiment, whole)
    )
