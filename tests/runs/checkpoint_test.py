# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: what a crash, a flipped bit or another device count leaves."""

import contextlib
import io
import json
import logging
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple
import warnings

from absl import logging as absl_logging
from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax.runs import checkpoint
from hcl_jax.runs import checksums


class _Moments(NamedTuple):
  mu: jax.Array
  nothing: None
  empty: tuple


def _state(scale=1.0, sharding=None):
  state = {
      'params': {'kernel': scale * jnp.arange(96.0).reshape(8, 12),
                 'bias': jnp.full((3,), scale, jnp.bfloat16)},
      'opt_state': (_Moments(scale * jnp.ones((4,)), None, ()),),
      'count': jnp.uint32(7),
      'mask': jnp.array([True, False]),
      'no_rows': jnp.zeros((0, 5)),
  }  # fmt: skip
  if sharding is not None:
    state = jax.device_put(state, sharding)
  return state | {'seen': np.int64(2**40), 'lr': 0.1}


def _mesh(num_devices):
  return jax.sharding.Mesh(np.array(jax.devices()[:num_devices]), ('batch',))


def _replicated(num_devices):
  return jax.sharding.NamedSharding(
      _mesh(num_devices), jax.sharding.PartitionSpec()
  )


def _data_files(directory, step):
  """Files that hold the bytes of the arrays, largest first."""
  files = pathlib.Path(directory, str(step), 'state').rglob('d/*')
  return sorted(files, key=lambda path: -path.stat().st_size)


def _flip(path, where=0.5):
  data = bytearray(path.read_bytes())
  data[int(where * len(data))] ^= 0x10
  path.write_bytes(data)


class CheckpointTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    parent = self.enter_context(tempfile.TemporaryDirectory())
    self.directory = pathlib.Path(parent, 'steps')

  def _open(self, **knobs):
    checkpoints = checkpoint.Checkpoints(self.directory, **knobs)
    self.addCleanup(checkpoints.close)
    return checkpoints

  def _save(self, *steps, **knobs):
    with self._open(**knobs) as checkpoints:
      for step in steps:
        checkpoints.save(step, _state(step))

  def _names(self):
    return sorted(path.name for path in self.directory.iterdir())

  def assert_same(self, actual, expected):
    self.assertEqual(
        jax.tree.structure(actual), jax.tree.structure(expected)
    )
    for a, b in zip(
        jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
    ):
      self.assertEqual(type(a), type(b))
      np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
      self.assertEqual(np.asarray(a).dtype, np.asarray(b).dtype)


