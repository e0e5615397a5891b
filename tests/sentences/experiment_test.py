# SPDX-License-Identifier: Apache-2.0
"""Training on sentences through the loop: scores, resuming, what is written."""

import functools
import json
import pathlib
import shutil
import tempfile
from unittest import mock
import warnings

from absl.testing import parameterized
import jax
import numpy as np

from hcl_jax import domains
from hcl_jax import evaluation
from hcl_jax import train
from hcl_jax.models import packed_text as sentences
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import scores as scores_lib
from hcl_jax.sentences import config as sentence_config
from hcl_jax.sentences import data as sentence_data
from hcl_jax.sentences import encode as embedding
from hcl_jax.sentences import evaluate as sentence_evaluate
from hcl_jax.sentences import nearest
from hcl_jax.sentences import scored_tasks
from hcl_jax.sweeps import sweeping
from hcl_jax.training import header
from hcl_jax.training import loop
from hcl_jax.training import step as step_lib
from tests.support import corpus
from tests.support import looping
from tests.support import testing


def _config(epochs=6, **fields):
  config = sentence_config.quick_thoughts()
  config.update_from_flattened_dict({
      'data.batch_size': 24,
      'data.max_length': 10,
      'model.encoder': 'bag',  # compiles in less time
      'model.word_dim': 6,
      'model.dim': 8,
      'optimizer.learning_rate': 0.05,
      'train.epochs': epochs,
      'train.log_every_steps': 1,
      'train.checkpoint_every_epochs': 1.0,
      'evaluate.batch_size': 16,
      'evaluate.retrieval_every_epochs': 0.0,
      **fields,
  })
  return config


class SentenceTest(looping.LoopTest):

  def setUp(self):
    super().setUp()
    corpus.patch(self)

  def _experiment(self, **fields):
    return domains.make_experiment(_config(**fields))


class SentenceLoopTest(SentenceTest):

  @parameterized.parameters('gru', 'bag')
  def test_trains_evaluates_and_writes(self, encoder):
    workdir = self.workdir()
    experiment = self._experiment(**{
        'model.encoder': encoder,
        'loss.tau_plus': 0.05,
        'evaluate.retrieval_every_epochs': 2.0,
        'optimizer.ema_decay': 0.5,
    })
    self.assertEqual(experiment.total_steps, 18)
    before = experiment.evaluate(experiment.create_state(), ['retrieval'])
    scores = loop.train(experiment, workdir)
    gain = scores['retrieval/accuracy'] - before['retrieval/accuracy']
    self.assertGreater(gain, 0.1)
    self.assertLess(scores['retrieval/loss'], before['retrieval/loss'])
    records = metrics_lib.read_metrics(workdir)
    steps = [r for r in records if 'loss' in r]
    self.assertLen(steps, 18)
    losses = [r['loss'] for r in steps]
    self.assertLess(np.mean(losses[-4:]), np.mean(losses[:4]))
    for record in steps:
      self.assertBetween(record['clamp_fraction'], 0, 1)
      self.assertEqual(record['beta'], 1.0)
    scored = [r['step'] for r in records if 'retrieval/accuracy' in r]
    self.assertEqual(scored, [6, 12, 18, 18])
    with looping.open_checkpoints(workdir, experiment) as checkpoints:
      self.assertIn(checkpoints.best_step(), (6, 12, 18))
    table = train.report(experiment, {'last step': scores})
    self.assertRegex(table, '72 sentences, 18 steps of 24, seed 0; 72 valid')
    self.assertRegex(table, r'%  +\d\.\d{4} ± \d\.\d{4}\n')  # no share
    json.dumps(scores)

  def test_stopped_and_resumed_is_uninterrupted(self):
    self.check_resuming(self._experiment(epochs=4))

  def test_parts_of_an_epoch(self):
    workdir = self.workdir()
    experiment = self._experiment(epochs=2, **{
        'train.checkpoint_every_epochs': 0.34, 'train.keep_checkpoints': 9,
        'evaluate.retrieval_every_epochs': 0.7, 'evaluate.protocols': (),
    })  # fmt: skip
    self.assertEqual(loop.train(experiment, workdir), {})
    with looping.open_checkpoints(workdir, experiment) as checkpoints:
      self.assertEqual(checkpoints.steps(), [1, 2, 3, 4, 5, 6])
    records = metrics_lib.read_metrics(workdir)
    scored = [r['step'] for r in records if 'retrieval/accuracy' in r]
    self.assertEqual(scored, [2, 4, 6])

  def test_gradients_are_clipped_variable_by_variable(self):
    experiment = self._experiment(**{
        'optimizer.name': 'sgd', 'optimizer.momentum': 0.0,
        'optimizer.learning_rate': 1.0, 'optimizer.clip_each_norm': 1e-3,
    })  # fmt: skip
    state = experiment.create_state()
    before = jax.device_get(state.params)
    batch = next(experiment.batches(0, 1))
    take = experiment.programs().step
    state, _ = take(experiment.hyperparameters, state, batch)
    moved = jax.tree.map(
        lambda a, b: np.linalg.norm(a - b), before, jax.device_get(state.params)
    )
    norms = np.array(jax.tree.leaves(moved))
    self.assertLess(norms.max(), 1.02e-3)
    self.assertGreater(np.mean(norms > 0.98e-3), 0.4)

  def test_a_sweep_follows_in_sequence(self):
    workdir = self.workdir()
    config = _config(epochs=1)
    sweep = sweeping.Sweep(config, {'loss.beta': (0.0, 1.0)})
    results = sweep.run(workdir)
    self.assertLen(results, 2)
    self.assertIn('retrieval/accuracy', results.markdown())
    self.assertNotIn('retrieval/loss', results.markdown())
    self.assertIn('retrieval/loss', results.csv())

  def test_a_sweep_of_hyperparameters_compiles_once(self):
    one = jax.local_devices()[:1]
    self.enter_context(
        mock.patch.object(jax, 'local_devices', lambda **_: one)
    )
    values = {'loss.beta': (0.0, 1.0), 'optimizer.learning_rate': (0.1, 0.2)}
    counts = []
    for fields in ({'loss.beta': (0.0,)}, values):
      sweep = sweeping.Sweep(_config(epochs=1), fields)
      with mock.patch.object(
          step_lib, 'single_step', side_effect=step_lib.single_step
      ) as traced:
        results = sweep.run(self.workdir())
      self.assertLen(results, len(sweep.runs))
      counts.append(traced.call_count)
    self.assertEqual(counts[0], counts[1])
    self.assertGreater(counts[0], 0)

  def test_batches_that_do_not_fit_are_refused(self):
    with self.assertRaisesRegex(
        ValueError, "at most 72, .* config.data.train_split='train', got 73"
    ):
      self._experiment(**{'data.batch_size': 73})

  def test_several_processes_are_refused(self):
    with (
        mock.patch.object(jax, 'process_count', lambda: 2),
        self.assertRaisesRegex(ValueError, 'trains in one process, got 2'),
    ):
      self._experiment()


