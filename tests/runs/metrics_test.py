# SPDX-License-Identifier: Apache-2.0
"""metrics.jsonl and TensorBoard, across crashes and resumed runs."""

import json
import logging
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

from absl.testing import absltest
import jax.numpy as jnp
import numpy as np
from tensorboardX.proto import event_pb2

from hcl_jax.runs import metrics


def _events(workdir):
  """Events of every file in order, read from the record framing by hand."""
  for path in sorted(pathlib.Path(workdir, 'tensorboard').iterdir()):
    data, at = path.read_bytes(), 0
    while at < len(data):
      (length,) = struct.unpack_from('<Q', data, at)
      yield event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
      at += 16 + length


class MetricsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.workdir = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(self.workdir, 'metrics.jsonl')

  def _write(self, *steps, tensorboard=False, **knobs):
    with metrics.MetricsWriter(
        self.workdir, tensorboard=tensorboard, **knobs
    ) as writer:
      for step in steps:
        writer.write(step, {'loss': 1 / step})

  def _steps(self):
    return [record['step'] for record in metrics.read_metrics(self.workdir)]

  def test_plain_numbers(self):
    with metrics.MetricsWriter(self.workdir, tensorboard=False) as writer:
      writer.write(
          np.int64(3),
          {'loss': jnp.float32(0.5), 'knn/top1': np.float64(0.25), 'n': 2},
      )
    self.assertEqual(
        self.path.read_text(),
        '{"step": 3, "loss": 0.5, "knn/top1": 0.25, "n": 2.0}\n',
    )
    (record,) = metrics.read_metrics(self.workdir)
    self.assertEqual(
        record, {'step': 3, 'loss': 0.5, 'knn/top1': 0.25, 'n': 2.0}
    )
    self.assertIsInstance(record['step'], int)

  def test_numbers_that_are_not_finite_are_valid_json(self):
    values = {'a': math.nan, 'b': math.inf, 'c': jnp.float32(-jnp.inf)}
    with metrics.MetricsWriter(self.workdir, tensorboard=False) as writer:
      writer.write(1, values)

    def refuse(name):
      self.fail(f'{name} is not JSON')

    record = json.loads(self.path.read_text(), parse_constant=refuse)
    self.assertEqual(
        record, {'step': 1, 'a': 'NaN', 'b': 'Infinity', 'c': '-Infinity'}
    )
    (record,) = metrics.read_metrics(self.workdir)
    self.assertTrue(math.isnan(record['a']))
    self.assertEqual((record['b'], record['c']), (math.inf, -math.inf))
    self._write(2)
    self.assertEqual(self._steps(), [1, 2])

  def test_nothing_there(self):
    self.assertEqual(metrics.read_metrics(self.workdir), [])
    new = os.path.join(self.workdir, 'a', 'b')
    with metrics.MetricsWriter(new) as writer:
      writer.write(1, {})
    self.assertEqual(metrics.read_metrics(new), [{'step': 1}])

  def test_appends(self):
    self._write(1, 2)
    before = self.path.stat().st_ino
    self._write(3, resume_step=2)
    self.assertEqual(self._steps(), [1, 2, 3])
    self.assertEqual(self.path.stat().st_ino, before)  # Not rewritten.

  def test_resuming_drops_later_steps(self):
    self._write(10, 20, 30, 40)
    self._write(30, 50, resume_step=20)
    self.assertEqual(self._steps(), [10, 20, 30, 50])
    self._write(10, resume_step=0)
    self.assertEqual(self._steps(), [10])
    self.assertEqual(os.listdir(self.workdir), ['metrics.jsonl'])

  def test_a_torn_last_line_is_repaired(self):
    self._write(1, 2)
    whole = self.path.read_bytes()
    for torn in (b'{"step": 3, "lo', b'{"step": 3}', b'\xe2\x82', b'\0' * 9):
      self.path.write_bytes(whole + torn)
      with self.assertNoLogs('absl', logging.WARNING):
        self.assertEqual(self._steps(), [1, 2])
      self._write(3)
      self.assertEqual(self._steps(), [1, 2, 3])
      self.assertEqual(self.path.read_bytes()[: len(whole)], whole)

  def test_the_last_step_is_that_of_the_last_whole_line(self):
    self.assertEqual(metrics.last_step(self.workdir), 0)
    self.path.write_text('{"st')
    self.assertEqual(metrics.last_step(self.workdir), 0)
    self.path.unlink()
    self._write(*range(1, 2000))  # more than is read
    self.assertEqual(metrics.last_step(self.workdir), 1999)
    with open(self.path, 'a') as file:
      file.write('{"step": 2000, "lo')
    self.assertEqual(metrics.last_step(self.workdir), 1999)

  def test_other_lines_are_skipped_with_a_warning(self):
    self._write(1)
    with open(self.path, 'a') as file:
      file.write('notes\n[1]\n{"loss": 2}\n{"step": 2, "loss": 0.5}\n')
    with self.assertLogs('absl', logging.WARNING) as logs:
      self.assertEqual(self._steps(), [1, 2])
    self.assertIn('3 lines', logs.records[0].getMessage())

  def test_a_killed_process_loses_no_complete_line(self):
    script = (
        'import os, sys\n'
        'from hcl_jax.runs import metrics\n'
        'writer = metrics.MetricsWriter(sys.argv[1], tensorboard=False)\n'
        'for step in (1, 2, 3):\n'
        '  writer.write(step, {"loss": 1.0})\n'
        'os.kill(os.getpid(), 9)\n'
    )
    subprocess.run(
        [sys.executable, '-c', script, self.workdir],
        cwd=pathlib.Path(__file__).parents[2],
    )
    self.assertEqual(self._steps(), [1, 2, 3])

  def test_tensorboard(self):
    self._write(1, 2, 3, tensorboard=True, resume_step=0)
    self._write(3, tensorboard=True, resume_step=2)
    self._write(tensorboard=True, resume_step=2)  # Nothing written, no file.
    files = os.listdir(os.path.join(self.workdir, 'tensorboard'))
    self.assertLen(files, 2)
    for file in files:
      self.assertIn('tfevents', file)  # by which TensorBoard finds it
    events = list(_events(self.workdir))
    self.assertEqual(events[0].file_version, 'brain.Event:2')
    scalars = [
        (event.step, value.tag, value.simple_value)
        for event in events
        for value in event.summary.value
    ]
    self.assertEqual([step for step, _, _ in scalars], [1, 2, 3, 3])
    self.assertEqual(scalars[1], (2, 'loss', 0.5))
    starts = [
        event.step for event in events if event.session_log.status == 1
    ]
    self.assertEqual(starts, [1, 3])  # Steps from here on are hidden.

  def test_rejects(self):
    with metrics.MetricsWriter(self.workdir, tensorboard=False) as writer:
      for values, message in (
          ({'loss': np.ones(2)}, "'loss' must be a number"),
          ({'name': 'x'}, "'name' must be a number"),
          ({'step': 1}, 'step'),
      ):
        with self.assertRaisesRegex(ValueError, message):
          writer.write(1, values)
    self.assertEqual(self.path.read_text(), '')

  def test_only_the_first_process_writes(self):
    with absltest.mock.patch.object(
        metrics.jax, 'process_index', return_value=1
    ):
      self._write(1, tensorboard=True)
    self.assertEqual(os.listdir(self.workdir), [])

  def test_closing_twice_and_writing_after(self):
    writer = metrics.MetricsWriter(self.workdir)
    writer.close()
    writer.close()
    writer.write(1, {'loss': 1.0})
    self.assertEqual(metrics.read_metrics(self.workdir), [])
