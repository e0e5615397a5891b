# SPDX-License-Identifier: Apache-2.0
"""Fields of a configuration by dotted name, and those that steps are given."""

from collections.abc import Mapping
from typing import Any

import ml_collections
import numpy as np

# Arguments of the compiled step, so that runs which differ in nothing else
# share a program.
TRACED = (
    'seed',
    'loss.beta',
    'loss.tau_plus',
    'optimizer.learning_rate',
    'optimizer.final_learning_rate',
    'optimizer.b1',
    'optimizer.b2',
)


def knobs(config: ml_collections.ConfigDict) -> dict[str, np.ndarray]:
  """Returns the values of ``TRACED`` fields that are numbers, by name.

  Args:
    config: has the fields.

  Returns:
    Scalars, int32 the seed and float32 the others.
  """
  values = {field: get(config, field) for field in TRACED}
  return {
      field: np.asarray(value, np.int32 if field == 'seed' else np.float32)
      for field, value in values.items()
      if value is not None
  }


def with_values(
    config: ml_collections.ConfigDict, values: Mapping[str, Any]
) -> ml_collections.ConfigDict:
  """Returns a copy with some fields set, to traced values or others."""
  copy = config.copy_and_resolve_references()
  with copy.ignore_type():
    for field, value in values.items():
      *path, name = field.split('.')
      parent = copy
      for part in path:
        parent = parent[part]
      parent[name] = value
  return copy


def get(config: ml_collections.ConfigDict, field: str) -> Any:
  """Returns the value of a field by its dotted name."""
  for part in field.split('.'):
    config = config[part]
  return config


def flatten(
    config: ml_collections.ConfigDict, prefix: str = ''
) -> dict[str, Any]:
  """Returns the values of all fields by dotted name, in their order."""
  values = {}
  for name in config:
    value = config[name]
    if isinstance(value, ml_collections.ConfigDict):
      values |= flatten(value, f'{prefix}{name}.')
    else:
      values[prefix + name] = value
  return values
