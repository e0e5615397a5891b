# SPDX-License-Identifier: Apache-2.0
"""Names the extra that brings a package which is not installed."""

import sys
import traceback


def advice(package: str) -> str:
  """Returns what to do about a package that is not installed."""
  return (
      f"needs the package {package!r}; pip install 'hcl_jax[train]' brings it."
  )


def explain_to_commands() -> None:
  """Ends a command for which a package is missing in one line, status 2."""
  before = sys.excepthook

  def explain(kind, error, trace):
    if not isinstance(error, ModuleNotFoundError) or not _is_of_extra(error):
      return before(kind, error, trace)
    print(f'hcl_jax: this command {advice(error.name)}', file=sys.stderr)
    sys.exit(2)

  sys.excepthook = explain


def _is_of_extra(error):
  """Returns whether a module of ours imported a package of others."""
  frame, _ = list(traceback.walk_tb(error.__traceback__))[-1]
  importer = frame.f_globals.get('__package__') or ''
  ours = [(x or '').startswith('hcl_jax') for x in (importer, error.name)]
  return ours == [True, False]
