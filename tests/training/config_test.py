# SPDX-License-Identifier: Apache-2.0
"""Configurations: all of ours are sound, and unsound values are named."""

import importlib.util
import math
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections
import numpy as np

from hcl_jax import domains
from hcl_jax.graphs import config as graph_config
from hcl_jax.graphs import task as infograph
from hcl_jax.graphs import tu_collections
from hcl_jax.images import config as image_config
from hcl_jax.images import task as image_tasks
from hcl_jax.pairs import config as pair_config
from hcl_jax.sentences import config as sentence_config
from hcl_jax.sentences import task as quick_thoughts
from hcl_jax.sweeps import grid
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib

_CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
_ALL = sorted(path.stem for path in _CONFIGS.glob('*.py'))
_OTHERS = 'graphs', 'paper', 'retrieval', 'sentences'  # take no variant alone
_PAIRS = 'molecules', 'pairs'
_STANDARD = 'standard', 'debiased'  # beta is 0
_NAMES = [name for name in _ALL if name not in (*_OTHERS, *_PAIRS)]


def _get_config(name):
  path = _CONFIGS / f'{name}.py'
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config


class ConfigsTest(parameterized.TestCase):

  def test_all_are_there(self):
    self.assertContainsSubset(
        ('digits', 'cifar10', 'cifar10_small', 'cifar100', 'stl10',
         'tiny_imagenet', 'moco_cifar10', 'image_folder', 'graphs',
         'paper', 'sentences'), _ALL,
    )  # fmt: skip

  @parameterized.parameters(*_NAMES)
  def test_is_sound_in_every_variant(self, name):
    get_config = _get_config(name)
    domains.check(get_config())
    hard = get_config('hard')
    for variant in config_lib.VARIANTS:
      config = get_config(variant)
      domains.check(config)
      image_config.check_devices(config, 8)
      expected = {
          'standard': (0.0, 0.0),
          'debiased': (0.0, hard.loss.tau_plus),
          'hard': (hard.loss.beta, hard.loss.tau_plus),
      }[variant]
      loss = config.loss
      self.assertEqual((loss.beta, loss.tau_plus), expected)
      image_tasks.create(config, total_steps=10, steps_per_epoch=5)

  @parameterized.parameters(*_PAIRS)
  def test_pairs_in_every_variant(self, name):
    get_config = _get_config(name)
    domains.check(get_config())
    for variant in pair_config.VARIANTS:
      config = get_config(variant)
      domains.check(config)
      pair_config.check_devices(config, 8)
      self.assertEqual(config.loss.beta > 0, variant not in _STANDARD)
      self.assertEqual(config.data.order == 'grouped', variant == 'grouped')
      self.assertEqual(config.mining.every_epochs > 0, variant == 'mined')
    with self.assertRaisesRegex(ValueError, "grouped, mined; got 'soft'"):
      get_config('soft')

  def test_experiments_on_retrieval(self):
    get_config = _get_config('retrieval')
    few, methods = ('standard', 'hard'), ('margin', 'effective')
    kinds = {x: (*few, *methods) for x in ('random', 'grouped', 'mined')}
    kinds |= {f'size{x}': few for x in (128, 2048, 8192)}
    for batches, methods in kinds.items():
      for method in methods:
        for scale in ('', ',tune'):
          config = get_config(f'{batches}_{method}{scale}')
          fields = grid.read_config(config)
          if scale:
            self.assertEqual(math.prod(map(len, fields.values())), 8)
          first = {field: values[0] for field, values in fields.items()}
          del config.sweep
          domains.check(fields_lib.with_values(config, first))
    for argument in (
        'random', 'random_soft', 'random_hard,full', 'size128_margin'
    ):  # fmt: skip
      with self.assertRaisesRegex(ValueError, 'must be BATCHES_METHOD'):
        get_config(argument)

  def test_a_folder_of_images_has_a_name_of_its_own(self):
    get_config = _get_config('image_folder')
    self.assertEqual(get_config('debiased').data.name, 'image_folder')
    config = get_config('my_photos,debiased')
    self.assertEqual((config.data.name, config.loss.beta), ('my_photos', 0.0))
    self.assertEqual(get_config('my_photos'), get_config('my_photos,hard'))
    small = get_config('my_photos,small,debiased')
    self.assertEqual(get_config('my_photos,debiased,small'), small)
    self.assertEqual(small.data.name, 'my_photos')
    self.assertEqual(small.model.name, 'small')
    domains.check(small)
    for argument in ('a,b', 'a,hrad', 'a,small,small', 'a,,hard', ''):
      with self.assertRaisesRegex(ValueError, f'NAME,small.*{argument!r}'):
        get_config(argument)

  def test_unknown_variants_are_refused(self):
    with self.assertRaisesRegex(ValueError, "debiased, hard; got 'hrad'"):
      _get_config('cifar10')('hrad')

  @parameterized.parameters(image_config, graph_config, sentence_config)
  def test_a_share_of_negatives_is_an_argument_of_the_step(self, room):
    config = fields_lib.make(room.FIELDS)
    self.assertNotIn(
        'loss.effective_negatives', config_lib.hyperparameters(config)
    )
    config.loss.effective_negatives = 0.8
    domains.check(config)
    found = config_lib.hyperparameters(config)['loss.effective_negatives']
    self.assertEqual(found, np.float32(0.8))
    with config.unlocked():
      config.loss.annealing = 'down'
    with self.assertRaisesRegex(
        ValueError, "annealing must be 'constant' with .*, got 'down'"
    ):
      domains.check(config)
    config.loss.annealing = 'constant'
    config_lib.set_variant(config, 'hard')
    self.assertEqual(config.loss.effective_negatives, 0.8)
    config_lib.set_variant(config, 'debiased')
    self.assertIsNone(config.loss.effective_negatives)
    for value in (0.0, 1.5, float('nan')):
      config.loss.effective_negatives = value
      with self.assertRaisesRegex(
          ValueError, r'effective_negatives must be None or in \(0, 1\], got'
      ):
        domains.check(config)

  def test_a_share_of_negatives_needs_the_papers_loss_of_graphs(self):
    config = graph_config.infograph()
    config.loss.effective_negatives = 0.8
    config.loss.variant = 'released'
    with self.assertRaisesRegex(
        ValueError, "needs config.loss.variant='paper', got 'released'"
    ):
      domains.check(config)

  @parameterized.parameters('constant', 'down', 'up', 'released')
  def test_annealing(self, annealing):
    config = image_config.simclr()
    config.loss.update({'annealing': annealing, 'beta': 2.0})
    task = image_tasks.create(config, total_steps=900, steps_per_epoch=10)
    first, last = (float(task.beta(step)) for step in (0, 899))
    ninth = 2.0 / 9
    expected = {
        'constant': (2.0, 2.0),
        'down': (2.0, ninth),
        'up': (ninth, 2.0),
        'released': (2.0, 0.25),
    }[annealing]
    np.testing.assert_allclose((first, last), expected, rtol=1e-6)


