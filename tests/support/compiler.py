# SPDX-License-Identifier: Apache-2.0
"""How tests compile: quickly, unless it is the program that is tested.

What runs once need not run fast. XLA without its optimizations and with its
older emitters of fusions takes a quarter of the time to compile a loss. With
HCL_JAX_TEST_OPTIMIZED in the environment all tests compile as users do.
"""

import importlib.metadata
import os

import jax

# Of programs that are compiled as users' are, for jax.jit.
OPTIMIZED = {
    'xla_backend_optimization_level': 3,
    'xla_llvm_disable_expensive_passes': False,
}

is_quick = not os.environ.get('HCL_JAX_TEST_OPTIMIZED')
_flags = ''
# A flag that is not known ends the process.
if importlib.metadata.version('jaxlib').startswith(('0.9.', '0.10.')):
  OPTIMIZED['xla_cpu_use_fusion_emitters'] = True
  _flags = (
      ' --xla_cpu_use_fusion_emitters=false'
      # Parts of a program that are compiled apart, each of which costs.
      ' --xla_cpu_parallel_codegen_split_count={parts}'
  ) * is_quick


def xla_flags(devices: int = 1, *, parts: int = 1) -> str:
  """Returns XLA_FLAGS for a process.

  Args:
    devices: how many it simulates.
    parts: how many a program is compiled in; 32 by XLA's default, which rounds
      sums over devices alike in one process and in several.

  Returns:
    The flags.
  """
  flags = _flags.format(parts=parts)
  return f'--xla_force_host_platform_device_count={devices}{flags}'


def optimized(function):
  """Compiles a function as it is for users."""
  return jax.jit(function, compiler_options=OPTIMIZED)
