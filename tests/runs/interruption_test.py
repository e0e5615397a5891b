# SPDX-License-Identifier: Apache-2.0
"""Signals as a flag, and the handlers from before."""

import os
import pathlib
import signal
import subprocess
import sys
import threading

from absl.testing import absltest
from absl.testing import parameterized

from hcl_jax.runs import interruption

_LOOP = """
import signal, sys, time
from hcl_jax.runs import interruption
signal.signal(signal.SIGINT, signal.default_int_handler)
with interruption.Interruption() as interrupted:
  print('ready', flush=True)
  while not interrupted.poll():
    time.sleep(0.01)
  print('saved', flush=True)
  if sys.argv[1] == 'linger':
    time.sleep(60)
"""

_COMMAND = """
import os, signal
from hcl_jax import command
signal.signal(signal.SIGINT, signal.default_int_handler)
command.run('name', lambda _: os.kill(os.getpid(), signal.SIGINT))
"""


class InterruptionTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # A shell starts background jobs, this test maybe, with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    self.addCleanup(signal.signal, signal.SIGINT, before)
    self.enter_context(absltest.mock.patch.object(interruption.os, 'write'))

  @parameterized.parameters(signal.SIGTERM, signal.SIGINT)
  def test_sets_the_flag_and_puts_handlers_back(self, number):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with interruption.Interruption() as interrupted:
      self.assertFalse(interrupted.requested)
      self.assertFalse(interrupted.poll())
      os.kill(os.getpid(), number)
      self.assertTrue(interrupted.requested)
      self.assertTrue(interrupted.poll())
    after = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    self.assertEqual(after, before)
    self.assertTrue(interrupted.requested)

  def test_handlers_come_back_after_an_error(self):
    before = signal.getsignal(signal.SIGTERM)
    with self.assertRaises(KeyError):
      with interruption.Interruption():
        raise KeyError
    self.assertEqual(signal.getsignal(signal.SIGTERM), before)

  def test_more_sigterms_change_nothing(self):
    with interruption.Interruption() as interrupted:
      for _ in range(3):
        os.kill(os.getpid(), signal.SIGTERM)
      self.assertTrue(interrupted.requested)
    self.assertEqual(interruption.os.write.call_count, 1)

  def test_an_ignored_signal_stays_ignored(self):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    self.addCleanup(signal.signal, signal.SIGINT, before)
    with interruption.Interruption() as interrupted:
      os.kill(os.getpid(), signal.SIGINT)
      self.assertFalse(interrupted.requested)
    self.assertEqual(signal.getsignal(signal.SIGINT), signal.SIG_IGN)

  def test_other_threads_catch_nothing(self):
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work():
      with interruption.Interruption() as interrupted:
        seen.append(signal.getsignal(signal.SIGTERM))
        seen.append(interrupted.poll())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    self.assertEqual(seen, [before, False])

  def test_several_processes_agree_through_jax(self):
    before = signal.getsignal(signal.SIGTERM)
    patch = absltest.mock.patch.object
    with (
        patch(interruption.jax, 'process_count', return_value=2),
        patch(
            interruption.multihost_utils,
            'reached_preemption_sync_point',
            side_effect=(False, False, True),
        ) as agree,
        interruption.Interruption() as interrupted,
    ):
      self.assertEqual(signal.getsignal(signal.SIGTERM), before)
      polls = [interrupted.poll() for _ in range(5)]
    self.assertEqual(polls, [False, False, True, True, True])
    self.assertEqual(agree.call_count, 3)
    first, *later = (call.args[0] for call in agree.call_args_list)
    self.assertEqual(later, [first + 1, first + 2])
    self.assertTrue(interrupted.requested)

  @parameterized.parameters(
      ('leave', [signal.SIGTERM], 0),
      ('linger', [signal.SIGINT, signal.SIGINT], -signal.SIGINT),
  )
  def test_a_process(self, behaviour, signals, code):
    child = subprocess.Popen(
        [sys.executable, '-c', _LOOP, behaviour],
        cwd=pathlib.Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for number, line in zip(signals, ('ready\n', 'saved\n'), strict=False):
      self.assertEqual(child.stdout.readline(), line)
      child.send_signal(number)
    _, errors = child.communicate(timeout=30)
    self.assertEqual(child.returncode, code)
    self.assertIn('leaving after this step', errors)

  def test_a_command_that_has_nothing_to_save(self):
    ended = subprocess.run(
        [sys.executable, '-c', _COMMAND],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    self.assertEqual(ended.returncode, 130)
    self.assertEqual(ended.stderr.strip(), 'name: stopped.')
