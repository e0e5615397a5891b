# SPDX-License-Identifier: Apache-2.0
"""Sweeps: their flags, members that equal single runs, what is written."""

import csv
import json
import os
import pathlib
import signal
import tempfile
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import ml_collections
import numpy as np
import tensorflow_datasets as tfds

from hcl_jax import domains
from hcl_jax import prepare
from hcl_jax.graphs import config as graph_config
from hcl_jax.graphs import data as graph_data
from hcl_jax.graphs import experiment as graph_experiment
from hcl_jax.images import config as image_config
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import grid
from hcl_jax.sweeps import members as members_lib
from hcl_jax.sweeps import sweeping
from hcl_jax.sweeps import tally as tally_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import loop
from tests.support import commands
from tests.support import tu

_ROOT = pathlib.Path(__file__).parent.parent


# Two shapes of batches, and steps that do not make whole epochs of 4.
_UNEVEN = {'data.batch_size': 12, 'train.steps': 7}


def _config(**fields):
  config = graph_config.infograph()
  config.update_from_flattened_dict({
      'data.batch_size': 20,  # all batches of one shape compile quickly
      'model.width': 4,
      'model.num_layers': 2,
      'train.steps': 4,
      'train.log_every_steps': 1,
      'evaluate.folds': 4,
      'evaluate.inner_folds': 2,
      'evaluate.workers': 1,
      **fields,
  })
  return config


class GridTest(parameterized.TestCase):

  @parameterized.parameters(
      ('seed', '0:3', (0, 1, 2)),
      ('seed', '4,0:2', (4, 0, 1)),
      ('loss.beta', '0,1,2.5', (0.0, 1.0, 2.5)),
      ('loss.beta', '1:3', (1.0, 2.0)),
      ('loss.tau_plus', '0.1', (0.1,)),
      ('data.name', 'MUTAG,PTC_MR', ('MUTAG', 'PTC_MR')),
      ('optimizer.decay_vectors', 'true,False', (True, False)),
  )
  def test_values_have_the_type_of_the_field(self, field, text, expected):
    values = grid.read_values(_config(), field, text)
    self.assertEqual(values, expected)
    self.assertEqual(list(map(type, values)), list(map(type, expected)))

  @parameterized.parameters(
      ('--sweep.loss.bta=1', 'no such field.*Did you mean loss.beta'),
      ('--sweep.loss=1', 'no such field'),
      ('--sweep.seed=1,x', "seed must be whole numbers between.*got 'x'"),
      ('--sweep.seed=1.5', "got '1.5'"),
      ('--sweep.loss.beta=much', "beta must be numbers between.*got 'much'"),
      ('--sweep.optimizer.decay_vectors=2', "true, false between.*got '2'"),
      ('--sweep.loss.beta=', "got ''"),
      ('--sweep.loss.beta=1,,2', "got ''"),
      ('--sweep.seed=3:3', 'seed: 3:3 has no values'),
      ('--sweep.seed=1,3:3', 'seed: 3:3 has no values'),
      ('--sweep.seed=1,0:2', 'has the value 1 twice'),
      ('--sweep.seed=0:9999999', 'too many values'),
      ('--sweep.evaluate.protocols=svm', 'this field holds a tuple'),
      ('--sweep.seed', 'has no values; write --sweep.seed=0,1,2'),
      ('more', "unexpected argument 'more'"),
  )
  def test_what_cannot_be_swept(self, argument, message):
    with self.assertRaisesRegex(ValueError, message):
      grid.read_flags(_config(), [argument])

  def test_a_configuration_has_values_that_flags_replace(self):
    config = _config()
    config.sweep = {
        'seed': (0, 1),
        'loss': {'beta': (0, 2), 'variant': ('paper',)},
    }
    fields = grid.read_fields(
        config, ['--sweep.loss.beta=4', '--sweep.model.width=3']
    )
    self.assertEqual(
        list(fields.items()),
        [('loss.beta', (4.0,)), ('loss.variant', ('paper',)), ('seed', (0, 1)),
         ('model.width', (3,))],
    )  # fmt: skip
    beta = grid.read_fields(config, [])['loss.beta']
    self.assertEqual(list(map(type, beta)), [float, float])
    for member in grid.expand(config, fields):
      self.assertNotIn('sweep', member.config)
    self.assertIn('sweep', config)

  @parameterized.parameters(
      ({'loss': {'bta': (1,)}}, 'config.sweep.loss.bta: .*mean loss.beta'),
      ({'seed': ()}, 'config.sweep.seed has no values'),
      ({'seed': (1, 2, 1)}, 'config.sweep.seed has the value 1 twice'),
      ({'seed': 3}, 'sweep.seed must be a tuple of whole numbers, got 3'),
      ({'seed': (0.5,)}, r'a tuple of whole numbers, got \(0.5,\)'),
      ({'data': {'name': (1,)}}, 'sweep.data.name must be a tuple of words'),
      ({'evaluate': {'protocols': ('svm',)}}, 'this field holds a tuple'),
      ({'sweep': {'seed': (0,)}}, 'config.sweep.sweep.seed: no such field'),
  )
  def test_what_a_configuration_cannot_sweep(self, sweep, message):
    config = _config()
    config.sweep = sweep
    with self.assertRaisesRegex(ValueError, message):
      grid.read_fields(config, [])

  def test_values_are_needed_once(self):
    with self.assertRaisesRegex(ValueError, 'nothing to sweep'):
      grid.read_fields(_config(), [])
    with self.assertRaisesRegex(ValueError, 'sweep.seed is given twice'):
      grid.read_flags(_config(), ['--sweep.seed=1', '--sweep.seed=2'])

  def test_every_combination_is_a_member(self):
    config = _config()
    fields = {'loss.beta': (0.0, 2.0), 'seed': (0, 1, 2)}
    members = grid.expand(config, fields)
    self.assertEqual(
        [(x.config.loss.beta, x.config.seed) for x in members],
        [(0.0, 0), (0.0, 1), (0.0, 2), (2.0, 0), (2.0, 1), (2.0, 2)],
    )
    self.assertEqual([x.number for x in members], list(range(6)))
    self.assertEqual(config.loss.beta, 1.0)

  def test_impossible_values_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'config.loss.beta must be >= 0'):
      grid.expand(_config(), {'seed': (0, 1), 'loss.beta': (1.0, -1.0)})

  def test_groups_share_what_is_not_traced(self):
    fields = {
        'seed': (0, 1),
        'data.name': ('MUTAG', 'DD'),
        'loss.beta': (0.0, 1.0),
    }
    groups = grid.groups(grid.expand(_config(), fields))
    numbers = [[member.number for member in group] for group in groups]
    self.assertEqual(numbers, [[0, 1, 4, 5], [2, 3, 6, 7]])

  def test_images_are_runs_of_their_own(self):
    config = image_config.simclr()
    groups = grid.groups(grid.expand(config, {'seed': (0, 1)}))
    self.assertEqual([len(group) for group in groups], [1, 1])


