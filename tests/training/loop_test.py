# SPDX-License-Identifier: Apache-2.0
"""The training loop: resuming, devices, signals, NaN, and what is written."""

import dataclasses
import os
import signal
from unittest import mock

import chex
import jax
import numpy as np

from hcl_jax import domains
from hcl_jax.images import config as image_config
from hcl_jax.images import data as image_data
from hcl_jax.images import experiment as image_experiment
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import scores as scores_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import comparison
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import finite
from hcl_jax.training import loop
from hcl_jax.training import step as step_lib
from tests.support import looping
from tests.support import tiny

_STEPS_PER_EPOCH = 4


def _images(rows, seed):
  """Two classes: bright in the upper and in the lower half."""
  rng = np.random.default_rng(seed)
  labels = np.arange(rows, dtype=np.int32) % 2
  images = rng.integers(0, 64, (rows, 2, 2, 4, 3), np.uint8)
  images[np.arange(rows), labels] += 190
  return image_data.Images(images.reshape(rows, 4, 4, 3), labels)


def _experiment(epochs=4, task=None, **fields):
  config = image_config.simclr()
  config.update_from_flattened_dict({
      'data.batch_size': 16,
      'train.epochs': epochs,
      'train.log_every_steps': 3,
      'train.checkpoint_every_epochs': 1,
      'evaluate.knn_every_epochs': 2,
      'evaluate.batch_size': 24,
      'evaluate.knn_k': 5,
      'evaluate.linear_epochs': 2,
      **fields,
  })
  data = image_experiment.Data(_images(70, 0), _images(50, 1), _images(30, 2))
  task = task or tiny.simclr_task()
  return image_experiment.from_images(config, data, lambda *_, **__: task)


