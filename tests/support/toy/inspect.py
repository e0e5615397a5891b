# SPDX-License-Identifier: Apache-2.0
"""What a report shows of points."""

import numpy as np

from hcl_jax.training import sample as sample_lib
from hcl_jax.training import state as state_lib


def sample(experiment, state) -> sample_lib.Sample:
  points = experiment.data
  params = state_lib.evaluated_params(state_lib.local(state))
  features = np.asarray(experiment.task.features(params, {}, points))
  units = features / np.linalg.norm(features, axis=1, keepdims=True)
  logits = units @ units.T / np.float32(experiment.config.loss.temperature)
  rows = np.arange(len(units))
  return sample_lib.Sample(
      embeddings=features,
      labels=points['label'],
      items=[f'({x:.2f}, {y:.2f})' for x, y in points['point']],
      item_names=None,
      negatives=sample_lib.Negatives(
          None, logits, ~np.eye(len(rows), dtype=bool), rows, rows
      ),
  )