class PaperTest(parameterized.TestCase):

  @parameterized.product(
      experiment=(
          ('methods_cifar10', 2 * 2), ('methods_cifar100', 2 * 2),
          ('methods_stl10', 2 * 2), ('methods_tiny_imagenet', 2 * 2),
          ('hardness', 2 * 5), ('annealing', 4), ('batch_standard', 5),
          ('batch_hard', 5), ('moco', 3 * 2), ('mochi', 1),
      ),
      scale=('', ',full'),
  )  # fmt: skip
  def test_every_run_is_sound(self, experiment, scale):
    name, settings = experiment
    config = _get_config('paper')(name + scale)
    config.lock()
    runs = grid.expand(config, grid.read_fields(config, []))
    self.assertLen(runs, 3 * settings)
    for run in runs[::3]:
      image_config.check_devices(run.config, 8)
      image_tasks.create(run.config, total_steps=90, steps_per_epoch=5)
    losses = [run.config.loss for run in runs]
    numbers = {(loss.beta, loss.tau_plus) for loss in losses}
    if name.startswith('methods'):
      tau_plus = max(loss.tau_plus for loss in losses)
      expected = [(0, 0), (0, tau_plus), (1, 0), (1, tau_plus)]
      self.assertCountEqual(numbers, expected)
    elif name.startswith('batch'):
      expected = (0, 0) if name == 'batch_standard' else (1, 0.1)
      self.assertEqual(numbers, {expected})

  def test_scales_differ_in_scale_only(self):
    get_config = _get_config('paper')
    small, full = (get_config(f'hardness{x}') for x in (',small', ',full'))
    self.assertEqual(small, get_config('hardness'))
    self.assertEqual(small.sweep, full.sweep)
    self.assertEqual(small.loss, full.loss)
    small.augment.size = full.augment.size
    self.assertEqual(small.augment, full.augment)
    self.assertEqual(full.model, image_config.simclr().model)
    self.assertLess(small.train.epochs, full.train.epochs)

  def test_batches_are_compared_at_half_the_epochs_if_small(self):
    of_batches, of_methods = (
        _get_config('paper')(x).train.epochs
        for x in ('batch_hard', 'methods_stl10')
    )
    self.assertEqual(2 * of_batches, of_methods)
    full = _get_config('paper')('batch_hard,full')
    self.assertEqual(full.train, image_config.simclr().train)

  def test_a_small_moco_is_trained_and_read_out_as_the_others(self):
    small, others = map(_get_config('paper'), ('moco', 'hardness'))
    self.assertEqual(small.optimizer, others.optimizer)
    small.evaluate.knn_every_epochs = others.evaluate.knn_every_epochs
    self.assertEqual(small.evaluate, others.evaluate)
    full = _get_config('paper')('moco,full')
    self.assertEqual(full.optimizer, image_config.moco().optimizer)

  def test_mocos_small_queue_outlasts_an_epoch(self):
    config = _get_config('paper')('moco')
    self.assertEqual(config.data.train_split, 'train[:10000]')
    self.assertGreater(config.moco.queue_size, 10_000)
    of_all = _get_config('paper')('methods_cifar10')
    self.assertEqual(
        config.train.epochs * 10_000, of_all.train.epochs * 50_000
    )

  def test_images_are_evaluated_at_their_size(self):
    config = _get_config('paper')('methods_stl10')
    encoder = image_tasks.create_encoder(config)
    images = np.zeros((2, 96, 96, 3), np.uint8)
    self.assertEqual(encoder.normalize(images).shape, (2, 32, 32, 3))
    config.evaluate.image_size = 0
    encoder = image_tasks.create_encoder(config)
    self.assertEqual(encoder.normalize(images).shape, images.shape)

  @parameterized.parameters('', 'hardnes', 'hardness,large')
  def test_unknown_experiments_are_refused(self, argument):
    with self.assertRaisesRegex(ValueError, 'EXPERIMENT,full with one of'):
      _get_config('paper')(argument)


