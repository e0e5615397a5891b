# SPDX-License-Identifier: Apache-2.0
"""Embeds new points by the encoder of a run."""

import numpy as np

from hcl_jax.training import encoder as encoder_lib
from hcl_jax.training import state as state_lib
from tests.support.toy import experiment

# What two runs must have in common for one to begin with the other's encoder.
MUST_AGREE = ('width',)


def make(config, inputs):
  width = inputs['width']
  task = experiment.Points(config.model.dim, beta=None, loss_options={})

  def embed(state, rows, progress):
    points = np.asarray(rows, np.float32)
    if points.ndim != 2 or points.shape[1] != width:
      raise ValueError(f'rows must be [n, {width}], got {points.shape}.')
    params = state_lib.evaluated_params(state_lib.local(state))
    found = np.asarray(task.features(params, {}, {'point': points}))
    progress(len(points))
    return found

  def read(path):
    points = np.loadtxt(path, ndmin=2)
    return points, [f'line {i + 1}' for i in range(len(points))]

  return encoder_lib.Parts(
      task=task,
      module=task,
      example={'point': np.zeros((1, width), np.float32)},
      inputs=inputs,
      embed=embed,
      read=read,
      unit='points',
  )
