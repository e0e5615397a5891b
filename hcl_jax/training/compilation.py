# SPDX-License-Identifier: Apache-2.0
"""Compiled programs that the runs of a sweep share."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import shutil

import jax
from jax.experimental.compilation_cache import compilation_cache

_SETTINGS = {
    'jax_compilation_cache_dir': None,  # the folder
    'jax_persistent_cache_min_compile_time_secs': 0.2,
}


@contextlib.contextmanager
def shared(folder: pathlib.Path) -> Iterator[None]:
  """Keeps programs in a folder, for this process and those that it starts.

  Runs that differ in nothing but knobs, which are arguments of their steps,
  then compile once. The folder is gone at the end, and stays where that is an
  error, for a sweep that is continued.

  Args:
    folder: of the programs; not used where JAX has been given one before.
  """
  if jax.config.jax_compilation_cache_dir is not None:
    yield
    return
  settings = _SETTINGS | {'jax_compilation_cache_dir': str(folder.absolute())}
  before = {name: getattr(jax.config, name) for name in settings}
  environment = {name.upper(): str(x) for name, x in settings.items()}
  inherited = {name: os.environ.get(name) for name in environment}
  os.environ.update(environment)
  _configure(settings)
  try:
    yield
  finally:
    _configure(before)
    for name, value in inherited.items():
      if value is None:
        del os.environ[name]
      else:
        os.environ[name] = value
  shutil.rmtree(folder, ignore_errors=True)


def _configure(settings):
  for name, value in settings.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()  # JAX looks at the folder only once.
