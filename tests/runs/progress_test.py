# SPDX-License-Identifier: Apache-2.0
"""Progress on terminals of any width, and in log files."""

import fcntl
import io
import os
import pty
import struct
import termios
import threading

from absl.testing import absltest
from absl.testing import parameterized
import jax.numpy as jnp

from hcl_jax.runs import progress


class _Clock:

  def __init__(self):
    self.now = 0.0

  def monotonic(self):
    return self.now


class ProgressTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.clock = _Clock()
    self.enter_context(
        absltest.mock.patch.object(progress, 'time', self.clock)
    )

  def _run(self, file, steps, seconds_per_step, **knobs):
    with progress.Progress(100, 0, batch_size=64, file=file, **knobs) as shown:
      self.clock.now += 60.0  # Compilation.
      for step in steps:
        shown.update(step, loss=jnp.float32(2.5), beta=0.5)
        self.clock.now += seconds_per_step

  def test_a_log_file_gets_a_line_for_every_tenth(self):
    file = io.StringIO()
    self._run(file, range(1, 101), 0.5)
    lines = file.getvalue().splitlines()
    self.assertBetween(len(lines), 10, 12)
    self.assertIn(
        'train: step 51/100 (51 %), loss 2.5, beta 0.5, 128 rows/s, '
        'ETA 0:24',
        lines,
    )
    self.assertStartsWith(lines[-1], 'train: step 100/100 (100 %)')
    self.assertEndsWith(lines[-1], 'ETA 0:00')
    self.assertNotIn('\r', file.getvalue())

  def test_slow_steps_get_a_line_every_half_minute(self):
    file = io.StringIO()
    self._run(file, range(1, 6), 20.0, label='eval')
    lines = file.getvalue().splitlines()
    steps = [line.split(' (')[0] for line in lines]
    self.assertEqual(
        steps, [f'eval: step {step}/100' for step in (1, 3, 5)]
    )
    self.assertNotIn('ETA', lines[0])  # One mark makes no rate.
    self.assertIn('3.2 rows/s, ETA 32:20', lines[1])

  def test_a_resumed_run_counts_its_own_steps(self):
    file = io.StringIO()
    with progress.Progress(100, 90, batch_size=10, file=file) as shown:
      for step in range(91, 101):
        shown.update(step, loss=1.0)
        self.clock.now += 31.0
    self.assertIn('0.3226 rows/s', file.getvalue().splitlines()[-1])

  def test_a_loss_that_is_not_drawn_is_not_fetched(self):
    class Loss:
      fetched = 0

      def __float__(self):
        self.fetched += 1
        return 1.0

    loss = Loss()
    with progress.Progress(1000, file=io.StringIO()) as shown:
      for step in range(1, 1001):
        shown.update(step, loss=loss)
    self.assertEqual(loss.fetched, 10)

  def test_after_an_error_nothing_is_fetched(self):
    file = io.StringIO()
    with self.assertRaises(KeyError):
      with progress.Progress(100, file=file) as shown:
        shown.update(1, loss='no number, as of a device that is gone')
        raise KeyError
    self.assertEqual(file.getvalue(), '')

  @parameterized.parameters(
      (7, '0:07'), (754, '12:34'), (3723, '1:02:03'), (90000, '25:00:00')
  )
  def test_durations(self, seconds, text):
    self.assertEqual(progress._duration(seconds), text)

  def test_other_processes_are_silent(self):
    file = io.StringIO()
    with absltest.mock.patch.object(
        progress.jax, 'process_index', return_value=1
    ):
      self._run(file, range(1, 101), 1.0)
      with progress.Progress(1, file=file) as shown:
        shown.write('text')
    self.assertEqual(file.getvalue(), '')

  def _on_terminal(self, width, act):
    """What a terminal of this width receives."""
    leader, follower = pty.openpty()
    fcntl.ioctl(
        follower, termios.TIOCSWINSZ, struct.pack('HHHH', 24, width, 0, 0)
    )
    received = []

    def read():
      while True:
        try:
          data = os.read(leader, 4096)
        except OSError:  # Linux says EIO when the other side is closed.
          return
        if not data:
          return
        received.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    with open(follower, 'w') as file:
      act(file)
    reader.join()
    os.close(leader)
    return b''.join(received).decode()

  @parameterized.parameters(0, 2, 5, 20, 40, 200)
  def test_any_width(self, width):
    text = self._on_terminal(
        width, lambda file: self._run(file, range(1, 101), 0.5)
    )
    drawings = text.replace('\r\n', '\r').split('\r')
    if width > 0:  # A terminal that does not know its width says 0.
      self.assertLessEqual(max(map(len, drawings)), width)
    if width == 200:
      self.assertIn('100/100', text)
      self.assertRegex(text, r'loss 2\.5, beta 0\.5, 128 rows/s, ETA 0:\d\d')

  def test_lines_above_the_bar(self):
    def act(file):
      with progress.Progress(10, file=file) as shown:
        shown.update(1, loss=1.0)
        shown.write('kNN 0.5')
        self.clock.now += 1.0
        shown.update(2, loss=1.0)

    text = self._on_terminal(100, act)
    self.assertRegex(text, r'\rkNN 0\.5\r\n')
    self.assertIn('2/10', text)

  def test_lines_in_a_log_file(self):
    file = io.StringIO()
    with progress.Progress(10, file=file) as shown:
      shown.write('kNN 0.5')
    self.assertEqual(file.getvalue(), 'kNN 0.5\n')


class PartsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.clock = _Clock()
    self.enter_context(
        absltest.mock.patch.object(progress, 'time', self.clock)
    )
    self.file = io.StringIO()

  def _lines(self, calls, seconds):
    with progress.Parts(self.file) as parts:
      for call in calls:
        parts(*call)
        self.clock.now += seconds
    return self.file.getvalue().splitlines()

  def test_what_is_quick_is_not_shown(self):
    calls = [(done, 20, 'epochs') for done in range(21)]
    self.assertEmpty(self._lines(calls, 0.1))

  def test_what_takes_long_is_shown(self):
    calls = [(done, 20, 'epochs') for done in range(21)]
    lines = self._lines(calls, 2.0)
    self.assertEqual(
        lines[0], 'evaluate: 15/20 epochs (75 %), elapsed 0:30'
    )
    self.assertEqual(
        lines[-1],
        'evaluate: 20/20 epochs (100 %), elapsed 0:40, 0.5 epochs/s, ETA 0:00',
    )

  def test_each_part_counts_from_its_own_start(self):
    first = [(done, 10, 'images') for done in range(10)]
    second = [(done, 5, 'folds') for done in (1, 2)]
    lines = self._lines([*first, *second], 4.0)
    self.assertEqual(lines[0], 'evaluate: 8/10 images (80 %), elapsed 0:32')
    self.assertStartsWith(lines[-1], 'evaluate: 9/10 images')

  def test_a_terminal_is_shown_it_sooner(self):
    self.file.isatty = lambda: True
    self._lines([(done, 20, 'epochs') for done in range(10)], 2.0)
    self.assertIn('9/20, elapsed 0:18', self.file.getvalue())

  def test_what_is_not_counted_is_not_shown(self):
    self.assertEmpty(self._lines([()] * 9, 10.0))


class IfSlowTest(absltest.TestCase):

  def test_what_is_quick_is_not_said(self):
    lines = []
    with progress.if_slow(lines.append, 'compiling', 'compiled'):
      pass
    self.assertEmpty(lines)

  def test_what_takes_long_is_said_meanwhile(self):
    lines, said = [], threading.Event()

    def write(line):
      lines.append(line)
      said.set()

    with absltest.mock.patch.object(progress, '_SLOW_SECONDS', 0.01):
      with progress.if_slow(write, 'compiling', 'compiled'):
        self.assertTrue(said.wait(60))
        self.assertEqual(lines, ['compiling ...'])
    self.assertRegex(lines[1], r'^compiled in \d+\.\d s$')
