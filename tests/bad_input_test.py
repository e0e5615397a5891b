# SPDX-License-Identifier: Apache-2.0
"""Bad input on the command line: one line, status 2, and nothing written.

Here is what a user can give to a command: flags, configurations, directories of
runs, files of data. What the library says of the same is tested where it is:

* arguments of losses: arguments_test, and at random fuzz_test;
* values of configurations: limits_test, sweep_test, and at random fuzz_test;
* batches and devices: limits_test, graph_loop_test, sentence_loop_test;
* files of data: prepare_test, image_folder_test, data_images_test,
  data_graphs_test, sentence_data_test, sentence_tasks_test, word_vectors_test;
* directories of runs and checkpoints: workdir_test, checkpoint_test, loop_test.
"""

import contextlib
import io

from absl.testing import parameterized
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow_datasets as tfds

from hcl_jax import prepare
from hcl_jax.graphs import config as graph_config
from hcl_jax.images import data as image_data
from hcl_jax.runs import checkpoint
from hcl_jax.runs import workdir as workdir_lib
from tests.support import commands
from tests.support import tu

_IMAGES = f'--config={commands.ROOT}/configs/digits.py:hard'
_GRAPHS = f'--config={commands.ROOT}/configs/graphs.py:tu_graphs/TOY'
_MOCO = f'--config={commands.ROOT}/configs/moco_cifar10.py'
_TEXT = f'--config={commands.ROOT}/configs/sentences.py'
_TRAIN = _IMAGES, '--workdir=run', '--config.data.name=mine'
_SWEEP = *_TRAIN, '--config.data.batch_size=10'
_ALL = 'train', 'sweep', 'evaluate', 'analyze', 'prepare', 'nearest', 'bench'

_root = None


@pytest.fixture(scope='module', autouse=True)
def _shared(tmp_path_factory):
  global _root
  _root = tmp_path_factory.mktemp('bad_input').resolve()
  tfds.disable_progress_bar()
  with contextlib.redirect_stdout(io.StringIO()):
    _write_data()
  _write_runs()


def _write_data():
  """Two prepared data sets, and files that cannot become one."""
  pixels = np.zeros((30, 8, 8, 3), np.uint8)
  for folder, images, labels in (
      ('arrays', pixels, np.arange(30) % 3),
      ('no_images', pixels[:0], np.zeros(0, int)),
      ('flat_images', pixels[:, :0], np.zeros(30, int)),
      ('float_images', pixels / 255, np.zeros(30, int)),
      ('few_labels', pixels, np.zeros(29, int)),
      ('large_labels', pixels, np.full(30, 10**9)),
      ('low_labels', pixels, np.full(30, -2)),
      ('objects', np.array([{}]), np.zeros(1, int)),
  ):
    (_root / folder).mkdir()
    for split in ('train', 'test'):
      np.save(_root / folder / f'{split}_images.npy', images)
      np.save(_root / folder / f'{split}_labels.npy', labels)
  (_root / 'empty_file').mkdir()
  (_root / 'empty_file' / 'train_images.npy').touch()
  (_root / 'empty').mkdir()
  (_root / 'broken').mkdir()
  (_root / 'broken' / 'x.png').write_text('no image')
  (_root / 'a_file').write_text('nothing')
  (_root / 'blank.txt').write_text('\n\n')
  (_root / 'latin.txt').write_bytes(b'caf\xe9\n')
  (_root / 'not.txt.gz').write_text('nothing')
  tu.write_graphs(_root / 'TOY', tu.random_graphs(40))
  tu.write(_root / 'lonely', A='')
  tu.write(_root / 'nowhere', A='1, 99\n')
  tu.write(_root / 'gap', graph_indicator='1\n1\n3\n')
  prepare.prepare('mine', data_dir=_root / 'data', arrays=_root / 'arrays')
  prepare.prepare(
      'tu_graphs/TOY', data_dir=_root / 'data', graphs=_root / 'TOY'
  )
  # What is kept of images beside them is none of the writing to be found.
  for split in ('train', 'test'):
    image_data.load('mine', split, data_dir=_root / 'data')