class SentenceReaderTest(SentenceTest):

  def test_features_are_in_the_order_given(self):
    experiment = self._experiment()
    state = experiment.create_state()
    given = corpus.tokens(experiment.data.train, [*range(40), 3])
    embed = embedding.Embedder(experiment.task, experiment.config)
    features = embed(state.params, [*given, []])
    self.assertEqual(features.shape, (42, 16))
    for row in (0, 17, 39):
      words = given[row][None]
      alone = sentences.pack(words, np.array([words.size]))
      np.testing.assert_allclose(
          features[row],
          experiment.task.features(state.params, {}, alone)[0],
          rtol=1e-5,
          atol=1e-6,
      )
    np.testing.assert_array_equal(features[40], features[3])
    self.assertAlmostEqual(np.sum(features[41] ** 2), 2, places=5)

  def test_a_text_with_less_validation_than_a_batch(self):
    sentences = [f'one two {i} three' for i in range(60)]  # 3 are held out
    experiment = domains.make_experiment(
        _config(**{'loss.window': 1}), data=sentences
    )
    held_out = len(experiment.data.validation)
    self.assertLess(held_out, 24)
    self.assertEqual(experiment.num_scored, held_out)
    self.assertStartsWith(
        header.lines(experiment)[-1], f'warning: only {held_out} sentences'
    )

  def test_retrieval_matches_loops(self):
    experiment = self._experiment(**{'evaluate.retrieval_batches': 2})
    state = experiment.create_state()
    # Larger than at first, so that some sentences find their neighbours.
    state = state.replace(params=jax.tree.map(lambda x: 9 * x, state.params))
    scores = experiment.evaluate(state, ['retrieval'])
    hits = []
    batches = sentence_data.SentenceBatches(
        experiment.data.validation, seed=0, batch_size=24
    )
    for number in range(2):
      batch = batches.batch(number)
      (left, right), _ = experiment.task.embed(
          state.params, {}, batch, None, None
      )
      for i in range(24):
        others = [j for j in range(24) if j != i]
        best = max(others, key=lambda j: np.dot(left[i], right[j]))  # noqa: B023
        same = batch.segment[i] == batch.segment[best]
        hits.append(abs(i - best) == 1 and same)
    self.assertBetween(np.mean(hits), 0.05, 0.95)
    self.assertAlmostEqual(
        scores['retrieval/accuracy'], np.mean(hits), places=6
    )