class SaveAndRestoreTest(CheckpointTest):

  def test_round_trip(self):
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      with self.assertNoLogs('absl', logging.WARNING):
        self._save(3, 5)
        with self._open() as checkpoints:
          state, step = checkpoints.restore(_state(0.0))
          self.assertEqual(step, 5)
          self.assert_same(state, _state(5))
          state, step = checkpoints.restore(_state(0.0), step=3)
          self.assertEqual(step, 3)
          self.assert_same(state, _state(3))
          self.assertEqual(checkpoints.steps(), [3, 5])

  def test_a_structure_of_shapes_is_enough(self):
    array = jnp.arange(6.0)
    with self._open() as checkpoints:
      checkpoints.save(1, array, wait=True)
      restored, _ = checkpoints.restore(jax.eval_shape(lambda: array))
    np.testing.assert_array_equal(restored, array)

  def test_nothing_to_restore_and_nothing_written(self):
    with self._open() as checkpoints:
      self.assertIsNone(checkpoints.restore(_state()))
      self.assertEqual(checkpoints.steps(), [])
      self.assertIsNone(checkpoints.best_step())
      with self.assertRaisesRegex(FileNotFoundError, 'step 7'):
        checkpoints.restore(_state(), step=7)
    self.assertFalse(self.directory.exists())

  @parameterized.parameters((8, 1), (1, 8))
  def test_another_number_of_devices(self, before, after):
    with self._open() as checkpoints:
      checkpoints.save(1, _state(2.0, _replicated(before)), wait=True)
      abstract = _state(0.0, _replicated(after))
      state, _ = checkpoints.restore(abstract)
    self.assert_same(state, _state(2.0, _replicated(after)))
    for leaf, like in zip(
        jax.tree.leaves(state), jax.tree.leaves(abstract), strict=True
    ):
      if isinstance(leaf, jax.Array):
        self.assertEqual(leaf.sharding, like.sharding)
        self.assertLen(leaf.sharding.device_set, after)

  def test_sharded_rows(self):
    rows = jax.sharding.NamedSharding(
        _mesh(8), jax.sharding.PartitionSpec('batch')
    )
    queue = jax.device_put(jnp.arange(32.0).reshape(16, 2), rows)
    with self._open() as checkpoints:
      checkpoints.save(1, {'queue': queue}, wait=True)
      abstract = {
          'queue': jax.ShapeDtypeStruct((16, 2), jnp.float32, sharding=rows)
      }
      restored, _ = checkpoints.restore(abstract)
    self.assertEqual(restored['queue'].sharding, rows)
    np.testing.assert_array_equal(restored['queue'], queue)

  @parameterized.parameters(1, 8)
  def test_the_state_may_be_donated_at_once(self, num_devices):
    step_fn = jax.jit(
        lambda x: jax.tree.map(lambda leaf: leaf * 2 + 1, x), donate_argnums=0
    )
    initial = {'w': np.arange(2.0**16, dtype=np.float32)}

    def place():
      return jax.device_put(initial, _replicated(num_devices))

    step_fn(place())
    with self._open(keep=9) as checkpoints:
      state = place()
      for step in range(4):
        checkpoints.save(step, state)
        donated, state = state, step_fn(state)
        self.assertTrue(donated['w'].is_deleted())
      final = np.array(state['w'])
      for step in range(4):
        state, _ = checkpoints.restore(place(), step=step)
        for _ in range(4 - step):
          state = step_fn(state)
        np.testing.assert_array_equal(state['w'], final)

  def test_out_of_a_donating_pmap(self):
    step_fn = jax.pmap(
        lambda state, x: {'w': state['w'] + jax.lax.psum(x, 'batch')},
        axis_name='batch', in_axes=(None, 0), out_axes=None, donate_argnums=0,
    )  # fmt: skip
    ones = np.ones((8, 5), np.float32)
    with self._open() as checkpoints:
      state = step_fn({'w': jnp.zeros(5)}, ones)
      checkpoints.save(1, state)
      state = step_fn(state, ones)
      restored, _ = checkpoints.restore(state)
      self.assertEqual(restored['w'].sharding, state['w'].sharding)
      again = step_fn(restored, ones)
    np.testing.assert_array_equal(again['w'], np.full(5, 16, np.float32))
    np.testing.assert_array_equal(again['w'], state['w'])

  def test_metrics_added_later(self):
    with self._open(best_metric='m') as checkpoints:
      checkpoints.save(1, _state(1), metrics={'a': 0.1})
      checkpoints.save(2, _state(2), metrics={'m': 1.0}, wait=True)
      checkpoints.add_metrics(1, {'m': 2.0, 'n': math.nan})
      self.assertEqual(checkpoints.best_step(), 1)
    again = self._open(best_metric='m')
    self.assertEqual(again.best_step(), 1)
    self.assertEqual(again.metrics(1), {'a': 0.1, 'm': 2.0, 'n': None})
    self.assertEqual(again.metrics(7), {})
    self.assert_same(again.restore(_state(), step=1)[0], _state(1))

  def test_saving_a_step_twice_keeps_the_first(self):
    with self._open() as checkpoints:
      self.assertTrue(checkpoints.save(1, _state(1)))
      self.assertFalse(checkpoints.save(1, _state(2), wait=True))
      state, _ = checkpoints.restore(_state())
    self.assert_same(state, _state(1))
    with self._open() as checkpoints:
      self.assertFalse(checkpoints.save(1, _state(2)))

  def test_an_error_in_the_background_is_raised(self):
    def fail(*args):
      time.sleep(0.3)  # The arrays are written by then.
      raise OSError('disk full')

    with self._open() as checkpoints:
      checkpoints.save(1, _state(1), wait=True)
      with absltest.mock.patch.object(checksums, 'write_record', fail):
        with self.assertNoLogs('absl', logging.INFO):
          with self.assertRaisesRegex(
              checkpoint.SaveError, f'to {self.directory} failed: disk full$'
          ):
            checkpoints.save(2, _state(2), wait=True)
      self.assertEqual(checkpoints.steps(), [1])
      self.assertEqual(checkpoints.restore(_state())[1], 1)

  def test_an_unusable_directory_or_state_is_an_error_at_once(self):
    self.directory.write_text('a file')
    with self._open() as checkpoints:
      with self.assertRaisesRegex(checkpoint.SaveError, 'failed: .*exists'):
        checkpoints.save(1, _state(1))
      self.directory.unlink()
      with self.assertRaisesRegex(ValueError, 'a/0 of the state is a str'):
        checkpoints.save(1, {'a': ['x']})
      self.assertTrue(checkpoints.save(1, _state(1)))

  def test_save_does_not_wait_for_the_checksums(self):
    make_record = checksums.make_record

    def slow(*args):
      time.sleep(1.0)
      return make_record(*args)

    with self._open() as checkpoints:
      checkpoints.save(1, _state(1), wait=True)
      with absltest.mock.patch.object(checksums, 'make_record', slow):
        start = time.monotonic()
        checkpoints.save(2, _state(2))
        self.assertLess(time.monotonic() - start, 0.8)
        self.assertEqual(checkpoints.steps(), [1])
        checkpoints.wait()
        self.assertGreater(time.monotonic() - start, 1.0)
      self.assertEqual(checkpoints.steps(), [1, 2])

  def test_orbax_is_silent_and_others_are_not(self):
    with self.assertLogs('absl', logging.INFO) as logs:
      self._save(1)
      absl_logging.info('ours')
    self.assertEqual([line.getMessage() for line in logs.records], ['ours'])

  @parameterized.parameters(
      {'keep': 0}, {'keep': None}, {'best_mode': 'most'}
  )
  def test_rejects(self, **knobs):
    with self.assertRaisesRegex(ValueError, next(iter(knobs))):
      self._open(**knobs)


