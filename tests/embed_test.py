# SPDX-License-Identifier: Apache-2.0
"""Loading what was trained, embedding by it, and beginning runs with it."""

import json
import pathlib
import re
import tempfile
from unittest import mock

from absl.testing import absltest
import jax
import numpy as np
from PIL import Image

import hcl_jax
from hcl_jax import domains
from hcl_jax.graphs import config as graph_config
from hcl_jax.graphs import data as graph_data
from hcl_jax.graphs import encode as graph_encode
from hcl_jax.graphs import evaluate as graph_evaluate
from hcl_jax.images import config as image_config
from hcl_jax.images import data as image_data
from hcl_jax.images import evaluate as image_evaluate
from hcl_jax.images import experiment as image_experiment
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sentences import config as sentence_config
from hcl_jax.sentences import encode as sentence_encode
from hcl_jax.training import encoder as encoder_lib
from hcl_jax.training import loop
from hcl_jax.training import state as state_lib
from tests.support import corpus
from tests.support import looping
from tests.support import tiny
from tests.support import tu
from tests.support.toy import config as toy_config


def _images(num, seed):
  rng = np.random.default_rng(seed)
  array = rng.integers(0, 256, (num, 16, 16, 3), np.uint8)
  return image_data.Images(array, np.arange(num) % 2)


def _image_config(**fields):
  config = image_config.simclr()
  config.update_from_flattened_dict({
      'data.name': 'noise',
      'data.batch_size': 16,
      'augment.size': 16,
      'model.name': 'small',
      'model.head_width': 8,
      'model.embedding_dim': 4,
      'train.steps': 2,
      'evaluate.protocols': (),
      'evaluate.knn_every_epochs': 0.0,
      'evaluate.batch_size': 16,
      **fields,
  })
  return config


def _embed(workdir, source, output, step=None):
  """Does what the command does, whose flags are those of other commands."""
  encoder_lib.check_output(output)
  return hcl_jax.load(workdir, step).embed_file(source, output)


