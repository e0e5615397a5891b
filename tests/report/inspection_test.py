# SPDX-License-Identifier: Apache-2.0
"""Looking inside runs: samples of images, graphs and sentences, the report."""

import shutil
from unittest import mock

from absl.testing import parameterized
import numpy as np

from hcl_jax import domains
from hcl_jax.graphs import config as graph_config
from hcl_jax.graphs import data as graph_data
from hcl_jax.graphs import inspect as graph_inspect
from hcl_jax.images import config as image_config
from hcl_jax.images import data as image_data
from hcl_jax.images import experiment as image_experiment
from hcl_jax.images import inspect as image_inspect
from hcl_jax.report import inspection
from hcl_jax.report import run_report
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sentences import config as sentence_config
from hcl_jax.sentences import inspect as sentence_inspect
from hcl_jax.training import loop
from tests.support import corpus
from tests.support import looping
from tests.support import tiny
from tests.support import tu


def _images(rows):
  labels = np.arange(rows, dtype=np.int32) % 3
  return image_data.Images(
    tiny.batch(rows)['image'], labels, ('ant', 'bee', 'cat')
  )


def _image_experiment(task=None, **fields):
  config = image_config.simclr()
  config.update_from_flattened_dict({
      'data.batch_size': 16,
      'train.epochs': 2,
      'train.log_every_steps': 1,
      'evaluate.knn_every_epochs': 1,
      'evaluate.knn_k': 5,
      'evaluate.protocols': ('knn',),
      **fields,
  })
  config.optimizer.learning_rate = 0.01
  task = task or tiny.simclr_task(loss_options={'temperature': 0.5})
  data = image_experiment.Data(_images(32), _images(32), _images(40))
  return image_experiment.from_images(config, data, lambda *_, **__: task)


def _graph_experiment(**fields):
  config = graph_config.infograph()
  config.update_from_flattened_dict({
      'data.batch_size': 12,
      'model.width': 4,
      'model.num_layers': 2,
      'train.epochs': 1,
      **fields,
  })
  graphs = tu.random_graphs(40)
  with mock.patch.object(graph_data, 'load_graphs', lambda *_, **__: graphs):
    return domains.make_experiment(config)


def _sentence_experiment(test, **fields):
  corpus.patch(test)
  config = sentence_config.quick_thoughts()
  config.update_from_flattened_dict({
      'data.batch_size': 24,
      'data.max_length': 10,
      'model.encoder': 'bag',
      'model.word_dim': 6,
      'model.dim': 8,
      'train.epochs': 1,
      **fields,
  })
  return domains.make_experiment(config)


def _unit(z):
  return z / np.linalg.norm(z, axis=1, keepdims=True)


