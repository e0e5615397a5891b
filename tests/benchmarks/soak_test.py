# SPDX-License-Identifier: Apache-2.0
"""The bench of long runs, its parts and as a user runs it."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from benchmarks import runs
from benchmarks import soak
from benchmarks import trends
from benchmarks import usage
from hcl_jax import command
from hcl_jax.runs import metrics
from tests.support import commands

_MIB = 2**20
_SLEEP = [sys.executable, '-c', 'import time; time.sleep(60)']


def _samples(
    total=1000,
    *,
    resident=lambda step: 500 * _MIB,
    files=lambda step: 9,
    step_seconds=lambda step: 0.1,
):
  """A run with a sample every five steps; a thread and a half works."""
  made, seconds = [], 0.0
  for step in range(5, total + 1, 5):
    seconds += 5 * step_seconds(step)
    made.append(
        trends.Sample(
            step,
            seconds,
            usage.Usage(
                cpu_seconds=1.5 * seconds,
                resident=resident(step),
                peak=700 * _MIB,
                files=files(step),
                threads=40,
            ),
        )
    )
  return made


class TrendsTest(parameterized.TestCase):

  def test_a_run_that_keeps_its_memory_and_speed(self):
    found = trends.summarize(_samples(), 1000)
    self.assertEqual(found['samples'], 200)
    for name, value in (
        ('cpu_ms_per_step', 150), ('wall_ms_per_step', 100),
        ('resident_mib', 500), ('files', 9), ('threads', 40),
    ):  # fmt: skip
      self.assertAlmostEqual(found[name]['earlier'], value)
      self.assertAlmostEqual(found[name]['later'], value)
      self.assertAlmostEqual(found[name]['ratio'], 1)
    self.assertAlmostEqual(found['slope_mib_per_1000_steps'], 0)
    self.assertAlmostEqual(found['drift_mib'], 0)
    self.assertEqual(found['peak_mib'], 700)

  def test_a_leak_shows_among_ups_and_downs(self):
    def resident(step):
      return 500 * _MIB + 1024 * step + 8 * _MIB * (step % 50 == 0)

    found = trends.summarize(_samples(resident=resident), 1000)
    self.assertAlmostEqual(found['slope_mib_per_1000_steps'], 0.98, delta=0.3)
    self.assertAlmostEqual(
        found['drift_mib'], found['slope_mib_per_1000_steps'] / 2
    )
    self.assertGreater(found['resident_mib']['ratio'], 1)

  def test_what_grows_in_the_first_half_only_is_no_leak(self):
    found = trends.summarize(
        _samples(resident=lambda step: _MIB * min(step, 499)), 1000
    )
    self.assertAlmostEqual(found['slope_mib_per_1000_steps'], 0)

  def test_files_that_stay_open_show(self):
    found = trends.summarize(_samples(files=lambda step: 9 + step // 100), 1000)
    self.assertEqual(found['files']['earlier'], 14)
    self.assertEqual(found['files']['later'], 18)

  def test_a_run_that_becomes_slow(self):
    found = trends.summarize(
        _samples(step_seconds=lambda step: 0.1 + 0.2 * (step > 750)), 1000
    )
    for name in ('cpu_ms_per_step', 'wall_ms_per_step'):
      self.assertAlmostEqual(found[name]['ratio'], 3)

  def test_evaluations_are_no_slow_steps(self):
    found = trends.summarize(
        _samples(step_seconds=lambda step: 9.0 if step in (800, 900) else 0.1),
        1000,
    )
    self.assertAlmostEqual(found['wall_ms_per_step']['ratio'], 1)

  @parameterized.parameters(0, 1, 2)
  def test_few_samples_tell_little(self, count):
    found = trends.summarize(_samples()[-count:] if count else [], 1000)
    self.assertIsNone(found['cpu_ms_per_step']['earlier'])
    self.assertIsNone(found['cpu_ms_per_step']['ratio'])
    self.assertEqual(found['slope_mib_per_1000_steps'] is None, count < 2)
    text = soak.report(found | {
        'config': 'c', 'steps': 1000, 'evaluations': 0, 'jax': '0',
        'device_kind': 'cpu', 'cores': 1,
    })  # fmt: skip
    self.assertRegex(text, r'\nCPU ms of a step +- +')


class UsageTest(absltest.TestCase):

  def test_reads_what_a_process_uses(self):
    script = """
import os, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
held = bytearray(64 * 2**20), open(os.devnull), open(os.devnull)
while time.process_time() < 0.2: pass
print(flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, '-c', script], stdout=subprocess.PIPE
    )
    with process:
      process.stdout.readline()
      found = usage.read(process.pid)
      process.kill()
      os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
      self.assertIsNone(usage.read(process.pid))  # it has no memory any more
    self.assertIsNone(usage.read(process.pid))
    self.assertBetween(found.cpu_seconds, 0.15, 5)
    self.assertBetween(found.resident, 64 * _MIB, 200 * _MIB)
    self.assertGreaterEqual(found.peak, found.resident)
    self.assertGreaterEqual(found.files, 5)  # the standard ones too
    self.assertEqual(found.threads, 2)

  def test_other_systems_are_refused(self):
    usage.check_system()
    with mock.patch.object(usage, '_PROC', pathlib.Path('/nowhere')):
      with self.assertRaisesRegex(command.UsageError, 'only Linux has'):
        usage.check_system()


