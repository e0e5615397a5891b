# SPDX-License-Identifier: Apache-2.0
"""Configurations by name or file, and flags that set their fields."""

import os
import pathlib
import tempfile

from absl.testing import parameterized

from hcl_jax import configurations
from hcl_jax.images import config as image_config

_ROOT = pathlib.Path(__file__).parents[1]


class FindTest(parameterized.TestCase):

  def test_the_package_has_what_the_checkout_has(self):
    names = {path.stem for path in (_ROOT / 'configs').glob('*.py')}
    self.assertEqual(set(configurations.names()), names)
    for name, line in configurations.names().items():
      self.assertRegex(line, r'^[A-Z].*\.$', name)

  @parameterized.parameters('digits', 'digits.py', 'configs/digits.py')
  def test_a_name_is_found_anywhere(self, name):
    with tempfile.TemporaryDirectory() as folder:
      self.addCleanup(os.chdir, os.getcwd())
      os.chdir(folder)
      found = configurations.find(name)
    self.assertEqual(found.resolve(), _ROOT / 'configs/digits.py')

  def test_a_file_wins(self):
    with tempfile.TemporaryDirectory() as folder:
      file = pathlib.Path(folder) / 'digits.py'
      file.write_text('')
      self.assertEqual(configurations.find(str(file)), file)

  @parameterized.parameters(
      ('digit', "no file 'digit' and no .* Did you mean digits"),
      ('other/digits.py', "no file 'other/digits.py'"),
      ('xyz', '"hcl_jax configs" lists them'),
  )
  def test_what_is_not_there(self, name, message):
    with self.assertRaisesRegex(FileNotFoundError, message):
      configurations.find(name)


class ReadTest(parameterized.TestCase):

  @parameterized.parameters(
      ('--config.loss.beta=2', 'loss.beta', 2.0),
      ('--config.loss.tau_plus=1e-2', 'loss.tau_plus', 0.01),
      ('--config.train.epochs=3', 'train.epochs', 3),
      ('--config.data.name=photos/a', 'data.name', 'photos/a'),
      ('--config.moco.shuffle=False', 'moco.shuffle', False),
      ('--config.data.true_label_positives', 'data.true_label_positives', True),
      ('--config.evaluate.protocols=knn,linear', 'evaluate.protocols',
       ('knn', 'linear')),
      ("--config.evaluate.protocols=('knn',)", 'evaluate.protocols', ('knn',)),
      ('--config.evaluate.protocols=', 'evaluate.protocols', ()),
      ('--config.augment.scale=[0.2, 1]', 'augment.scale', (0.2, 1.0)),
      ('--config.compare=standard,hard', 'compare', ('standard', 'hard')),
      ('--config.evaluate.linear_seeds=0,1', 'evaluate.linear_seeds', (0, 1)),
  )  # fmt: skip
  def test_a_flag_sets_a_field(self, flag, field, expected):
    config = configurations.read('digits:hard', [flag])
    for part in field.split('.'):
      config = config[part]
    self.assertEqual(config, expected)
    self.assertIs(type(config), type(expected))

  @parameterized.parameters(
      ('--config.loss.tau-plus=0.1', 'Did you mean --config.loss.tau_plus'),
      ('--config.loss.temprature=1', 'Did you mean --config.loss.temperature'),
      ('--config.beta=2', 'no such field. Did you mean --config.loss.beta'),
      ('--config.loss=2', 'config.loss: there is no such field'),
      ('--config.loss.beta=high', "beta must be a number, got 'high'"),
      ('--config.loss.beta=', "beta must be a number, got ''"),
      ('--config.loss.beta', 'has no value; write --config.loss.beta=VALUE'),
      ('--config.train.epochs=0.01', "epochs must be an int, got '0.01'"),
      ('--config.moco.shuffle=maybe', 'shuffle must be true or false'),
      ('--config.evaluate.linear_seeds=a', 'must be ints between commas'),
      ('other', "unexpected argument 'other'"),
  )
  def test_what_is_wrong_with_a_flag_is_said(self, flag, message):
    with self.assertRaisesRegex(ValueError, message):
      configurations.read('digits:hard', [flag])

  def test_an_argument_may_be_the_configuration(self):
    config = configurations.read(None, ['--config.seed=3', 'digits:hard'])
    self.assertEqual(config.seed, 3)
    with self.assertRaisesRegex(ValueError, 'give --config=NAME'):
      configurations.read(None, ['--config.seed=3'])

  @parameterized.parameters(
      ('def get_config(): pass', '', 'must return an .*ConfigDict, got NoneT'),
      ('def get_config(): 1 / 0', '', 'division by zero'),
      ('def get_config(): pass', ':x', 'it takes no argument'),
      ('def get_config(x): pass', '', 'it needs an argument'),
      ('x = 1', '', "no attribute 'get_config'"),
      ('import no_such', '', "No module named 'no_such'"),
      ('(', '', 'never closed'),
  )
  def test_what_is_wrong_with_a_file_is_said(self, text, argument, message):
    with tempfile.TemporaryDirectory() as folder:
      file = pathlib.Path(folder) / 'mine.py'
      file.write_text(text)
      with self.assertRaisesRegex(ValueError, f'--config={file}.*{message}'):
        configurations.read(f'{file}{argument}')

  def test_every_field_is_described(self):
    text = configurations.describe(image_config.simclr())
    self.assertRegex(text, r'--config.loss.beta=1.0 +hardness of negatives')
    self.assertRegex(text, r"--config.data.name='cifar10' ")


class ExplainTest(parameterized.TestCase):

  @parameterized.parameters(
      ('loss.beta', 'Did you mean --config.loss.beta?'),
      ('beta', 'Did you mean --config.loss.beta?'),
      ('variant', 'A variant is a part of --config, as --config=digits:hard.'),
      ('sweep.loss.beta', 'Only "hcl_jax sweep" takes values to sweep.'),
      ('xyzzy', ''),
  )
  def test_flags_that_there_are_not(self, flag, expected):
    self.assertEqual(configurations.explain_flag(flag), expected)