class ImagesTest(looping.LoopTest):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.run_of = pathlib.Path(folder.name) / 'run'
    cls.data = image_experiment.Data(
        _images(32, 0), _images(32, 0), _images(24, 1)
    )
    cls.experiment = image_experiment.from_images(_image_config(), cls.data)
    hcl_jax.fit(cls.experiment, cls.run_of)

  def _make(self, **fields):
    """Makes an experiment, as of a data set that is prepared."""
    with mock.patch.object(image_experiment, '_load', lambda _: self.data):
      return hcl_jax.make_experiment(_image_config(**fields))

  def test_embeds_what_evaluate_scores(self):
    encoder = hcl_jax.load(self.run_of)
    done = []
    found = encoder(self.data.test.array, progress=done.append)
    features = image_evaluate.Features(
        self.experiment.config, self.experiment.task
    )
    state = jax.device_put(self.last_state(self.experiment, self.run_of))
    np.testing.assert_array_equal(found, features(state, self.data.test))
    self.assertEqual(found.shape, (24, 256))
    self.assertEqual(done, [0, 16, 24])
    self.assertEqual(encoder.step, 2)
    self.assertEqual(encoder.config.model.name, 'small')
    views = self.experiment.task.encoder.normalize(self.data.test.array)
    own, _ = encoder.module.apply(encoder.variables, views, train=False)
    np.testing.assert_allclose(own, found, rtol=1e-4, atol=1e-5)
    self.assertIs(encoder.params, encoder.variables['params'])

  def test_the_readme_is_right(self):
    readme = pathlib.Path(__file__).parent.parent / 'README.md'
    blocks = re.findall(r'```python\n(.*?)```', readme.read_text(), re.DOTALL)
    blocks = [x for x in blocks if "'DIR'" in x]
    self.assertLen(blocks, 2)
    scope = {'hcl_jax': hcl_jax, 'images': self.data.test.array}
    for block in blocks:
      block = block.replace("'DIR'", repr(str(self.run_of)))
      with (
          mock.patch.object(image_experiment, '_load', lambda _: self.data),
          mock.patch.object(
              hcl_jax, 'read_config', lambda *_, **__: _image_config()
          ),
      ):  # fmt: skip
        exec(compile(block, str(readme), 'exec'), scope)  # noqa: S102
    self.assertEqual(scope['embeddings'].shape, (24, 256))
    self.assertEqual(list(scope['scores']), ['last step'])

  def test_files_of_any_size_and_what_is_none(self):
    folder = self.workdir()
    folder.mkdir()
    first = self.data.test.array[0]
    Image.fromarray(first).save(folder / 'same.png')
    Image.fromarray(np.zeros((40, 30, 3), np.uint8)).save(folder / 'black.jpg')
    (folder / 'notes.txt').write_text('no image')
    np.save(folder / 'images.npy', self.data.test.array[:3])
    output = folder / 'out.npz'
    line = _embed(self.run_of, folder, output)
    self.assertIn('embeddings of 2 images, 256 numbers each, by step 2', line)
    with np.load(output) as saved:
      self.assertEqual(saved['names'].tolist(), ['black.jpg', 'same.png'])
      by_file = saved['embeddings']
    encoder = hcl_jax.load(self.run_of)
    np.testing.assert_allclose(
        by_file[1], encoder(self.data.test.array[:1])[0], atol=1e-5
    )
    with Image.open(folder / 'black.jpg') as black:
      by_image = encoder([np.asarray(black), Image.fromarray(first)])
    np.testing.assert_array_equal(by_image, by_file)
    rows, names = encoder.read(folder / 'images.npy')
    self.assertEqual((len(rows), names), (3, ['0', '1', '2']))
    for rows, words in (
        (first, r'uint8 images \[n, 16, 16, 3\].*got uint8 \[16, 16, 3\]'),
        (np.zeros((2, 16, 16, 3)), 'got float64'),
        ([], 'one image or more'),
        ([folder / 'notes.txt'], 'notes.txt cannot be read as an image'),
    ):
      with self.assertRaisesRegex(ValueError, words):
        encoder(rows)
    with self.assertRaisesRegex(TypeError, r'rows\[1\] must be a PIL im'):
      encoder([first, first / 255])
    before = output.read_bytes()
    for given, words in (
        ({'source': 'nowhere'}, 'there is no file or folder nowhere'),
        ({'output': folder / 'out.csv'}, 'must end in .npz'),
        ({'output': folder / 'no/out.npz'}, 'no folder that can be'),
        ({'workdir': folder}, 'there is no run in'),
        ({'step': 7}, 'there is no checkpoint of step 7'),
    ):
      given = {'workdir': self.run_of, 'source': folder, 'output': output,
               **given}  # fmt: skip
      with self.assertRaisesRegex((ValueError, OSError), words):
        _embed(**given)
    self.assertEqual(output.read_bytes(), before)
    self.assertLen(list(folder.iterdir()), 5)

  def test_begins_with_the_parts_that_fit(self):
    source = str(self.run_of)
    experiment = self._make(**{
        'train.init_from': source, 'model.embedding_dim': 6, 'train.steps': 1,
        'optimizer.ema_decay': 0.5,
    })  # fmt: skip
    encoder = hcl_jax.load(source)
    state, line = experiment.begin(experiment.create_state())
    self.assertIn('begins with backbone of noise; fresh: head', line)
    params, stats = state.params, state.task_state['batch_stats']
    jax.tree.map(
        np.testing.assert_array_equal,
        (params['backbone'], stats['backbone'], state.ema_params),
        (encoder.params['backbone'],
         encoder.variables['batch_stats']['backbone'], params),
    )  # fmt: skip
    workdir = self.workdir()
    loop.train(experiment, workdir)
    config = workdir_lib.load_config(workdir)
    self.assertEqual(config.train.init_from, source)

  def test_refuses_before_anything_is_written(self):
    for fields, words in (
        ({'model.name': 'resnet10'}, 'no part of its encoder fits.*same model'),
        ({'train.init_from': '/nowhere'}, 'there is no run in /nowhere'),
    ):
      fields = {'train.init_from': str(self.run_of),
                'model.embedding_dim': 3, **fields}  # fmt: skip
      experiment, workdir = self._make(**fields), self.workdir()
      with self.assertRaisesRegex(
          workdir_lib.WorkdirError, f'config.train.init_from=.*{words}'
      ):
        loop.train(experiment, workdir)
      self.assertFalse(workdir.exists())

  def test_both_encoders_of_moco_begin_alike(self):
    task = tiny.moco_task()
    params, state = task.init(jax.random.key(0), tiny.batch(4))
    others = {'params': jax.tree.map(np.ones_like, params), **state.stats}
    new_params, new = task.with_variables(state, others)
    for tree in (new_params, new.key_params):
      jax.tree.map(np.testing.assert_array_equal, tree, others['params'])
    self.assertIs(new.queue, state.queue)


class GraphsTest(looping.LoopTest):

  def test_embeds_graphs_and_files_of_them(self):
    folder = self.workdir()
    folder.mkdir()
    tu.write(folder)
    graphs = graph_data.read_graphs(
        folder, graph_data.NodeFeatures('labels', 3, first_label=3)
    )
    config = graph_config.infograph()
    config.update_from_flattened_dict({
        'data.batch_size': 2, 'model.width': 4, 'model.num_layers': 2,
        'train.epochs': 1, 'evaluate.protocols': (),
    })  # fmt: skip
    with mock.patch.object(graph_data, 'load_graphs', lambda *_, **__: graphs):
      experiment = hcl_jax.make_experiment(config)
    workdir = self.workdir()
    hcl_jax.fit(experiment, workdir)
    encoder = hcl_jax.load(workdir)
    features = graph_evaluate.Features(experiment.task)
    expected = features(
        self.last_state(experiment, workdir), experiment.data.epoch
    )
    np.testing.assert_array_equal(encoder(graphs), expected)
    rows, names = encoder.read(folder)
    np.testing.assert_array_equal(encoder(rows), expected)
    self.assertLen(names, len(graphs))
    with self.assertRaisesRegex(ValueError, 'with 3 features.*got list'):
      encoder([1, 2])
    with self.assertRaisesRegex(ValueError, 'got 1 features'):
      encoder(tu.paths(np.array([9, 3])))

  def test_labels_that_training_did_not_see(self):
    folder = self.workdir()
    folder.mkdir()
    tu.write(folder)
    for first, words in ((5, 'labels of nodes must be among the 3'),
                         (None, 'prepare it anew')):  # fmt: skip
      features = graph_data.NodeFeatures('labels', 3, first_label=first)
      with self.assertRaisesRegex(ValueError, words):
        graph_data.read_graphs(folder, features)

  def test_graphs_made_in_python_cannot_be_read_from_files(self):
    graphs = tu.paths(np.array([3, 3]))
    inputs = workdir_lib.plain(graph_encode.inputs(graphs))
    parts = graph_encode.make(graph_config.infograph(), inputs)
    with self.assertRaisesRegex(ValueError, 'embed hcl_jax.graphs.Graphs in'):
      parts.read(pathlib.Path('x'))


