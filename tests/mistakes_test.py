# SPDX-License-Identifier: Apache-2.0
"""Mistakes that newcomers made on the command line, and their answers.

They are numbered as they were found. What a command itself does with them (one
line, status 2, nothing written) is tested in main_test and bad_input_test, as
are mistakes in files of data.
"""

import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import parameterized
import jax

from hcl_jax import command
from hcl_jax import configurations
from hcl_jax import domains
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.storage import locations
from hcl_jax.sweeps import grid

_NO_FIELD = 'there is no such field. Did you mean --config.loss'


def _train(*arguments, config='digits:hard'):
  """Reads and checks a configuration as train does."""
  read = configurations.read(config, arguments)
  domains.check(read)
  return read


def _sweep(*arguments):
  return grid.read_fields(_train(), arguments)


class MistakesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('C4', {'config': 'digits.py:hardd'}, 'one of standard, debiased, hard'),
      ('C6', '--config.loss.tau-plus=1', f'{_NO_FIELD}.tau_plus'),
      ('C7', '--config.loss.temprature=1', f'{_NO_FIELD}.temperature'),
      ('C8', '--config.beta=2', f'{_NO_FIELD}.beta'),
      ('C9', '--config.loss.beta=high', "must be a number, got 'high'"),
      ('C10', '--config.train.epochs=-1', 'must be >= 1 and finite, got -1'),
      ('C11', '--config.train.epochs=0', 'must be >= 1 and finite, got 0'),
      ('C12', 'digits', "unexpected argument 'digits'; write --FLAG=VALUE"),
      ('C13', '--config.train.epochs=0.01', "must be an int, got '0.01'"),
      ('C18', '--config.evaluate.protocols=knn,svm',
       "a tuple of 'knn', 'linear', .* got .'knn', 'svm'"),
      ('C20', '--config.loss.tau_plus=1', r'must be in \[0, 1\), got 1.0'),
      ('C21', '--config.model.name=ResNet50', "'resnet50'.* got 'ResNet50'"),
      ('C35', {'config': 'graphs:all'}, 'values to sweep .*hcl_jax.sweep'),
      ('C37', {'config': 'graphs:mutag'}, "one of MUTAG, .*; got 'mutag'"),
  )  # fmt: skip
  def test_configurations(self, argument, message):
    is_config = isinstance(argument, dict)
    with self.assertRaisesRegex(ValueError, message):
      _train(**argument) if is_config else _train(argument)

  @parameterized.named_parameters(
      ('C3', 'variant', 'a part of --config, as --config=digits:hard'),
      ('C5', 'loss.beta', 'Did you mean --config.loss.beta'),
      ('C34', 'sweep.loss.beta', 'Only "hcl_jax sweep" takes'),
  )
  def test_flags(self, flag, message):
    self.assertIn(message, configurations.explain_flag(flag))

  @parameterized.named_parameters(
      ('C29', [], 'nothing to sweep; give --sweep.FIELD=values'),
      ('C30', ['--sweep.loss.betta=0'], 'no such field.*mean loss.beta'),
      ('C31', ['--sweep.config.loss.beta=0'], 'no such field.*mean loss.beta'),
      ('C33', ['--sweep.loss.beta=0 1'], "between commas, got '0 1'"),
  )
  def test_sweeps(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      _sweep(*arguments)

  def test_what_was_plainly_meant(self):
    for config in ('digits', 'digits.py', 'configs/digits.py'):  # C1, C2
      self.assertEqual(_train(config=config).data.name, 'digit_scenes')
    self.assertEqual(_train('digits:hard', config=None), _train())  # C12
    flag = '--config.evaluate.protocols=knn,linear'  # C18
    self.assertEqual(_train(flag).evaluate.protocols, ('knn', 'linear'))
    flag = '--sweep.loss.beta=[0,1]'  # C32
    self.assertEqual(_sweep(flag), {'loss.beta': (0.0, 1.0)})

  def test_no_accelerator(self):  # C14
    with mock.patch.object(jax, 'devices', side_effect=AssertionError):
      with self.assertRaisesRegex(command.UsageError, 'JAX finds no device'):
        command.check_devices()

  def test_data_sets(self):
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    prepare = 'prepare it with: .*prepare --dataset=cifar10'
    with self.assertRaisesRegex(FileNotFoundError, prepare):  # C16
      domains.make_experiment(
          _train('--config.data.name=cifar10', f'--config.data.dir={root}')
      )
    for name in ('cifar-10', 'MyPhotos'):  # C17, C41
      with self.assertRaisesRegex(ValueError, f"a-z, 0-9 and _.*got '{name}'"):
        locations.parse(name)


class RunsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.root = pathlib.Path(folder.name)

  def _write_run(self, name, **fields):
    (self.root / name).mkdir(parents=True)
    text = json.dumps({'task': 'simclr', **fields})
    (self.root / name / 'config.json').write_text(text)

  def test_another_configuration(self):
    run = self.root / 'run'
    workdir_lib.open_run(run, _train())
    for flag, words in (
        ('--config.loss.beta=9', 'loss.beta was 0.4 and is 9.0'),  # C22
        ('--config.train.epochs=9', 'train.epochs was 8 and is 9'),  # C23
    ):
      with self.assertRaisesRegex(workdir_lib.ConfigMismatch, words):
        workdir_lib.open_run(run, _train(flag))

  def test_folders_without_a_run(self):
    (self.root / 'empty').mkdir()
    (self.root / 'file').touch()
    for name in ('empty', 'missing', 'file'):  # C24, C25, C27
      with self.assertRaisesRegex(FileNotFoundError, 'there is no run in'):
        domains.load_config(self.root / name)

  def test_a_folder_of_runs(self):  # C28
    self._write_run('a')
    self._write_run('b')
    runs = f'There are runs below it: {self.root}/a, {self.root}/b.'
    with self.assertRaisesRegex(FileNotFoundError, runs):
      domains.load_config(self.root)

  def test_a_sweep_for_a_run(self):
    self._write_run('sweep', sweep={'seed': [0, 1]})
    with self.assertRaisesRegex(ValueError, 'give the folder of one of its ru'):
      domains.load_config(self.root / 'sweep')
    self._write_run('sweep/runs/0000')
    with self.assertRaisesRegex(ValueError, 'such as .*/sweep/runs/0000'):
      domains.load_config(self.root / 'sweep')