class _SweepTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(jax.numpy_dtype_promotion('standard'))
    self.enter_context(jax.numpy_rank_promotion('allow'))
    self.enter_context(
        mock.patch.object(
            graph_data, 'load_graphs', lambda *_, **__: tu.random_graphs(40)
        )
    )
    # Each compiles; several are as good as all.
    two = jax.local_devices()[:2]
    self.enter_context(mock.patch.object(jax, 'local_devices', lambda: two))
    root = tempfile.TemporaryDirectory()
    self.addCleanup(root.cleanup)
    self.root = pathlib.Path(root.name)


_common_paddings = graph_data.common_paddings


def _with_a_small_shape(*args, **kwargs):
  """Paddings with one more, which holds some batches and not others."""
  return {
      size: [shapes[0]._replace(nodes=round(4.8 * size)), *shapes]
      for size, shapes in _common_paddings(*args, **kwargs).items()
  }


class MembersTest(_SweepTestCase):

  @parameterized.named_parameters(
      ('one_by_one', {}, 1),
      (
          'by_vmap',
          {
              'loss.prior_weight': 0.1,
              'loss.annealing': 'down',
              'optimizer.ema_decay': 0.5,
              'optimizer.schedule': 'cosine',
          },
          2,
      ),
  )
  def test_a_member_is_the_single_run(self, fields, per_device):
    swept = {
        'loss.beta': (0.0, 4.0),
        'seed': (3, 5),
        'loss.tau_plus': (0.1,),
        'optimizer.learning_rate': (0.01,),
    }
    sweep = sweeping.Sweep(
        _config(**_UNEVEN, **fields), swept, members_per_device=per_device
    )
    workdir = self.root / 'sweep'
    sweep.run(workdir)
    curves, results = [], []
    for member in sweep.members:
      path = workdir / 'members' / f'{member.name}.json'
      results.append(json.loads(path.read_text()))
      curves.append(np.array(list(results[-1]['loss'].values())))
    self.assertEqual(list(results[3]['loss']), list(map(str, range(1, 8))))
    for i in range(3):
      self.assertGreater(np.abs(curves[i] - curves[3]).max(), 0.01)

    single = self.root / 'single'
    scores = loop.train(
        domains.make_experiment(sweep.members[3].config), single
    )
    records = metrics_lib.read_metrics(single)
    losses = [r['loss'] for r in records if 'loss' in r]
    if per_device == 1:
      np.testing.assert_array_equal(curves[3], losses)
      self.assertEqual(
          results[3]['scores']['svm/accuracy'], scores['svm/accuracy']
      )
    np.testing.assert_allclose(curves[3], losses, rtol=1e-4)
    self.assertLen(results[3]['scores']['svm/folds'], 4)

  def test_features_are_those_of_the_set_in_its_order(self):
    members = grid.expand(
        _config(**_UNEVEN | {'train.steps': 1}), {'seed': (3, 5, 8)}
    )
    with mock.patch.object(graph_data, 'common_paddings', _with_a_small_shape):
      group = members_lib.Group(
          members,
          tu.random_graphs(40),
          devices=jax.devices()[:2],
          members_per_device=2,
      )
    trained = group.train(members)
    self.assertLen(trained, 3)
    experiment = domains.make_experiment(members[2].config)
    take, state = experiment.make_step(), experiment.create_state()
    batch = {k: x[None] for k, x in next(experiment.batches(0, 1)).items()}
    state, _ = take(state, batch)
    np.testing.assert_allclose(
        trained[2].features,
        experiment.reader().features(state),
        rtol=1e-3,
        atol=1e-3,
    )

  def test_a_group_is_compiled_once_for_each_device(self):
    plain = graph_experiment.take_step
    with mock.patch.object(
        graph_experiment, 'take_step', side_effect=plain
    ) as traced:
      sweep = sweeping.Sweep(_config(**_UNEVEN), {'seed': (0, 1, 2, 3, 4)})
      with mock.patch.object(
          jax, 'local_devices', lambda: jax.devices()[:2]
      ):
        sweep.run(self.root / 'sweep')
    self.assertEqual(traced.call_count, 2 * 2)  # devices and shapes

  def test_a_member_that_fails_leaves_the_others_alone(self):
    sweep = sweeping.Sweep(
        _config(**{'optimizer.name': 'sgd'}),
        {'optimizer.learning_rate': (1e-3, 1e30)},
        members_per_device=2,
    )
    tally = sweep.run(self.root / 'sweep')
    self.assertLen(tally.failures(), 1)
    self.assertRegex(tally.failures()[0], r'1e\+30: .* not finite at step \d')
    self.assertIn('svm/accuracy', tally.scores(sweep.members[0]))
    self.assertRegex(tally.markdown(), r'\| 1e\+30 \| 1 \| - \|')


