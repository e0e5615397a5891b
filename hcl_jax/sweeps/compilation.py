# SPDX-License-Identifier: Apache-2.0
"""Shares compiled programs among the processes of a sweep."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import shutil
import tempfile

import jax
from jax.experimental.compilation_cache import compilation_cache

_PREFIX = '.compiled_'
_FOLDER = 'jax_compilation_cache_dir'
_SETTINGS = {'jax_persistent_cache_min_compile_time_secs': 0.2}


@contextlib.contextmanager
def shared(workdir: pathlib.Path) -> Iterator[None]:
  """Keeps programs in a folder, for this process and those that it starts.

  Runs that differ in nothing but hyperparameters, which are arguments of their
  steps, then find what another one has compiled. The folder is made in the
  workdir, which is locked, and removed at the end. Nothing is done where JAX
  has been given a folder already.
  """
  if getattr(jax.config, _FOLDER) is not None:
    yield
    return
  for left in workdir.glob(f'{_PREFIX}*'):  # by a process that was killed
    shutil.rmtree(left, ignore_errors=True)
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(
        tempfile.TemporaryDirectory(
            prefix=_PREFIX, dir=workdir.absolute(), ignore_cleanup_errors=True
        )
    )
    settings = {**_SETTINGS, _FOLDER: folder}
    stack.callback(_configure, {name: getattr(jax.config, name)
                                for name in settings})  # fmt: skip
    stack.callback(_restore_environment, dict(os.environ))
    _configure(settings)
    os.environ.update({name.upper(): str(x) for name, x in settings.items()})
    yield


def _configure(settings):
  for name, value in settings.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()  # JAX looks at the folder only once.


def _restore_environment(before):
  for name in (_FOLDER.upper(), *map(str.upper, _SETTINGS)):
    os.environ.pop(name, None)
    if name in before:
      os.environ[name] = before[name]
