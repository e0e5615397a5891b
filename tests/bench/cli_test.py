# SPDX-License-Identifier: Apache-2.0
"""The help of both commands that run benches."""

import importlib
import pkgutil

from absl import flags
from absl.testing import parameterized

import benchmarks
from benchmarks import __main__ as all_benches
from hcl_jax import bench
from hcl_jax.bench import __main__ as own_benches
from hcl_jax.bench import cli
from tests.support import commands


def _flags(*packages):
  """Names of the flags that the modules of packages define."""
  return {
      flag.name
      for package in packages
      for module in pkgutil.iter_modules(package.__path__)
      if not module.name.startswith('torch_')
      for flag in flags.FLAGS.get_flags_for_module(
          importlib.import_module(f'{package.__name__}.{module.name}')
      )
  }


class HelpTest(parameterized.TestCase):

  @parameterized.parameters(
      (own_benches.BENCHES, (bench,)),
      (all_benches.BENCHES, (bench, benchmarks)),
  )
  def test_lists_benches_and_all_of_their_flags(self, benches, packages):
    text = cli.describe('x', benches)
    for name in benches:
      self.assertRegex(text, rf'\n{name}: [A-Z]\w+s .*\.\n')
    for name in _flags(*packages):
      self.assertRegex(text, rf'\n  --(\[no\])?{name}: \S')
    self.assertLessEqual(max(map(len, text.splitlines())), 80)

  def test_a_flag_is_listed_with_its_bench(self):
    text = cli.describe('x', all_benches.BENCHES)
    sections = {x.split(':')[0]: x for x in text.split('\n\n')}
    for name in ('checkpoint', 'train'):
      self.assertIn('  --networks: ', sections[name])
    self.assertNotIn('--networks', sections['loss'])
    line = '  --dim: Width of the embeddings. (default: 128)\n'
    self.assertIn(line, sections['loss'])
    self.assertIn('  --[no]one_core: ', sections['Shared flags'])

  @parameterized.parameters('bench', 'benchmarks')
  def test_is_printed(self, module):
    done = commands.run(module, '--help')
    name = module if module == 'benchmarks' else f'hcl_jax.{module}'
    self.assertIn(f'python -m {name} BENCH [--flags]\n', done.out)
    self.assertIn('\n  --batch_sizes: ', done.out)
    self.assertEmpty(done.err)
