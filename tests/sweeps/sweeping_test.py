# SPDX-License-Identifier: Apache-2.0
"""Sweeps: their flags, runs that equal single ones, what is written."""

import contextlib
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
import chex
import jax
import ml_collections
import numpy as np
import tensorflow_datasets as tfds

from hcl_jax import domains
from hcl_jax import prepare
from hcl_jax.graphs import config as graph_config
from hcl_jax.graphs import data as graph_data
from hcl_jax.images import config as image_config
from hcl_jax.images import data as image_data
from hcl_jax.runs import interruption as interruption_lib
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import scores as scores_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import grid
from hcl_jax.sweeps import results as results_lib
from hcl_jax.sweeps import slots
from hcl_jax.sweeps import sweeping
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import loop
from hcl_jax.training import step as step_lib
from tests.support import commands
from tests.support import looping
from tests.support import tu

_ROOT = pathlib.Path(__file__).parents[2]


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
      ('loss.beta', '[0, 1]', (0.0, 1.0)),
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
      ('--sweep.seed=1,x', "seed must be integers between.*got 'x'"),
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
    for run in grid.expand(config, fields):
      self.assertNotIn('sweep', run.config)
    self.assertIn('sweep', config)

  @parameterized.parameters(
      ({'loss': {'bta': (1,)}}, 'config.sweep.loss.bta: .*mean loss.beta'),
      ({'seed': ()}, 'config.sweep.seed has no values'),
      ({'seed': (1, 2, 1)}, 'config.sweep.seed has the value 1 twice'),
      ({'seed': 3}, 'sweep.seed must be a tuple of integers, got 3'),
      ({'seed': (0.5,)}, r'a tuple of integers, got \(0.5,\)'),
      ({'data': {'name': (1,)}}, 'sweep.data.name must be a tuple of strings'),
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

  def test_every_combination_is_a_run(self):
    config = _config()
    fields = {'loss.beta': (0.0, 2.0), 'seed': (0, 1, 2)}
    runs = grid.expand(config, fields)
    self.assertEqual(
        [(x.config.loss.beta, x.config.seed) for x in runs],
        [(0.0, 0), (0.0, 1), (0.0, 2), (2.0, 0), (2.0, 1), (2.0, 2)],
    )
    self.assertEqual([x.number for x in runs], list(range(6)))
    self.assertEqual(config.loss.beta, 1.0)

  def test_impossible_values_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'config.loss.beta must be >= 0'):
      grid.expand(_config(), {'seed': (0, 1), 'loss.beta': (1.0, -1.0)})

  def test_groups_share_what_is_not_traced(self):
    fields = {
        'seed': (0, 1),
        'data.name': ('MUTAG', 'DD'),
        'loss.beta': (0.0, 1.0),
        'loss.effective_negatives': (0.5,),
    }
    groups = grid.groups(grid.expand(_config(), fields))
    numbers = [[run.number for run in group] for group in groups]
    self.assertEqual(numbers, [[0, 1, 4, 5], [2, 3, 6, 7]])


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
    self.enter_context(mock.patch.object(jax, 'local_devices', lambda **_: two))
    root = tempfile.TemporaryDirectory()
    self.addCleanup(root.cleanup)
    self.root = pathlib.Path(root.name)