class GraphsTest(parameterized.TestCase):

  @parameterized.parameters(*tu_collections.STATISTICS, 'tu_graphs/NCI1')
  def test_every_collection_is_sound(self, name):
    config = _get_config('graphs')(name)
    domains.check(config)
    self.assertEqual(config.data.name, name)
    infograph.create(config, total_steps=10, steps_per_epoch=5)

  def test_the_whole_table(self):
    config = _get_config('graphs')('all')
    config.lock()  # as the flag does
    runs = grid.expand(config, grid.read_fields(config, []))
    self.assertLen(runs, 8 * 2 * 4 * 10)
    groups = [
        (group[0].config.data.name, group[0].config.loss.variant)
        for group in grid.groups(runs)
    ]
    by_size = ['MUTAG', 'PTC_MR', 'IMDB-MULTI', 'ENZYMES', 'IMDB-BINARY',
               'PROTEINS', 'DD', 'REDDIT-BINARY']  # fmt: skip
    self.assertEqual(
        groups,
        [(name, x) for name in by_size for x in ('paper', 'released')],
    )
    fields = grid.read_fields(
        config, ['--sweep.data.name=DD', '--sweep.seed=0:2']
    )
    self.assertLen(grid.expand(config, fields), 2 * 4 * 2)
    with self.assertRaisesRegex(ValueError, 'python -m hcl_jax.sweep takes'):
      domains.check(config)

  @parameterized.parameters([[]], [['MUTGA']])
  def test_unknown_collections_are_refused(self, argument):
    name = ''.join(argument)
    with self.assertRaisesRegex(ValueError, f"one of MUTAG.*; got '{name}'"):
      _get_config('graphs')(*argument)

  @parameterized.parameters(
      ('loss.beta', -1.0, r'config.loss.beta must be >= 0'),
      ('loss.variant', 'hard', r"loss.variant must be one of 'paper'"),
      ('loss.tau_plus', 1.0, r'loss.tau_plus must be None or in \[0, 1\)'),
      ('loss.prior_weight', -0.1, r'loss.prior_weight must be >= 0'),
      ('data.batch_size', 1, r'config.data.batch_size must be >= 2'),
      ('model.width', 0, r'config.model.width must be >= 1'),
      ('evaluate.protocols', ('knn',), r"a tuple of 'svm', 'logistic'"),
      ('evaluate.fold_seeds', (), r'evaluate.fold_seeds must be one or more'),
      ('evaluate.fold_seeds', ('a',), r'evaluate.fold_seeds must be one or'),
      ('evaluate.fold_seeds', (2**40,), r'evaluate.fold_seeds must be one or'),
      ('evaluate.svm_gamma', 'large', r"svm_gamma must be one of 'scale'"),
      ('optimizer.final_learning_rate', 1.0, r'must not exceed'),
  )
  def test_names_the_field(self, field, value, message):
    config = graph_config.infograph()
    with config.unlocked():
      config.update_from_flattened_dict({field: value})
    with self.assertRaisesRegex(ValueError, message):
      domains.check(config)

  def test_a_last_batch_of_one_graph_is_refused(self):
    config = graph_config.infograph()
    labels = np.arange(188) % 2
    graph_config.check_graphs(config, labels)
    config.data.batch_size = 17
    with self.assertRaisesRegex(ValueError, 'batch_size=17 leaves a last'):
      graph_config.check_graphs(config, labels)

  def test_too_few_graphs_for_the_folds_are_refused(self):
    config = graph_config.infograph()
    labels = np.arange(18) % 2
    with self.assertRaisesRegex(ValueError, 'config.evaluate.folds must be at'):
      graph_config.check_graphs(config, labels)
    config.evaluate.protocols = ()
    graph_config.check_graphs(config, labels)
    config.evaluate.svm_every_epochs = 1
    with self.assertRaisesRegex(ValueError, 'at most 9, .*class 0; got 10'):
      graph_config.check_graphs(config, labels)


