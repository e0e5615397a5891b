# SPDX-License-Identifier: Apache-2.0
"""Prints versions, devices and folders, for a bug report.

  hcl_jax doctor
"""

from collections.abc import Iterator
from importlib import metadata
import os
import platform
import re
import sys

import jax

import hcl_jax
from hcl_jax import command
from hcl_jax.storage import locations

_VARIABLES = (
    'JAX_PLATFORMS', 'XLA_FLAGS', 'JAX_COMPILATION_CACHE_DIR', 'TFDS_DATA_DIR'
)  # fmt: skip


def main(arguments: list[str]) -> int:
  if arguments:
    raise command.UsageError(f'unexpected argument {arguments[0]!r}.')
  for name, value in facts():
    print(f'{name:<28}{value}')
  return 0


def facts() -> Iterator[tuple[str, str]]:
  """Yields names and what there is of them on this machine."""
  yield 'hcl_jax', f'{hcl_jax.__version__} in {hcl_jax.__path__[0]}'
  yield 'Python', f'{platform.python_version()} in {sys.prefix}'
  yield 'system', f'{platform.platform()}, {os.cpu_count()} cores'
  try:
    kinds = [device.device_kind for device in jax.devices()]
    devices = [f'{kinds.count(kind)} x {kind}' for kind in dict.fromkeys(kinds)]
    yield 'devices', f'{jax.default_backend()}: {", ".join(devices)}'
  except (RuntimeError, AssertionError) as error:
    yield 'devices', f'none: {command.one_line(error)}'
  for package in _packages():
    try:
      yield package, metadata.version(package)
    except metadata.PackageNotFoundError:
      yield package, 'not installed'
  yield 'data sets', str(locations.data_dir(None))
  for name in _VARIABLES:
    yield f'${name}', os.environ.get(name, 'not set')


def _packages() -> list[str]:
  """Returns what the package needs, and what its extras bring."""
  try:
    lines = metadata.requires('hcl_jax') or []
  except metadata.PackageNotFoundError:  # a checkout that is not installed
    lines = ['jax', 'jaxlib', 'numpy']
  found = [re.match(r'[\w-]+', line)[0] for line in ['jaxlib', *lines]]
  return [x for x in dict.fromkeys(found) if x != 'hcl_jax']


if __name__ == '__main__':
  command.run('hcl_jax doctor', main)
