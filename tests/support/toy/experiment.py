# SPDX-License-Identifier: Apache-2.0
"""Points, an encoder of them, and how well it tells their quarters."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hcl_jax
from hcl_jax import evaluation
from hcl_jax.training import annealing
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import optimizer as optimizer_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib
from tests.support.toy import config as toy_config


@dataclasses.dataclass(frozen=True)
class Points:
  """Two noisy views of a point against those of the others."""

  dim: int
  beta: Any
  loss_knobs: dict[str, Any]

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
        **self.loss_knobs,
    )  # fmt: skip

  def update(self, params, state, embeddings, batch):
    return state

  def metrics(self, embeddings, batch, step):
    return {'beta': self.beta(step)}

  def features(self, params, state, batch, keys=None):
    return self._apply(params, batch['point'])

  compared = features


class Reader:
  """Asks the nearest neighbor of a point which quarter it is in."""

  def __init__(self, experiment, poll):
    self._experiment, self._poll = experiment, poll

  def features(self, state, points):
    self._poll()
    params = state_lib.evaluated_params(state_lib.local(state))
    return np.asarray(self._experiment.task.features(params, {}, points))

  def evaluate(self, state, protocols):
    if 'nearest' not in protocols:
      return {}
    data = [
        x for points in (self._experiment.train, self._experiment.test)
        for x in (self.features(state, points), points['label'])
    ]  # fmt: skip
    found = evaluation.knn_accuracy(*data, num_classes=4, k=1)
    return {'nearest/accuracy': found['top1']}


@dataclasses.dataclass(frozen=True)
class Experiment:
  """What the loop asks for."""

  config: Any
  train: dict[str, np.ndarray]
  test: dict[str, np.ndarray]

  unit = 'points'
  score = toy_config.SCORE

  @property
  def steps_per_epoch(self):
    return len(self.train['index']) // self.config.data.batch_size

  @property
  def total_steps(self):
    train = self.config.train
    return train.steps or train.epochs * self.steps_per_epoch

  @property
  def rows_per_step(self):
    return self.config.data.batch_size

  @property
  def devices(self):
    return jax.local_devices()

  @property
  def protocols(self):
    return tuple(self.config.evaluate.protocols)

  @property
  def learning_rate(self):
    return optimizer_lib.learning_rate(
        self.config.optimizer, self.total_steps, self.steps_per_epoch
    )

  @property
  def task(self):
    loss = self.config.loss
    return Points(
        self.config.model.dim,
        annealing.beta_schedule(loss, self.total_steps, self.steps_per_epoch),
        {'temperature': loss.temperature, 'tau_plus': loss.tau_plus},
    )

  def rules(self):
    optimizer = optimizer_lib.create(
        self.config.optimizer, self.learning_rate
    )
    return step_lib.configured_rules(self.task, optimizer, self.config)

  def create_state(self):
    state = self.rules().create_state(_rows(self.train, [0]))
    return state_lib.replicate(state, state_lib.all_devices())

  def make_step(self):
    def rules(values):
      config = fields_lib.with_values(self.config, values)
      return dataclasses.replace(self, config=config).rules()

    return step_lib.make_step(
        rules,
        knobs=config_lib.hyperparameters(self.config),
        devices=state_lib.all_devices(),
    )

  def batches(self, first_step, num_steps):
    for step in range(first_step, first_step + num_steps):
      rng = np.random.default_rng([self.config.seed, step])
      order = rng.permutation(len(self.train['index']))
      yield _rows(self.train, order[: self.config.data.batch_size])

  def reader(self, poll=lambda: None):
    return Reader(self, poll)

  def summary(self):
    return f'{self.config.data.name}: {self.total_steps} steps'


def prepare(config, *, to_train=True):
  del to_train
  count = config.data.num_points
  return Experiment(config, _points(count, seed=0), _points(count, seed=1))


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
