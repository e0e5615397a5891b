# SPDX-License-Identifier: Apache-2.0
"""The command ``hcl_jax``: its list, its help, and mistakes of use."""

import os
import pathlib
import sys
import tempfile
from unittest import mock

from absl.testing import parameterized

import hcl_jax
from hcl_jax import __main__ as main
from hcl_jax import _extras
from tests.support import commands
from tests.support import forks

_DIGITS = '--config=digits:hard', '--config.data.name=digit_scenes/tiny'
_RUN_ALL = """
import runpy, sys
sys.argv = ['-m']  # as Python has it while it imports the package
from hcl_jax import __main__ as main
for module in main.COMMANDS.values():
  try:
    runpy.run_module(module, run_name='__main__', alter_sys=True)
  except ModuleNotFoundError:
    try:
      sys.excepthook(*sys.exc_info())
    except SystemExit as end:
      print(end.code)
"""


class MainTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def _run(self, *arguments, **environment):
    process = forks.start(
        '-m', 'hcl_jax', *arguments, folder=self.folder,
        environment=commands.environment(
            TFDS_DATA_DIR=str(self.folder / 'data'), **environment
        ),
    )  # fmt: skip
    out, err = process.communicate(timeout=300)
    return process.wait(), out, err

  @parameterized.parameters([[]], [['--help']], [['-h']])
  def test_lists_the_commands(self, arguments):
    status, out, err = self._run(*arguments)
    self.assertEqual((status, err), (0, ''))
    for name in main.COMMANDS:
      self.assertRegex(out, rf'(?m)^  {name} +[A-Z].*\.$')

  def test_version(self):
    for arguments in (['--version'], ['train', '--version']):
      status, out, _ = self._run(*arguments)
      self.assertEqual((status, out), (0, f'hcl_jax {hcl_jax.__version__}\n'))

  @parameterized.parameters(
      ('train', '-h', '--workdir: ', '--[no]print_config: ', '--coordinator: '),
      ('embed', '--help', '--workdir: ', '--input: ', '--[no]allow_code: '),
  )
  def test_help_of_a_command(self, command, flag, *words):
    status, out, err = self._run(command, flag)
    self.assertEqual(status, 0, err)
    for word in words:
      self.assertIn(word, out)

  def test_configs_and_doctor(self):
    status, out, err = self._run('configs')
    self.assertEqual(status, 0, err)
    self.assertRegex(out, r'(?m)^molecules +Quick start')
    status, out, err = self._run('doctor')
    self.assertEqual(status, 0, err)
    self.assertRegex(out, r'(?m)^devices +cpu: 1 x')
    self.assertRegex(out, r'(?m)^flax +\d')

  def test_prints_a_configuration(self):
    status, out, err = self._run(
        'train', *_DIGITS, '--config.loss.beta=3', '--print_config'
    )
    self.assertEqual(status, 0, err)
    self.assertRegex(out, r'(?m)^--config.loss.beta=3.0 +hardness')
    self.assertEmpty(list(self.folder.iterdir()))

  def test_only_checks(self):
    status, out, err = self._run(
        'train', *_DIGITS, '--workdir=run', '--only_check_args'
    )
    self.assertEqual(status, 0, err)
    self.assertIn('flags, configuration and data are valid', out)
    self.assertFalse((self.folder / 'run').exists())

  @parameterized.named_parameters(
      ('command', ['trian'], "no command 'trian', only train, evaluate"),
      ('config', ['train', '--workdir=run'], 'give --config=NAME'),
      ('workdir', ['train', '--config=digits'], '--workdir=None: it must be'),
      ('name', ['train', '--config=digit', '--workdir=run'],
       'Did you mean digits'),
      ('variant', ['train', *_DIGITS, '--workdir=run', '--variant=hard'],
       '--config=digits:hard'),
      ('variant_name', ['train', '--config=digits:hardd', '--workdir=run'],
       '--config=digits:hardd: the variant must be one of'),
      ('field', ['train', *_DIGITS, '--workdir=run', '--loss.beta=2'],
       'Did you mean --config.loss.beta'),
      ('sweep', ['sweep', *_DIGITS, '--workdir=run', '--sweep.beta=[0,1]'],
       '--sweep.beta: no such field'),
      ('no_collection', ['train', '--config=graphs', '--workdir=run'],
       '--config=graphs: the argument must be one of MUTAG, PTC_MR'),
      ('collection', ['train', '--config=graphs:mutag', '--workdir=run'],
       '--config=graphs:mutag: the argument must be one of MUTAG'),
  )  # fmt: skip
  def test_mistakes_are_one_line_and_write_nothing(self, arguments, message):
    status, out, err = self._run(*arguments)
    self.assertEqual(status, 2, err)
    self.assertRegex(err, message)
    self.assertLen(err.strip().splitlines(), 1)
    self.assertEmpty(out)
    self.assertFalse((self.folder / 'run').exists())

  @parameterized.parameters(
      [['train', *_DIGITS, '--workdir=run']], [['bench', 'loss']]
  )
  def test_a_platform_that_is_not_there(self, arguments):
    status, _, err = self._run(*arguments, JAX_PLATFORMS='cuda')
    self.assertEqual(status, 2, err)
    self.assertLen(err.strip().splitlines(), 1)
    self.assertIn("no device with JAX_PLATFORMS='cuda'", err)


class LightTest(parameterized.TestCase):
  """What is said where the extra is not installed."""

  def _run(self, *command):
    """Runs Python without what the extra brings."""
    folder = self.enter_context(tempfile.TemporaryDirectory())
    hidden = ('absl', 'flax', 'ml_collections', 'optax')
    (pathlib.Path(folder) / 'sitecustomize.py').write_text(
        f'import sys\nsys.modules.update(dict.fromkeys({hidden}))\n'
    )
    path = os.pathsep.join([folder, str(commands.ROOT)])
    process = commands.start_fresh(
        *command, environment=commands.environment(PYTHONPATH=path)
    )
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err

  def test_a_module_as_a_command(self):
    status, out, err = self._run('-m', 'hcl_jax.train')
    self.assertEqual((status, out), (2, ''))
    self.assertRegex(err, r"^hcl_jax: .* 'absl'; .*'hcl_jax\[train\]'.*\n$")

  def test_all_commands(self):
    status, out, err = self._run('-c', _RUN_ALL)
    self.assertEqual(status, 0, err)
    self.assertEqual(out, '2\n' * len(main.COMMANDS))
    self.assertLen(err.splitlines(), len(main.COMMANDS))

  def test_other_errors_are_left_alone(self):
    with mock.patch.object(sys, 'excepthook') as before:
      _extras.explain_to_commands()
      for error in (ValueError(), ModuleNotFoundError(name='absl')):
        try:
          raise error
        except Exception as caught:
          sys.excepthook(type(caught), caught, caught.__traceback__)
      self.assertEqual(before.call_count, 2)
