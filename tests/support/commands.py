# SPDX-License-Identifier: Apache-2.0
"""Runs commands as a user does, but for the price of their imports."""

import os
import pathlib
import subprocess
import sys
import tempfile
from typing import NamedTuple

from absl.testing import parameterized

from tests.support import compiler
from tests.support import forks

ROOT = forks.ROOT


class Done(NamedTuple):
  """How a command ended."""

  status: int
  out: str
  err: str


def environment(**changes: str) -> dict[str, str]:
  """Returns variables for one device and no cluster."""
  made = dict(os.environ, XLA_FLAGS=compiler.xla_flags())
  made.pop('SLURM_JOB_ID', None)
  return made | {'PYTHONPATH': str(ROOT)} | changes


def start_fresh(*command: object, environment) -> subprocess.Popen:
  """Starts Python anew: with imports and a hash seed of its own."""
  return subprocess.Popen(
      [sys.executable, *map(str, command)],
      cwd=ROOT,
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
  )


def start(
    module: str, *arguments: object, folder=ROOT, stdin=None, **changes: str
) -> forks.Process:
  """Starts ``python -m hcl_jax.MODULE ARGUMENTS``.

  Args:
    module: its name; ``benchmarks`` is the package beside hcl_jax.
    *arguments: its arguments.
    folder: where it runs.
    stdin: a file to read from, if any.
    **changes: variables of its environment.

  Returns:
    The process.
  """
  if module != 'benchmarks':
    module = f'hcl_jax.{module}'
  return forks.start(
      '-m', module, *arguments, folder=folder, stdin=stdin,
      environment=environment(**changes),
  )  # fmt: skip


def run(module: str, *arguments: object, folder=ROOT, **changes: str) -> Done:
  """Runs ``python -m hcl_jax.MODULE ARGUMENTS`` to its end."""
  process = start(module, *arguments, folder=folder, **changes)
  out, err = process.communicate(timeout=300)
  return Done(process.wait(), out, err)


class CommandsTest(parameterized.TestCase):
  """Tests that share a folder, ``root``, with prepared data in its ``data``."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )

  def run_here(self, module: str, *arguments: object) -> Done:
    """Runs a command in the folder."""
    data_dir = str(self.root / 'data')
    return run(module, *arguments, folder=self.root, TFDS_DATA_DIR=data_dir)

  def check_refused(self, done: Done, message: str) -> None:
    """It was refused in one line that says this."""
    self.assertEqual(done.status, 2)
    self.assertIn(message, done.err)
    self.assertLen(done.err.strip().splitlines(), 1)