class RetentionTest(CheckpointTest):

  def test_keeps_the_last(self):
    self._save(1, 2, 3, 4, keep=2)
    self.assertEqual(self._names(), ['3', '4'])

  @parameterized.parameters('max', 'min')
  def test_keeps_the_best_too(self, mode):
    nan, inf = float('nan'), float('inf')
    values = {1: nan, 2: 0.9, 3: 0.5, 4: None, 5: inf, 6: 0.4}
    if mode == 'min':
      values = {step: value and -value for step, value in values.items()}
    knobs = {'keep': 2, 'best_metric': 'knn/top1', 'best_mode': mode}
    for step, value in values.items():
      metrics = {'loss': float('inf')}
      if value is not None:
        metrics['knn/top1'] = value
      with self._open(**knobs) as checkpoints:  # Every step in a new process.
        checkpoints.save(step, {'w': jnp.ones(3)}, metrics=metrics, wait=True)
        self.assertEqual(checkpoints.best_step(), None if step == 1 else 2)
    self.assertEqual(self._names(), ['2', '5', '6'])
    with self._open(**knobs) as checkpoints:
      better = 0.95 if mode == 'max' else -0.95
      checkpoints.save(7, {'w': jnp.ones(3)}, metrics={'knn/top1': better})
      checkpoints.save(8, {'w': jnp.ones(3)}, metrics={'knn/top1': better})
      checkpoints.save(9, {'w': jnp.ones(3)}, wait=True)
      self.assertEqual(checkpoints.best_step(), 7)
    self.assertEqual(self._names(), ['7', '8', '9'])
    self.assertIsNone(self._open().best_step())


