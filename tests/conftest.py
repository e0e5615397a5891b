# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests, made before JAX starts a backend.

Eight simulated devices of a CPU, quick compilation, and strict ranks and
dtypes, which catch the broadcast that turns ``[B] - [B, 1]`` into ``[B, B]``.
"""

import gc
import importlib.metadata
import os
import pathlib
import shutil
import tempfile

os.environ['JAX_PLATFORMS'] = 'cpu'
# Workers share the cores, and a thread of numpy's that waits for another spins.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
# One cache of compiled programs for this run: its workers and the processes
# that they start compile many of the same ones. A process of jaxlib 0.9 that
# has one core may wait for ever when it reads a program.
_is_first = 'HCL_JAX_TEST_CACHE' not in os.environ and not (
    importlib.metadata.version('jaxlib').startswith('0.9.')
)
if _is_first:
  _cache = tempfile.mkdtemp(prefix='hcl_jax_tests')
  os.environ |= {
      'HCL_JAX_TEST_CACHE': _cache,
      'JAX_COMPILATION_CACHE_DIR': _cache,
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
      'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
  }

import jax  # noqa: E402
import joblib  # noqa: E402
import pytest  # noqa: E402

from tests.support import compiler  # noqa: E402

os.environ['XLA_FLAGS'] = (
    f'{os.environ.get("XLA_FLAGS", "")} {compiler.xla_flags(devices=8)}'
)
if compiler.is_quick:
  os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] = '1'  # of other processes
  jax.config.update('jax_disable_most_optimizations', True)
jax.config.update('jax_numpy_rank_promotion', 'raise')
jax.config.update('jax_numpy_dtype_promotion', 'strict')

# Modules, programs and jaxprs are many and stay: looking through them for
# garbage, as often as Python does, takes a twenty-fifth of the time.
gc.freeze()
gc.set_threshold(50_000, 20, 50)

# Files that take longest begin first, so that no process ends long before the
# others.
_LONGEST = (
    'losses/in_batch', 'notebooks', 'sweeps/sweeping', 'losses/devices',
    'runs/faults', 'models/image_encoders', 'sentences/experiment',
    'losses/nce', 'training/step', 'losses/tilting', 'benchmarks/sweep',
    'sweeps/pool', 'runs/processes', 'train', 'report/inspection',
    'graphs/experiment', 'benchmarks/soak',
)  # fmt: skip


def pytest_unconfigure():
  """Removes the cache in the process that made it."""
  if _is_first:
    shutil.rmtree(_cache, ignore_errors=True)


def pytest_collection_modifyitems(items):
  """Puts the longest files first."""
  folder = pathlib.Path(__file__).parent
  paths = [folder / f'{name}_test.py' for name in _LONGEST]
  assert all(path.exists() for path in paths), paths
  order = {path: -i for i, path in enumerate(paths[::-1], 1)}
  items.sort(key=lambda item: order.get(item.path, 0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
  """Returns what ``-n auto`` means: a process for each core, up to eight."""
  return min(joblib.cpu_count(), 8)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
  """Keeps the tests of a file, which share programs and data, together."""
  from xdist import scheduler

  config.option.loadscopereorder = False
  return scheduler.LoadFileScheduling(config, log)
