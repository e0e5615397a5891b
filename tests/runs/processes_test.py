# SPDX-License-Identifier: Apache-2.0
"""Several processes: one model of all, agreement, and lost peers."""

import json
import pathlib
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import chex
import jax.numpy as jnp
import numpy as np

from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import processes
from hcl_jax.training import loop
from tests.support import commands
from tests.support import forks
from tests.support import looping
from tests.support import process_worker

_ROOT = pathlib.Path(__file__).parents[2]
_CONFIG = 'configs/cifar10.py'
_FIELDS = {
    'data.batch_size': 16,
    'train.epochs': 4,
    'train.log_every_steps': 1,
    'train.checkpoint_every_epochs': 1,
    'evaluate.knn_every_epochs': 2,
    'evaluate.knn_k': 5,
    'evaluate.protocols': ('knn',),
}
_HEARTBEAT_SECONDS = 10
_PATIENCE_SECONDS = 300  # of a machine that has other work


def _free_port():
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]


def _flags_of_coordinator():
  """A function of the process: its flags, and nothing in the environment."""
  address = f'127.0.0.1:{_free_port()}'
  return lambda i: (
      [f'--coordinator={address}', '--num_processes=2', f'--process_id={i}'],
      {},
  )


def _environment_of_slurm():
  """As srun sets it, from which JAX finds out the rest."""
  port = str(_free_port())
  return lambda i: (
      ['--distributed'],
      {
          'SLURM_JOB_ID': '1',
          'SLURM_STEP_NODELIST': '127.0.0.1',
          'SLURM_NTASKS': '2',
          'SLURM_PROCID': str(i),
          'SLURM_LOCALID': str(i),
          'JAX_COORDINATOR_PORT': port,
      },
  )


def _losses(workdir):
  records = metrics_lib.read_metrics(workdir)
  return {r['step']: r['loss'] for r in records if 'loss' in r}


