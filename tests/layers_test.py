# SPDX-License-Identifier: Apache-2.0
"""The layers of the package, what importing it costs, and its examples."""

import ast
import doctest
import graphlib
import importlib
import pathlib
import re
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

import hcl_jax
from hcl_jax import losses

_ROOT = pathlib.Path(hcl_jax.__file__).parent
_BENCHMARKS = _ROOT.parent / 'benchmarks'

# A module may import from lower layers and from its own package.
_LAYERS = {
    '_blocks': 0, '_checks': 0, '_devices': 0, '_extras': 0, '_vectors': 0,
    'chunking': 0, 'losses': 0, 'mining': 0, 'schedules': 0,
    'augment': 1, 'momentum': 1, 'models': 1, 'storage': 1, 'runs': 1,
    'evaluation': 1, 'analysis': 1, 'theory': 1,
    'training': 2,
    # They do not know each other.
    'images': 3, 'graphs': 3, 'sentences': 3, 'pairs': 3,
    'domains': 4,
    'sweeps': 5,
    'report': 6, 'command': 6, 'hosts': 6, 'configurations': 6,
    'train': 7, 'evaluate': 7, 'prepare': 7, 'analyze': 7, 'sweep': 7,
    'bench': 7, 'nearest': 7, 'embed': 7, 'doctor': 7, '__main__': 7,
}  # fmt: skip
_SIBLINGS = {
    ('_checks', '_vectors'), ('losses', '_blocks'), ('losses', '_checks'),
    ('losses', '_devices'), ('losses', '_vectors'), ('mining', '_blocks'),
    ('mining', '_checks'), ('mining', '_devices'), ('mining', '_vectors'),
    ('schedules', '_checks'), ('chunking', '_checks'), ('runs', 'storage'),
    ('theory', 'analysis'), ('hosts', 'command'),
    ('configurations', 'command'),
}  # fmt: skip
_HEAVY = (
    'flax', 'optax', 'orbax', 'tensorflow', 'tensorflow_datasets', 'grain',
    'sklearn', 'matplotlib', 'chex', 'absl', 'ml_collections', 'torch',
)  # fmt: skip


