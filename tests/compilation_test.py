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

from hcl_jax.training import compilation

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
    self.folder = pathlib.Path(folder) / 'compiled'
    self.enter_context(mock.patch.dict(os.environ))
    os.environ.pop(_VARIABLE, None)
    # However quick it was to compile.
    self.enter_context(
        mock.patch.dict(
            compilation._SETTINGS,
            {'jax_persistent_cache_min_compile_time_secs': 0.0},
        )
    )

  def test_processes_share_and_nothing_is_left(self):
    with compilation.shared(self.folder):
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
    self.assertFalse(self.folder.exists())
    self.assertNotIn(_VARIABLE, os.environ)
    self.assertIsNone(jax.config.jax_compilation_cache_dir)

  def test_this_process_shares_too(self):
    with compilation.shared(self.folder):
      jax.jit(lambda x: jnp.cos(x) + 2)(1.0)
      self.assertNotEmpty(list(self.folder.iterdir()))

  def test_stays_after_an_error(self):
    with self.assertRaises(KeyError), compilation.shared(self.folder):
      self.folder.mkdir()
      raise KeyError
    self.assertTrue(self.folder.exists())
    self.assertNotIn(_VARIABLE, os.environ)

  def test_a_folder_of_the_user_is_kept(self):
    theirs = str(self.folder.parent)
    jax.config.update('jax_compilation_cache_dir', theirs)
    self.addCleanup(jax.config.update, 'jax_compilation_cache_dir', None)
    with compilation.shared(self.folder):
      self.assertEqual(jax.config.jax_compilation_cache_dir, theirs)
    self.assertTrue(self.folder.parent.exists())


if __name__ == '__main__':
  absltest.main()