class _Pair:
  """Two processes of four devices each."""

  def __init__(self, test, workdir, how, *, pause=0.0, nan_step=0, **fields):
    self._test, self._workdir = test, workdir
    self.processes = []
    knobs = {'devices': 4, 'pause': pause, 'nan_step': nan_step}
    for i in range(2):
      flags, environment = how(i)
      fields = _FIELDS | fields
      # One of each kind: their hash seeds differ.
      start = (forks.start, commands.start_fresh)[i]
      process = start(
          'tests/support/process_worker.py', json.dumps(knobs),
          f'--config={_CONFIG}', f'--workdir={workdir}',
          f'--heartbeat_timeout={_HEARTBEAT_SECONDS}', *flags,
          *(f'--config.{name}={value}' for name, value in fields.items()),
          environment=commands.environment(**environment),
      )  # fmt: skip
      test.addCleanup(process.kill)
      self.processes.append(process)

  def wait_for_step(self, step):
    """Returns when the step is done and a checkpoint is there."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
      saved = (self._workdir / 'checkpoints' / '4').is_dir()
      if saved and max(_losses(self._workdir), default=0) >= step:
        return
      if any(p.poll() is not None for p in self.processes):
        self._test.fail(f'ended before step {step}: {self.finish()}')
      time.sleep(0.05)
    self._test.fail(f'step {step} never came.')

  def finish(self):
    """Status, standard output and errors of each."""
    ends = [p.communicate(timeout=_PATIENCE_SECONDS) for p in self.processes]
    statuses = [p.returncode for p in self.processes]
    return [(x, *end) for x, end in zip(statuses, ends, strict=True)]


class TwoProcessesTest(looping.LoopTest):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.whole = pathlib.Path(folder.name) / 'one_process'

  def _experiment(self, **fields):
    config = runpy.run_path(str(_ROOT / _CONFIG))['get_config']()
    config.update_from_flattened_dict(_FIELDS | fields)
    return process_worker.prepare(0.0, 0, config)

  def _whole_run(self):
    """The run of one process with eight devices; the first call trains it."""
    experiment = self._experiment()
    if not self.whole.exists():
      loop.train(experiment, self.whole)
    return _losses(self.whole), self.last_state(experiment, self.whole)

  def _check_like_one_process(self, workdir):
    losses, state = self._whole_run()
    actual = _losses(workdir)
    self.assertEqual(list(actual), list(range(1, 17)))
    np.testing.assert_allclose(
        list(actual.values()), list(losses.values()), rtol=2e-6
    )
    last = self.last_state(self._experiment(), workdir)
    # Rounding depends on the step at which two processes became one.
    chex.assert_trees_all_close(last, state, rtol=5e-5, atol=5e-5)

  def test_stopped_and_resumed_is_one_process_with_all_devices(self):
    workdir = self.workdir()
    pair = _Pair(self, workdir, _flags_of_coordinator(), pause=0.6)
    pair.wait_for_step(5)
    pair.processes[1].send_signal(signal.SIGTERM)
    stops = []
    for status, _, errors in pair.finish():
      self.assertEqual(status, 0, errors)
      stops += re.findall(r'stopped after step (\d+), which is saved', errors)
    self.assertLen(stops, 2)
    self.assertEqual(*stops)
    self.assertLess(int(stops[0]), 16)
    self.assertTrue((workdir / 'checkpoints' / stops[0]).is_dir())

    pair = _Pair(self, workdir, _environment_of_slurm())
    (first, out, errors), (second, other_out, other_errors) = pair.finish()
    self.assertEqual((first, second), (0, 0), errors + other_errors)
    self.assertIn(f'resumes after step {stops[0]}', errors)
    self.assertIn('last step', out)
    states = re.findall(r'step \d+ [0-9a-f]{64}', out)
    self.assertIn('step 16 ', states[-1])
    self.assertEqual(re.findall(r'step \d+ [0-9a-f]{64}', other_out), states)

    self._check_like_one_process(workdir)
    self.assertNotIn('last step', other_out)  # the first one writes
    self.assertNotIn('train:', other_errors)
    self.assertLen(list((workdir / 'tensorboard').iterdir()), 2)
    self.assertTrue((workdir / 'scores.json').is_file())

  def test_a_killed_peer_ends_the_other_and_one_process_resumes(self):
    workdir = self.workdir()
    pair = _Pair(self, workdir, _flags_of_coordinator(), pause=0.6)
    pair.wait_for_step(5)
    pair.processes[1].kill()
    killed_at = time.monotonic()
    (status, _, _), _ = pair.finish()
    self.assertNotEqual(status, 0)
    self.assertLess(time.monotonic() - killed_at, 3 * _HEARTBEAT_SECONDS)
    steps = sorted(int(p.name) for p in (workdir / 'checkpoints').glob('[0-9]'))
    self.assertContainsSubset([4], steps)

    loop.train(self._experiment(), workdir)
    self._check_like_one_process(workdir)

  def test_nan_in_one_process_stops_both(self):
    workdir, whole = self.workdir(), self.workdir()
    chunks = {'train.microbatch_size': 1}
    pair = _Pair(
        self, workdir, _flags_of_coordinator(), nan_step=6, **chunks
    )
    loop.train(self._experiment(**{'train.epochs': 1}, **chunks), whole)
    for status, _, errors in pair.finish():
      self.assertEqual(status, 1, errors)
      self.assertIn('step 6 gave grad_norm=nan, loss=nan', errors)
      self.assertIn('Last good checkpoint: step 4', errors)
    with np.load(workdir / 'not_finite_step_6.npz') as saved:
      self.assertEqual(saved['image'].shape, (16, 4, 4, 3))
      self.assertEqual(np.flatnonzero(saved['label'] == 99).tolist(), [15])
    losses = _losses(workdir)
    np.testing.assert_allclose(
        [losses[step] for step in range(1, 5)],
        list(_losses(whole).values()),
        rtol=2e-6,
    )


class StartTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('incomplete', dict(num_processes=None, process_id=None),
       'num_processes and process_id are missing'),
      ('no_coordinator', dict(coordinator=None), 'coordinator is missing'),
      ('no_processes', dict(num_processes=0), 'num_processes must be at least'),
      ('too_large', dict(process_id=2), 'process_id must be from 0 to 1'),
      ('negative', dict(process_id=-1), 'process_id must be from 0 to 1'),
      ('no_port', dict(coordinator='host'), "must be HOST:PORT, got 'host'"),
      ('bad_port', dict(coordinator='host:x'), 'must be HOST:PORT'),
      ('no_time', dict(start_timeout=0), 'start_timeout must be at least 1'),
      ('no_patience', dict(heartbeat_timeout=0), 'heartbeat_timeout must be'),
  )  # fmt: skip
  def test_refuses(self, changed, message):
    complete = dict(coordinator='127.0.0.1:1', num_processes=2, process_id=1)
    with self.assertRaisesRegex(ValueError, message):
      processes.start(**complete | changed)

  def test_nobody_answers(self):
    address = f'127.0.0.1:{_free_port()}'
    with self.assertRaisesRegex(ConnectionError, f'{address} within 1 s'):
      processes.start(address, 2, 1, start_timeout=1)

  def test_a_port_that_is_taken(self):
    with socket.create_server(('', 0)) as server:
      port = server.getsockname()[1]
      with self.assertRaisesRegex(ConnectionError, f'port {port} cannot be'):
        processes.start(f'127.0.0.1:{port}', 2, 0, start_timeout=1)

  def test_peers_that_never_come(self):
    address = f'127.0.0.1:{_free_port()}'
    call = f"processes.start('{address}', 2, 0, start_timeout=2)"
    done = subprocess.run(
        [sys.executable, '-c',
         f'from hcl_jax.runs import processes; {call}'],
        cwd=_ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    self.assertEqual(done.returncode, 1)
    self.assertEqual(
        done.stderr,
        f'hcl_jax: not all 2 processes met at {address} within 2 s.\n',
    )


class AgreementTest(absltest.TestCase):
  """What is done with the arrays of two processes."""

  def _gather(self, others):
    """Lets this process, the first, meet one with other arrays."""
    others = iter(others)

    def allgather(mine):
      return np.stack([mine, np.asarray(next(others), mine.dtype)])

    self.enter_context(
        mock.patch.object(processes.jax, 'process_count', return_value=2)
    )
    self.enter_context(
        mock.patch.object(
            processes.multihost_utils, 'process_allgather', allgather
        )
    )
    self.enter_context(
        mock.patch.object(
            processes.multihost_utils,
            'broadcast_one_to_all',
            lambda mine: np.asarray(jnp.asarray(mine)),  # rounds 64 bits
        )
    )

  def test_one_process_asks_nobody(self):
    self.assertTrue(processes.anywhere(True))
    self.assertFalse(processes.anywhere(False))
    self.assertEqual(processes.list_of_first([3, 1]), [3, 1])
    processes.check_same('text', 'words')

  def test_a_failure_here_is_told(self):
    self._gather([False])
    with self.assertRaisesRegex(KeyError, 'mine'):
      with processes.together('do it'):
        raise KeyError('mine')

  def test_a_failure_elsewhere_is_raised(self):
    self._gather([True, False])
    with self.assertRaisesRegex(processes.PeerError, 'could not do it'):
      with processes.together('do it'):
        pass
    with processes.together('do it'):
      pass

  def test_the_first_list_counts_to_the_last_bit(self):
    self._gather([])
    self.assertEqual(processes.list_of_first([2**40 + 1, 7]), [2**40 + 1, 7])

  def test_other_words_are_refused(self):
    self._gather([12345])
    with self.assertRaisesRegex(ValueError, r'same words, .* of \[1\] are not'):
      processes.check_same('text', 'words')
