# SPDX-License-Identifier: Apache-2.0
"""Shows a run on images: embeddings, negatives and views."""

import jax
import numpy as np

from hcl_jax import analysis
from hcl_jax.images import evaluate
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import sample as sample_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import task as task_lib

_MAX_ROWS = 2000


def sample(
    experiment: experiment_lib.Experiment, state: state_lib.TrainState
) -> sample_lib.Sample:
  """Takes test images in an order of their own, and views of the first."""
  config, test = experiment.config, experiment.data.test
  rows = np.random.default_rng(0).permutation(len(test))[:_MAX_ROWS]
  num_items = min(len(rows), config.data.batch_size, sample_lib.MAX_ITEMS)
  images = test.rows(rows)
  compared = sample_lib.compiled(experiment.task.compared, state)
  plain = []
  for some in evaluate.row_blocks(images, num_items):
    batch = evaluate.padded({'image': some}, num_items)
    plain.append(np.asarray(compared(batch))[: len(some)])
  items = np.arange(num_items)
  keys = task_lib.row_keys(jax.random.key(0), np.int32(items), 2)
  views = tuple(
      np.asarray(compared({'image': images[:num_items]}, keys[:, i]))
      for i in (0, 1)
  )
  labels = test.labels[rows]
  by_class = config.loss.supervised_negatives
  pos_logits, neg_logits, where = map(
      np.asarray,
      analysis.two_view_logits(
          *views,
          temperature=config.loss.temperature,
          labels=labels[:num_items] if by_class else None,
      ),
  )
  return sample_lib.Sample(
      embeddings=np.concatenate(plain),
      labels=labels,
      items=images[:num_items],
      item_names=_class_names(labels[:num_items], test.class_names),
      negatives=sample_lib.Negatives(
          pos_logits=pos_logits[:num_items],
          neg_logits=neg_logits[:num_items],
          where=where[:num_items],
          anchors=items,
          items=np.concatenate([items, items]),
          tau_plus=config.loss.tau_plus,
      ),
      views=views,
  )


def _class_names(labels, names):
  return [names[x] if 0 <= x < len(names) else f'class {x}' for x in labels]