class SlotsTest(_SweepTestCase):

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
          5,
      ),
  )
  def test_a_run_of_a_sweep_is_the_single_run(self, fields, per_device):
    swept = {
        'loss.beta': (0.0, 4.0),
        'seed': (3, 5),
        'loss.tau_plus': (0.1,),
        'optimizer.learning_rate': (0.01,),
    }
    sweep = sweeping.Sweep(
        _config(**_UNEVEN, **fields), swept, runs_per_device=per_device
    )
    workdir = self.root / 'sweep'
    sweep.run(workdir)
    folders = [workdir / 'runs' / run.name for run in sweep.runs]
    records = [
        [r for r in metrics_lib.read_metrics(folder) if 'loss' in r]
        for folder in folders
    ]
    curves = [np.array([r['loss'] for r in of_run]) for of_run in records]
    self.assertEqual([r['step'] for r in records[3]], list(range(1, 8)))
    for i in range(3):
      self.assertGreater(np.abs(curves[i] - curves[3]).max(), 0.01)

    single = self.root / 'single'
    experiment = domains.make_experiment(sweep.runs[3].config)
    scores = loop.train(experiment, single)
    single_records = metrics_lib.read_metrics(single)
    losses = [r['loss'] for r in single_records if 'loss' in r]
    np.testing.assert_allclose(curves[3], losses, rtol=1e-4)
    written = json.loads((folders[3] / 'scores.json').read_text())
    self.assertLen(written['last step']['svm/folds'], 4)
    states = [_last_state(experiment, x) for x in (single, folders[3])]
    if per_device == 1:
      np.testing.assert_array_equal(curves[3], losses)
      self.assertEqual(written['last step'], scores)
      chex.assert_trees_all_equal(*states)
      self.assertEqual(
          {x.name for x in folders[3].iterdir()},
          {x.name for x in single.iterdir()},
      )
    chex.assert_trees_all_close(*states, rtol=1e-2, atol=1e-3)

  def test_stacked_runs_save_and_score_as_others_do(self):
    """Each has its own state and its own features, in the order of the set."""
    fields = {'train.checkpoint_every_epochs': 1, 'train.steps': 3}
    config = _config(**fields, **{'evaluate.svm_every_epochs': 1})
    swept = {'seed': (3, 5), 'loss.effective_negatives': (0.7,)}
    sweep = sweeping.Sweep(config, swept, runs_per_device=2)
    self.enter_context(
        mock.patch.object(jax, 'local_devices', lambda **_: jax.devices()[:1])
    )
    sweep.run(self.root / 'sweep')
    for run in sweep.runs:
      folder = self.root / 'sweep' / 'runs' / run.name
      records = metrics_lib.read_metrics(folder)
      steps = [r['step'] for r in records if 'svm/accuracy' in r]
      self.assertEqual(steps, [2, 3])
      experiment = domains.make_experiment(run.config)
      single = self.root / run.name
      loop.train(experiment, single)
      _, epoch, embed = experiment.data
      features = [
          embed(_last_state(experiment, x), epoch) for x in (folder, single)
      ]
      np.testing.assert_allclose(*features, rtol=1e-3, atol=1e-3)
      with looping.open_checkpoints(folder, experiment) as checkpoints:
        self.assertEqual(checkpoints.steps(), [2, 3])

  def test_runs_that_cannot_be_stacked_train_one_by_one(self):
    """Those of other shapes, and those that were stopped at other steps."""
    config = _config()
    sweep = sweeping.Sweep(config, {'seed': (3, 5)}, runs_per_device=2)
    experiment = domains.make_experiment(sweep.runs[0].config)
    single, stopped = self.root / 'single', self.root / 'stopped'
    loop.train(experiment, single)
    with interruption_lib.Interruption() as interruption:
      interruption.requested = True
      with self.assertRaisesRegex(loop.Interrupted, 'after step 1'):
        loop.train(
            experiment,
            stopped / 'runs' / sweep.runs[0].name,
            interruption=interruption,
        )
    shapes = mock.patch.object(slots, '_shapes', id)
    for case, workdir in (
        (shapes, self.root / 'shapes'),
        (contextlib.nullcontext(), stopped),
    ):
      with case:
        sweep.run(workdir)
      written = workdir / 'runs' / sweep.runs[0].name / 'scores.json'
      self.assertEqual(
          written.read_bytes(), (single / 'scores.json').read_bytes()
      )

  def test_a_group_is_compiled_once_for_each_device(self):
    plain = step_lib.single_step
    with mock.patch.object(
        step_lib, 'single_step', side_effect=plain
    ) as traced:
      sweep = sweeping.Sweep(_config(**_UNEVEN), {'seed': (0, 1, 2, 3, 4)})
      sweep.run(self.root / 'sweep')
    self.assertEqual(traced.call_count, 2 * 2)  # devices and shapes

  @parameterized.parameters(1, 2)
  def test_a_run_that_fails_leaves_the_others_alone(self, per_device):
    sweep = sweeping.Sweep(
        _config(**{'optimizer.name': 'sgd'}),
        {'optimizer.learning_rate': (1e-3, 1e30)},
        runs_per_device=per_device,
    )
    results = sweep.run(self.root / 'sweep')
    (failure,) = results.failures()
    self.assertRegex(failure, r'1e\+30: step \d gave .*=(nan|inf)')
    self.assertIn('svm/accuracy', results.scores(sweep.runs[0]))
    self.assertRegex(results.markdown(), r'\| 1e\+30 \| 1 \| - \|')

  def test_an_error_in_one_run_lets_the_others_save(self):
    plain, begun = loop.train, []

    def train(experiment, folder, **kwargs):
      begun.append(folder.name)
      if folder.name == '0001':
        raise OSError('disk full')
      return plain(experiment, folder, **kwargs)

    config = _config(**{'train.steps': 4000})
    sweep = sweeping.Sweep(config, {'seed': (0, 1, 2)})
    with mock.patch.object(loop, 'train', train):
      with self.assertRaisesRegex(OSError, 'disk full'):
        sweep.run(self.root / 'sweep')
    self.assertCountEqual(begun, ['0000', '0001'])
    folder = self.root / 'sweep' / 'runs' / '0000'
    state = _last_state(domains.make_experiment(sweep.runs[0].config), folder)
    self.assertBetween(state.step, 1, 3999)


