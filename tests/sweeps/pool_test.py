# SPDX-License-Identifier: Apache-2.0
"""Runs of a sweep side by side: their results, their end, and their death."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

from absl.testing import absltest
import joblib
import tensorflow_datasets as tfds

from hcl_jax import prepare
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import pool as jobs
from tests.support import commands
from tests.support import corpus

_ROOT = pathlib.Path(__file__).parents[2]
_CHAPTERS = 40


def _write_text(path):
  """Chapters of sentences, between blank lines."""
  toy = corpus.sentences()
  lines = []
  for chapter in range(_CHAPTERS):
    rows = range(6 * (chapter % 12), 6 * (chapter % 12) + 6)
    lines += [toy.text(row).replace('<unk>', 'new') for row in rows] + ['']
  path.write_text('\n'.join(lines), encoding='utf-8')


class CheckTest(absltest.TestCase):

  def test_every_job_has_a_core(self):
    cores = joblib.cpu_count()
    jobs.check(cores)
    for number in (0, cores + 1):
      with self.assertRaisesRegex(ValueError, f'--jobs must .*got {number}'):
        jobs.check(number)

  def test_an_accelerator_is_not_shared(self):
    patch = mock.patch.object
    with (
        patch(jobs.jax, 'default_backend', lambda: 'gpu'),
        patch(joblib, 'cpu_count', lambda: 8),
    ):
      jobs.check(1)
      with self.assertRaisesRegex(ValueError, "--jobs=2 .*backend is 'gpu'"):
        jobs.check(2)

  def test_shares_are_all_cores_and_apart(self):
    patch = mock.patch.object
    with patch(os, 'sched_getaffinity', lambda _: set(range(3, 10))):
      shares = jobs._shares_of_cores(3)
    self.assertEqual(sorted(map(len, shares)), [2, 2, 3])
    self.assertEqual(sorted(x for share in shares for x in share),
                     list(range(3, 10)))  # fmt: skip

  @absltest.skipUnless(hasattr(os, 'sched_setaffinity'), 'No cores to choose.')
  def test_a_process_is_born_on_its_cores(self):
    all_cores = os.sched_getaffinity(0)
    one = frozenset([max(all_cores)])
    with jobs._pinned(one):
      born = subprocess.check_output(
          [sys.executable, '-c', 'import os; print(os.sched_getaffinity(0))'],
          text=True,
      )
    self.assertEqual(born.strip(), str(set(one)))
    self.assertEqual(os.sched_getaffinity(0), all_cores)


@absltest.skipIf(
    joblib.cpu_count() < 2, 'Two jobs need two cores.'
)
class CommandTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    tfds.disable_progress_bar()
    root = tempfile.TemporaryDirectory()
    cls.addClassCleanup(root.cleanup)
    cls.root = pathlib.Path(root.name)
    _write_text(cls.root / 'toy.txt')
    prepare.prepare(
        'sentences/toy',
        data_dir=cls.root / 'data',
        text=str(cls.root / 'toy.txt'),
        validation_documents=8,
    )

  def _start(self, name, *flags):
    process = commands.start(
        'sweep', '--jobs=2',
        '--config=configs/sentences.py:small,hard',
        '--config.data.name=sentences/toy',
        f'--config.data.dir={self.root / "data"}',
        '--config.data.batch_size=24', '--config.data.block_size=6',
        '--config.model.encoder=bag', '--config.model.dim=8',
        '--config.model.word_dim=6', '--config.train.log_every_steps=1',
        '--config.evaluate.retrieval_every_epochs=0',
        '--config.train.checkpoint_every_epochs=1',
        f'--workdir={self.root / name}', *flags,
    )  # fmt: skip
    self.addCleanup(process.kill)
    return process

  def test_results_failures_and_lines(self):
    process = self._start(
        'results', '--config.train.epochs=2', '--sweep.loss.beta=0,1',
        '--sweep.optimizer.learning_rate=0.01,1e38',
    )  # fmt: skip
    out, err = process.communicate()
    self.assertEqual(process.returncode, 1, err)
    rows = (self.root / 'results' / 'results.csv').read_text().splitlines()
    self.assertRegex(rows[0], '^run,loss.beta,optimizer.learning_rate,retr')
    self.assertEqual([row[:2] for row in rows[1:]], ['0,', '1,', '2,', '3,'])
    for row, failed in zip(rows[1:], (False, True) * 2, strict=True):
      self.assertEqual(row.endswith(','), failed, row)
    self.assertEqual(err.count('loss=nan. Its batch is in'), 2, err)
    self.assertIn('(4 of 4 runs are finished)', err)
    self.assertRegex(err, r'loss.beta=1.0, .*=0.01: step 16/16 \(100 %\)')
    data, _, warning, *lines = err.splitlines()
    self.assertStartsWith(data, 'sentences/toy: 192 sentences')
    self.assertStartsWith(warning, 'warning: only 48 sentences are scored')
    for line in lines:
      if not re.match(r'E\d{4} .*cpu_aot_loader', line):  # of XLA in jaxlib 0.9
        self.assertRegex(line, r'loss.beta=[01]\.0, optimizer.learning_rate=')
    self.assertRegex(out, r'\| 1\.0 \| 0\.01 \| 1 \| \d+\.\d\d ± \d+\.\d\d \|')

  def test_a_death_a_stop_and_the_rest(self):
    flags = '--config.train.epochs=60', '--sweep.seed=0:2'
    process = self._start('stopped', *flags)
    runs = [self.root / 'stopped/runs' / name for name in ('0000', '0001')]
    self._wait_for(runs, process)
    killed = _user_of(runs[0])
    os.kill(killed, signal.SIGKILL)
    _, err = process.communicate()
    self.assertEqual(process.returncode, 1, err)
    line = 'hcl_jax.sweep: the process of seed=0 ended with status -9'
    self.assertIn(line, err)
    # The other one was told to save and leave.
    self.assertIn('SIGTERM: leaving after this step', err)
    steps = _last_step(runs[1])
    self.assertGreater(steps, 0)

    process = self._start('stopped', *flags)
    while f'seed=1: resumes after step {steps}' not in (
        line := process.stderr.readline()
    ):
      self.assertIsNone(process.poll(), line)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    self.assertEqual(process.returncode, 0, err)
    self.assertRegex(err.splitlines()[-1], 'of 2 runs finished.*continues')

    process = self._start('stopped', *flags)
    out, err = process.communicate()
    self.assertEqual(process.returncode, 0, err)
    self.assertRegex(out, r'\| 2 \| \d+\.\d\d ± \d+\.\d\d \|')

  def test_jobs_leave_with_their_parent(self):
    process = self._start(
        'orphans', '--config.train.epochs=100000', '--sweep.seed=0:2'
    )
    runs = [self.root / 'orphans/runs' / name for name in ('0000', '0001')]
    self._wait_for(runs, process)
    if hasattr(os, 'sched_getaffinity'):
      shares = [os.sched_getaffinity(_user_of(run)) for run in runs]
      self.assertEqual(set.intersection(*shares), set())
    process.kill()
    deadline = time.monotonic() + 120
    while any(_user_of(run) for run in runs):
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.1)
    process.communicate()
    self.assertTrue(all(_last_step(run) for run in runs))

  def _wait_for(self, runs, process):
    """Until every run has a checkpoint."""
    while not all(_last_step(run) for run in runs):
      self.assertIsNone(process.poll(), 'The sweep ended.')
      time.sleep(0.1)


def _last_step(run):
  folder = run / 'checkpoints'
  names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
  return max((int(x) for x in names if x.isdecimal()), default=0)


def _user_of(run):
  """The process that trains a run; None if there is none."""
  try:
    with workdir_lib.lock(run):
      return None
  except workdir_lib.WorkdirError as error:
    return int(re.search(r'process (\d+)', str(error))[1])
