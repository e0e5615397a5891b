# SPDX-License-Identifier: Apache-2.0
"""Encoders of images, graphs and texts; loads each on first use."""

import importlib
from typing import Any

_MODULES = {
    'Encoder': 'image_encoder',
    'NAMES': 'image_encoder',
    'create': 'image_encoder',
    'patch_size': 'image_encoder',
    'compiler_options': 'convolution',
}

__all__ = tuple(_MODULES)


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'{__name__}.{_MODULES[name]}')
  return getattr(module, name)