def _last_state(experiment, workdir):
  with looping.open_checkpoints(workdir, experiment) as checkpoints:
    return jax.device_get(loop.restore(experiment, checkpoints))


class RunTest(_SweepTestCase):

  @parameterized.parameters(1, 2)
  def test_a_sweep_that_was_stopped_redoes_nothing(self, per_device):
    fields = {'model.width': (4, 5), 'seed': (0, 1)}
    config = _config(**{'train.checkpoint_every_epochs': 1})
    workdir = self.root / 'sweep'
    trained, plain = [], loop.Run.after_step

    def after_step(run, *args):
      trained.append((run.workdir.name, run.done + 1))
      if trained[-1] == ('0003', 3) and len(trained) <= 16:
        os.kill(os.getpid(), signal.SIGTERM)
      return plain(run, *args)

    def sweep():
      return sweeping.Sweep(config, fields, runs_per_device=per_device)

    with (
        mock.patch.object(jax, 'local_devices', lambda **_: jax.devices()[:1]),
        mock.patch.object(loop.Run, 'after_step', after_step),
    ):
      with self.assertRaisesRegex(loop.Interrupted, 'of 4 runs finished'):
        sweep().run(workdir)
      self.assertLen(self._rows(workdir), 4 - per_device)
      results = sweep().run(workdir)
      sweep().run(workdir)
    steps = [(f'000{i}', step) for i in range(4) for step in range(1, 5)]
    self.assertCountEqual(trained, steps)
    self.assertLen(results, 4)
    self.assertLen(self._rows(workdir), 4)

  def _rows(self, workdir):
    with open(workdir / 'results.csv', encoding='utf-8') as file:
      return list(csv.DictReader(file))

  def test_writes_a_line_for_each_run_and_means_over_seeds(self):
    workdir = self.root / 'sweep'
    fields = {'loss.beta': (0.0, 4.0), 'seed': (0, 1)}
    config = _config(**{'evaluate.protocols': ('svm', 'logistic')})
    results = sweeping.Sweep(config, fields).run(workdir)
    rows = self._rows(workdir)
    self.assertEqual(
        [(row['run'], row['loss.beta'], row['seed']) for row in rows],
        [('0', '0.0', '0'), ('1', '0.0', '1'),
         ('2', '4.0', '0'), ('3', '4.0', '1')],
    )  # fmt: skip
    scores = [100 * float(row['svm/accuracy']) for row in rows]
    table = (workdir / 'results.md').read_text()
    self.assertEqual(table, results.markdown() + '\n')
    head, _, first, second = table.splitlines()
    self.assertEqual(
        head, '| loss.beta | runs | svm/accuracy | logistic/accuracy |'
    )
    for line, pair in ((first, scores[:2]), (second, scores[2:])):
      mean, deviation = np.mean(pair), np.std(pair, ddof=1)
      self.assertIn(f'| 2 | {mean:.2f} ± {deviation:.2f} |', line)
    self.assertContainsSubset(
        {'results.csv', 'results.md', 'runs', 'config.json'},
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
    path = workdir / 'runs' / '0000.json'
    path.write_text('{')  # damaged
    with self.assertRaisesRegex(workdir_lib.WorkdirError, str(path)):
      sweeping.Sweep(_config(), {'seed': (0,)}).run(workdir)

  def test_what_a_sweep_cannot_do(self):
    with self.assertRaisesRegex(ValueError, 'a last batch of one graph'):
      sweeping.Sweep(_config(**{'data.batch_size': 13}), {'seed': (0,)})
    with self.assertRaisesRegex(ValueError, '--jobs=2 .* one on each core'):
      sweeping.Sweep(_config(), {'seed': (0,)}, num_processes=2)
    with self.assertRaisesRegex(ValueError, '--runs_per_device=2 is for small'):
      sweeping.Sweep(image_config.simclr(), {'seed': (0,)}, runs_per_device=2)

  def test_runs_that_use_all_devices_train_one_by_one(self):
    runs, shared = [], []

    def train(experiment, workdir, *, label, programs, progress, **unused):
      self.assertIsNone(progress)
      runs.append((experiment.config.loss.beta, workdir.name, label))
      shared.append((programs, experiment.data))
      score = scores_lib.Score(0.5 + experiment.config.loss.beta / 4)
      return {'knn/top1': score}

    images = image_data.Images(
        np.zeros((8, 4, 4, 3), np.uint8), np.arange(8, dtype=np.int32) % 2
    )
    config = image_config.simclr()
    config.data.batch_size = 8
    with (
        mock.patch.object(image_data, 'load', lambda *_, **__: images),
        mock.patch.object(loop, 'train', train),
    ):
      sweep = sweeping.Sweep(config, {'loss.beta': (0.0, 1.0)})
      results = sweep.run(self.root / 'sweep')
    self.assertEqual(
        runs, [(0.0, '0000', 'loss.beta=0.0'), (1.0, '0001', 'loss.beta=1.0')]
    )
    self.assertIn('| 1.0 | 1 | 75.00 |', results.markdown())
    self.assertIs(shared[0][0], shared[1][0])  # programs
    self.assertIs(shared[0][1], shared[1][1])  # and data

  def test_the_line_on_a_run_has_the_main_score_of_each_protocol(self):
    run = grid.Run(0, {'seed': 1}, image_config.simclr())
    scores = {'knn/top1': 0.5, 'knn/top5': 0.9, 'linear/top1': 0.625}
    scores = {name: scores_lib.Score(x) for name, x in scores.items()}
    scores['linear/top1'] = scores_lib.Score(0.625, error=0.05)
    scores['linear/loss'] = scores_lib.Score(3.0, 'loss')
    self.assertEqual(
        sweeping._outcome(run, {'scores': scores}),
        'seed=1: knn/top1 50.00 %, linear/top1 62.50 ± 5.00 %',
    )
    self.assertEqual(sweeping._outcome(run, {'failure': 'x'}), 'seed=1: failed')


class ResultsTest(absltest.TestCase):

  def test_one_seed_has_a_standard_error(self):
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    runs = grid.expand(_config(), {'seed': (0, 1)})
    results = results_lib.SweepResults(root, runs)
    score = scores_lib.Score(0.5, error=0.05)
    results.add(runs[0], {'scores': {'svm/accuracy': score}})
    self.assertIn('| 1 | 50.00 ± 5.00 |\n\n±', results.markdown())
    self.assertEqual(
        results.csv().splitlines(),
        ['run,seed,svm/accuracy,svm/accuracy_error', '0,0,0.5,0.05'],
    )
    again = results_lib.SweepResults(root, runs)
    self.assertEqual(again.csv(), results.csv())
    other = scores_lib.Score(0.5)
    results.add(runs[1], {'scores': {'svm/accuracy': other}})
    self.assertEndsWith(results.markdown(), '| 2 | 50.00 ± 0.00 |')

  def test_one_seed_has_no_deviation(self):
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    runs = grid.expand(_config(), {'seed': (0, 1)})
    results = results_lib.SweepResults(root, runs)
    score = scores_lib.Score(0.5)
    results.add(runs[1], {'scores': {'svm/accuracy': score, 'svm/folds': []}})
    self.assertEqual(
        results.markdown(),
        '| runs | svm/accuracy |\n| ---: | ---: |\n| 1 | 50.00 |',
    )
    again = results_lib.SweepResults(root, runs)
    self.assertIn(runs[1], again)
    self.assertNotIn(runs[0], again)
    self.assertEqual(again.csv(), results.csv())
    self.assertEqual(again.markdown(), results.markdown())


class CommandTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # Each compiles; several are as good as all.
    two = jax.local_devices()[:2]
    self.enter_context(mock.patch.object(jax, 'local_devices', lambda **_: two))
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
        '--sweep.seed=0:6',
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
                for p in (self.workdir / 'runs').glob('*.json')}  # fmt: skip
    self.assertBetween(len(finished), 1, 11)

    process = self._start(*flags)
    out, err = process.communicate()
    self.assertEqual(process.returncode, 0, err)
    self.assertIn(f'{12 - len(finished)} of 12 runs to train', err)
    self.assertRegex(out, r'\| 2\.0 \| 6 \| \d+\.\d\d ± \d+\.\d\d \|')
    for path, written in finished.items():
      self.assertEqual(path.stat().st_mtime_ns, written)


class ConfigTest(absltest.TestCase):

  def test_values_of_any_kind_are_set_in_a_copy(self):
    config = ml_collections.ConfigDict({'a': {'b': 1.0}, 'c': 2})
    copy = fields_lib.with_values(config, {'a.b': np.float32(3), 'c': 'word'})
    self.assertEqual((copy.a.b, copy.c), (3, 'word'))
    self.assertEqual((config.a.b, config.c), (1.0, 2))
