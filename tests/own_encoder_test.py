# SPDX-License-Identifier: Apache-2.0
"""Encoders of users, from training to embedding, and what is wrong of them."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

import hcl_jax
from hcl_jax import domains
from hcl_jax.graphs import config as graph_config
from hcl_jax.graphs import data as graph_data
from hcl_jax.graphs import evaluate as graph_evaluate
from hcl_jax.images import config as image_config
from hcl_jax.images import data as image_data
from hcl_jax.images import evaluate as image_evaluate
from hcl_jax.images import experiment as image_experiment
from hcl_jax.pairs import config as pair_config
from hcl_jax.report import inspection
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sentences import config as sentence_config
from hcl_jax.sentences import encode as sentence_encode
from hcl_jax.sweeps import sweeping
from hcl_jax.training import loop
from hcl_jax.training import own_code
from hcl_jax.training import state as state_lib
from tests.support import corpus
from tests.support import looping
from tests.support import toy_pairs
from tests.support import tu


def _path(name):
  return f'tests.support.encoders:{name}'


def _images(num, seed):
  array = np.random.default_rng(seed).integers(0, 256, (num, 8, 8, 3), np.uint8)
  return image_data.Images(array, np.arange(num) % 2)


def _image_config(encoder, **fields):
  config = image_config.simclr()
  config.update_from_flattened_dict({
      'data.name': 'noise', 'data.batch_size': 16, 'augment.size': 8,
      'model.encoder': encoder, 'model.head_width': 8,
      'model.embedding_dim': 4, 'train.steps': 2, 'evaluate.batch_size': 16,
      'evaluate.protocols': ('knn',), 'evaluate.knn_every_epochs': 0.0,
      'evaluate.knn_k': 3, **fields,
  })  # fmt: skip
  return config


def _graph_config(encoder):
  config = graph_config.infograph()
  config.update_from_flattened_dict({
      'model.encoder': encoder, 'train.steps': 2, 'evaluate.folds': 2,
      'evaluate.protocols': (), 'evaluate.every_epochs': 0.0,
  })  # fmt: skip
  return config


def _sentence_config(encoder):
  config = sentence_config.quick_thoughts()
  config.update_from_flattened_dict({
      'data.batch_size': 24, 'data.max_length': 10, 'model.encoder': encoder,
      'model.dim': 6, 'train.steps': 2, 'evaluate.protocols': (),
      'evaluate.retrieval_every_epochs': 0.0, 'evaluate.batch_size': 16,
  })  # fmt: skip
  return config


class _OwnTest(looping.LoopTest):

  def setUp(self):
    super().setUp()
    data = image_experiment.Data(_images(32, 0), _images(32, 0), _images(16, 1))
    graphs = tu.random_graphs(num_features=3)
    for module, name, function in (
        (image_experiment, '_load', lambda _: data),
        (graph_data, 'load_graphs', lambda *_, **__: graphs),
    ):
      self.enter_context(mock.patch.object(module, name, function))
    corpus.patch(self)

  def _train(self, config):
    """Trains a run, and loads it as one must."""
    experiment, workdir = hcl_jax.make_experiment(config), self.workdir()
    hcl_jax.fit(experiment, workdir)
    with self.assertRaisesRegex(
        ValueError, f"config.model.encoder='{config.model.encoder}'.*allow_code"
    ):
      hcl_jax.load(workdir)
    encoder = hcl_jax.load(workdir, allow_code=True)
    return experiment, self.last_state(experiment, workdir), encoder


class RunsTest(_OwnTest):

  @parameterized.parameters('pooled', 'pooled_nnx')
  def test_images(self, name):
    config = _image_config(_path(name))
    experiment, state, encoder = self._train(config)
    test = experiment.data.test
    found = encoder(test.array)
    self.assertEqual(found.shape, (16, 6))
    features = image_evaluate.Features(config, experiment.task)
    state = jax.device_put(state)
    np.testing.assert_array_equal(found, features(state, test))
    self.assertIn('knn/top1', experiment.evaluate(state, ['knn']))
    first = experiment.create_state()
    for old, new in (
        (first.params, state.params),
        (first.task_state['batch_stats'], state.task_state['batch_stats']),
    ):
      changed = jax.tree.map(
          lambda a, b: not np.array_equal(a, b), old['backbone'],
          new['backbone'],
      )  # fmt: skip
      self.assertTrue(any(jax.tree.leaves(changed)), changed)

  def test_stopping_changes_nothing(self):
    config = _image_config(_path('pooled_nnx'), **{'train.steps': 12})
    self.check_resuming(hcl_jax.make_experiment(config))

  @parameterized.parameters('pooled', 'pooled_nnx')
  def test_dropout_is_random_in_training_alone(self, name):
    experiment = hcl_jax.make_experiment(_image_config(_path(name)))
    task, state = experiment.task, experiment.create_state()
    batch = {'image': experiment.data.test.array}
    views = task.encoder.normalize(batch['image'])
    key = jax.random.key(0)
    embed = jax.jit(task.encoder.embed)
    same = [
        embed(state.params, state.task_state, views, x)[0]
        for x in (key, key, jax.random.key(1))
    ]
    np.testing.assert_array_equal(same[0], same[1])
    self.assertGreater(np.abs(same[0] - same[2]).max(), 1e-3)
    features = jax.jit(task.features)
    args = state.params, state.task_state, batch
    np.testing.assert_array_equal(features(*args), features(*args))

  def test_graphs(self):
    config = _graph_config(_path('degrees'))
    experiment, state, encoder = self._train(config)
    graphs = experiment.data.graphs
    found = encoder(graphs)
    self.assertEqual(found.shape, (len(graphs), 4))
    features = graph_evaluate.Features(experiment.task)
    np.testing.assert_array_equal(found, features(state, experiment.data.epoch))
    # Nodes of a color have rows of their own.
    batch = graphs.batch([0])
    self.assertEqual(batch.node_counts.max(), 1)

  def test_a_sweep_of_graphs_is_inspected(self):
    config = _graph_config(_path('degrees'))
    sweep = sweeping.Sweep(config, {'seed': (0, 1)}, runs_per_device=2)
    workdir = self.workdir()
    self.assertEmpty(sweep.run(workdir).failures())
    folder = workdir / 'runs' / sweep.runs[1].name
    with self.assertRaisesRegex(ValueError, 'allow_code'):
      inspection.inspect(folder)
    inspection.inspect(folder, allow_code=True)

  def test_sentences(self):
    config = _sentence_config(_path('words'))
    experiment, state, encoder = self._train(config)
    vocabulary = experiment.data.train.vocabulary
    texts = ['w1 w2', 'w3', 'w4 w1 w9']
    expected = sentence_encode.Embedder(experiment.task, config)(
        state_lib.evaluated_params(state),
        [vocabulary.encode(text) for text in texts],
    )
    np.testing.assert_array_equal(encoder(texts), expected)
    self.assertEqual(expected.shape, (3, 12))
    self.assertEqual({*state.params}, {'left', 'right'})
    left, right = (state.params[x]['words'] for x in ('left', 'right'))
    self.assertGreater(np.abs(left - right).max(), 0)

  def test_pairs(self):
    config = toy_pairs.config(
        **{'model.encoder': _path('tokens'), 'model.tokens': 'characters'}
    )
    experiment = hcl_jax.make_experiment(config, data=toy_pairs.columns())
    workdir = self.workdir()
    hcl_jax.fit(experiment, workdir)
    with self.assertRaisesRegex(ValueError, 'allow_code'):
      hcl_jax.load(workdir)
    encoder = hcl_jax.load(workdir, allow_code=True)
    self.assertEqual({*encoder.params}, {'query', 'document'})
    texts = experiment.data.pairs.queries[:5]
    self.assertEqual(encoder.query(texts).shape, (5, config.model.dim))
    both = encoder.query(texts), encoder.document(texts)
    self.assertGreater(np.abs(both[0] - both[1]).max(), 1e-3)

  def test_a_run_that_begins_with_another_allows_its_code_alone(self):
    config = _image_config(_path('pooled'))
    workdir = self.workdir()
    hcl_jax.fit(hcl_jax.make_experiment(config), workdir)
    config.train.init_from = str(workdir)
    loop.train(hcl_jax.make_experiment(config), self.workdir())
    config.model.encoder = ''
    other = hcl_jax.make_experiment(config)
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'allow_code'):
      loop.train(other, self.workdir())


class ErrorsTest(_OwnTest):

  @parameterized.parameters(
      ('nowhere:x', "there is no module 'nowhere'; .*add it to sys.path"),
      ('tests.support.nowhere:x', 'no module .tests.support.nowhere'),
      (_path('missing'), "found nothing by the name 'missing'"),
      (_path('NOT_CALLABLE'), "found int by the name 'NOT_CALLABLE'"),
      (_path('no_module'), 'must return a flax.linen.Module, got str'),
      (_path('no_module_nnx'), 'must return a flax.nnx.Module, got str'),
      (_path('raises'), r'calling it failed: encoders.py, line \d+: Attrib'),
      (_path('fails_to_run'), r'its module failed: encoders.py, line \d+: Ty'),
      (_path('maps'), r'features \[2, D\], of.*got float32 \[2, 8, 8, 3\]'),
      (_path('integers'), r'must return features.*got int32 \[2, 4\]'),
      (_path('pair'), r'got \(float32 \[2, 3\], float32 \[2, 3\]\)'),
      ('no path', "one of '', or 'package.module:factory', got 'no path'"),
  )
  def test_of_images(self, encoder, words):
    self._check(_image_config(encoder), words)

  def test_of_graphs(self):
    self._check(
        _graph_config(_path('nodes_alone')),
        r'return nodes \[\d+, D\] and graphs \[\d+, D\], of floats; got float',
    )

  def test_of_sentences(self):
    self._check(
        _sentence_config(_path('two_of_each')),
        r'return embeddings \[3, D\], of floats; got float32 \[6, 4\]',
    )

  def test_of_pairs(self):
    self._check(
        toy_pairs.config(**{'model.encoder': _path('too_few')}),
        r'return embeddings \[3, D\], of floats; got float32 \[1, 4\]',
        data=toy_pairs.columns(),
    )

  def _check(self, config, words, **data):
    """A line that names the field, before anything is made."""
    with self.assertRaisesRegex(ValueError, words) as caught:
      hcl_jax.make_experiment(config, **data)
    self.assertIn('config.model.encoder', str(caught.exception))
    self.assertNotIn('\n', str(caught.exception))


class NamesTest(parameterized.TestCase):

  @parameterized.parameters(
      (image_config.simclr, ''), (graph_config.infograph, ''),
      (sentence_config.quick_thoughts, 'gru'),
      (pair_config.pairs, 'ngrams'),
  )  # fmt: skip
  def test_ours_are_no_code_of_others(self, make, default):
    config = make()
    self.assertEqual(config.model.encoder, default)
    self.assertEqual(own_code.named(config), {})
    config.model.encoder = 'a.b:c'
    self.assertEqual(domains.named_code(config), {'model.encoder': 'a.b:c'})

  @parameterized.parameters(image_config.moco, graph_config.infograph)
  def test_a_run_from_before_the_field_is_continued(self, make):
    root = self.enter_context(tempfile.TemporaryDirectory())
    config, older = make(), make()
    del older.model['encoder']
    workdir = pathlib.Path(root) / 'run'
    workdir_lib.open_run(workdir, older)
    loop.open_workdir(workdir, config)
    config.model.encoder = 'a.b:c'
    with self.assertRaisesRegex(workdir_lib.ConfigMismatch, 'model.encoder'):
      loop.open_workdir(workdir, config)


if __name__ == '__main__':
  absltest.main()
