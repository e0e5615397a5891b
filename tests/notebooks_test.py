# SPDX-License-Identifier: Apache-2.0
"""The notebooks run from their first cell to their last, in smoke mode."""

import importlib.util
import os
import pathlib
import re
import tempfile
import threading
import time
from unittest import mock

from absl.testing import parameterized
from ipykernel import kernelspec
from IPython.core import inputtransformer2
import jupyter_client
from jupyter_client import kernelspec as kernelspec_lib
from jupyter_client.provisioning import local_provisioner
import nbclient
import nbformat

from tests.support import compiler
from tests.support import forks

_ROOT = pathlib.Path(__file__).parent.parent
_PATHS = sorted((_ROOT / 'colab').glob('*.ipynb'))
_REPOSITORY = 'github.com/hcl-jax/hcl_jax'
_TIMEOUT = 600  # seconds, of a cell on a machine with other work
_KERNEL = 'hcl_jax_tests'

_all_notebooks = parameterized.named_parameters(
    (path.stem, path) for path in _PATHS
)


def _read(path):
  return nbformat.read(path, as_version=4)


def _code_cells(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == 'code']


class NotebooksTest(parameterized.TestCase):

  def test_there_are_notebooks(self):
    self.assertEqual(
        [path.stem for path in _PATHS],
        ['graphs_and_sentences', 'look_inside', 'losses_in_your_model',
         'train_on_tpu'],
    )  # fmt: skip

  @_all_notebooks
  def test_it_is_valid_and_without_outputs(self, path):
    notebook = _read(path)
    nbformat.validate(notebook)
    for cell in _code_cells(notebook):
      self.assertEmpty(cell.outputs, cell.id)
      self.assertIsNone(cell.execution_count, cell.id)

  @_all_notebooks
  def test_the_first_code_cell_installs_what_is_missing(self, path):
    source = _code_cells(_read(path))[0].source
    code = inputtransformer2.TransformerManager().transform_cell(source)
    shell = mock.Mock()
    for found, calls in ((object(), 0), (None, 1)):
      with mock.patch.object(importlib.util, 'find_spec', return_value=found):
        exec(code, {'get_ipython': lambda: shell})
      self.assertEqual(shell.run_line_magic.call_count, calls)
    (magic, arguments), _ = shell.run_line_magic.call_args
    self.assertEqual(magic, 'pip')
    self.assertRegex(arguments, rf'^install .*"hcl_jax\[train\] @ git\+https://{_REPOSITORY}"$')

  @_all_notebooks
  def test_badges_open_it(self, path):
    address = (
        'https://colab.research.google.com/'
        f'{_REPOSITORY.replace(".com", "")}/blob/main/colab/{path.name}'
    )
    self.assertIn(f'({address})', _read(path).cells[0].source)
    readme = (_ROOT / 'README.md').read_text(encoding='utf-8')
    self.assertIn(f'({address})', readme)

  @_all_notebooks
  def test_it_has_no_absolute_path(self, path):
    for cell in _code_cells(_read(path)):
      self.assertNotRegex(cell.source, r'''['"\s](/|~/|[A-Z]:\\)\w''', cell.id)

  @_all_notebooks
  def test_it_runs_in_smoke_mode(self, path):
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    notebook = _read(path)
    # Beside nothing, as it is in Colab.
    place = root / 'place'
    place.mkdir()
    client = nbclient.NotebookClient(
        notebook,
        km=_kernel_manager(root),
        timeout=_TIMEOUT,
        resources={'metadata': {'path': str(place)}},
    )
    with mock.patch.object(local_provisioner, 'launch_kernel', _launch):
      # A client does not end a kernel that it was given, unless told to.
      client.execute(env=_environment(root), cleanup_kc=True)
    self.assertEqual(
        [cell.execution_count for cell in _code_cells(notebook)],
        list(range(1, 1 + len(_code_cells(notebook)))),
    )


def _launch(command, *, cwd, env, **unused):
  """Starts a kernel that need not import anything."""
  module = command.index('-m')
  process = forks.start(*command[module:], folder=cwd, environment=env)
  while os.getpgid(process.pid) != process.pid:  # Its group is sent signals.
    time.sleep(0.01)
  for pipe in (process.stdout, process.stderr):  # or a full one blocks it
    threading.Thread(target=pipe.read, daemon=True).start()
  return process


def _kernel_manager(root):
  """A kernel of this interpreter, whatever kernels are installed."""
  kernelspec.write_kernel_spec(root / 'kernels' / _KERNEL)
  return jupyter_client.AsyncKernelManager(
      kernel_name=_KERNEL,
      kernel_spec_manager=kernelspec_lib.KernelSpecManager(
          kernel_dirs=[str(root / 'kernels')], ensure_native_kernel=False
      ),
      connection_file=str(root / 'connection.json'),
      # By files, as kernels of other workers may take the same free port.
      transport='ipc',
      ip=str(root / 'socket'),
  )


def _environment(root):
  environment = {
      name: value
      for name, value in os.environ.items()
      if not re.match('IPYTHON|JUPYTER|JPY', name)
  }
  paths = [str(_ROOT), os.environ.get('PYTHONPATH', '')]
  return environment | {
      'HCL_JAX_SMOKE': '1',
      'IPYTHONDIR': str(root / 'ipython'),
      'PYTHONPATH': os.pathsep.join(filter(None, paths)),
      'TFDS_DATA_DIR': str(root / 'data'),
      # Two devices, so that what is said of several is done.
      'XLA_FLAGS': compiler.xla_flags(devices=2),
  }