class SampleTest(looping.LoopTest):

  @parameterized.parameters(tiny.simclr_task, tiny.moco_task)
  def test_images(self, make_task):
    experiment = _image_experiment(make_task())
    state = experiment.create_state()
    sample = image_inspect.sample(experiment, state)
    self.assertEqual(sample.embeddings.shape, (40, 4))
    self.assertEqual(sample.items.shape, (16, 4, 4, 3))
    np.testing.assert_array_equal(
        sample.item_names, np.array(['ant', 'bee', 'cat'])[sample.labels[:16]]
    )
    expected = experiment.task.compared(
        state.params, state.task_state, {'image': sample.items}
    )
    np.testing.assert_allclose(
        sample.embeddings[:16], expected, rtol=1e-4, atol=1e-5
    )
    negatives = sample.negatives
    self.assertEqual(negatives.neg_logits.shape, (16, 32))
    z1, z2 = map(_unit, sample.views)
    np.testing.assert_allclose(
        negatives.pos_logits, np.sum(z1 * z2, axis=1) / 0.5, rtol=1e-4
    )
    own = negatives.items[None, :] == negatives.anchors[:, None]
    np.testing.assert_array_equal(negatives.where, ~own)
    np.testing.assert_allclose(
        negatives.neg_logits[:, 16:], z1 @ z2.T / 0.5, atol=1e-5
    )

  def test_negatives_of_other_classes_only(self):
    experiment = _image_experiment(**{'loss.supervised_negatives': True})
    sample = experiment.inspect(experiment.create_state())
    classes = np.tile(sample.labels[:16], 2)
    np.testing.assert_array_equal(
        sample.negatives.where, sample.labels[:16, None] != classes[None, :]
    )

  @parameterized.parameters(('sphere', True), ('none', True), ('soft', False))
  def test_the_panel_shows_losses_that_it_can_compute(self, floor, shown):
    experiment = _image_experiment(**{'loss.floor': floor})
    run = inspection.Inspection(
        name='run',
        config=experiment.config,
        step=0,
        steps_per_epoch=1,
        summary='',
        records=[],
        final={},
        sample=experiment.inspect(experiment.create_state()),
    )
    self.assertEqual('"nce": true' in run_report.beta_panel([run]), shown)

  @parameterized.parameters(('paper', 1), ('released', -1))
  def test_graphs(self, variant, sign):
    experiment = _graph_experiment(**{'loss.variant': variant})
    state = experiment.create_state()
    sample = graph_inspect.sample(experiment, state)
    graphs, epoch, embed = experiment.data
    batch = epoch[0]
    np.testing.assert_array_equal(
        sample.labels[:12], graphs.labels[batch.index[:12]]
    )
    np.testing.assert_array_equal(
        np.sort(sample.labels), np.sort(graphs.labels)
    )
    features = embed(state, epoch)
    np.testing.assert_allclose(
        sample.embeddings[:12], features[batch.index[:12]], rtol=1e-5
    )
    self.assertStartsWith(sample.item_names[0], f'graph {batch.index[0]}, ')
    # The first node of each graph against all graphs.
    nodes, pooled = experiment.task.compared(
        state.params, state.task_state, batch
    )
    there = batch.member_counts > 0
    rows, graph_ids = batch.members[there], batch.graph_ids[there]
    scores = np.asarray(nodes)[rows] @ np.asarray(pooled)[:12].T
    others = graph_ids[:, None] != np.arange(12)
    scale = 2 / np.abs(scores[others]).max()
    first = [np.flatnonzero(graph_ids == g)[0] for g in range(12)]
    np.testing.assert_allclose(
        sample.negatives.neg_logits, sign * scale * scores[first], rtol=1e-4
    )
    np.testing.assert_array_equal(sample.negatives.where, np.eye(12) == 0)

  @parameterized.parameters(0.0, 2.0)
  def test_sentences(self, clip_scale):
    experiment = _sentence_experiment(self, **{'loss.clip_scale': clip_scale})
    state = experiment.create_state()
    sample = sentence_inspect.sample(experiment, state)
    text = experiment.data.validation
    self.assertEqual(sample.items, [text.text(row) for row in range(24)])
    # Chapters of six sentences: pairs (0, 1), (2, 3), (4, 5) of each.
    np.testing.assert_array_equal(sample.labels, np.arange(24) // 2)
    rows = np.arange(24)
    near = np.abs(rows[:, None] - rows) <= 1
    near &= rows[:, None] // 6 == rows // 6
    np.testing.assert_array_equal(sample.negatives.where, ~near)
    if clip_scale:
      used = sample.negatives.neg_logits[~near]
      self.assertAlmostEqual(np.abs(used).max(), clip_scale, places=4)

  def test_neighbors_of_different_chapters_are_no_pair(self):
    experiment = _sentence_experiment(self)
    validation = experiment.data.validation
    shifted = validation.segments.copy()
    shifted[:3] = 0
    shifted[3:] = np.maximum(shifted[3:], 1)
    validation.segments = shifted
    sample = sentence_inspect.sample(experiment, experiment.create_state())
    self.assertNotEqual(sample.labels[2], sample.labels[3])


class DrawingsTest(parameterized.TestCase):

  def test_layout_of_a_ring_is_a_ring(self):
    n = 12
    steps = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    places = graph_inspect.stress_layout(np.minimum(steps, n - steps))
    radii = np.linalg.norm(places, axis=1)
    np.testing.assert_allclose(radii, radii.mean(), rtol=0.02)
    steps = np.linalg.norm(places - np.roll(places, 1, axis=0), axis=1)
    np.testing.assert_allclose(steps, steps.mean(), rtol=0.05)

  def test_layout_of_a_path_is_a_line(self):
    n = 7
    steps = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    places = graph_inspect.stress_layout(steps)
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    np.testing.assert_allclose(apart, steps, atol=0.02)

  def test_distances_must_be_finite(self):
    with self.assertRaisesRegex(ValueError, 'distances must be a finite'):
      graph_inspect.stress_layout([[0, np.inf], [np.inf, 0]])

  def test_pictures(self):
    lone = graph_inspect.graph_picture(1, [], [], size=32)
    self.assertEqual((lone.shape, lone.dtype), ((32, 32, 3), np.uint8))
    self.assertLess(lone[16, 16, 0], 100)  # the dot
    np.testing.assert_array_equal(lone[0, 0], 255)
    two_parts = graph_inspect.graph_picture(4, [0, 2], [1, 3])
    self.assertLess(two_parts.mean(), 255)

  def test_large_graphs_are_drawn_around_their_center(self):
    senders, receivers = np.zeros(499, int), np.arange(1, 500)
    star = graph_inspect.graph_picture(500, senders, receivers)
    self.assertLess(star[32, 32, 0], 200)


class InspectTest(looping.LoopTest):

  def test_a_run_without_checkpoint_is_refused(self):
    workdir = self.workdir()
    workdir.mkdir()
    with self.assertRaises(FileNotFoundError):
      inspection.inspect(workdir)

  def test_report_of_two_runs(self):
    experiments = {
        'standard': _image_experiment(
            **{'loss.beta': 0.0, 'loss.tau_plus': 0.0}
        ),
        'hard': _image_experiment(**{'loss.effective_negatives': 0.5}),
    }
    root = self.workdir()
    found = []
    for name, experiment in experiments.items():
      loop.train(experiment, root / name)
      with mock.patch.object(
          domains, 'make_experiment', lambda *_, e=experiment, **__: e
      ):
        found.append(inspection.inspect(root / name))
    self.assertEqual([run.name for run in found], ['standard', 'hard'])
    epochs, scores = found[0].curve('knn/top1')
    np.testing.assert_array_equal(epochs, [1, 2])
    self.assertEqual(scores[-1], found[0].scores()['knn/top1'])
    output = root / 'analysis'
    output.mkdir()
    sections = run_report.RunReport(found, output).sections()
    body = '\n'.join(part for x in sections for part in x.parts)
    self.assertIn('standard (epoch', body.replace('%', ''))
    self.assertIn('loss.effective_negatives', body)
    self.assertIn('<td>0.5 N</td>', body)
    self.assertIn('embeddings, as the loss compares them. Rows of one', body)
    for name in ('loss', 'curve_knn_top1', 'similarities', 'margins',
                 'false_negatives', 'effective_negatives', 'gallery'):
      self.assertTrue((output / f'{name}.png').exists(), name)

  def test_report_of_graphs_and_of_sentences(self):
    runs = {
        'graphs': (_graph_experiment(), graph_inspect.sample),
        'sentences': (_sentence_experiment(self), sentence_inspect.sample),
    }
    for name, (experiment, take) in runs.items():
      found = inspection.Inspection(
          name=name,
          config=experiment.config,
          step=0,
          steps_per_epoch=1,
          summary=experiment.summary,
          records=[],
          final={},
          sample=take(experiment, experiment.create_state()),
      )
      output = self.workdir()
      output.mkdir()
      titles = {
          x.title: x.parts
          for x in run_report.RunReport([found], output).sections()
      }
      self.assertEmpty(titles['Training'])
      self.assertNotEmpty(titles['Drag beta'])
      related = 'of one class' if name == 'graphs' else 'that belong together'
      self.assertIn(
          f'the features that are evaluated. Rows {related} have',
          titles['Similarities of pairs'][0],
      )
      kind = 'png' if name == 'graphs' else 'txt'
      self.assertTrue((output / f'gallery.{kind}').exists())


class NamesTest(looping.LoopTest):

  def test_runs_are_named_as_short_as_can_be(self):
    root = self.workdir()
    for folder in ('a/run', 'b/run', 'c'):
      (root / folder).mkdir(parents=True)
    config = image_config.simclr()
    with mock.patch.object(
        inspection.workdir_lib, 'load_config', lambda _: config
    ):
      runs = inspection.single_runs([root / x for x in ('a/run', 'b/run', 'c')])
      self.assertEqual(list(runs), ['run', 'b/run', 'c'])
      with self.assertRaisesRegex(ValueError, '--workdir has .* twice'):
        inspection.single_runs([root / 'c', root / 'c'])

  def test_runs_of_a_sweep_are_named_by_values_that_differ(self):
    root = self.workdir()
    sweep = image_config.simclr()
    sweep.sweep = {'loss': {'beta': (0.0, 1.0)}, 'seed': (0, 1)}
    workdir_lib.open_run(root, sweep, may_change=())
    paths = []
    for name, beta, seed in (('0000', 0.0, 0), ('0002', 1.0, 0)):
      config = image_config.simclr()
      config.loss.beta, config.seed = beta, seed
      paths.append(root / 'runs' / name)
      workdir_lib.open_run(paths[-1], config, may_change=())
    runs = inspection.single_runs(paths)
    self.assertEqual(runs, dict(zip(('beta=0', 'beta=1'), paths, strict=True)))
    runs = inspection.single_runs(paths[1:])
    self.assertEqual(list(runs), ['beta=1, seed=0'])
    other = root.parent / 'other'
    shutil.copytree(root, other)
    runs = inspection.single_runs([*paths, other / 'runs/0002'])
    self.assertEqual(
        list(runs), ['run: beta=0', 'run: beta=1', 'other: beta=1']
    )

  def test_a_comparison_is_several_runs(self):
    config = image_config.simclr()
    config.compare = ('standard', 'hard')
    with mock.patch.object(
        inspection.workdir_lib, 'load_config', lambda _: config
    ):
      runs = inspection.single_runs([self.workdir()])
    self.assertEqual(list(runs), ['standard', 'hard'])
