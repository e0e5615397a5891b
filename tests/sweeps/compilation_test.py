# SPDX-License-Identifier: Apache-2.0
"""Compiled programs that the runs of a sweep share."""

import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
import jax
import jax.numpy as jnp

from hcl_jax.sweeps import compilation

_VARIABLE = 'JAX_COMPILATION_CACHE_DIR'
_CHILD = """
import jax, jax.numpy as jnp
from jax._src import monitoring
monitoring.register_event_listener(lambda name, **_: print(name))
jax.jit(lambda x: jnp.sin(x) + 1)(1.0)
"""


class SharedTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.workdir = pathlib.Path(folder)
    self.enter_context(mock.patch.dict(os.environ))
    os.environ.pop(_VARIABLE, None)
    given = jax.config.jax_compilation_cache_dir
    self.addCleanup(jax.config.update, 'jax_compilation_cache_dir', given)
    jax.config.update('jax_compilation_cache_dir', None)
    # However quick it was to compile.
    self.enter_context(
        mock.patch.dict(
            compilation._SETTINGS,
            {'jax_persistent_cache_min_compile_time_secs': 0.0},
        )
    )

  def test_processes_share_and_nothing_is_left(self):
    with compilation.shared(self.workdir):
      outputs = [
          subprocess.run(
              [sys.executable, '-c', _CHILD],
              check=True,
              capture_output=True,
              text=True,
          ).stdout
          for _ in range(2)
      ]
    self.assertNotIn('cache_hits', outputs[0])
    self.assertIn('cache_hits', outputs[1])
    self._assert_as_before()

  def test_this_process_shares_too(self):
    with compilation.shared(self.workdir):
      jax.jit(lambda x: jnp.cos(x) + 2)(1.0)
      self.assertNotEmpty(list(self.workdir.glob('.compiled_*/*')))

  def test_an_error_and_a_death_leave_nothing(self):
    left = self.workdir / '.compiled_left'
    left.mkdir()
    with self.assertRaises(KeyError), compilation.shared(self.workdir):
      self.assertFalse(left.exists())
      raise KeyError
    self._assert_as_before()

  def test_a_folder_of_the_user_is_taken(self):
    theirs = str(self.workdir / 'theirs')
    jax.config.update('jax_compilation_cache_dir', theirs)
    with compilation.shared(self.workdir):
      self.assertEqual(jax.config.jax_compilation_cache_dir, theirs)
      self.assertNotIn(_VARIABLE, os.environ)
      self.assertEmpty(list(self.workdir.iterdir()))

  def _assert_as_before(self):
    self.assertEmpty(list(self.workdir.iterdir()))
    self.assertNotIn(_VARIABLE, os.environ)
    self.assertIsNone(jax.config.jax_compilation_cache_dir)