class LoopTest(looping.LoopTest):

  def test_a_workdir_in_use_is_left_alone(self):
    workdir = self.workdir()
    with workdir_lib.lock(workdir):
      with self.assertRaisesRegex(workdir_lib.WorkdirError, 'is at work in'):
        loop.train(_experiment(), workdir)
      self.assertEqual([x.name for x in workdir.iterdir()], ['.lock'])

  def test_trains_evaluates_and_writes(self):
    workdir = self.workdir()
    experiment = _experiment(**{'optimizer.ema_decay': 0.9})
    scores = loop.train(experiment, workdir)
    self.assertEqual(set(scores), {'knn/top1', 'linear/top1'})
    self.assertGreater(scores['knn/top1'], 0.9)
    records = metrics_lib.read_metrics(workdir)
    lines = [r for r in records if 'loss' in r]
    self.assertEqual([r['step'] for r in lines], [3, 6, 9, 12, 15])
    self.assertContainsSubset(
        {'loss', 'grad_norm', 'beta', 'learning_rate'}, lines[0]
    )
    knn = [r['step'] for r in records if 'knn/top1' in r]
    self.assertEqual(knn, [8, 16, 16])
    self.assertTrue((workdir / 'config.json').exists())
    self.assertTrue(list((workdir / 'tensorboard').iterdir()))
    self.assertEqual(self.last_state(experiment, workdir).step, 16)

  def test_stopped_and_resumed_is_uninterrupted(self):
    whole, parts = self.workdir(), self.workdir()
    experiment = _experiment()
    loop.train(experiment, whole)
    # Amid steps of one line of losses, twice, and where kNN is due.
    stops = iter((4, 5, 8))
    with mock.patch.object(
        image_data, 'batches', _batches_that_signal(stops)
    ):
      for _ in range(3):
        with self.assertRaisesRegex(loop.Interrupted, 'stopped after step'):
          loop.train(experiment, parts)
    loop.train(experiment, parts)
    chex.assert_trees_all_equal(
        self.last_state(experiment, parts),
        self.last_state(experiment, whole),
    )
    records = [metrics_lib.read_metrics(d) for d in (whole, parts)]
    self.assertEqual(*records)
    best = []
    for workdir in (whole, parts):
      with looping.open_checkpoints(workdir, experiment) as checkpoints:
        best.append(checkpoints.best_step())
    self.assertEqual(*best)

  def test_a_finished_run_is_neither_trained_nor_evaluated(self):
    workdir = self.workdir()
    experiment = _experiment(epochs=1)
    first = loop.train(experiment, workdir)
    with (
        mock.patch.object(step_lib, 'make_step', side_effect=_refuse_to_step),
        mock.patch.object(
            experiment_lib.Experiment, 'evaluate', side_effect=AssertionError
        ),
    ):
      again = loop.train(experiment, workdir)
    self.assertEqual(again, first)
    self.assertEqual(scores_lib.errors(again), scores_lib.errors(first))
    self.assertSetEqual(set(scores_lib.errors(first)), set(first))

  def test_a_finished_run_without_its_scores_is_only_evaluated(self):
    workdir = self.workdir()
    experiment = _experiment(epochs=1)
    first = loop.train(experiment, workdir)
    (workdir / 'scores.json').unlink()
    with mock.patch.object(
        step_lib, 'make_step', side_effect=_refuse_to_step
    ):
      self.assertEqual(loop.train(experiment, workdir), first)
      other = _experiment(epochs=1, **{'evaluate.protocols': ('knn',)})
      self.assertEqual(set(loop.train(other, workdir)), {'knn/top1'})

  def test_parts_of_an_epoch(self):
    workdir = self.workdir()
    loop.train(
        _experiment(epochs=1, **{'evaluate.knn_every_epochs': 0.5}), workdir
    )
    records = metrics_lib.read_metrics(workdir)
    scored = [record['step'] for record in records if 'knn/top1' in record]
    self.assertEqual(scored, [2, 4, 4])

  def test_another_configuration_is_refused(self):
    workdir = self.workdir()
    loop.train(_experiment(epochs=1), workdir)
    with self.assertRaisesRegex(workdir_lib.ConfigMismatch, 'loss.beta was 1'):
      loop.train(_experiment(epochs=1, **{'loss.beta': 2.0}), workdir)
    loop.train(_experiment(epochs=1, **{'evaluate.knn_k': 3}), workdir)

  def test_nan_stops_with_step_batch_and_checkpoint(self):
    workdir = self.workdir()
    task = tiny.simclr_task()
    experiment = _experiment(task=task)

    def poisoned(*args, **kwargs):
      for step, batch in enumerate(_plain_batches(*args, **kwargs), 1):
        if step == 6:
          batch = batch | {'label': np.full_like(batch['label'], 99)}
        yield batch

    honest = task.loss

    def loss(embeddings, state, batch, step):
      bad = jax.numpy.where(batch['label'] == 99, np.nan, 1.0)
      return honest(embeddings, state, batch, step) * bad

    object.__setattr__(task, 'loss', loss)
    with mock.patch.object(image_data, 'batches', poisoned):
      with self.assertRaisesRegex(
          finite.NonFiniteError,
          r'step 6 gave grad_norm=nan, loss=nan.*checkpoint: step 4',
      ):
        loop.train(experiment, workdir)
    saved = np.load(workdir / 'not_finite_step_6.npz')
    self.assertEqual(saved['image'].shape, (16, 4, 4, 3))
    self.assertEqual(self.last_state(experiment, workdir).step, 4)

  def test_chunks_and_moco_run(self):
    for task, chunk in (
        (tiny.simclr_task(norm='group'), 1), (tiny.moco_task(), 0)
    ):  # fmt: skip
      experiment = _experiment(
          epochs=1, task=task, **{'train.microbatch_size': chunk}
      )
      loop.train(experiment, self.workdir())

  def test_released_readout(self):
    experiment = _experiment(
        epochs=1,
        **{'evaluate.protocols': ('linear_released',),
           'evaluate.linear_epochs': 30,
           'evaluate.linear_learning_rate': 0.1,
           'evaluate.linear_batch_size': 20},
    )  # fmt: skip
    scores = loop.train(experiment, self.workdir())
    self.assertGreater(scores['linear_released/top1'], 0.8)

  def test_comparison_trains_each_variant_from_the_same_state(self):
    experiment = _experiment(epochs=1, compare=('standard', 'hard'))
    workdir = self.workdir()
    trained = []

    def prepare(config, like):
      trained.append(config)
      return dataclasses.replace(like, config=config)

    with mock.patch.object(domains, 'make_experiment', prepare):
      scores = comparison.compare(experiment, workdir)
      again = comparison.compare(experiment, workdir)
    self.assertEqual(
        list(scores), ['raw pixels', 'random encoder', 'standard', 'hard']
    )
    self.assertEqual(scores['raw pixels']['knn/top1'], 1.0)
    self.assertEqual(scores, again)
    betas = [(c.loss.beta, c.loss.tau_plus) for c in trained[:2]]
    self.assertEqual(betas, [(0.0, 0.0), (1.0, 0.1)])
    self.assertEqual({c.seed for c in trained}, {experiment.config.seed})
    self.assertTrue((workdir / 'standard' / 'metrics.jsonl').is_file())


_plain_batches = image_data.batches


def _batches_that_signal(stops):
  """Batches during which, at given steps, this process gets SIGTERM."""

  def batches(*args, first_step, **kwargs):
    stop = next(stops)
    made = _plain_batches(*args, first_step=first_step, **kwargs)
    for step, batch in enumerate(made, first_step + 1):
      if step == stop:
        os.kill(os.getpid(), signal.SIGTERM)
      yield batch

  return batches


def _refuse_to_step(*unused_args, **unused_kwargs):
  def step(*unused):
    raise AssertionError('A finished run must not be trained.')

  return step
