# SPDX-License-Identifier: Apache-2.0
"""Imports a library's module that has a loss, without the rest of it.

Several libraries import torchvision, lightning, dgl or Hugging Face's hub as
soon as they are touched, for which there is no small build or no need here.
``bare`` puts packages in place whose own ``__init__`` never runs, so that the
file with the loss is imported unchanged and the others are not; ``stub`` puts
names in place that this file imports and its loss never calls.
"""

import importlib
import importlib.metadata
import importlib.util
import pathlib
import sys
import types
from typing import Any


def bare(*names: str) -> None:
  """Makes packages importable without running their ``__init__``.

  Args:
    *names: dotted, a package before those inside it.
  """
  for name in names:
    if name in sys.modules:
      continue
    root, *inner = name.split('.')
    if inner:
      folder = pathlib.Path(sys.modules[root].__path__[0])
    else:
      found = importlib.util.find_spec(root)
      if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f'No package named {root!r}')
      folder = pathlib.Path(list(found.submodule_search_locations)[0])
    package = types.ModuleType(name)
    package.__path__ = [str(folder.joinpath(*inner))]
    sys.modules[name] = package
    if inner:
      parent, child = name.rsplit('.', 1)
      setattr(sys.modules[parent], child, package)


def stub(name: str, **contents: Any) -> None:
  """Puts a module in place that has only what is given."""
  module = types.ModuleType(name)
  vars(module).update(contents)
  sys.modules[name] = module


def version(package: str) -> str | None:
  """Returns a distribution's version, or None where it is not installed."""
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def module(name: str) -> Any:
  """Imports a module."""
  return importlib.import_module(name)
