# SPDX-License-Identifier: Apache-2.0
"""Runs commands as a user does, many of them for the price of one import."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import NamedTuple

from absl.testing import parameterized

ROOT = pathlib.Path(__file__).parents[2]

# Every command gets a fork of a process that has imported what they share but
# none of them, so that it defines its flags anew. No backend has started then.
_SERVER = """
import json, os, runpy, signal, sys, tempfile, traceback
import ml_collections.config_flags, tensorflow_datasets, PIL.Image
import hcl_jax.training.experiment, hcl_jax.training.sweeping
import hcl_jax.training.inspection, hcl_jax.data.catalogue

def run(module, arguments, out, err):
  for number, file in enumerate((os.devnull, out, err)):
    flags = os.O_RDONLY if number == 0 else os.O_WRONLY
    os.dup2(os.open(file, flags), number)
  sys.stdout, sys.stderr = (open(i, 'w', closefd=False) for i in (1, 2))
  sys.argv = [module, *arguments]
  signal.alarm(60)
  status = 0
  try:
    runpy.run_module(module, run_name='__main__', alter_sys=True)
  except SystemExit as end:
    status = end.code if isinstance(end.code, int) else int(bool(end.code))
  except BaseException:
    traceback.print_exc()
    status = 1
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)

for line in sys.stdin:
  with (tempfile.NamedTemporaryFile('r') as out,
        tempfile.NamedTemporaryFile('r') as err):
    child = os.fork()
    if not child:
      run(*json.loads(line), out.name, err.name)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([status, out.read(), err.read()]), flush=True)
"""


class Done(NamedTuple):
  """How a command ended."""

  status: int
  out: str
  err: str


def run_bench(name: str, *arguments: str, **environment: str) -> Done:
  """What ``python -m hcl_jax.bench NAME ARGUMENTS`` does at the root."""
  one_device = {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''}
  done = subprocess.run(
      [sys.executable, '-m', 'hcl_jax.bench', name, *arguments],
      cwd=ROOT,
      env=os.environ | one_device | environment,
      capture_output=True,
      text=True,
  )
  return Done(done.returncode, done.stdout, done.stderr)


class Commands:
  """Runs commands one after the other; nothing of one is left to the next.

  Args:
    directory: where they are run; prepared data sets are in its ``data``.
  """

  def __init__(self, directory: pathlib.Path):
    environment = dict(
        os.environ,
        PYTHONPATH=str(ROOT),
        TFDS_DATA_DIR=str(directory / 'data'),
        XLA_FLAGS='',  # one device
    )
    environment.pop('SLURM_JOB_ID', None)  # and no cluster
    self._server = subprocess.Popen(
        [sys.executable, '-c', _SERVER],
        cwd=directory,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

  def run(self, module: str, *arguments: str) -> Done:
    """What ``python -m hcl_jax.MODULE ARGUMENTS`` does."""
    request = json.dumps([f'hcl_jax.{module}', [str(x) for x in arguments]])
    self._server.stdin.write(request + '\n')
    self._server.stdin.flush()
    return Done(*json.loads(self._server.stdout.readline()))

  def close(self) -> None:
    self._server.stdin.close()
    self._server.wait()
    self._server.stdout.close()


class CommandsTest(parameterized.TestCase):
  """Tests that share a folder, ``root``, and ``commands`` run there."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.commands = Commands(cls.root)
    cls.addClassCleanup(cls.commands.close)

  def check_refused(self, done: Done, message: str) -> None:
    """It was refused in one line that says this."""
    self.assertEqual(done.status, 2)
    self.assertIn(message, done.err)
    self.assertLen(done.err.strip().splitlines(), 1)