class DamageTest(CheckpointTest):

  def _damage(self, how, step):
    path = self.directory / str(step)
    if how == 'flip':
      _flip(_data_files(self.directory, step)[0])
    elif how == 'truncate':
      largest = _data_files(self.directory, step)[0]
      largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    elif how == 'remove data':
      for file in _data_files(self.directory, step):
        file.unlink()
    elif how == 'remove record':
      (path / 'record' / 'record.json').unlink()
    elif how == 'flip record':
      record = path / 'record' / 'record.json'
      record.write_text(record.read_text().replace('[8, 12]', '[8, 13]'))
    elif how == 'tear record':
      record = path / 'record' / 'record.json'
      record.write_text(record.read_text()[:100])
    elif how == 'another leaf':
      outer = json.loads((path / 'record' / 'record.json').read_text())
      record = outer['record']
      record['leaves']['params/kernel']['crc32'] ^= 1
      checksums.write_record(path / 'record', record)
    elif how == 'empty':
      for file in path.rglob('*'):
        if file.is_file():
          file.unlink()

  @parameterized.parameters(
      ('flip', 'params/kernel|Error'),
      ('truncate', 'Error'),
      ('remove data', 'Error'),
      ('remove record', 'record.json is missing'),
      ('flip record', 'record.json is altered'),
      ('tear record', 'record.json is altered'),
      ('another leaf', 'params/kernel does not match'),
      ('empty', 'record.json is missing'),
  )
  def test_uses_the_step_before(self, how, message):
    self._save(1, 2, 3)
    self._damage(how, 3)
    with self._open() as checkpoints:
      noise = io.StringIO()
      with self.assertLogs('absl', logging.WARNING) as logs:
        with contextlib.redirect_stderr(noise):
          state, step = checkpoints.restore(_state())
      self.assertEqual(noise.getvalue(), '')
      self.assertEqual(step, 2)
      self.assert_same(state, _state(2))
      (record,) = logs.records
      line = record.getMessage()
      self.assertRegex(line, f'checkpoint 3 .*damaged.*({message})')
      self.assertRegex(line, 'Using step 2 instead')
      self.assertNotIn('\n', line)
      self.assertEqual(checkpoints.steps(), [1, 2])
      self.assertEqual(self._names(), ['1', '2', '3'])  # Restoring is reading.
      checkpoints.save(3, _state(30), wait=True)
      self.assertEqual(checkpoints.steps(), [1, 2, 3])
      self.assertEqual(self._names(), ['1', '2', '3', '3.damaged'])
    state, step = self._open().restore(_state())
    self.assertEqual(step, 3)
    self.assert_same(state, _state(30))

  def test_lost_metadata_is_harmless_or_found(self):
    self._save(1, 2)
    for name in ('_METADATA', '_CHECKPOINT_METADATA', 'commit_success.txt'):
      for path in (self.directory / '2').rglob(name):
        path.unlink()
    logger = absl_logging.get_absl_logger()
    self.addCleanup(logger.setLevel, logger.level)
    logger.setLevel(logging.ERROR)
    state, step = self._open().restore(_state())
    self.assert_same(state, _state(step))

  def test_several_damaged_steps_do_not_crowd_out_good_ones(self):
    self._save(1, 2, 3)
    for step in (2, 3):
      self._damage('remove data', step)
    with self._open(keep=1) as checkpoints:
      with self.assertLogs('absl', logging.WARNING) as logs:
        self.assertEqual(checkpoints.restore(_state())[1], 1)
      self.assertLen(logs.records, 2)
      checkpoints.save(2, _state(20), wait=True)
    self.assertEqual(self._names(), ['2', '2.damaged', '3.damaged'])
    self._damage('flip record', 2)
    with self._open() as checkpoints:
      with self.assertRaises(checkpoint.DamagedCheckpoint):
        checkpoints.restore(_state())
      checkpoints.save(2, _state(21), wait=True)
    self.assertIn('2.damaged-2', self._names())

  def test_damage_found_after_a_save(self):
    with self._open() as checkpoints:
      checkpoints.save(1, _state(1))
      checkpoints.save(2, _state(2), metrics={'m': 1.0}, wait=True)
      self._damage('flip record', 2)
      with self.assertLogs('absl', logging.WARNING):
        self.assertEqual(checkpoints.restore(_state())[1], 1)
      self.assertTrue(checkpoints.save(2, _state(20), wait=True))
      self.assert_same(checkpoints.restore(_state())[0], _state(20))

  def test_none_readable(self):
    self._save(1, 2)
    self._damage('remove data', 1)
    self._damage('flip record', 2)
    with self.assertRaisesRegex(
        checkpoint.DamagedCheckpoint,
        'none of the 2 .*nothing was deleted.*checkpoint 2.*checkpoint 1',
    ):
      self._open().restore(_state())
    self.assertEqual(self._names(), ['1', '2'])

  def test_a_damaged_step_asked_for_is_an_error(self):
    self._save(1, 2)
    self._damage('flip record', 2)
    with self.assertRaisesRegex(checkpoint.DamagedCheckpoint, 'checkpoint 2'):
      self._open().restore(_state(), step=2)

  def test_another_model_is_an_error_and_not_damage(self):
    self._save(1, 2)
    wide, fewer, more, other = _state(), _state(), _state(), _state()
    wide['params']['kernel'] = jnp.zeros((8, 13))
    del fewer['params']['bias']
    more['ema'] = jnp.zeros(3)
    other['count'] = jnp.float32(1)
    for state, message in (
        (wide, r'params/kernel is float32\[8, 12\] .* float32\[8, 13\] here'),
        (fewer, r'params/bias is bfloat16\[3\] in .* absent here'),
        (more, r'ema is absent in the checkpoint and float32\[3\] here'),
        (other, 'count is uint32'),
        ({f'x{i}': jnp.ones(1) for i in range(9)}, 'and .* more leaves'),
    ):
      with self.assertNoLogs('absl', logging.WARNING):
        with self.assertRaisesRegex(checkpoint.StateMismatch, message):
          self._open().restore(state)

  def test_paths_that_collide(self):
    with self._open() as checkpoints:
      with self.assertRaisesRegex(ValueError, 'same path'):
        checkpoints.save(1, {'a': {'b': jnp.ones(1)}, 'a/b': jnp.ones(1)})


