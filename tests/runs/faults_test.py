# SPDX-License-Identifier: Apache-2.0
"""Faults for real: what a run that is killed, stopped, damaged or starved does.

The command runs in a process of its own, something goes wrong, and the same
command is given once more. It then ends as a run does that nothing happened to:
with the same bits in its last state and in metrics.jsonl. What a lost peer does
to the others is in processes_test.py.

Slow: some forty processes. ``-m 'not slow'`` leaves it out.
"""

from concurrent import futures
import json
import os
import pathlib
import queue
import random
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from typing import NamedTuple

from absl.testing import parameterized
import chex
import numpy as np
import pytest
import tensorflow_datasets as tfds

from hcl_jax.images import data as image_data
from hcl_jax.runs import metrics as metrics_lib
from tests.support import commands
from tests.support import forks

_FIELDS = {
    'data.batch_size': 16,
    'train.epochs': 8,  # of four steps
    'train.log_every_steps': 3,
    'train.checkpoint_every_epochs': 1,
    'train.keep_checkpoints': 9,
    'evaluate.knn_every_epochs': 2,
    'evaluate.knn_k': 5,
    'evaluate.protocols': ('knn',),
}
_LAST = 32
_OLD = 'old'  # a mark
_TINY = 'digit_scenes/tiny'
_PATIENCE_SECONDS = 300  # of a machine that has other work

pytestmark = pytest.mark.slow

_folder = None  # of the run that nothing happens to, and of what all share
_expected = None  # how that run ends


@pytest.fixture(scope='module', autouse=True)
def _shared(tmp_path_factory):
  global _folder, _expected
  _folder = tmp_path_factory.mktemp('faults')
  # The others are forks, whose hash seeds are the same.
  whole = _Child(_folder / 'whole', start=commands.start_fresh)
  _expected = whole.finish()
  assert _expected.status == 0, _expected.errors
  yield
  _Child.end_all()


class _End(NamedTuple):
  """How a process ended."""

  status: int
  output: str
  errors: str

  @property
  def message(self) -> str:
    """The line that says why."""
    last = (self.errors.splitlines() or [''])[-1]
    return last.removeprefix('hcl_jax.train: ')

  @property
  def state(self) -> str:
    """The checksum of the last state."""
    return re.findall(r'^step (\d+ \w{64})$', self.output, re.MULTILINE)[-1]

  @property
  def first_step(self) -> int:
    """The step it resumed from."""
    found = re.search(r'resumes after step (\d+)', self.errors)
    return int(found[1]) if found else 0


class _Child:
  """A process that trains."""

  _all = []

  def __init__(
      self, workdir, *, command=(), fields=(), start=forks.start, **knobs
  ):
    command = command or [
        'tests/support/process_worker.py', json.dumps({'devices': 1} | knobs),
        '--config=configs/cifar10.py',
    ]  # fmt: skip
    flags = _FIELDS | dict(fields)
    self._process = start(
        *command, f'--workdir={workdir}',
        *(f'--config.{name}={value}' for name, value in flags.items()),
        environment=_environment(),
    )  # fmt: skip
    self._all.append(self._process)
    self.pid = self._process.pid
    self.send = self._process.send_signal
    self._seen, self._lines = [], queue.SimpleQueue()
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()

  @classmethod
  def end_all(cls):
    for process in cls._all:
      process.kill()
      process.wait()

  def _read(self):
    for line in self._process.stdout:
      self._seen.append(line)
      self._lines.put(line.strip())
    self._lines.put(None)

  def wait_for(self, pattern) -> str:
    """The next line like this."""
    while (line := self._lines.get(timeout=_PATIENCE_SECONDS)) is not None:
      if re.fullmatch(pattern, line):
        return line
    raise AssertionError(f'{pattern!r} never came: {self.finish()}')

  def finish(self) -> _End:
    """Waits until it ends."""
    status = self._process.wait(timeout=_PATIENCE_SECONDS)
    self._reader.join()
    errors = self._process.stderr.read()
    self._process.stdout.close()
    self._process.stderr.close()
    return _End(status, ''.join(self._seen), errors)


def _environment():
  changes = {'TFDS_DATA_DIR': str(_folder / 'data')}
  if 'HCL_JAX_TEST_CACHE' in os.environ:
    # One of their own: who is killed may leave half of a program there.
    changes['JAX_COMPILATION_CACHE_DIR'] = str(_folder / 'compiled')
  return commands.environment(**changes)