class SentencesTest(parameterized.TestCase):

  @parameterized.product(
      size=('tiny', 'small', 'released'), variant=config_lib.VARIANTS
  )
  def test_every_size_is_sound_in_every_variant(self, size, variant):
    config = _get_config('sentences')(f'{size},{variant}')
    domains.check(config)
    expected = {'standard': (0, 0), 'debiased': (0, 0.01), 'hard': (1, 0)}
    self.assertEqual(
        (config.loss.beta, config.loss.tau_plus), expected[variant]
    )
    quick_thoughts.create(
        config, vocabulary_size=9, total_steps=10, steps_per_epoch=5
    )

  def test_the_argument_may_be_short(self):
    get_config = _get_config('sentences')
    self.assertEqual(get_config(), get_config('small,hard'))
    self.assertEqual(get_config('released'), get_config('released,hard'))
    self.assertNotEqual(get_config(), get_config('released'))

  @parameterized.parameters('large', 'small,soft', 'hard')
  def test_unknown_arguments_are_refused(self, argument):
    with self.assertRaisesRegex(ValueError, f'SIZE,VARIANT.*{argument!r}'):
      _get_config('sentences')(argument)

  @parameterized.parameters(
      ('data.order', 'shuffled', r"data.order must be one of 'consecutive'"),
      ('data.block_size', 1, r'config.data.block_size must be >= 2'),
      ('model.encoder', 'lstm', r"model.encoder must be one of 'gru', 'bag'"),
      ('model.dim', 301, r'config.model.dim must be even .* got 301'),
      ('loss.tau_plus', 1.0, r'config.loss.tau_plus must be in \[0, 1\)'),
      ('loss.window', 200, r'batch_size must be at least .* 401, got 400'),
      ('optimizer.clip_each_norm', -1.0, r'clip_each_norm must be >= 0'),
      ('train.checkpoint_every_epochs', 0.0, r'every_epochs must be > 0'),
      ('evaluate.protocols', ('svm',), r"a tuple of 'retrieval'"),
      ('evaluate.protocols', ('sentences',), r'evaluate.tasks_dir must be a f'),
      ('evaluate.tasks', ('MR', 'SST'), r"tasks must be one or more of 'MR',"),
      ('evaluate.tasks', (), r'evaluate.tasks must be one or more'),
      ('evaluate.tasks', ([],), r'evaluate.tasks must be one or more'),
      ('evaluate.workers', -1, r'evaluate.workers must be >= 0'),
  )
  def test_names_the_field(self, field, value, message):
    config = sentence_config.quick_thoughts()
    with config.unlocked():
      config.update_from_flattened_dict({field: value})
    with self.assertRaisesRegex(ValueError, message):
      domains.check(config)


class LimitsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('loss.beta', -1.0, r'config.loss.beta must be >= 0'),
      ('loss.beta', float('inf'), r'config.loss.beta must be >= 0 and finite'),
      ('loss.tau_plus', 1.0, r'config.loss.tau_plus must be in \[0, 1\)'),
      ('loss.temperature', 0.0, r'config.loss.temperature must be > 0'),
      ('evaluate.image_size', -1, r'config.evaluate.image_size must be >= 0'),
      ('evaluate.knn_every_epochs', -0.5, r'knn_every_epochs must be >= 0'),
      ('model.name', 'resnet51', r"model.name must be one of 'resnet10'"),
      ('data.batch_size', 1, r'config.data.batch_size must be >= 2'),
      ('optimizer.name', 'adma', r"optimizer.name must be one of 'adam'"),
      ('evaluate.protocols', ('svm',), r'config.evaluate.protocols must be a'),
      ('compare', ('soft',), r'config.compare must be a tuple of'),
      ('optimizer.final_learning_rate', 1.0, r'must not exceed'),
      ('seed', -1, r'config.seed must be in \[0, '),
      ('seed', 10**400, r'config.seed must be in \[0, '),
      ('evaluate.linear_seeds', (), r'linear_seeds must be one or more'),
      ('evaluate.linear_seeds', (-1,), r'linear_seeds must be one or more'),
      ('evaluate.linear_seeds', ('a',), r'linear_seeds must be one or more'),
      ('evaluate.linear_decay_epochs', (0,), r'must be integers >= 1'),
  )
  def test_names_the_field(self, field, value, message):
    config = image_config.simclr()
    with config.unlocked():
      config.update_from_flattened_dict({field: value})
    with self.assertRaisesRegex(ValueError, message):
      domains.check(config)

  @parameterized.parameters(
      ({'moco.queue_size': 64}, 'config.moco.queue_size must be at least'),
      ({'mochi.num_hardest': 9}, 'give it and one of these, or none'),
      ({'mochi.num_with_query': 9}, 'give it and one of these, or none'),
      (
          {'mochi.num_hardest': 2**17, 'mochi.num_mixed': 1},
          'must not exceed config.moco.queue_size',
      ),
      ({'task': 'simclr', 'mochi.num_hardest': 9}, "needs config.task='moco'"),
      ({'data.true_label_positives': True}, "needs config.task='simclr'"),
      ({'loss.supervised_negatives': True}, "needs config.task='simclr'"),
      ({'model.cross_device_bn': True, 'model.bn_splits': 2}, 'choose one'),
  )
  def test_fields_that_do_not_go_together(self, fields, message):
    config = image_config.simclr()
    config.task = 'moco'
    config.update_from_flattened_dict(fields)
    with self.assertRaisesRegex(ValueError, message):
      domains.check(config)

  @parameterized.parameters(
      ({}, 3, 'does not divide over 3 devices; 255 or 258 would'),
      ({'train.microbatch_size': 100}, 1, 'microbatch_size=100 does not'),
      ({'model.bn_splits': 3}, 1, 'bn_splits=3 does not divide the 256'),
  )
  def test_batches_that_do_not_divide(self, fields, devices, message):
    config = image_config.simclr()
    config.update_from_flattened_dict(fields)
    with self.assertRaisesRegex(ValueError, message):
      image_config.check_devices(config, devices)

  @parameterized.parameters(
      ('data.true_label_positives', 'train'),
      ('loss.supervised_negatives', 'train'),
      (None, 'test'),
  )
  def test_labels_that_are_needed(self, field, split):
    config = image_config.simclr()
    labels = {'train': np.zeros(3, int), 'test': np.zeros(3, int)}
    if field:
      config.update_from_flattened_dict({field: True})
    image_config.check_labels(config, labels)
    labels[split][1] = -1
    with self.assertRaisesRegex(ValueError, f"'{split}' has images without"):
      image_config.check_labels(config, labels)

  @parameterized.parameters(
      ({}, (32, 48), None),
      ({'augment.size': 40}, (32, 32), r'augment.size .* of 16.*got 40'),
      ({}, (32, 40), 'evaluate.image_size .*got 0, for images of 32 x 40'),
      ({'evaluate.image_size': 48}, (32, 40), None),
      ({'evaluate.image_size': 50}, (32, 32), 'evaluate.image_size .*got 50'),
      ({'evaluate.image_size': 50, 'model.name': 'resnet18'}, (9, 9), None),
      ({'evaluate.image_size': 50, 'model.encoder': 'a:b'}, (9, 9), None),
  )
  def test_patches_must_fit(self, fields, shape, message):
    config = image_config.simclr()
    config.update_from_flattened_dict({'model.name': 'vit_s16', **fields})
    image_config.check(config)
    if message is None:
      image_config.check_size(config, (*shape, 3))
    else:
      with self.assertRaisesRegex(ValueError, message):
        image_config.check_size(config, (*shape, 3))


class OlderRunsTest(absltest.TestCase):

  def test_what_is_missing_gets_its_default_and_nothing_else(self):
    config = image_config.simclr()
    config.loss.beta = 3.0
    expected = config.to_dict()
    del config.mochi
    del config.evaluate.linear_seeds
    domains.fill_defaults(config)
    self.assertEqual(config.to_dict(), expected)

  def test_runs_without_a_share_of_negatives_had_none(self):
    before = config_lib.MAY_APPEAR['loss.effective_negatives']
    for room in (image_config, graph_config, sentence_config):
      config = fields_lib.make(room.FIELDS)
      self.assertEqual(config.loss.effective_negatives, before)

  def test_what_is_no_run_at_all(self):
    for fields, message in (
        ({}, "config.task must be one of 'simclr'.*; got None and None"),
        ({'task': 'other'}, "config.task must be one of .*; got 'other' and"),
        ({'task': {'a': 1}}, 'config.task must be one of'),
        ({'task': 'moco', 'loss': 1.0}, 'config.loss must be a group'),
        ({'task': 'moco', 'compare': 1}, 'config.compare must be a tuple'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        domains.fill_defaults(ml_collections.ConfigDict(fields))