def _write_runs():
  """Directories of runs that something is the matter with."""
  for name, text in (
      ('cut_config', '{"task": '),
      ('list_config', '[]'),
      ('deep_config', '[' * 100_000),
      ('later_config', '{"format": 99}'),
      ('no_task', '{}'),
      ('unknown_task', '{"task": "supervised"}'),
      ('odd_group', '{"task": "simclr", "data": 5}'),
      ('odd_field', '{"task": "simclr", "seed": "five"}'),
      ('odd_tuple', '{"task": "simclr", "compare": 5}'),
  ):
    (_root / name).mkdir()
    (_root / name / 'config.json').write_text(text)
  config = graph_config.infograph()
  config.data.name = 'tu_graphs/TOY'
  config.evaluate.folds = 4
  config.model.update({'width': 2, 'num_layers': 1})
  for name in ('no_checkpoint', 'other_model'):
    workdir_lib.open_run(_root / name, config)
  with checkpoint.Checkpoints(_root / 'other_model' / 'checkpoints') as steps:
    steps.save(3, {'kernel': jnp.ones(3)}, wait=True)


def _run(module, *arguments):
  data_dir = str(_root / 'data')
  return commands.run(
      module, *arguments, folder=_root, TFDS_DATA_DIR=data_dir
  )


class BadInputTest(parameterized.TestCase):

  def check(self, message, module, *arguments):
    """Runs a command that must be refused."""
    before = _contents()
    done = _run(module, *arguments)
    self.assertEqual(done.status, 2, done.err)
    # What takes long is said on a slow machine.
    lines = [x for x in done.err.splitlines() if not x.endswith(' ...')]
    self.assertLen(lines, 1, done.err)
    self.assertStartsWith(lines[0], f'hcl_jax.{module}: ')
    self.assertRegex(done.err, message)
    self.assertNotIn('Traceback', done.err)
    self.assertEqual(_contents(), before)
    return done


def _contents():
  """All folders and files, but for those by which a workdir is locked."""
  paths = [
      path
      for path in _root.rglob('*')
      # Python keeps what it compiled of a configuration file, unless told not.
      if path.name != '.lock' and '__pycache__' not in path.parts
  ]
  return {path: path.read_bytes() if path.is_file() else '' for path in paths}


