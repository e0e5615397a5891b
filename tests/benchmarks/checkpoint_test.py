# SPDX-License-Identifier: Apache-2.0
"""The bench of checkpoints, its parts and as a user runs it."""

import json
import os
import statistics
from unittest import mock

from absl.testing import parameterized

from benchmarks import checkpoint
from tests.support import commands


class PartsTest(parameterized.TestCase):

  def test_a_save_costs_what_windows_differ_by(self):
    # The third repetition is slow with a save and without.
    found = checkpoint.costs(
        [10.0, 10.0, 90.0], [10.5, 10.4, 90.6], length=5, released=1000
    )
    self.assertAlmostEqual(found['step_ms'], 2000)
    self.assertAlmostEqual(found['save_seconds'], 0.5)
    self.assertAlmostEqual(found['least_save_seconds'], 0.4)
    self.assertAlmostEqual(found['most_save_seconds'], 0.6)
    self.assertAlmostEqual(found['share_of_window'], 0.05)
    self.assertAlmostEqual(found['share_as_released'], 0.5 / 2000)
    self.assertEqual(found['steps_for_small_share'], 13)  # 0.5 s in 26 s

  def test_a_save_that_costs_nothing_may_be_at_every_step(self):
    found = checkpoint.costs([1.0], [0.9], length=1, released=10)
    self.assertAlmostEqual(found['save_seconds'], -0.1)
    self.assertEqual(found['steps_for_small_share'], 1)

  @parameterized.parameters((256, 1950), (64, 7800))
  def test_checkpoints_as_released_are_so_many_images_apart(self, batch, steps):
    self.assertEqual(checkpoint.released_steps(batch), steps)

  def test_a_window_saves_first_and_waits_last(self):
    events = mock.Mock()
    windows = checkpoint.Windows(events.step, events.checkpoints, 2)
    windows.warm_up(2)
    names = [name for name, *_ in events.mock_calls]
    save, wait = 'checkpoints.save', 'checkpoints.wait'
    self.assertEqual(names, ['step', save, 'step', save, wait])

    events.reset_mock()
    windows.time_one(saves=True)
    names = [name for name, *_ in events.mock_calls]
    self.assertEqual(names, [save, 'step', 'step', wait])
    events.checkpoints.save.assert_called_once_with(2, events.step.state)

    events.reset_mock()
    windows.time_one(saves=False)
    events.checkpoints.save.assert_not_called()
    self.assertEqual(events.step.call_count, 2)

  def test_the_parts_of_a_window_are_timed(self):
    clock = mock.Mock(side_effect=[0.0, 1.0, 4.0, 9.0, 11.0])
    with mock.patch.multiple(
        checkpoint.time, perf_counter=clock, process_time=lambda: 0.0
    ):
      window = checkpoint.Windows(mock.Mock(), mock.Mock(), 2).time_one(True)
    # Read at the start, after the save, at the last step and twice at the end.
    self.assertEqual(window.blocked.wall, 1.0)
    self.assertEqual(window.whole.wall, 9.0)
    self.assertEqual(window.waited.wall, 7.0)


class BenchCheckpointTest(commands.CommandsTest):

  def test_times_steps_with_saves_and_without(self):
    path = self.root / 'checkpoint.json'
    directory = self.root / 'saved'
    directory.mkdir()
    done = commands.run(
        'benchmarks', 'checkpoint', '--networks=small', '--step_batch=4',
        '--repetitions=2', '--window_steps=2', f'--checkpoint_dir={directory}',
        f'--json={path}',
    )  # fmt: skip
    self.assertEqual(done.status, 0, done.err)
    self.assertEmpty(os.listdir(directory))
    results = json.loads(path.read_text())
    (row,) = results['rows']
    self.assertEqual(row['network'], 'small')
    # Parameters and two moments of them, as float32.
    self.assertBetween(row['megabytes'], 6, 8)
    for clock in ('wall', 'cpu'):
      found = row[clock]
      without = found['repetition_seconds_without']
      pairs = zip(without, found['repetition_seconds_with'], strict=True)
      self.assertAlmostEqual(
          found['save_seconds'], statistics.median(b - a for a, b in pairs)
      )
      self.assertAlmostEqual(
          found['step_ms'], 1e3 * statistics.median(without) / 2
      )
      self.assertGreater(found['blocked_seconds'], 0)
    self.assertIn('share, saved every 124800 steps, as released', done.out)
    self.assertIn(f'on disk: {row["megabytes"]:.1f} MB', done.out)

  @parameterized.parameters(
      ('--window_steps=0', '--window_steps must be >= 1, got 0'),
      ('--checkpoint_dir=missing', '--checkpoint_dir must be a directory'),
      (f'--checkpoint_dir={__file__}', '--checkpoint_dir must be a directory'),
      ('--checkpoint_dir=gs://bucket/run', 'must be a local path'),
      ('--networks=vgg', '--networks must be among'),
      ('--step_batch=1', '--step_batch must be >= 2'),
  )
  def test_rejects_in_one_line(self, argument, message):
    done = self.run_here('benchmarks', 'checkpoint', argument)
    self.check_refused(done, message)