class RunTest(_SweepTestCase):

  def test_a_sweep_that_was_stopped_redoes_nothing(self):
    fields = {'model.width': (4, 5), 'seed': (0, 1)}
    workdir = self.root / 'sweep'
    trained, plain = [], members_lib.Group.train

    def train(group, members, after_step):
      trained.append([member.number for member in members])
      if len(trained) == 4:
        os.kill(os.getpid(), signal.SIGTERM)
      return plain(group, members, after_step)

    with (
        mock.patch.object(jax, 'local_devices', lambda: jax.devices()[:1]),
        mock.patch.object(members_lib.Group, 'train', train),
    ):
      with self.assertRaisesRegex(loop.Interrupted, '3 of 4 members finished'):
        sweeping.Sweep(_config(), fields).run(workdir)
      self.assertEqual(trained, [[0], [1], [2], [3]])
      self.assertLen(self._rows(workdir), 3)
      tally = sweeping.Sweep(_config(), fields).run(workdir)
      self.assertEqual(trained[4:], [[3]])
      sweeping.Sweep(_config(), fields).run(workdir)
    self.assertLen(trained, 5)
    self.assertLen(tally, 4)
    self.assertLen(self._rows(workdir), 4)

  def _rows(self, workdir):
    with open(workdir / 'results.csv', encoding='utf-8') as file:
      return list(csv.DictReader(file))

  def test_writes_a_line_for_each_member_and_means_over_seeds(self):
    workdir = self.root / 'sweep'
    fields = {'loss.beta': (0.0, 4.0), 'seed': (0, 1)}
    config = _config(**{'evaluate.protocols': ('svm', 'logistic')})
    tally = sweeping.Sweep(config, fields).run(workdir)
    rows = self._rows(workdir)
    self.assertEqual(
        [(row['member'], row['loss.beta'], row['seed']) for row in rows],
        [('0', '0.0', '0'), ('1', '0.0', '1'),
         ('2', '4.0', '0'), ('3', '4.0', '1')],
    )  # fmt: skip
    scores = [100 * float(row['svm/accuracy']) for row in rows]
    table = (workdir / 'results.md').read_text()
    self.assertEqual(table, tally.markdown() + '\n')
    head, _, first, second = table.splitlines()
    self.assertEqual(
        head, '| loss.beta | members | svm/accuracy | logistic/accuracy |'
    )
    for line, pair in ((first, scores[:2]), (second, scores[2:])):
      mean, deviation = np.mean(pair), np.std(pair, ddof=1)
      self.assertIn(f'| 2 | {mean:.2f} ± {deviation:.2f} |', line)
    self.assertContainsSubset(
        {'results.csv', 'results.md', 'members', 'config.json'},
        {path.name for path in workdir.iterdir()},
    )

  def test_refuses_the_directory_of_another_sweep(self):
    workdir = self.root / 'sweep'
    sweeping.Sweep(_config(), {'seed': (0,)}).run(workdir)
    before = (workdir / 'config.json').read_bytes()
    for fields, changed, message in (
        ({'seed': (0, 1)}, {}, r'sweep.seed was \[0\] and is \[0, 1\]'),
        ({'seed': (0,)}, {'loss.beta': 2.0}, 'loss.beta was 1.0 and is 2.0'),
        ({'seed': (0,)}, {'evaluate.folds': 3}, 'evaluate.folds was 4'),
    ):
      with self.assertRaisesRegex(workdir_lib.ConfigMismatch, message):
        sweeping.Sweep(_config(**changed), fields).run(workdir)
    self.assertEqual((workdir / 'config.json').read_bytes(), before)
    config = _config()
    config.sweep = {'seed': (0,), 'loss': {'beta': (0,)}}  # one that flags gave
    sweeping.Sweep(config, {'seed': (0,)}).run(workdir)
    self.assertEqual((workdir / 'config.json').read_bytes(), before)
    path = workdir / 'members' / '0000.json'
    path.write_text('{')  # damaged
    with self.assertRaisesRegex(workdir_lib.WorkdirError, str(path)):
      sweeping.Sweep(_config(), {'seed': (0,)}).run(workdir)

  @parameterized.parameters(
      ({'evaluate.svm_every_epochs': 1}, 'svm_every_epochs must be 0'),
      ({'data.batch_size': 13}, 'a last batch of one graph'),
  )
  def test_what_a_sweep_cannot_do(self, fields, message):
    with self.assertRaisesRegex(ValueError, message):
      sweeping.Sweep(_config(**fields), {'seed': (0,)})

  def test_images_go_through_the_loop(self):
    runs, shared = [], []
    given = jax.config.jax_compilation_cache_dir
    self.addCleanup(jax.config.update, 'jax_compilation_cache_dir', given)
    jax.config.update('jax_compilation_cache_dir', None)

    def train(experiment, workdir, label):
      runs.append((experiment.loss.beta, workdir.name, label))
      shared.append(jax.config.jax_compilation_cache_dir)
      return {'knn/top1': 0.5 + experiment.loss.beta / 4}

    with (
        mock.patch.object(domains, 'make_experiment', lambda config: config),
        mock.patch.object(loop, 'train', train),
    ):
      sweep = sweeping.Sweep(
          image_config.simclr(), {'loss.beta': (0.0, 1.0)}
      )
      tally = sweep.run(self.root / 'sweep')
    self.assertEqual(
        runs, [(0.0, '0000', 'loss.beta=0.0'), (1.0, '0001', 'loss.beta=1.0')]
    )
    self.assertIn('| 1.0 | 1 | 75.00 |', tally.markdown())
    self.assertIsNotNone(shared[0])
    self.assertEqual(shared[0], shared[1])

  def test_the_word_on_a_member_has_its_accuracies(self):
    member = grid.Member(0, {'seed': 1}, image_config.simclr())
    scores = {'knn/top1': 0.5, 'knn/top5': 0.9, 'linear/top1': 0.625}
    self.assertEqual(
        sweeping._outcome(member, scores),
        'seed=1: knn/top1 50.00%, linear/top1 62.50%',
    )


