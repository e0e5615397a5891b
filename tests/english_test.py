# SPDX-License-Identifier: Apache-2.0
"""Plain English in docstrings, messages, comments and names of the package.

Modules are parsed and never imported.
"""

import ast
import io
import pathlib
import re
import tokenize

from absl.testing import parameterized

_ROOT = pathlib.Path(__file__).parents[1] / 'hcl_jax'
_PAGES = (*_ROOT.parent.glob('*.md'), *_ROOT.parent.glob('docs/*.md'))

# What docstrings of functions open with. Add a verb where none of these fits.
_VERBS = frozenset("""
    Accepts Adds Anneals Applies Arranges Augments Averages Begins Blurs
    Builds Calls Casts Checks Closes Compiles Computes Converts Convolves
    Copies Counts Creates Crops Describes Divides Draws Drops
    Embeds Encodes Ends Estimates Evaluates Fails Finds Fits Folds Formats
    Gives Groups Interpolates Joins Keeps Lists Loads Locks Logs Makes Maps
    Maximizes Merges Mixes Opens Packs Parses Passes Pins Places Predicts
    Prepares Prints Puts Raises Reads Records Refines Refuses Replaces
    Rescales Restores Returns Runs Saves Says Scales Scans Scores Sets
    Shifts Solves Splits Summarizes Sums Takes Times Trains Turns
    Waits Writes Yields
""".split())

_OPENINGS = ('A', 'An', 'How', 'Of', 'The', 'What')

# Not this, but that: CONTRIBUTING.md has the words that the package uses.
_FORBIDDEN = {
    r'knobs?': 'hyperparameter, option',
    r'tally|tallies|tallied': 'results',
    r'contest(s|ants?)?': 'benchmark, candidate',
    r'on the way': 'during training',
    r'read[ -]?outs?': 'linear probe, features',
    r'whole numbers?': 'int',
    r'truth values?': 'bool',
    r'lanes?': 'packed row, slot',
    r'hop(s|ping)?': 'ring step',
    r'walk(s|ed|ing)?': 'scan',
    r'pull(s|ed|ing)?': 'cotangent, gradient',
    r'(un)?label(led|ling)': 'labeled, labeling',
    r'model(led|ling)': 'modeled, modeling',
    r'\w*neighbour\w*': 'neighbor',
    r'\w*colour\w*': 'color',
    r'\w*behaviour\w*': 'behavior',
    r'\w*favour\w*': 'favor',
    r'gr[e]y\w*': 'gray',
    r'centre[ds]?': 'center',
    r'licence[ds]?': 'license',
    r'artefacts?': 'artifact',
    r'analys(e|ed|er|ing)': 'analyze',
    r'\w*(?:bas|final|general|initial|material|maxim|minim|normal|optim|organ|'
    r'parallel|penal|quant|recogn|regular|serial|special|standard|summar|'
    r'synchron|util|vector|visual)is(?:e[drs]?|ers|ing|ations?)':
        'the spelling with z',
}  # fmt: skip
_FORBIDDEN_PATTERNS = {
    # Names join words by underscores. Not x.walk, which another module defines,
    # nor 'train+unlabelled', which TensorFlow Datasets spells so.
    re.compile(rf'(?<![a-z.+])(?:{word})(?![a-z])', re.IGNORECASE): instead
    for word, instead in _FORBIDDEN.items()
}

_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
_DOCUMENTED = ast.Module, ast.ClassDef, *_FUNCTIONS


def _sources():
  for path in sorted(_ROOT.rglob('*.py')):
    yield path, path.read_text()


def _docstrings(tree):
  """Yields pairs of a module, class or function and its docstring."""
  for node in ast.walk(tree):
    if isinstance(node, _DOCUMENTED):
      docstring = ast.get_docstring(node)
      if docstring is not None:
        yield node, docstring


def _public_functions(tree):
  """Yields functions of a module and methods of its public classes."""
  for node in tree.body:
    if isinstance(node, ast.ClassDef) and not node.name.startswith('_'):
      yield from (
          method for method in _public_functions(node)
          if not _is_property(method)
      )  # fmt: skip
    elif isinstance(node, _FUNCTIONS) and not node.name.startswith('_'):
      yield node


def _is_property(method):
  names = (ast.unparse(decorator) for decorator in method.decorator_list)
  return any(name.endswith(('property', '.setter')) for name in names)


