# SPDX-License-Identifier: Apache-2.0
"""Runs a command: ``hcl_jax COMMAND``, or ``python -m hcl_jax COMMAND``."""

import ast
import os
import pathlib
import runpy
import sys

import hcl_jax
from hcl_jax import _extras

# By module: each says in its first line what it does.
COMMANDS = {
    'train': 'hcl_jax.train',
    'evaluate': 'hcl_jax.evaluate',
    'sweep': 'hcl_jax.sweep',
    'analyze': 'hcl_jax.analyze',
    'prepare': 'hcl_jax.prepare',
    'embed': 'hcl_jax.embed',
    'nearest': 'hcl_jax.nearest',
    'configs': 'hcl_jax.configurations',
    'doctor': 'hcl_jax.doctor',
    'bench': 'hcl_jax.bench.__main__',
}


def main() -> int | None:
  """Runs the command that the arguments name, or lists all commands."""
  name, *arguments = sys.argv[1:] or ['--help']
  if name in ('-h', '--help', 'help'):
    print(usage())
    return 0
  if name == '--version':
    print(f'hcl_jax {hcl_jax.__version__}')
    return 0
  if name not in COMMANDS:
    print(
        f'hcl_jax: there is no command {name!r}, only {", ".join(COMMANDS)}.',
        file=sys.stderr,
    )
    return 2
  sys.argv = [f'hcl_jax {name}', *arguments]
  _extras.explain_to_commands()
  # A configuration may name code of the working folder, which "python -m" finds
  # and a console script does not.
  sys.path.append(os.getcwd())
  runpy.run_module(COMMANDS[name], run_name='__main__', alter_sys=True)


def usage() -> str:
  """Returns a line for each command."""
  lines = [f'  {name:<10}{_first_line(x)}' for name, x in COMMANDS.items()]
  return '\n'.join([
      'Contrastive learning with hard negative samples, in JAX.',
      '',
      'usage: hcl_jax COMMAND [FLAGS]',
      '',
      *lines,
      '',
      'hcl_jax COMMAND --help shows the flags of a command.',
  ])


def _first_line(module):
  """Returns the first line of the docstring of a module, not imported."""
  path = pathlib.Path(hcl_jax.__file__).parents[1] / module.replace('.', '/')
  text = path.with_suffix('.py').read_text(encoding='utf-8')
  return (ast.get_docstring(ast.parse(text)) or '').partition('\n')[0]


if __name__ == '__main__':
  sys.exit(main())