class FlagsTest(BadInputTest):

  @parameterized.parameters(*_ALL)
  def test_nothing_given(self, module):
    message = 'must be given|is needed|give --config|expected one sub-command'
    self.check(message, module)

  @parameterized.parameters(*_ALL)
  def test_unknown_flags(self, module):
    message = "Unknown command line flag 'wrokdir'"
    self.check(message, module, '--wrokdir=x')

  @parameterized.parameters(
      ('train', *_TRAIN),
      ('sweep', *_SWEEP, '--sweep.seed=0'),
      ('evaluate', '--workdir=no_checkpoint'),
      ('analyze', '--workdir=no_checkpoint'),
      ('nearest', '--workdir=no_checkpoint'),
      ('prepare', '--dataset=x'),
      ('bench',),
  )
  def test_stray_arguments(self, *command):
    self.check("unexpected argument 'stray'|got stray", *command, 'stray')

  @parameterized.parameters(
      ('train', _IMAGES),
      ('sweep', _IMAGES, '--sweep.seed=0'),
      ('evaluate',),
      ('analyze',),
      ('nearest',),
  )
  def test_a_workdir_without_a_name_is_not_the_folder_one_is_in(self, *command):
    self.check('--workdir=.*must be given', *command, '--workdir=')

  @parameterized.parameters(
      ('train', _IMAGES, '--workdir=gs://bucket/run'),
      ('train', _IMAGES, '--workdir=file:///tmp/run'),
      ('sweep', _IMAGES, '--sweep.seed=0', '--workdir=s3://bucket/run'),
      ('evaluate', '--workdir=gs://bucket/run'),
      ('evaluate', '--workdir=no_checkpoint', '--json=gs://bucket/x.json'),
      ('analyze', '--workdir=no_checkpoint,gs://bucket/run'),
      ('analyze', '--workdir=no_checkpoint', '--output=gs://bucket/run'),
      ('nearest', '--workdir=gs://bucket/run'),
      ('prepare', '--dataset=x', '--arrays=arrays', '--data_dir=gs://bucket'),
      ('prepare', '--dataset=x', '--arrays=gs://bucket/arrays'),
      ('bench', 'loss', '--json=gs://bucket/x.json'),
      ('train', *_TRAIN, '--config.data.dir=gs://bucket'),
  )
  def test_paths_that_are_not_local(self, *command):
    self.check('://.*must be a local path', *command)

  def test_a_variable_that_is_not_local(self):
    remote = {'folder': _root, 'TFDS_DATA_DIR': 'gs://bucket/data'}
    done = commands.run('prepare', '--dataset=mine', **remote)
    self.assertEqual(done.status, 2, done.err)
    self.assertIn('TFDS_DATA_DIR is gs://bucket/data: it must be', done.err)
    done = commands.run(
        'prepare', '--dataset=mine', '--data_dir=data', **remote
    )
    self.assertEqual(done.status, 0, done.err)
    self.assertIn("data_dir='data'", done.out)

  @parameterized.parameters(
      ('train', *_TRAIN, '--num_processes=two'),
      ('train', *_TRAIN, '--num_processes=2'),
      ('train', *_TRAIN, '--coordinator=here', '--num_processes=2',
       '--process_id=2'),
      ('train', *_TRAIN, '--profile_steps=9'),
      ('train', *_TRAIN, '--profile_steps=9:9'),
      ('sweep', *_SWEEP, '--sweep.seed=0', '--runs_per_device=0'),
      ('evaluate', '--workdir=no_checkpoint', '--seeds=one'),
      ('evaluate', '--workdir=no_checkpoint', '--seeds='),
      ('evaluate', '--workdir=no_checkpoint', '--seeds=-1'),
      ('nearest', '--workdir=no_checkpoint', '--k=0'),
      ('prepare', '--dataset=x', '--images=empty', '--image_size=eight'),
      ('prepare', '--dataset=x', '--images=empty', '--image_size=0'),
      ('bench', 'loss', '--batch_sizes=none'),
  )  # fmt: skip
  def test_numbers_that_are_none_or_cannot_be(self, *command):
    self.check(r'process|profile|runs_per_device|eeds|--k|image_size|batch_siz',
               *command)  # fmt: skip