def _steps(workdir) -> list[int]:
  """Steps whose checkpoints look complete."""
  names = [path.name for path in workdir.glob('checkpoints/*')]
  return sorted(int(name) for name in names if name.isdecimal())


def _unfinished(workdir) -> list[pathlib.Path]:
  """What a save that was killed leaves."""
  return list(workdir.glob('checkpoints/*tmp*'))


def _contents(folder) -> dict[str, bytes]:
  return {
      str(path.relative_to(folder)): path.read_bytes()
      for path in folder.rglob('*')
      if path.is_file() and path.name != '.lock'
  }


def _damage(path, how) -> None:
  content = bytearray(path.read_bytes())
  if how == 'flipped':
    content[len(content) // 2] ^= 0x10
  else:
    del content[len(content) // 2 :]
  path.write_bytes(content)
  if how == 'missing':
    path.unlink()


def _largest_file(step) -> pathlib.Path:
  """The arrays of a checkpoint, or most of them."""
  files = (step / 'state').rglob('d/*')
  return max(files, key=lambda path: path.stat().st_size)


class FaultTest(parameterized.TestCase):
  """Runs, and what they are compared with."""

  def workdir(self) -> pathlib.Path:
    """Where a run may be; nothing is there yet."""
    folder = self.enter_context(tempfile.TemporaryDirectory())
    return pathlib.Path(folder) / 'run'

  def killed(self, parent=None) -> pathlib.Path:
    """A run that was killed before its last step was saved."""
    workdir = parent / 'run' if parent else self.workdir()
    shutil.copytree(_folder / 'whole', workdir)
    shutil.rmtree(workdir / 'checkpoints' / str(_LAST))
    (workdir / 'scores.json').unlink()
    return workdir

  def check_whole(self, workdir, end):
    """All is as in the run that nothing happened to."""
    self.assertEqual(end.status, 0, end.errors)
    self.assertNotIn('Traceback', end.errors)
    self.assertEqual(end.state, _expected.state)
    for name in ('metrics.jsonl', 'scores.json', 'config.json'):
      self.assertEqual(
          (workdir / name).read_text(), (_folder / 'whole' / name).read_text()
      )
    self.assertEqual(_steps(workdir)[-1], _LAST)
    self.assertEmpty(_unfinished(workdir))

  def check_resumes(self, workdir, first_step):
    """The same command ends the run, from no earlier step than this."""
    end = _Child(workdir).finish()
    self.assertGreaterEqual(end.first_step, first_step)
    self.check_whole(workdir, end)
    return end

  def check_message(self, end, status, pattern):
    """It ended with one line that says this."""
    self.assertEqual(end.status, status, end.errors)
    self.assertRegex(end.message, pattern)
    self.assertNotIn('Traceback', end.errors)
    self.assertEqual(end.errors.count('hcl_jax.train: '), 1, end.errors)

  def mount(self) -> pathlib.Path:
    """A small file system of its own."""
    folder = self.enter_context(tempfile.TemporaryDirectory())
    done = subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', folder],
        capture_output=True,
    )
    if done.returncode:
      self.skipTest('mounting is not permitted here')
    self.addCleanup(subprocess.run, ['umount', '-l', folder], check=True)
    return pathlib.Path(folder)


class KillTest(FaultTest):

  def test_kill_9_while_saving(self):
    """Ten times, in two runs that are killed once and again."""
    # Which save of each process to kill it in; eight would be the last.
    saves = (2, 1, 2, 1, 1)
    with futures.ThreadPoolExecutor() as pool:
      in_time = pool.map(self._kill_in_saves, (0, 1), (saves, saves))
      self.assertGreater(sum(in_time), 2)  # the others were too late

  def _kill_in_saves(self, seed, saves):
    """How many saves were unfinished when their process was killed."""
    rng = random.Random(seed)
    workdir = self.workdir()
    safe, count = 0, 0
    for number in saves:
      for left in _unfinished(workdir):
        (left / _OLD).touch()
      child = _Child(
          workdir, save_pause=0.15, fields={'train.keep_checkpoints': 1}
      )
      for _ in range(number):
        announced = child.wait_for(r'save \d+')
      saving = int(announced.split()[1])
      _wait_until(lambda s=saving: s in _steps(workdir) or _new(workdir))
      time.sleep(rng.uniform(0, 0.45))
      child.send(signal.SIGKILL)
      end = child.finish()
      self.assertEqual(end.status, -signal.SIGKILL)
      self.assertGreaterEqual(end.first_step, safe)
      # A save begins when the one before it is complete.
      safe = saving - 4 if number > 1 else end.first_step
      self.assertGreaterEqual(max(_steps(workdir), default=0), safe)
      count += _new(workdir)
    self.check_resumes(workdir, safe)
    return count


def _new(workdir) -> bool:
  """Whether there is an unfinished save that was not there before."""
  return any(not (path / _OLD).exists() for path in _unfinished(workdir))


class SignalTest(FaultTest):

  def test_sigterm_and_sigint(self):
    """One run that is stopped in all ways, one after the other."""
    workdir = self.workdir()
    term, ctrl_c = signal.SIGTERM, signal.SIGINT
    for signals in (
        {'batch 2': term},
        {'save 4': term},
        {'batch 10': term, r'save \d+': term},
        {'batch 16': ctrl_c},  # where kNN is due
    ):
      end = self._stop(workdir, signals)
      self.check_message(
          end, 0, r'stopped after step \d+, which is saved\. The same command'
      )
      self.assertIn(f'stopped after step {_steps(workdir)[-1]},', end.errors)
      self.assertEmpty(_unfinished(workdir))

    end = self._stop(workdir, {'batch 22': ctrl_c, r'save \d+': ctrl_c})
    self.assertEqual(end.status, -ctrl_c, end.errors)
    self.assertIn('Ctrl-C: leaving after this step; once more', end.errors)
    self.assertEqual(_steps(workdir)[-1], 20)
    self.check_resumes(workdir, 20)

  def _stop(self, workdir, signals):
    child = _Child(workdir, pause=0.1, save_pause=0.3)
    for line, number in signals.items():
      child.wait_for(line)
      child.send(number)
    return child.finish()


class DamageTest(FaultTest):

  @parameterized.parameters('flipped', 'cut', 'missing', 'empty')
  def test_the_newest_checkpoint(self, how):
    workdir = self.killed()
    newest = workdir / 'checkpoints' / '28'
    if how == 'empty':
      newest = workdir / 'checkpoints' / '30'
      newest.mkdir()
    else:
      _damage(_largest_file(newest), how)
    end = self.check_resumes(workdir, 28 if how == 'empty' else 24)
    self.assertRegex(
        end.errors,
        rf'checkpoint {newest.name} in .* is damaged: .* Using step '
        rf'{end.first_step} instead',
    )
    self.assertTrue(newest.with_suffix('.damaged').is_dir())

  def test_all_checkpoints(self):
    workdir = self.killed()
    for path in (workdir / 'checkpoints').iterdir():
      _damage(_largest_file(path), 'flipped')
    before = _contents(workdir / 'checkpoints')
    end = _Child(workdir).finish()
    self.check_message(
        end, 1, r'none of the 7 checkpoints in .* is readable; nothing was '
        r'deleted.* checkpoint 28 .* checkpoint 4 '
    )  # fmt: skip
    self.assertEqual(_contents(workdir / 'checkpoints'), before)

  @parameterized.parameters('flipped', 'cut')
  def test_a_file_of_the_data(self, how):
    tfds.disable_progress_bar()
    workdir = self.workdir()
    prepared = _folder / 'data' / _TINY / '1.0.0'
    image_data.load(_TINY, 'test', data_dir=_folder / 'data')
    (file,) = prepared.glob('*train.array_record*')
    intact = file.read_bytes()
    self.addCleanup(file.write_bytes, intact)
    _damage(file, how)
    command = ['-m', 'hcl_jax.train', '--config=configs/digits.py:hard']
    end = _Child(
        workdir, command=command, fields={'data.name': _TINY}
    ).finish()
    self.check_message(end, 2, f'{file} is damaged .*; delete {prepared} and')
    self.assertLen(end.errors.splitlines(), 1)
    self.assertFalse(workdir.exists())

  def test_a_batch_that_gives_nan(self):
    workdir = self.workdir()
    end = _Child(workdir, nan_step=6).finish()
    self.check_message(
        end, 1, r'step 6 gave grad_norm=nan, loss=nan\. Its batch is in '
        r'.*not_finite_step_6\.npz .* Last good checkpoint: step 4\.'
    )  # fmt: skip
    with np.load(workdir / 'not_finite_step_6.npz') as batch:
      self.assertEqual(batch['image'].shape, (16, 4, 4, 3))
    self.check_resumes(workdir, 4)


class DiskTest(FaultTest):

  def test_files_that_cannot_grow(self):
    """As on a full disk, but without the rights to have one."""
    workdir = self.workdir()
    for line, message in (
        ('save 8', rf'saving a checkpoint to {workdir}/checkpoints failed: '),
        ('batch 6', rf'File too large: .{workdir}/metrics\.jsonl'),
    ):
      child = _Child(workdir, pause=0.1, save_pause=0.3)
      child.wait_for(line)
      _, most = resource.prlimit(child.pid, resource.RLIMIT_FSIZE)
      resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (0, most))
      end = child.finish()
      self.check_message(
          end, 1, rf'{message}.*The same command resumes from the last'
      )
      self.assertIn('File too large', end.message)
      self.assertEqual(_steps(workdir), [4])
    self.check_resumes(workdir, 4)

  def test_a_full_disk(self):
    disk = self.mount()
    workdir = disk / 'run'
    child = _Child(workdir, save_pause=0.3)
    child.wait_for('save 8')
    _fill(disk)
    end = child.finish()
    self.check_message(
        end, 1, rf'saving a checkpoint to {workdir}/checkpoints failed: .*No '
        'space left on device'
    )  # fmt: skip
    self.assertEqual(_steps(workdir), [4])

    for name in ('run', 'another'):
      end = _Child(disk / name).finish()
      self.check_message(end, 2, f'workdir {disk / name} cannot be written: ')
      self.assertLen(end.errors.splitlines(), 1)
    (disk / 'filling').unlink()
    self.check_resumes(workdir, 4)

  def test_a_directory_that_is_read_only(self):
    if os.geteuid() == 0:  # who may write to any directory
      disk = self.mount()
      workdir = self.killed(disk)
      subprocess.run(['mount', '-o', 'remount,ro', disk], check=True)
    else:
      workdir = self.killed()
      for path in (workdir, *workdir.rglob('*')):
        path.chmod(path.stat().st_mode & ~0o222)
      self.addCleanup(workdir.chmod, 0o700)
    before = _contents(workdir)
    end = _Child(workdir).finish()
    self.check_message(end, 2, f'workdir {workdir} cannot be written: ')
    self.assertLen(end.errors.splitlines(), 1)
    self.assertEqual(_contents(workdir), before)