class SentencesTest(looping.LoopTest):

  def setUp(self):
    super().setUp()
    corpus.patch(self)

  def test_embeds_sentences_and_guards_the_vocabulary(self):
    config = sentence_config.quick_thoughts()
    config.update_from_flattened_dict({
        'data.batch_size': 24, 'data.max_length': 10, 'model.encoder': 'bag',
        'model.word_dim': 6, 'model.dim': 8, 'train.steps': 1,
        'evaluate.retrieval_every_epochs': 0.0, 'evaluate.protocols': (),
        'evaluate.batch_size': 16,
    })  # fmt: skip
    experiment, workdir = hcl_jax.make_experiment(config), self.workdir()
    hcl_jax.fit(experiment, workdir)
    encoder = hcl_jax.load(workdir)
    words = experiment.data.train.vocabulary
    texts = [f'{a} {b}' for a in words.words[1:5] for b in words.words[1:6]]
    expected = sentence_encode.Embedder(experiment.task, config)(
        state_lib.evaluated_params(self.last_state(experiment, workdir)),
        [words.encode(text) for text in texts],
    )
    np.testing.assert_array_equal(encoder(texts), expected)
    path = self.workdir()
    path.write_text('\n'.join(texts[:2]) + '\n\n')
    rows, names = encoder.read(path)
    self.assertEqual(rows, texts[:2])
    self.assertEqual(names, texts[:2])
    for bad in ('a sentence', [], [3]):
      with self.assertRaisesRegex(ValueError, 'sequence of one or more'):
        encoder(bad)

    inputs = json.loads((workdir / 'inputs.json').read_text())
    inputs['vocabulary'][1:3] = inputs['vocabulary'][2:0:-1]
    (workdir / 'inputs.json').write_text(json.dumps(inputs))
    before = {path: path.read_bytes() for path in workdir.glob('*.json')}
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'vocabulary of inp'):
      loop.train(experiment, workdir)
    self.assertEqual(
        before, {path: path.read_bytes() for path in workdir.glob('*.json')}
    )
    config.train.init_from = str(workdir)
    other = hcl_jax.make_experiment(config)
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'its vocabulary is'):
      loop.train(other, self.workdir())


class LoadTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.workdir = pathlib.Path(folder.name) / 'run'

  def test_code_of_a_run_must_be_allowed(self):
    workdir_lib.open_run(self.workdir, toy_config.get_config())
    with self.assertRaisesRegex(
        ValueError, "config.domain='tests.support.toy'.*allow_code=True"
    ):
      hcl_jax.load(self.workdir)
    with self.assertRaisesRegex(FileNotFoundError, 'no checkpoint yet'):
      hcl_jax.load(self.workdir, allow_code=True)

  def test_a_comparison_holds_several_runs(self):
    config = image_config.simclr()
    config.compare = ('standard', 'hard')
    workdir_lib.open_run(self.workdir, config)
    with self.assertRaisesRegex(ValueError, 'standard, hard; give.*run/hard'):
      hcl_jax.load(self.workdir)

  def test_a_run_without_a_checkpoint(self):
    inputs = {'image_shape': [8, 8, 3]}
    workdir_lib.open_run(self.workdir, _image_config(), inputs=inputs)
    with self.assertRaisesRegex(FileNotFoundError, 'no checkpoint yet'):
      hcl_jax.load(self.workdir)

  def test_fields_of_a_named_configuration(self):
    config = hcl_jax.read_config('digits:hard', **{'loss.beta': 2})
    self.assertEqual(config.loss.beta, 2.0)
    domains.check(config)
    with self.assertRaisesRegex(ValueError, "'beta'. Did you mean loss.beta"):
      hcl_jax.read_config('digits:hard', beta=2)
    with self.assertRaisesRegex(ValueError, 'config.loss.beta'):
      hcl_jax.read_config('digits:hard', **{'loss.beta': 'high'})


if __name__ == '__main__':
  absltest.main()