class ConfigTest(BadInputTest):

  @parameterized.parameters(
      ('loss.bta=1', 'no such field. Did you mean --config.loss.beta'),
      ('los.beta=1', 'no such field. Did you mean --config.loss.beta'),
      ('loss.beta=much', "config.loss.beta must be a number, got 'much'"),
      ('loss.beta="1"', 'config.loss.beta must be a number'),
      ('loss.beta', 'config.loss.beta has no value'),
      ('loss.beta=-1', 'config.loss.beta must be >= 0'),
      ('loss.beta=nan', 'config.loss.beta must be >= 0 and finite'),
      ('loss.beta=inf', 'config.loss.beta must be >= 0 and finite'),
      ('loss.tau_plus=1', r'config.loss.tau_plus must be in \[0, 1\)'),
      ('loss.tau_plus=-0.1', r'config.loss.tau_plus must be in \[0, 1\)'),
      ('loss.tau_plus=nan', r'config.loss.tau_plus must be in \[0, 1\)'),
      ('loss.temperature=0', 'config.loss.temperature must be > 0'),
      ('loss.temperature=-1', 'config.loss.temperature must be > 0'),
      ('loss.temperature=inf', 'config.loss.temperature must be > 0'),
      ('loss.floor=hard', "config.loss.floor must be one of 'sphere'"),
      ('loss.annealing=slow', 'config.loss.annealing must be one of'),
      ('loss.num_changes=0', 'config.loss.num_changes must be >= 1'),
      ('loss=1', 'config.loss: there is no such field'),
      ('loss..beta=1', 'config.loss..beta: there is no such field'),
      ('train.epochs=0', 'config.train.epochs must be >= 1'),
      ('train.epochs=-1', 'config.train.epochs must be >= 1'),
      ('train.epochs=1.5', "config.train.epochs must be an int, got '1.5'"),
      ('train.epochs=ten', "config.train.epochs must be an int, got 'ten'"),
      ('train.epochs=', "config.train.epochs must be an int, got ''"),
      ('train.microbatch_size=4', 'microbatch_size=4 does not divide'),
      ('data.batch_size=1', 'config.data.batch_size must be >= 2'),
      ('data.batch_size=31', 'batch_size must be at most 30, the images of'),
      ('data.train_split=most', "has the splits test, train.*got 'most'"),
      ('data.name=CIFAR-10', "dataset must be name.*got 'CIFAR-10'"),
      ('data.name=cifar10', 'python -m hcl_jax.prepare --dataset=cifar10'),
      ('data.name=digit_scenes/huge', 'has the configs full, tiny'),
      ('data.name=tu_graphs/TOY', 'has no images, only'),
      ('data.dir=empty', "'mine' is not prepared in empty"),
      ('model.name=vit', "config.model.name must be one of 'resnet10'"),
      ('optimizer.name=adma', "config.optimizer.name must be one of 'adam'"),
      ('augment.scale=(2, 1)', 'config.augment: scale must be two numbers'),
      ('evaluate.protocols=svm', 'config.evaluate.protocols must be a tuple'),
      ('evaluate.linear_seeds=()', 'linear_seeds must be one or more'),
      ('evaluate.linear_seeds=(-1,)', 'linear_seeds must be one or more'),
      ('evaluate.linear_seeds=(0.5,)', 'linear_seeds must be ints between'),
      ('evaluate.linear_decay_epochs=(0,)', 'linear_decay_epochs must be'),
      ('compare=soft', 'config.compare must be a tuple of'),
      ('seed=-1', r'config.seed must be in \[0, '),
      (f'seed={"9" * 400}', r'config.seed must be in \[0, '),
  )
  def test_values(self, value, message):
    self.check(
        message, 'train', *_TRAIN, '--config.data.batch_size=30',
        f'--config.{value}',
    )  # fmt: skip

  @parameterized.parameters(
      (_MOCO, '--config.moco.queue_size=9', 'queue_size must be at least'),
      (_MOCO, '--config.mochi.num_mixed=9', 'give it and one of these'),
      (_GRAPHS, '--config.data.batch_size=39', 'a last batch of one graph'),
      (_GRAPHS, '--config.evaluate.folds=30', 'evaluate.folds must be at most'),
      (_GRAPHS, "--config.evaluate.fold_seeds=('a',)", 'fold_seeds must be'),
      (_GRAPHS, '--config.loss.variant=hard', 'variant must be one of'),
      (_TEXT, '--config.loss.window=200', r'at least 2 \* config.loss.window'),
      (_TEXT, '--config.model.encoder=lstm', 'encoder must be one of'),
      (_TEXT, '--config.evaluate.tasks=([],)', 'tasks must be one or more'),
      (_TEXT, '--config.data.name=nothing', 'hcl_jax.prepare.*--text=FILE'),
  )
  def test_other_tasks(self, config, flag, message):
    self.check(message, 'train', config, '--workdir=run', flag)

  @parameterized.parameters(
      ('nothing.py', 'nothing.py'),
      ('empty', "no file 'empty'"),
      ('a_file', 'a_file|nothing'),
      (f'{commands.ROOT}/configs/digits.py:soft', "debiased, hard; got 'soft'"),
      (f'{commands.ROOT}/configs/graphs.py:MUTGA', "one of MUTAG.*'MUTGA'"),
  )
  def test_files(self, file, message):
    self.check(message, 'train', f'--config={file}', '--workdir=run')

  @parameterized.parameters(
      ('', 'nothing to sweep'),
      ('--sweep.loss.bta=1', 'Did you mean loss.beta'),
      ('--sweep.seed', 'has no values'),
      ('--sweep.seed=', 'must be integers'),
      ('--sweep.seed=one', "must be integers between commas, got 'one'"),
      ('--sweep.seed=0,0', 'has the value 0 twice'),
      ('--sweep.seed=3:3', 'has no values'),
      ('--sweep.seed=0:99999999', 'has too many values'),
      ('--sweep.loss.beta=0,-1', 'config.loss.beta must be >= 0'),
      ('--sweep.loss.beta=nan', 'config.loss.beta must be >= 0'),
      ('--sweep.compare=hard', 'this field holds a tuple'),
      ('--sweep.data.name=mine,other', "'other' is not prepared"),
      ('--sweep.data.batch_size=10,31', 'batch_size must be at most 30'),
  )
  def test_sweeps(self, flag, message):
    self.check(message, 'sweep', *_SWEEP, *filter(None, [flag]))