class ProcessTest(parameterized.TestCase):

  @parameterized.parameters(signal.SIGINT, signal.SIGTERM)
  def test_ends_with_an_interrupted_bench(self, number):
    # A shell starts background jobs, tests maybe, with SIGINT ignored.
    ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)
    self.addCleanup(signal.signal, signal.SIGINT, ctrl_c)
    before = signal.getsignal(signal.SIGTERM)
    with self.assertRaises(KeyboardInterrupt):
      with runs.started(_SLEEP) as process:
        os.kill(os.getpid(), number)
        time.sleep(60)
    self.assertEqual(process.returncode, -signal.SIGTERM)
    self.assertEqual(signal.getsignal(signal.SIGTERM), before)

  def test_is_killed_if_it_does_not_leave(self):
    deaf = (
        'import signal, sys, time\n'
        'signal.signal(signal.SIGTERM, signal.SIG_IGN)\n'
        'print(file=sys.stderr, flush=True)\n'
        'time.sleep(60)\n'
    )
    with (
        mock.patch.object(runs, '_PATIENCE_SECONDS', 0.2),
        tempfile.NamedTemporaryFile() as errors,
        runs.started([sys.executable, '-c', deaf], errors) as process,
    ):
      while process.poll() is None and not os.path.getsize(errors.name):
        time.sleep(0.01)
    self.assertEqual(process.returncode, -signal.SIGKILL)

  @parameterized.parameters(
      (2, 'no\nsuch field\n', command.UsageError, 'x failed: such field'),
      (1, 'disk full', command.Failure, 'x failed: disk full'),
      (-9, '', command.Failure, 'x failed: it ended with status -9'),
  )
  def test_errors_are_told_in_one_line(self, status, errors, kind, message):
    with self.assertRaisesRegex(kind, message):
      runs.check_end('x', status, errors)

  def test_samples_come_at_steps(self):
    workdir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    process = mock.Mock(pid=os.getpid())
    # That of step 4 comes too soon, and is no news when a sample is due.
    steps = iter([2, 4, 4, 5, 6, 8])

    def go_on():
      step = next(steps, None)
      if step is None:
        return 0
      with metrics.MetricsWriter(workdir, tensorboard=False) as writer:
        writer.write(step, {})
      return None

    process.poll = go_on
    clock = mock.Mock(side_effect=[0.0, 0.5, 1.0, 1.2, 3.0, 3.1])
    with mock.patch.multiple(soak.time, perf_counter=clock, sleep=mock.Mock()):
      samples = soak.follow(process, workdir, 8, 0.9)
    found = [(x.step, x.seconds) for x in samples]
    self.assertEqual(found, [(2, 0.0), (5, 1.2), (6, 3.0), (8, 3.1)])


class FinishedTest(absltest.TestCase):

  def test_a_run_that_left_early_is_no_result(self):
    with tempfile.TemporaryDirectory() as workdir:
      with metrics.MetricsWriter(workdir, tensorboard=False) as writer:
        writer.write(7, {})
      soak.check_finished(workdir, 7)
      with self.assertRaisesRegex(command.Failure, 'after step 7 of 8'):
        soak.check_finished(workdir, 8)


class BenchSoakTest(commands.CommandsTest):

  def test_a_short_run(self):
    path = self.root / 'soak.json'
    workdir = self.root / 'run'
    done = commands.run(
        'benchmarks', 'soak', '--soak_steps=12', '--soak_every_epochs=1',
        '--soak_sample_seconds=0.01', f'--soak_workdir={workdir}',
        '--bench_dataset=digit_scenes/tiny', f'--bench_data_dir={self.root}',
        f'--json={path}',
    )  # fmt: skip
    self.assertEqual(done.status, 0, done.err)
    self.assertIn('configs/digits.py:hard: 12 steps, with 3 eval', done.out)
    self.assertIn('step 12 of 12: ', done.err)
    results = json.loads(path.read_text())
    self.assertEqual(results['evaluations'], 3)
    self.assertEqual(
        sorted(os.listdir(workdir / 'checkpoints')), ['12', '4', '8']
    )
    rows = results['rows']
    self.assertEqual(rows[-1]['step'], 12)
    self.assertLen(rows, results['samples'])
    for earlier, later in zip(rows[:-1], rows[1:], strict=True):
      for name in ('step', 'seconds'):
        self.assertGreater(later[name], earlier[name])
    self.assertGreater(results['peak_mib'], 100)

  def test_a_run_that_fails(self):
    config = self.root / 'config.py'
    config.write_text(
        'from hcl_jax.images import config\n'
        'def get_config():\n'
        '  made = config.simclr()\n'
        '  made.optimizer.learning_rate = -1.0\n'
        '  return made\n'
    )
    done = self.run_here('benchmarks', 'soak', f'--soak_config={config}')
    self.assertEqual(done.status, 2)
    self.assertRegex(
        done.err.strip().splitlines()[-1],
        'hcl_jax.train failed: .*config.optimizer.learning_rate must be',
    )

  @parameterized.parameters(
      ('--soak_steps=7', '--soak_steps must be >= 8, got 7'),
      ('--soak_every_epochs=0', '--soak_every_epochs must be >= 1'),
      ('--soak_sample_seconds=0', '--soak_sample_seconds must be >='),
      ('--soak_config=nowhere.py:hard', "there is no file 'nowhere.py'"),
      (f'--soak_workdir={pathlib.Path(__file__).parent}', 'must be an empty'),
      (f'--soak_workdir={__file__}', 'must be an empty directory'),
      ('--soak_workdir=gs://bucket/run', 'must be a local path'),
  )
  def test_rejects_in_one_line(self, argument, message):
    done = self.run_here(
        'benchmarks', 'soak', f'--soak_config={__file__}', argument
    )
    self.check_refused(done, message)
