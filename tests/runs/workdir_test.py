# SPDX-License-Identifier: Apache-2.0
"""The directory of a run: configurations kept, compared and refused."""

import contextlib
import errno
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import ml_collections
from ml_collections import config_dict
import numpy as np

import hcl_jax
from hcl_jax.runs import workdir


def _config(**overrides):
  config = ml_collections.ConfigDict({
      'seed': 0,
      'loss': {'beta': 1.0, 'tau_plus': 0.1, 'log_floor': None},
      'model': {'widths': (64, 128), 'name': 'resnet18', 'norm': True},
      'data': {'options': {}, 'mean': ((0.5, 0.25), (1,))},
      'train': {'steps': 100, 'log_every_steps': 10},
      'evaluate': {'k': 200, 'protocols': ('knn', 'linear')},
  })
  config.train.warmup = config.train.get_ref('steps') * 2
  config.update_from_flattened_dict(overrides)
  return config


class WorkdirTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    parent = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory())
    ).resolve()
    self.workdir = parent / 'runs' / 'first'

  def _contents(self):
    return {
        path.name: path.read_bytes() for path in self.workdir.iterdir()
    }

  def _versions(self):
    return json.loads((self.workdir / 'versions.json').read_text())

  def _assert_refused(self, message):
    return self.assertRaisesRegex(workdir.WorkdirError, message)

  def test_two_do_not_work_in_one_directory(self):
    with workdir.lock(self.workdir):
      with self._assert_refused(f'process {os.getpid()} on .* use another'):
        with workdir.lock(self.workdir):
          pass
    with workdir.lock(self.workdir):  # it is free again
      pass

  def test_a_lock_ends_with_its_process(self):
    code = (
        'import sys, time\n'
        'from hcl_jax.runs import workdir\n'
        'with workdir.lock(sys.argv[1]):\n'
        '  print("locked", flush=True)\n'
        '  time.sleep(600)\n'
    )
    other = subprocess.Popen(
        [sys.executable, '-c', code, str(self.workdir)],
        cwd=pathlib.Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    self.addCleanup(other.stdout.close)
    self.addCleanup(other.kill)
    self.assertEqual(other.stdout.readline(), 'locked\n')
    with self._assert_refused(f'process {other.pid} on '):
      with workdir.lock(self.workdir):
        pass
    other.kill()
    other.wait()
    with workdir.lock(self.workdir):
      pass

  @parameterized.parameters('gs://bucket/run', pathlib.Path('s3://bucket/run'))
  def test_a_bucket_is_not_taken_for_a_local_folder(self, path):
    with contextlib.chdir(self.workdir.parent.parent):
      for use in (
          lambda: workdir.lock(path).__enter__(),
          lambda: workdir.open_run(path, _config()),
          lambda: workdir.find_run(path),
          lambda: workdir.load_config(path),
      ):
        with self._assert_refused('must be a local path'):
          use()
      self.assertEmpty(list(pathlib.Path().iterdir()))

  def test_a_file_cannot_be_locked(self):
    self.workdir.parent.mkdir()
    self.workdir.touch()
    with self._assert_refused('is a file'):
      with workdir.lock(self.workdir):
        pass

  def test_without_locks_there_is_a_warning(self):
    error = OSError(errno.ENOLCK, 'No locks available')
    with (
        mock.patch.object(workdir.fcntl, 'flock', side_effect=error),
        self.assertLogs('absl', logging.WARNING) as logs,
        workdir.lock(self.workdir),
    ):
      pass
    self.assertIn('No locks available', logs.output[0])

  def test_a_new_run(self):
    self.assertEqual(workdir.open_run(self.workdir, _config()), self.workdir)
    self.assertCountEqual(self._contents(), ['config.json', 'versions.json'])
    text = (self.workdir / 'config.json').read_text()
    saved = json.loads(text)
    self.assertEqual(list(saved), sorted(saved))
    self.assertEqual(saved['train']['warmup'], 200)  # Resolved.
    self.assertEqual(saved['data']['options'], {})
    self.assertEqual(saved['format'], 1)

  def test_round_trip(self):
    workdir.open_run(self.workdir, _config())
    loaded = workdir.load_config(str(self.workdir))
    self.assertEqual(
        loaded.to_dict(), _config().copy_and_resolve_references().to_dict()
    )
    self.assertIsInstance(loaded.model.widths, tuple)
    self.assertIsInstance(loaded.loss.beta, float)
    self.assertIsInstance(loaded.train.steps, int)
    self.assertIs(loaded.model.norm, True)
    self.assertIsNone(loaded.loss.log_floor)
    before = self._contents()['config.json']
    workdir.open_run(self.workdir, loaded)
    self.assertEqual(self._contents()['config.json'], before)

  def test_versions(self):
    workdir.open_run(self.workdir, _config())
    workdir.open_run(self.workdir, _config())
    first, second = self._versions()
    self.assertEqual(first['changed'], {})
    for entry in (first, second):
      self.assertEqual(entry['hcl_jax'], hcl_jax.__version__)
      self.assertEqual(entry['jax'], jax.__version__)
      self.assertEqual(entry['numpy'], np.__version__)
      self.assertEqual(entry['device_count'], 8)
      for name in (
          'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'python', 'platform',
          'device_kind', 'command', 'time',
      ):  # fmt: skip
        self.assertTrue(entry[name], name)

  def test_a_lost_history_does_not_stop_a_run(self):
    workdir.open_run(self.workdir, _config())
    (self.workdir / 'versions.json').write_text('[{')
    with self.assertLogs('absl', logging.WARNING):
      workdir.open_run(self.workdir, _config())
    self.assertLen(self._versions(), 1)

  def test_refuses_another_configuration(self):
    workdir.open_run(self.workdir, _config())
    before = self._contents()
    other = _config(**{
        'loss.beta': 0.5, 'model.widths': (64, 256), 'loss.log_floor': -2.0,
        'train.log_every_steps': 1,
    })  # fmt: skip
    with self.assertRaises(workdir.ConfigMismatch) as caught:
      workdir.open_run(self.workdir, other)
    self.assertEqual(
        caught.exception.differences,
        {
            'loss.beta': (1.0, 0.5),
            'loss.log_floor': (None, -2.0),
            'model.widths': ([64, 128], [64, 256]),
            'train.log_every_steps': (10, 1),
        },
    )
    message = str(caught.exception)
    self.assertIsInstance(caught.exception, ValueError)
    self.assertIn('loss.beta was 1.0 and is 0.5', message)
    self.assertIn('model.widths was [64, 128] and is [64, 256]', message)
    self.assertIn(str(self.workdir), message)
    self.assertNotIn('\n', message)
    self.assertEqual(self._contents(), before)

  def test_refuses_fields_that_come_or_go(self):
    workdir.open_run(self.workdir, _config())
    other = _config()
    del other.loss['tau_plus']
    other.data.options.cache = True
    with self.assertRaises(workdir.ConfigMismatch) as caught:
      workdir.open_run(self.workdir, other)
    self.assertEqual(
        caught.exception.differences,
        {
            'loss.tau_plus': (0.1, '(absent)'),
            'data.options': ({}, '(absent)'),
            'data.options.cache': ('(absent)', True),
        },
    )

  @parameterized.parameters(
      (1, 1.0, True), (True, 1, False), (None, 0, False), (0, '0', False),
      ((1, 2), [1, 2], True), ((1, 2), (1, 2, 3), False),
      ((True,), (1,), False), (float('nan'), float('nan'), True),
      (float('inf'), float('inf'), True), (np.float32(0.5), 0.5, True),
      ('a', 'a', True), ('', None, False),
  )  # fmt: skip
  def test_what_counts_as_the_same(self, old, new, same):
    workdir.open_run(self.workdir, ml_collections.ConfigDict({'x': old}))
    config = ml_collections.ConfigDict({'x': new})
    if same:
      workdir.open_run(self.workdir, config)
    else:
      with self.assertRaises(workdir.ConfigMismatch):
        workdir.open_run(self.workdir, config)

  def test_some_fields_may_change(self):
    workdir.open_run(self.workdir, _config())
    other = _config(**{'train.log_every_steps': 1, 'evaluate.k': 20})
    with self.assertRaises(workdir.ConfigMismatch) as caught:
      workdir.open_run(
          self.workdir, other, may_change=('evaluate', 'train.log')
      )
    self.assertEqual(
        list(caught.exception.differences), ['train.log_every_steps']
    )
    workdir.open_run(
        self.workdir, other, may_change=('evaluate', 'train.log_every_steps')
    )
    self.assertEqual(workdir.load_config(self.workdir).evaluate.k, 20)
    self.assertEqual(
        self._versions()[-1]['changed'],
        {'evaluate.k': [200, 20], 'train.log_every_steps': [10, 1]},
    )

  def test_files_of_others_are_left_alone(self):
    self.workdir.mkdir(parents=True)
    (self.workdir / 'notes.txt').write_text('mine')
    workdir.open_run(self.workdir, _config())
    self.assertEqual((self.workdir / 'notes.txt').read_text(), 'mine')

  def test_checkpoints_without_a_configuration(self):
    (self.workdir / 'checkpoints' / '10').mkdir(parents=True)
    with self._assert_refused('checkpoints but no config.json'):
      workdir.open_run(self.workdir, _config())

  def test_a_file_in_the_way(self):
    self.workdir.parent.mkdir()
    self.workdir.write_text('file')
    with self._assert_refused('must be a directory.*is a file'):
      workdir.open_run(self.workdir, _config())
    with self._assert_refused('cannot be written'):
      workdir.open_run(self.workdir / 'below', _config())
    with self.assertRaisesRegex(FileNotFoundError, 'no run'):
      workdir.load_config(self.workdir)

  def test_not_writable(self):
    with absltest.mock.patch.object(
        os, 'replace', side_effect=PermissionError('Permission denied')
    ):
      with self._assert_refused('cannot be written.*denied'):
        workdir.open_run(self.workdir, _config())

  def test_damaged_configuration(self):
    workdir.open_run(self.workdir, _config())
    for text in ('{"seed": ', '[]', '', '[' * 100_000):
      (self.workdir / 'config.json').write_text(text)
      for act in (
          lambda: workdir.open_run(self.workdir, _config()),
          lambda: workdir.load_config(self.workdir),
      ):
        with self._assert_refused('config.json cannot be read'):
          act()

  def _write_format(self, number):
    """Gives the configuration of the run another number, or none."""
    path = self.workdir / 'config.json'
    saved = json.loads(path.read_text())
    del saved['format']
    if number is not None:
      saved['format'] = number
    path.write_text(json.dumps(saved))

  def test_a_run_without_a_format_is_continued(self):
    workdir.open_run(self.workdir, _config())
    new = self._contents()['config.json']
    self._write_format(None)
    before = self._contents()
    loaded = workdir.load_config(self.workdir)
    self.assertEqual(self._contents(), before)  # loading is reading
    self.assertNotIn('format', loaded)
    with self._assert_refused('seed was 0 and is 1'):
      workdir.open_run(self.workdir, _config(seed=1))
    with (
        mock.patch.object(os, 'replace', side_effect=OSError('full')),
        self._assert_refused('cannot be written: full'),
    ):
      workdir.open_run(self.workdir, _config())
    for name, content in before.items():
      self.assertEqual(self._contents()[name], content)
    workdir.open_run(self.workdir, loaded)
    self.assertEqual(self._contents()['config.json'], new)
    self.assertEqual(self._versions()[-1]['changed'], {})

  @parameterized.parameters(
      (2, r'has format 2, but hcl_jax \S+ knows formats up to 1; upgrade'),
      (0, 'cannot be read: its format is 0,'),
      ('new', "cannot be read: its format is 'new',"),
      (True, 'cannot be read: its format is True,'),
  )
  def test_another_format_is_refused(self, number, message):
    workdir.open_run(self.workdir, _config())
    self._write_format(number)
    before = self._contents()
    for act in (
        lambda: workdir.open_run(self.workdir, _config()),
        lambda: workdir.load_config(self.workdir),
    ):
      with self._assert_refused(message) as refused:
        act()
      self.assertNotIn('\n', str(refused.exception))
    self.assertEqual(self._contents(), before)

  def test_a_field_may_not_be_called_format(self):
    config = ml_collections.ConfigDict({'format': 1})
    with self.assertRaisesRegex(ValueError, 'config.format .* rename'):
      workdir.open_run(self.workdir, config)
    self.assertFalse(self.workdir.exists())

  def test_no_run(self):
    for path in (self.workdir, self.workdir.parent):
      with self.assertRaisesRegex(FileNotFoundError, 'there is no run in'):
        workdir.load_config(path)

  def test_runs_below_are_named(self):
    for i in range(6):
      folder = self.workdir / f'run{i}'
      workdir.open_run(folder, ml_collections.ConfigDict({'seed': i}))
    with self.assertRaisesRegex(
        FileNotFoundError, r'runs below it: .*run0, .*run3, \.\.\.\.$'
    ):
      workdir.load_config(self.workdir)

  def test_values_that_cannot_be_kept(self):
    config = ml_collections.ConfigDict({'model': {'dtypes': (1, np.float32)}})
    with self.assertRaisesRegex(ValueError, r'config.model.dtypes\[1\]'):
      workdir.open_run(self.workdir, config)
    self.assertFalse(self.workdir.exists())

  def test_a_value_that_was_never_given(self):
    config = ml_collections.ConfigDict(
        {'path': config_dict.required_placeholder(str)}
    )
    with self.assertRaises(config_dict.RequiredValueError):
      workdir.open_run(self.workdir, config)
    self.assertFalse(self.workdir.exists())

  def test_only_the_first_process_writes(self):
    with absltest.mock.patch.object(
        workdir.jax, 'process_index', return_value=1
    ):
      workdir.open_run(self.workdir, _config())
    self.assertFalse(self.workdir.exists())

  def test_other_processes_find_what_the_first_wrote(self):
    with self.assertRaisesRegex(
        workdir.WorkdirError, 'all processes see, but process 0 finds no'
    ):
      workdir.find_run(self.workdir)
    self.assertFalse(self.workdir.exists())
    workdir.open_run(self.workdir, _config())
    self.assertEqual(workdir.find_run(self.workdir), self.workdir)
