# SPDX-License-Identifier: Apache-2.0
"""Shows a run on sentences: embeddings and negatives."""

import numpy as np

from hcl_jax.sentences import data as sentence_data
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import sample as sample_lib
from hcl_jax.training import state as state_lib


def sample(
    experiment: experiment_lib.Experiment, state: state_lib.TrainState
) -> sample_lib.Sample:
  """Takes a batch of the validation text; labels join pairs of neighbors."""
  config, text = experiment.config, experiment.data.validation
  batch = sentence_data.SentenceBatches(
      text,
      seed=0,
      batch_size=min(config.data.batch_size, len(text), sample_lib.MAX_ITEMS),
      max_length=config.data.max_length,
      lengths=sentence_data.lengths_up_to(config.data.max_length),
  ).batch(0)
  compared, features = (
      sample_lib.compiled(function, state)
      for function in (experiment.task.compared, experiment.task.features)
  )
  left, right = map(np.asarray, compared(batch))
  rows = np.arange(len(batch.index))
  distance = np.abs(rows[:, None] - rows[None, :])
  near = distance <= config.loss.window
  near &= batch.segment[:, None] == batch.segment[None, :]
  where = ~near & (distance > 0)
  scores = left @ right.T
  if config.loss.clip_scale:
    scale = config.loss.clip_scale
    scores = sample_lib.clip_factor(scores, where, scale) * scores
  pairs = 2 * batch.segment.astype(np.int64) * len(rows) + rows // 2
  return sample_lib.Sample(
      embeddings=np.asarray(features(batch)),
      labels=np.unique(pairs, return_inverse=True)[1],
      items=[text.text(row) for row in batch.index],
      item_names=None,
      negatives=sample_lib.Negatives(
          None, scores, where, rows, rows, config.loss.tau_plus
      ),
  )