def _texts(source):
  """Yields lines and texts: strings, comments and names that are defined."""
  kinds = tokenize.STRING, tokenize.COMMENT
  kinds += (getattr(tokenize, 'FSTRING_MIDDLE', tokenize.STRING),)
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type in kinds:
      # Words that a line break or the end of a literal parts.
      yield token.start[0], re.sub(r'\s+', ' ', token.string)
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, (ast.ClassDef, *_FUNCTIONS)):
      yield node.lineno, node.name
    elif isinstance(node, ast.arg):
      yield node.lineno, node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
      yield node.lineno, node.id
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
      yield node.lineno, re.sub(r'\s+', ' ', node.value)


def _forbidden(text):
  for pattern, instead in _FORBIDDEN_PATTERNS.items():
    for found in pattern.finditer(text):
      yield found[0], instead


def _opening(docstring):
  return re.match(r'\W*(\w*)', docstring)[1]


class EnglishTest(parameterized.TestCase):

  def test_functions_open_with_a_verb(self):
    for path, source in _sources():
      for node in _public_functions(ast.parse(source)):
        docstring = ast.get_docstring(node)
        # A method of a protocol that is documented elsewhere has none.
        if docstring is not None:
          with self.subTest(f'{path}:{node.lineno}'):
            self.assertIn(
                _opening(docstring), _VERBS,
                f'{node.name} must open with a verb in the third person',
            )  # fmt: skip

  def test_docstrings_say_the_thing_first(self):
    for path, source in _sources():
      for node, docstring in _docstrings(ast.parse(source)):
        with self.subTest(f'{path}:{getattr(node, "lineno", 1)}'):
          self.assertNotIn(_opening(docstring), _OPENINGS)

  def test_docstrings_open_with_one_sentence_on_one_line(self):
    for path, source in _sources():
      for node, docstring in _docstrings(ast.parse(source)):
        with self.subTest(f'{path}:{getattr(node, "lineno", 1)}'):
          first, *rest = docstring.split('\n')
          self.assertEndsWith(first, '.')
          self.assertEqual(rest[:1], [''] if rest else [])

  def test_modules_have_docstrings(self):
    for path, source in _sources():
      self.assertTrue(ast.get_docstring(ast.parse(source)), path)

  def test_words(self):
    for path, source in _sources():
      for line, text in _texts(source):
        for found, instead in _forbidden(text):
          with self.subTest(f'{path}:{line}'):
            self.fail(f'{found!r}: write {instead}')

  def test_every_verb_is_used(self):
    used = {
        _opening(ast.get_docstring(node) or '')
        for _, source in _sources()
        for node in _public_functions(ast.parse(source))
    }
    self.assertEmpty(_VERBS - used)


class RulesTest(parameterized.TestCase):

  @parameterized.parameters(
      ('def f(knobs): pass', 'knobs'),
      ('read_knobs = 1', 'knobs'),
      ("raise ValueError('must be a whole number')", 'whole number'),
      ("x = ('must be a whole '\n     'number')", 'whole number'),
      ('# Normalised already.', 'Normalised'),
      ("x = f'{y} neighbours'", 'neighbours'),
      ('"""Scores on the\n\nway."""', 'on the way'),
      ('def sum_neighbours(): pass', 'sum_neighbours'),
  )
  def test_finds(self, source, word):
    found = [x for _, text in _texts(source) for x, _ in _forbidden(text)]
    self.assertIn(word, found)

  @parameterized.parameters(
      "for x in os.walk('.'): pass",
      '# otherwise raise: a plane, an optimistic shop, colors, wholly',
      "experiment.loss_options['beta']",  # another module's name
  )
  def test_leaves_alone(self, source):
    found = [x for _, text in _texts(source) for x in _forbidden(text)]
    self.assertEmpty(found)


class MarkdownTest(parameterized.TestCase):

  def test_lines_can_be_read_in_a_diff(self):
    for path in _PAGES:
      is_code = False
      for number, line in enumerate(path.read_text().splitlines(), 1):
        is_code ^= line.lstrip().startswith('```')
        if is_code or line.startswith('|'):
          continue
        with self.subTest(f'{path.name}:{number}'):
          self.assertLessEqual(len(line), 120)
