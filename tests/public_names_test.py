# SPDX-License-Identifier: Apache-2.0
"""Public names: those of the packages, and the fields of configurations.

After a deliberate change, which CHANGELOG.md tells of:

  python -m tests.public_names_test > tests/public_names.txt
"""

import importlib
import pathlib
import types

from absl.testing import absltest

from hcl_jax import domains
from hcl_jax.training import fields

_FILE = pathlib.Path(__file__).with_name('public_names.txt')
# What users import; the modules behind these may change.
_PACKAGES = (
    'hcl_jax', 'hcl_jax.analysis', 'hcl_jax.augment', 'hcl_jax.evaluation',
    'hcl_jax.graphs', 'hcl_jax.images', 'hcl_jax.models', 'hcl_jax.momentum',
    'hcl_jax.pairs', 'hcl_jax.report.plots', 'hcl_jax.schedules',
    'hcl_jax.sentences', 'hcl_jax.theory', 'hcl_jax.training.experiment',
    'hcl_jax.training.task',
)  # fmt: skip


def _names():
  """Yields all public names."""
  for package in _PACKAGES:
    module = importlib.import_module(package)
    public = getattr(module, '__all__', None) or [
        name
        for name in dir(module)
        if not isinstance(getattr(module, name), types.ModuleType)
        and getattr(getattr(module, name), '__module__', '').startswith(
            'hcl_jax'
        )
    ]
    yield from (
        f'{package}.{name}' for name in public if not name.startswith('_')
    )
  for domain, room in domains.configs().items():
    yield from (
        f'config of {domain}: {name}'
        for name in fields.flatten_fields(room.FIELDS)
    )


class PublicNamesTest(absltest.TestCase):

  def test_they_are_those_of_the_file(self):
    expected = _FILE.read_text(encoding='utf-8').splitlines()
    self.assertEqual(sorted(_names()), expected)


if __name__ == '__main__':
  print('\n'.join(sorted(_names())))