_KILLED = """
import sys, time
import jax.numpy as jnp
from hcl_jax.runs import checkpoint, checksums
checkpoints = checkpoint.Checkpoints(sys.argv[1], keep=1)
checkpoints.save(1, {'w': jnp.full(9, 1.0)}, wait=True)
checksums.write_record = lambda *args: time.sleep(60)
checkpoints.save(2, {'w': jnp.full(9, 2.0)})
print('saving', flush=True)
time.sleep(60)
"""


class KilledTest(CheckpointTest):

  def test_killed_in_the_middle_of_a_save(self):
    child = subprocess.Popen(
        [sys.executable, '-c', _KILLED, str(self.directory)],
        cwd=pathlib.Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    self.assertEqual(child.stdout.readline(), 'saving\n')
    while len(self._names()) < 2:
      time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    left, step = self._names()[1], self._names()[0]
    self.assertEqual(step, '1')
    self.assertStartsWith(left, '2.')
    shutil.copytree(
        self.directory / left, self.directory / left.replace('2', '7', 1)
    )
    with self._open(keep=1) as checkpoints:
      state, step = checkpoints.restore({'w': jnp.zeros(9)})
      self.assertEqual(step, 1)
      np.testing.assert_array_equal(state['w'], np.ones(9))
      self.assertLen(self._names(), 3)
      checkpoints.save(2, {'w': jnp.full(9, 3.0)})
    self.assertEqual(self._names(), ['2'])


_STARVED = """
import resource, signal, sys
import numpy as np
from hcl_jax.runs import checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
rng = np.random.default_rng(0)
state = {f'w{i}': rng.normal(size=(256, 160)) for i in range(100)}
with checkpoint.Checkpoints(sys.argv[1]) as checkpoints:
  checkpoints.save(1, state, wait=True)
  _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
  # Enough for the record, and too little for the arrays.
  resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, most))
  try:
    checkpoints.save(2, state, wait=True)
  except checkpoint.SaveError as error:
    print(error, checkpoints.steps())
  resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
  checkpoints.save(3, state, wait=True)
  print(checkpoints.steps())
"""


class StarvedTest(CheckpointTest):

  def test_arrays_that_cannot_be_written_fail_in_one_line(self):
    done = subprocess.run(
        [sys.executable, '-c', _STARVED, str(self.directory)],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    self.assertEqual(done.stderr, '')
    self.assertEqual(
        done.stdout,
        f'saving a checkpoint to {self.directory} failed: File too large [1]\n'
        '[1, 3]\n',
    )