class SentenceTasksTest(SentenceTest):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    self.enter_context(warnings.catch_warnings())
    warnings.filterwarnings('ignore', '.* were published', UserWarning)

  def _tasks(self, **fields):
    corpus.write_tasks(self.root)
    return {'evaluate.tasks_dir': str(self.root), **fields}

  def test_a_run_is_scored_at_its_end(self):
    workdir = self.workdir()
    experiment = self._experiment(epochs=4, **self._tasks())
    scores = loop.train(experiment, workdir)
    numbers = scores_lib.of_numbers(scores)
    names = ('MR', 'CR', 'SUBJ', 'MPQA', 'TREC', 'MRPC')
    self.assertEqual(list(numbers), [
        'retrieval/accuracy', 'retrieval/loss',
        *(f'{name}/accuracy' for name in names), 'MRPC/f1',
    ])  # fmt: skip
    for name in names[:5]:
      self.assertGreater(scores[f'{name}/accuracy'], 0.65)
    self.assertBetween(scores['MRPC/f1'], 0.5, 1)
    folds = scores['MR/folds']
    self.assertLen(folds, 10)
    self.assertAlmostEqual(
        np.mean([fold['accuracy'] for fold in folds]), scores['MR/accuracy']
    )
    for choice in (folds[3], scores['TREC/choice'], scores['MRPC/choice']):
      self.assertIn(choice['c'], [2.0**k for k in range(9)])
    self.assertContainsSubset(numbers, metrics_lib.read_metrics(workdir)[-1])
    json.dumps(scores)

    x = experiment.data.tasks[4]
    self.assertEqual(x.name, 'TREC')
    encode = experiment.data.train.vocabulary.encode
    embed = embedding.Embedder(experiment.task, experiment.config)
    params = self.last_state(experiment, workdir).params
    alone = evaluation.sentence_scores(
        embed(params, [*map(encode, x.sentences)]), x
    )
    self.assertEqual(alone['accuracy'], scores['TREC/accuracy'])
    self.assertEqual(alone['c'], scores['TREC/choice']['c'])

  def test_tasks_of_choice(self):
    fields = self._tasks(**{'evaluate.tasks': ('MSRP', 'MR', 'MRPC')})
    shutil.rmtree(self.root / 'CR')
    experiment = self._experiment(**fields)
    self.assertEqual([x.name for x in experiment.data.tasks], ['MRPC', 'MR'])

  def test_an_older_run_gets_what_it_was_made_without(self):
    config = _config()
    del config.evaluate.tasks, config.evaluate.tasks_dir
    config.evaluate.batch_size = 7
    domains.fill_defaults(config)
    self.assertEqual(config.evaluate.batch_size, 7)
    self.assertLen(config.evaluate.tasks, 6)
    self.assertEmpty(domains.make_experiment(config).data.tasks)

  def test_tasks_are_not_needed(self):
    self.assertEmpty(self._experiment().data.tasks)

  def test_a_sweep_has_them_in_its_table(self):
    fields = self._tasks(**{'evaluate.tasks': ('TREC',)})
    sweep = sweeping.Sweep(
        _config(epochs=1, **fields),
        {'loss.beta': (0.0, 1.0), 'loss.tau_plus': (0.0, 0.01)},
    )
    results = sweep.run(self.workdir())
    self.assertLen(results, 4)
    self.assertIn('| retrieval/accuracy | TREC/accuracy |', results.markdown())

  @parameterized.parameters(
      ('evaluate.tasks_dir', 'nowhere', 'tasks_dir=.*nowhere.* no such folder'),
      ('evaluate.tasks_dir', '', r'must hold MR/rt-polarity.pos or downstream'),
      ('evaluate.word_vectors', 'v.txt', 'word_vectors=.*v.txt.* no such file'),
  )
  def test_what_is_missing_is_named_before_training(self, field, path, message):
    fields = {'evaluate.tasks_dir': str(self.root)}
    fields[field] = str(self.root / path)
    with self.assertRaisesRegex(FileNotFoundError, message):
      self._experiment(**fields)

  def test_what_is_no_file_of_vectors_is_told_of_before_training(self):
    path = self.root / 'vectors.txt'
    path.write_text('the quick brown fox\n')
    with self.assertRaisesRegex(ValueError, 'line 1 .* a word and 3 numbers'):
      self._experiment(**self._tasks(**{'evaluate.word_vectors': str(path)}))

  @parameterized.parameters('gru', 'bag')
  def test_word_vectors_make_words_known(self, encoder):
    experiment = self._experiment(**{'model.encoder': encoder})
    params = jax.device_get(experiment.create_state().params)
    tables = [params[side]['words'] for side in ('left', 'right')]
    # A linear function of both tables, so that the way back is exact.
    vectors = np.concatenate(tables, axis=1) @ np.float32(2 * np.eye(12) + 1)
    words = experiment.data.train.vocabulary.words
    lines = dict(zip(words, vectors, strict=True))
    lines |= {'new': lines['w7'], 'elsewhere': lines['w8']}
    path = self.root / 'vectors.txt'
    path.write_text(''.join(
        f'{word} {" ".join(map(str, vector))}\n'
        for word, vector in lines.items()
    ))  # fmt: skip
    task = scored_tasks.SentenceTask(
      'MR', ['w3 New w5', 'w3 w7 w5'], np.zeros(2)
    )
    encoders = sentence_evaluate.Encoders(
        experiment.task, params, experiment.data.train.vocabulary
    )
    config = experiment.config.copy_and_resolve_references()
    config.evaluate.word_vectors = str(path)
    expanded = sentence_evaluate.with_word_vectors(encoders, [task], config)
    self.assertEqual(expanded.vocabulary.words, [*words, 'new'])
    features = {}
    for name, x in {'before': encoders, 'after': expanded}.items():
      embed = embedding.Embedder(x.task, experiment.config)
      features[name] = embed(x.params, [*map(x.vocabulary.encode,
                                             task.sentences)])  # fmt: skip
    new, known = features['after']
    np.testing.assert_allclose(new, known, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(known, features['before'][1], atol=1e-6)
    self.assertGreater(np.abs(new - features['before'][0]).max(), 0.01)


  def test_word_vectors_raise_scores(self):
    fields = self._tasks(**{'evaluate.tasks': ('MR',)})
    for path in (self.root / 'MR').iterdir():
      path.write_text(path.read_text().replace('w', 'x'))  # all are unknown
    experiment = self._experiment(**fields)
    state = experiment.create_state()
    words = experiment.data.train.vocabulary.words[1:]
    vectors = testing.normal(len(words), 8)
    path = self.root / 'vectors.txt'
    path.write_text(''.join(
        f'{first}{word[1:]} {" ".join(map(str, vector))}\n'
        for word, vector in zip(words, vectors, strict=True)
        for first in 'wx'
    ))  # fmt: skip
    experiment.config.evaluate.word_vectors = str(path)
    after = experiment.evaluate(state, ['sentences'])
    experiment.config.evaluate.word_vectors = ''
    before = experiment.evaluate(state, ['sentences'])
    self.assertLess(before['MR/accuracy'], 0.55)
    self.assertGreater(after['MR/accuracy'], 0.65)


class FinderTest(SentenceTest):

  def test_finds_what_is_near(self):
    experiment = self._experiment()
    state = experiment.create_state()
    seen = []
    finder = nearest.Finder(experiment, state, progress=seen.append)
    self.assertEqual(finder.size, 72)
    self.assertEqual(seen, sorted(seen))
    self.assertEqual(seen[-1], 72)
    train = experiment.data.train
    text = train.text(40)
    found = finder.find(text, k=5)
    self.assertLen(found, 5)
    self.assertEqual(found[0].text, text)
    self.assertAlmostEqual(found[0].cosine, 1, places=5)
    cosines = [x.cosine for x in found]
    self.assertEqual(cosines, sorted(cosines, reverse=True))
    texts = [train.text(row) for row in range(72)]
    given = corpus.tokens(train, [40, texts.index(found[4].text)])
    embed = embedding.Embedder(experiment.task, experiment.config)
    features = embed(state.params, given)
    self.assertAlmostEqual(
        found[4].cosine, features[0] @ features[1] / 2, places=5
    )

  def test_looks_into_other_texts(self):
    experiment = self._experiment()
    texts = ['w1 w2', 'w9 nothing w11', 'w30']
    finder = nearest.Finder(
        experiment, experiment.create_state(), texts=texts, max_sentences=2
    )
    self.assertEqual(finder.size, 2)
    found = finder.find('w9 else w11')  # both words are unknown
    self.assertEqual([x.text for x in found], [texts[1], texts[0]])
    with self.assertRaisesRegex(ValueError, 'a sentence or more'):
      nearest.Finder(experiment, experiment.create_state(), texts=[])


class LoweringTest(SentenceTest):

  @parameterized.parameters('tpu', 'cuda')
  def test_the_step_lowers(self, platform):
    experiment = self._experiment(**{'model.encoder': 'gru'})
    take = functools.partial(step_lib.single_step, experiment.build)
    batch = next(experiment.batches(0, 1))
    with mock.patch.object(jax, 'default_backend', lambda: platform):
      exported = jax.export.export(
          jax.jit(take), platforms=[platform]
      )(experiment.hyperparameters, experiment.create_state(), batch)
    self.assertIn('stablehlo.scatter', exported.mlir_module())