class TallyTest(absltest.TestCase):

  def test_one_seed_has_no_deviation(self):
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    members = grid.expand(_config(), {'seed': (0, 1)})
    tally = tally_lib.Tally(root, members)
    tally.add(members[1], scores={'svm/accuracy': 0.5, 'svm/folds': []})
    self.assertEqual(
        tally.markdown(),
        '| members | svm/accuracy |\n| ---: | ---: |\n| 1 | 50.00 |',
    )
    again = tally_lib.Tally(root, members)
    self.assertIn(members[1], again)
    self.assertNotIn(members[0], again)
    self.assertEqual(again.csv(), tally.csv())


class CommandTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # Each compiles; several are as good as all.
    two = jax.local_devices()[:2]
    self.enter_context(mock.patch.object(jax, 'local_devices', lambda: two))
    root = tempfile.TemporaryDirectory()
    self.addCleanup(root.cleanup)
    self.root = pathlib.Path(root.name)
    self.workdir = self.root / 'sweep'

  def _start(self, *arguments):
    return commands.start(
        'sweep', '--config=configs/graphs.py:tu_graphs/TOY',
        f'--config.data.dir={self.root / "data"}',
        f'--workdir={self.workdir}', *arguments,
    )  # fmt: skip

  @parameterized.parameters(
      ('--sweep.loss.bta=1', 'Did you mean loss.beta'),
      ('--sweep.seed=0', 'hcl_jax.prepare --dataset=tu_graphs/TOY'),
  )
  def test_errors_of_use_are_one_line_and_write_nothing(self, flag, message):
    process = self._start(flag)
    out, err = process.communicate()
    self.assertEqual(process.returncode, 2, err)
    self.assertIn(message, err)
    self.assertLen(err.strip().splitlines(), 1)
    self.assertEmpty(out)
    self.assertFalse(self.workdir.exists())

  def test_stops_continues_and_reports(self):
    tfds.disable_progress_bar()
    tu.write_graphs(self.root / 'TOY', tu.random_graphs(40))
    prepare.prepare(
        'tu_graphs/TOY',
        data_dir=self.root / 'data',
        graphs=str(self.root / 'TOY'),
    )
    flags = [
        '--config.train.epochs=3',
        '--config.evaluate.folds=4',
        '--config.model.width=4',
        '--sweep.loss.beta=0,2',
        '--sweep.seed=0:20',
    ]
    process = self._start(*flags)
    while not (self.workdir / 'results.csv').exists():
      self.assertIsNone(process.poll(), 'The sweep ended without results.')
      time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    self.assertEqual(process.returncode, 0, err)
    self.assertIn('The same command continues.', err)
    finished = {p: p.stat().st_mtime_ns
                for p in (self.workdir / 'members').iterdir()}  # fmt: skip
    self.assertBetween(len(finished), 1, 39)

    process = self._start(*flags)
    out, err = process.communicate()
    self.assertEqual(process.returncode, 0, err)
    self.assertIn(f'{40 - len(finished)} of 40 members to train', err)
    self.assertRegex(out, r'\| 2\.0 \| 20 \| \d+\.\d\d ± \d+\.\d\d \|')
    for path, written in finished.items():
      self.assertEqual(path.stat().st_mtime_ns, written)


class ConfigTest(absltest.TestCase):

  def test_values_of_any_kind_are_set_in_a_copy(self):
    config = ml_collections.ConfigDict({'a': {'b': 1.0}, 'c': 2})
    copy = fields_lib.with_values(config, {'a.b': np.float32(3), 'c': 'word'})
    self.assertEqual((copy.a.b, copy.c), (3, 'word'))
    self.assertEqual((config.a.b, config.c), (1.0, 2))