class SecondRunTest(FaultTest):

  def test_two_in_one_workdir(self):
    workdir = self.killed()
    first = _Child(workdir, pause=0.1, save_pause=0.3)
    first.wait_for('batch 29')
    first.send(signal.SIGSTOP)
    try:
      end = _Child(workdir).finish()
    finally:
      first.send(signal.SIGCONT)
    self.check_message(
        end, 2, rf'another process \(process {first.pid} on .*\) is at work in '
        rf'{workdir}; stop it, or use another workdir'
    )  # fmt: skip
    self.assertLen(end.errors.splitlines(), 1)
    self.check_whole(workdir, first.finish())

  @parameterized.parameters(
      ('data.batch_size', 16, 32),
      ('loss.annealing', "'constant'", 'down'),
  )
  def test_another_configuration_is_refused(self, field, old, new):
    workdir = self.killed()
    before = _contents(workdir)
    end = _Child(workdir, fields={field: new}).finish()
    self.check_message(
        end, 2, f'another configuration: {field} was {old} and is .*{new}'
    )
    self.assertLen(end.errors.splitlines(), 1)
    self.assertEqual(_contents(workdir), before)

  def test_other_devices_are_allowed(self):
    workdir = self.killed()
    end = _Child(workdir, devices=2).finish()
    self.assertEqual(end.status, 0, end.errors)
    self.assertEqual(end.first_step, 28)
    chex.assert_trees_all_close(
        metrics_lib.read_metrics(workdir),
        metrics_lib.read_metrics(_folder / 'whole'),
        rtol=1e-5,
    )


def _wait_until(condition) -> None:
  end = time.monotonic() + _PATIENCE_SECONDS
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.005)


def _fill(disk) -> None:
  with open(disk / 'filling', 'wb', buffering=0) as file:
    try:
      while file.write(bytes(1024)):
        pass
    except OSError:
      pass
