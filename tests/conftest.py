# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests, made before JAX starts a backend.

Eight simulated devices of a CPU, quick compilation, and strict ranks and
dtypes, which catch the broadcast that turns ``[B] - [B, 1]`` into ``[B, B]``.
"""

import os

os.environ['JAX_PLATFORMS'] = 'cpu'

import jax  # noqa: E402
import pytest  # noqa: E402

from hcl_jax.evaluation import cross_validation  # noqa: E402
from tests.support import compiler  # noqa: E402

os.environ['XLA_FLAGS'] = (
    f'{os.environ.get("XLA_FLAGS", "")} {compiler.xla_flags(devices=8)}'
)
if compiler.is_quick:
  os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] = '1'  # of other processes
  jax.config.update('jax_disable_most_optimizations', True)
jax.config.update('jax_numpy_rank_promotion', 'raise')
jax.config.update('jax_numpy_dtype_promotion', 'strict')

# Files that take longest begin first, so that no process ends long before the
# others.
_LONGEST = (
    'in_batch', 'notebooks', 'sweep', 'devices', 'faults', 'models',
    'sentence_loop', 'nce', 'step', 'tilting', 'bench_sweep', 'jobs',
    'processes', 'train', 'inspection', 'graph_loop', 'bench_soak',
)  # fmt: skip


def pytest_collection_modifyitems(items):
  """Puts the longest files first."""
  order = {f'{name}_test.py': -i for i, name in enumerate(_LONGEST[::-1], 1)}
  items.sort(key=lambda item: order.get(item.path.name, 0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
  """Returns what ``-n auto`` means: a process for each core, up to eight."""
  return min(cross_validation.usable_cores(), 8)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
  """Keeps the tests of a file, which share programs and data, together."""
  from xdist import scheduler

  config.option.loadscopereorder = False
  return scheduler.LoadFileScheduling(config, log)
