# SPDX-License-Identifier: Apache-2.0
"""Points, an encoder of them, and how well it tells their quarters."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hcl_jax
from hcl_jax import evaluation
from hcl_jax.runs import scores as scores_lib
from hcl_jax.training import config as config_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import task as task_lib
from tests.support.toy import config as toy_config
from tests.support.toy import inspect


@dataclasses.dataclass(frozen=True)
class Points:
  """Two noisy views of a point against those of the others."""

  dim: int
  beta: Any
  loss_options: dict[str, Any]

  def init(self, key, batch):
    shape = batch['point'].shape[-1], self.dim
    return {'kernel': jax.random.normal(key, shape)}, {}

  def _apply(self, params, points):
    return jnp.tanh(points @ params['kernel'])

  def embed(self, params, state, batch, key, rows):
    views = []
    for keys in task_lib.row_keys(key, rows, 2).T:
      noise = jax.vmap(lambda k: jax.random.normal(k, (2,)))(keys)
      views.append(self._apply(params, batch['point'] + 0.1 * noise))
    return tuple(views), state

  def loss(self, embeddings, state, batch, step):
    return hcl_jax.simclr_loss(
        *embeddings, beta=self.beta(step), axis_name=task_lib.AXIS,
        **self.loss_options,
    )  # fmt: skip

  def update(self, params, state, embeddings, batch):
    return state

  def metrics(self, embeddings, batch, step):
    return {'beta': self.beta(step)}

  def features(self, params, state, batch, keys=None):
    return self._apply(params, batch['point'])

  compared = features


def prepare(config, *, to_train=True, like=None):
  del to_train, like
  count = config.data.num_points
  train, test = _points(count, seed=0), _points(count, seed=1)
  per_epoch = count // config.data.batch_size
  total = config_lib.total_steps(config, per_epoch)

  def make_task(config):
    loss = config.loss
    return Points(
        config.model.dim,
        config_lib.beta_schedule(loss, total, per_epoch),
        {'temperature': loss.temperature, 'tau_plus': loss.tau_plus},
    )

  def batches(first_step, num_steps):
    for step in range(first_step, first_step + num_steps):
      rng = np.random.default_rng([config.seed, step])
      order = rng.permutation(count)
      yield _rows(train, order[: config.data.batch_size])

  def nearest(state, poll):
    """Asks the nearest neighbor of a point which quarter it is in."""
    poll()
    task = make_task(config)
    params = state_lib.evaluated_params(state_lib.local(state))
    data = [
        np.asarray(x) for points in (train, test)
        for x in (task.features(params, {}, points), points['label'])
    ]  # fmt: skip
    found = evaluation.knn_accuracy(*data, num_classes=4, k=1)
    yield 'nearest/accuracy', scores_lib.share(found['top1'], count)

  return experiment_lib.Experiment(
      config=config,
      make_task=make_task,
      example=_rows(train, [0]),
      batches=batches,
      evaluators={'nearest': nearest},
      protocols=tuple(config.evaluate.protocols),
      score=toy_config.SCORE,
      steps_per_epoch=per_epoch,
      rows_per_step=config.data.batch_size,
      unit='points',
      summary=f'{config.data.name}: {total} steps',
      sample=inspect.sample,
      data=test,
      inputs={'width': 2},
      num_scored=count,
  )


def _points(count, seed):
  angles = np.random.default_rng(seed).uniform(0, 2 * np.pi, count)
  points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
  return {
      'point': points.astype(np.float32),
      'label': (angles // (np.pi / 2)).astype(np.int32),
      'index': np.arange(count, dtype=np.int32),
  }


def _rows(points, rows):
  return {name: x[rows] for name, x in points.items()}