class RunsTest(BadInputTest):

  @parameterized.product(
      module=('evaluate', 'analyze', 'nearest'),
      run=(
          ('nothing', 'there is no run in nothing'),
          ('a_file', 'there is no run in a_file'),
          ('cut_config', 'config.json cannot be read'),
          ('list_config', 'config.json cannot be read'),
          ('deep_config', 'config.json cannot be read'),
          ('later_config', 'config.json has format 99, .* up to 1; upgrade'),
          ('no_task', 'config.task must be one of'),
          ('unknown_task', 'config.task must be one of'),
          ('odd_group', 'config.data must be a group of fields, got 5'),
          ('odd_tuple', 'config.compare must be a tuple, got 5'),
          ('no_checkpoint', "no checkpoint yet|'nearest'; got one of 'graphs'"),
      ),
  )
  def test_directories_that_hold_no_run(self, module, run):
    workdir, message = run
    self.check(message, module, f'--workdir={workdir}')

  @parameterized.parameters(
      ('a_file', 'must be a directory, but .*a_file is a file'),
      ('a_file/run', 'cannot be written'),
      ('/dev/full/run', 'cannot be written'),
      ('cut_config', 'config.json cannot be read'),
      ('later_config', 'config.json has format 99, .* up to 1; upgrade'),
      ('other_model', 'holds a run with another configuration: .*augment'),
  )
  def test_directories_that_cannot_be_trained_in(self, workdir, message):
    arguments = f'--workdir={workdir}', '--config.data.batch_size=10'
    for command in ('train',), ('sweep', '--sweep.seed=0'):
      self.check(message, *command, *_TRAIN, *arguments)

  @parameterized.parameters(
      ('--step=4', r"'last', 'best' or one of \[3\], got '4'"),
      ('--step=first', "got 'first'"),
      ('--step=best', 'no step of this run was evaluated'),
      ('--protocol=knn', "a tuple of 'svm', 'logistic', got"),
      ('--protocol=', 'give --protocol'),
      ('--protocol=sentences', "a tuple of 'svm', 'logistic', got"),
      ('--tasks=MR', "--tasks is not a flag for runs of .*'graphs'"),
      ('--data_dir=empty', 'is not prepared in empty'),
      ('--json=nothing/x.json', 'nothing is no folder that can be written'),
      ('--json=empty', '--json must be a file'),
      ('--step=3', 'holds another model: step is absent in the checkpoint'),
  )
  def test_evaluating(self, flag, message):
    self.check(message, 'evaluate', '--workdir=other_model', flag)

  def test_analyzing(self):
    self.check('--output=FOLDER is needed', 'analyze', '--workdir=a,b')
    self.check(
        'config.seed must be|no checkpoint', 'analyze', '--workdir=odd_field'
    )
    self.check('config.seed must be', 'evaluate', '--workdir=odd_field')

  def test_damaged_data(self):
    for path in _root.glob('data/tu_graphs/TOY/1.0.0/*array_record*'):
      whole = path.read_bytes()
      self.addCleanup(path.write_bytes, whole)
      for part in (b'', whole[: len(whole) // 2]):
        path.write_bytes(part)
        self.check(
            'array_record.* is damaged .* prepare .* once more',
            'train', _GRAPHS, '--workdir=run',
        )  # fmt: skip


class PrepareTest(BadInputTest):

  def test_a_name_that_is_taken(self):
    self.check(
        "prepared already, from another source: path was '.*arrays' and is "
        "'.*TOY'.*Choose another name",
        'prepare', '--dataset=mine', '--arrays=TOY',
    )  # fmt: skip
    done = _run('prepare', '--dataset=mine', '--arrays=arrays')
    self.assertEqual(done.status, 0, done.err)

  @parameterized.product(dataset=('x', 'x/y'), data_dir=('data', 'new/data'))
  def test_a_broken_image_leaves_nothing_behind(self, dataset, data_dir):
    before = _contents()
    done = _run(
        'prepare', f'--dataset={dataset}', '--images=broken', '--image_size=8',
        f'--data_dir={data_dir}',
    )  # fmt: skip
    self.assertEqual(done.status, 2)
    last = done.err.splitlines()[-1]  # after the progress
    self.assertIn('1 unreadable image file: broken/x.png', last)
    self.assertEndsWith(last, '; --skip_unreadable omits such')
    self.assertEqual(_contents(), before)

  @parameterized.parameters(
      ('nothing', '', 'is not in the catalogue'),
      ('../x', '', 'dataset must be name'),
      ('MUTAG', '--text=blank.txt', '--text needs --dataset=sentences/NAME'),
      ('x', '--graphs=TOY', 'TOY must hold x_A.txt, but it holds TOY_A.txt'),
      ('x', '--cased', '--cased needs --dataset=sentences/NAME; got x, which'),
      ('MUTAG', '--image_size=8', 'got MUTAG, which takes its .* by --graphs'),
      ('x', '--domain=nowhere', "--domain must be one of 'images', .*nowhere"),
      ('x', '--domain=tests', "a module 'prepare'; got 'tests'"),
      ('x', '--domain=hcl_jax.training', "a module 'prepare'; got 'hcl_jax.t"),
      ('x', '--arrays=nothing', 'there is no folder nothing'),
      ('x', '--arrays=a_file', 'there is no folder a_file'),
      ('x', '--arrays=empty', 'empty must hold train_images.npy'),
      ('x', '--arrays=empty_file', 'is not a plain .npy array'),
      ('x', '--arrays=objects', 'is not a plain .npy array'),
      ('x', '--arrays=no_images', 'holds no image'),
      ('x', '--arrays=flat_images', 'holds no image'),
      ('x', '--arrays=float_images', 'must be uint8 .* got float64'),
      ('x', '--arrays=few_labels', r'must be integers \[30\]'),
      ('x', '--arrays=low_labels', '-1 or more'),
      ('x', '--arrays=large_labels', 'number the classes through'),
      ('x', '--images=nothing', 'there is no folder nothing'),
      ('x', '--images=a_file', 'there is no folder a_file: it is a file; unpa'),
      ('x', '--images=empty', 'empty holds no images'),
      ('cifar10', '--images=empty', 'names a known data set'),
      ('tu_graphs/TOY2', '--graphs=nothing', 'no file or folder nothing'),
      ('tu_graphs/TOY2', '--graphs=a_file', 'is no zip archive'),
      ('tu_graphs/TOY2', '--graphs=TOY', 'must hold TOY2_A.txt'),
      ('tu_graphs/TOY:2.0.0', '--graphs=lonely', 'TOY_A.txt is empty'),
      ('tu_graphs/TOY:2.0.0', '--graphs=nowhere', 'names node 99'),
      ('tu_graphs/TOY:2.0.0', '--graphs=gap', 'count graphs from 1 upwards'),
      ('sentences/x', '', 'takes its text by --text'),
      ('sentences/x', '--text=nothing.txt', 'no file or folder nothing.txt'),
      ('sentences/x', '--text=empty', 'must hold text files'),
      ('sentences/x', '--text=blank.txt', 'holds no sentence'),
      ('sentences/x', '--text=latin.txt', 'text in UTF-8, but line 1 is not'),
      ('sentences/x', '--text=not.txt.gz', 'is damaged, or not a .gz file'),
  )
  def test_data(self, dataset, flag, message):
    flags = list(filter(None, [flag]))
    self.check(message, 'prepare', f'--dataset={dataset}', *flags)