def _imports(path):
  """Modules that a file imports at its top or inside its functions."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def _sources(*folders):
  """Files of the package, or of other folders beside it."""
  return sorted(x for y in folders or [_ROOT] for x in y.rglob('*.py'))


def _module(path):
  """Name of the module in a file."""
  parts = path.relative_to(_ROOT.parent).with_suffix('').parts
  return '.'.join(parts).removesuffix('.__init__')


class LayersTest(parameterized.TestCase):

  def test_folders_of_tests_are_those_of_the_package(self):
    here = pathlib.Path(__file__).parent
    folders = {path.parent.name for path in here.glob('*/*_test.py')}
    packages = {path.parent.name for path in _ROOT.glob('*/__init__.py')}
    self.assertEqual(folders - {'benchmarks'}, packages)

  def test_modules_import_from_lower_layers_only(self):
    for path in _sources():
      parts = path.relative_to(_ROOT).with_suffix('').parts
      if parts == ('__init__',):
        continue
      here = parts[0]
      self.assertIn(here, _LAYERS, f'{path} has no layer')
      for module in _imports(path):
        if not module.startswith('hcl_jax.'):
          continue
        there = module.split('.')[1]
        allowed = (
            there == here
            or (here, there) in _SIBLINGS
            or _LAYERS.get(there, 99) < _LAYERS[here]
            or (there in losses.__all__ and _LAYERS[here] > 0)
        )
        self.assertTrue(allowed, f'{path.name} imports {module}')

  def test_the_package_needs_neither_benchmarks_nor_torch(self):
    for folder, barred in (
        (_ROOT, {'benchmarks', 'tests', 'torch', 'lightly'}),
        (_BENCHMARKS, {'tests'}),
    ):
      self.assertNotEmpty(_sources(folder))
      for path in _sources(folder):
        tops = {module.split('.')[0] for module in _imports(path)}
        self.assertEmpty(tops & barred, path)

  def test_the_engine_names_no_domain(self):
    words = {'image', 'graph', 'sentence', 'simclr', 'moco', 'infograph',
             'quick_thoughts'}  # fmt: skip
    for package in ('training', 'runs'):
      for path in sorted((_ROOT / package).rglob('*.py')):
        for node in ast.walk(ast.parse(path.read_text())):
          if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = node.value.removesuffix('s')
            self.assertNotIn(named, words, f'{path}:{node.lineno}')

  def test_no_module_imports_itself_by_way_of_others(self):
    modules = {_module(path): path for path in _sources(_ROOT, _BENCHMARKS)}
    graph = {
        # The names of a package may come from its modules.
        module: {x for x in _imports(path) if x in modules}
        for module, path in modules.items()
        if path.name != '__init__.py'
    }
    try:
      graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
      self.fail(' -> '.join(error.args[1]))

  def test_packages_keep_what_is_private(self):
    for path in _sources(_ROOT, _BENCHMARKS):
      package = [*path.relative_to(_ROOT.parent).parts[:-1]]
      for module in _imports(path):
        *owner, name = module.split('.')
        if owner[:1] == ['hcl_jax'] and re.match('_[^_]', name):
          self.assertIn(owner, (package[:1], package), f'{path}: {module}')

  def test_layer_zero_imports_jax_and_numpy_only(self):
    standard = sys.stdlib_module_names
    for path in _sources():
      parts = path.relative_to(_ROOT).with_suffix('').parts
      if parts != ('__init__',) and _LAYERS[parts[0]] > 0:
        continue
      for module in _imports(path):
        top = module.split('.')[0]
        self.assertTrue(
            top in ('jax', 'numpy', 'hcl_jax') or top in standard,
            f'{path.name} imports {module}',
        )

  def test_importing_loads_nothing_heavy(self):
    script = (
        'import sys, hcl_jax\n'
        f'loaded = [m for m in {_HEAVY!r} if m in sys.modules]\n'
        'sys.exit(", ".join(loaded) or 0)\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', script], capture_output=True, text=True
    )
    self.assertEqual(done.returncode, 0, done.stderr)

  def test_one_package_imports_matplotlib(self):
    packages = {
        str(path.relative_to(_ROOT).parent)
        for path in _sources()
        if any(x.split('.')[0] == 'matplotlib' for x in _imports(path))
    }
    self.assertEqual(packages, {'report/plots'})
    script = (
        'import sys, hcl_jax.analysis, hcl_jax.theory\n'
        'sys.exit(bool({"matplotlib", "sklearn", "scipy"} & {*sys.modules}))\n'
    )
    done = subprocess.run([sys.executable, '-c', script])
    self.assertEqual(done.returncode, 0)

  def test_what_comes_from_outside_is_never_run(self):
    modules = {'pickle', 'cPickle', 'dill', 'cloudpickle', 'marshal', 'shelve',
               'tarfile'}  # fmt: skip
    names = {'eval', 'exec', 'compile', '__import__'}
    methods = {'extract', 'extractall', 'unpack_archive', 'system', 'popen',
               'read_pickle'}  # fmt: skip
    loaders = {('yaml', 'load'), ('joblib', 'load'), ('torch', 'load')}
    for path in _sources(_ROOT, _BENCHMARKS):
      tops = {module.split('.')[0] for module in _imports(path)}
      self.assertEmpty(tops & modules, path)
      for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == 'allow_pickle':
          self.assertIs(node.value.value, False, path)
        if not isinstance(node, ast.Call):
          continue
        called = node.func
        if isinstance(called, ast.Name):
          self.assertNotIn(called.id, names, path)
        elif isinstance(called, ast.Attribute):
          self.assertNotIn(called.attr, methods, path)
          owner = getattr(called.value, 'id', '')
          self.assertNotIn((owner, called.attr), loaders, path)

  def test_the_oracle_is_independent(self):
    path = pathlib.Path(__file__).parent / 'reference.py'
    tops = {module.split('.')[0] for module in _imports(path)}
    self.assertLessEqual(tops, {'math', 'numpy'})

  def test_public_names(self):
    for name in hcl_jax.__all__:
      self.assertTrue(getattr(hcl_jax, name).__doc__, name)

  @parameterized.parameters(
      '_nce', '_simclr', '_in_batch', '_queue', '_infograph', '_quick_thoughts',
      '_sigmoid', '_supcon', '_clip', '_perplexity',
  )
  def test_examples_of_losses(self, name):
    result = doctest.testmod(importlib.import_module(f'hcl_jax.losses.{name}'))
    self.assertEqual(result.failed, 0)

  @parameterized.parameters('chunking', 'mining', 'schedules')
  def test_examples_of(self, name):
    result = doctest.testmod(importlib.import_module(f'hcl_jax.{name}'))
    self.assertGreater(result.attempted, 0)
    self.assertEqual(result.failed, 0)


class ReadmeTest(absltest.TestCase):

  def _run_blocks(self, page):
    path = _ROOT.parent / page
    blocks = re.findall(r'```python\n(.*?)```', path.read_text(), re.DOTALL)
    self.assertNotEmpty(blocks)
    scope = {}
    for block in blocks:
      if "'DIR'" not in block:  # Those of a run are in embed_test.py.
        exec(compile(block, str(path), 'exec'), scope)  # noqa: S102
    return scope

  def test_code_blocks_run(self):
    self._run_blocks('README.md')

  def test_recipes_of_losses(self):
    scope = self._run_blocks('docs/losses.md')
    names = 'queries', 'documents', 'mined'
    queries, documents, mined = (
        np.asarray(scope['unit'](scope[name]), np.float64) for name in names
    )
    cosines = queries @ np.concatenate([documents, mined]).T
    own = np.tile(np.eye(len(queries), dtype=bool), 2)
    first = np.arange(cosines.shape[1]) < len(queries)
    for mode, raised in (
        ('in_batch_negatives', ~own),
        ('hard_negatives', own & ~first),
        ('all_negatives', ~(own & first)),
    ):
      logits = 10 * cosines + 9 * np.where(raised, cosines, 0)
      expected = -np.diag(logits) + np.log(np.exp(logits).sum(1))
      self.assertAlmostEqual(
          float(scope['losses'][mode]), expected.mean(), places=4
      )

  def test_no_folder_shadows_the_package(self):
    # Whoever starts Python beside a folder hcl_jax imports that folder.
    for pattern in ('*.md', 'docs/*.md', 'configs/*.py', 'colab/*.ipynb'):
      for path in _ROOT.parent.glob(pattern):
        self.assertNotRegex(
            path.read_text(), r'--workdir=\S*/hcl_jax\b', path.name
        )
