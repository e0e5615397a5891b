# SPDX-License-Identifier: Apache-2.0
"""Training on graphs through the loop: scores, resuming, what is written."""

import functools
import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np
import tensorflow_datasets as tfds

from hcl_jax import domains
from hcl_jax import prepare
from hcl_jax import train
from hcl_jax.graphs import config as graph_config
from hcl_jax.graphs import data as graph_data
from hcl_jax.graphs import experiment as graph_experiment
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.training import loop
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from tests.support import looping
from tests.support import tu


def _experiment(epochs=3, **fields):
  config = graph_config.infograph()
  config.update_from_flattened_dict({
      'data.batch_size': 12,
      'model.width': 4,
      'model.num_layers': 2,
      'train.epochs': epochs,
      'train.log_every_steps': 1,
      'train.checkpoint_every_epochs': 1,
      'evaluate.folds': 4,
      'evaluate.inner_folds': 2,
      **fields,
  })
  with mock.patch.object(
      graph_data, 'load_graphs', lambda *_, **__: tu.random_graphs(40)
  ):
    return domains.make_experiment(config)


class GraphLoopTest(looping.LoopTest):

  def test_trains_evaluates_and_writes(self):
    workdir = self.workdir()
    experiment = _experiment(**{
        'evaluate.svm_every_epochs': 2,
        'evaluate.protocols': ('svm', 'logistic'),
        'evaluate.fold_seeds': (0, 1),
        'optimizer.ema_decay': 0.5,
    })
    self.assertEqual(experiment.total_steps, 12)
    scores = loop.train(experiment, workdir)
    self.assertGreater(scores['svm/accuracy'], 0.6)  # trees, or complete
    self.assertGreater(scores['logistic/accuracy'], 0.6)
    folds = scores['svm/folds']
    self.assertEqual([(x['seed'], x['fold']) for x in folds],
                     [(s, f) for s in (0, 1) for f in range(4)])  # fmt: skip
    self.assertAlmostEqual(
        np.mean([fold['accuracy'] for fold in folds]), scores['svm/accuracy']
    )
    self.assertContainsSubset({'c', 'gamma', 'inner_accuracy'}, folds[0])
    records = metrics_lib.read_metrics(workdir)
    losses = [r['loss'] for r in records if 'loss' in r]
    self.assertLen(losses, 12)
    self.assertLess(np.mean(losses[-4:]), np.mean(losses[:4]))
    steps = [r['step'] for r in records if 'svm/accuracy' in r]
    self.assertEqual(steps, [8, 12])
    with looping.open_checkpoints(workdir, experiment) as checkpoints:
      self.assertEqual(checkpoints.best_step(), 8)
    table = train.report(experiment, {'last step': scores})
    self.assertRegex(table, '40 graphs, 12 steps of up to 12, seed 0; 4-fold')
    self.assertRegex(table, r'svm/accuracy +svm/deviation +logistic/accuracy')
    json.dumps(scores)

  def test_stopped_and_resumed_is_uninterrupted(self):
    self.check_resuming(_experiment(**{'loss.prior_weight': 0.1}))

  def test_batches_are_those_of_the_epoch_again_and_again(self):
    experiment = _experiment()
    index = [batch.index for batch in experiment.batches(0, 12)]
    self.assertLen(index, 12)
    for a, b in zip(index[:8], index[4:], strict=True):
      np.testing.assert_array_equal(a, b)
    later = [batch.index for batch in experiment.batches(5, 3)]
    for a, b in zip(index[5:8], later, strict=True):
      np.testing.assert_array_equal(a, b)

  def test_a_step_is_compiled_for_two_shapes(self):
    experiment = _experiment()
    plain = step_lib.single_step
    with mock.patch.object(
        step_lib, 'single_step', side_effect=plain
    ) as traced:
      init, take = experiment.programs()
      state = init(experiment.hyperparameters)
      for batch in experiment.batches(0, 8):
        state, _ = take(experiment.hyperparameters, state, batch)
    self.assertEqual(traced.call_count, 2)

  def test_features_are_in_the_order_of_the_set(self):
    experiment = _experiment()
    state = experiment.create_state()
    graphs, epoch, embed = experiment.data
    features = embed(state, epoch)
    params = state_lib.evaluated_params(state)
    for row in (0, 17, 39):
      alone = experiment.task.features(
          params, state.task_state, graphs.batch([row])
      )
      np.testing.assert_allclose(features[row], alone[0], rtol=1e-5, atol=1e-5)

  def test_impossible_batches_are_refused_before_anything_is_written(self):
    with self.assertRaisesRegex(ValueError, 'a last batch of one graph'):
      _experiment(**{'data.batch_size': 13})


class LoweringTest(parameterized.TestCase):

  @parameterized.parameters('tpu', 'cuda')
  def test_the_step_lowers(self, platform):
    experiment = _experiment()
    take = functools.partial(step_lib.single_step, experiment.build)
    batch = next(experiment.batches(0, 1))
    with (
        jax.numpy_dtype_promotion('standard'),
        mock.patch.object(jax, 'default_backend', lambda: platform),
    ):
      exported = jax.export.export(
          jax.jit(take), platforms=[platform]
      )(experiment.hyperparameters, experiment.create_state(), batch)
    self.assertIn('stablehlo.scatter', exported.mlir_module())


class PreparedTest(absltest.TestCase):

  def test_from_files_to_an_experiment(self):
    tfds.disable_progress_bar()
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    tu.write(root / 'TOY')
    prepare.prepare(
        'tu_graphs/TOY', data_dir=root / 'data', graphs=str(root / 'TOY')
    )
    config = graph_config.infograph()
    config.data.name, config.data.dir = 'tu_graphs/TOY', str(root / 'data')
    config.evaluate.protocols = ()
    experiment = domains.make_experiment(config)
    self.assertLen(experiment.data.graphs, 2)
    self.assertEqual(experiment.total_steps, 200)

  def test_graphs_at_hand(self):
    config = graph_config.infograph()
    config.data.name, config.data.batch_size = 'mine', 8
    graphs = tu.random_graphs()
    experiment = graph_experiment.from_graphs(config, graphs)
    self.assertEqual(experiment.total_steps, 3 * 200)
    # Nodes that are embedded alike share a row.
    batch = experiment.data.epoch[0]
    self.assertLess((batch.node_counts > 0).sum(), batch.node_counts.sum())
    config.loss.beta = -1.0
    with self.assertRaisesRegex(ValueError, 'loss.beta'):
      graph_experiment.from_graphs(config, graphs)
