# SPDX-License-Identifier: Apache-2.0
"""Training on pairs through the loop: scores, mining, resuming, embedding."""

import dataclasses
import os
import pathlib
import signal
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

import hcl_jax
from hcl_jax import domains
from hcl_jax import evaluation
from hcl_jax import train
from hcl_jax.pairs import nearest
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import comparison
from hcl_jax.sweeps import sweeping
from hcl_jax.training import encoder as encoder_lib
from hcl_jax.training import loop
from tests.support import looping
from tests.support import toy_pairs

_MINING = {
    'mining.every_epochs': 0.5,
    'mining.depth': 4,
    'mining.skip': 1,
    'data.num_negatives': 2,
}


def _experiment(data=None, **fields):
  return domains.make_experiment(
      toy_pairs.config(**fields), data=data or toy_pairs.columns()
  )


class LoopTest(looping.LoopTest):

  def test_trains_evaluates_and_writes(self):
    workdir = self.workdir()
    experiment = _experiment(**{
        'train.epochs': 30,
        'model.dim': 32,
        'model.token_dim': 32,
        'model.width': 64,
        'loss.beta': 0.0,
        'optimizer.learning_rate': 0.01,
        'evaluate.validation_every_epochs': 10.0,
    })
    before = experiment.evaluate(experiment.create_state())
    scores = loop.train(experiment, workdir)
    self.assertLess(before['test/MRR'], 0.2)
    self.assertGreater(scores['test/MRR'], 0.3)
    self.assertGreater(scores['test/group R@1'], scores['test/R@1'] - 1e-9)
    self.assertGreater(scores['validation/R@1'].error, 0)
    ranks = np.array(scores['test/ranks'])
    self.assertAlmostEqual(np.mean(ranks == 1), scores['test/R@1'])
    records = metrics_lib.read_metrics(workdir)
    scored = [r['step'] for r in records if 'validation/R@1' in r]
    per_epoch = experiment.steps_per_epoch
    self.assertEqual([x // per_epoch for x in scored], [10, 20, 30, 30])
    table = train.report(experiment, {'last step': scores})
    self.assertIn('scored against all 300 documents', table)
    self.assertNotIn('ranks', table)

  @parameterized.parameters({}, _MINING)
  def test_stopped_and_resumed_is_uninterrupted(self, **fields):
    self.check_resuming(_experiment(**fields))

  def test_mined_negatives_reach_the_batches(self):
    workdir = self.workdir()
    experiment = _experiment(**_MINING)
    seen = []

    def record(*given):
      for batch in experiment.batches(*given):
        seen.append(batch['negative'].shape[1])
        yield batch

    loop.train(dataclasses.replace(experiment, batches=record), workdir)
    half = experiment.refresh.every
    self.assertEqual(seen[:half], [0] * half)
    self.assertEqual(set(seen[half:]), {2})
    files = sorted((workdir / 'refreshed').glob('*.npz'))
    self.assertNotEmpty(files)
    mined = np.load(files[-1])['mined']
    self.assertEqual(mined.shape[1], 4)

  def test_a_damaged_file_of_mined_negatives(self):
    workdir = self.workdir()
    experiment = _experiment(**_MINING)

    def stops(first, num, *found):
      for step, batch in enumerate(experiment.batches(first, num, *found)):
        if found[0] is not None and step == 2:
          os.kill(os.getpid(), signal.SIGTERM)
        yield batch

    with self.assertRaises(loop.Interrupted):
      loop.train(dataclasses.replace(experiment, batches=stops), workdir)
    (path,) = (workdir / 'refreshed').glob('*.npz')
    path.write_bytes(b'nothing')
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'cannot be read'):
      loop.train(experiment, workdir)

  def test_other_data_are_refused(self):
    workdir = self.workdir()
    loop.train(_experiment(), workdir)
    other = _experiment(toy_pairs.columns(seed=1))
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'data_digest'):
      loop.train(other, workdir)

  def test_a_division(self):
    first, second = (
        _experiment(**{'data.division': division}).data.pairs.parts
        for division in (0, 1)
    )
    for name, part in first.items():
      self.assertLen(second[name].query, len(part.query))
      self.assertNotEqual(set(part.query), set(second[name].query))

  def test_a_sweep(self):
    self.enter_context(
        mock.patch.object(
            domains, 'make_experiment',
            lambda config, **kw: _make(config, **kw),
        )
    )  # fmt: skip
    sweep = sweeping.Sweep(
        toy_pairs.config(**{'train.epochs': 1}),
        {'loss.beta': (0.0, 1.0), 'loss.temperature': (0.1, 0.2)},
    )
    results = sweep.run(self.workdir())
    self.assertLen(results, 4)
    self.assertIn('test/R@1', results.markdown())


_make_experiment = domains.make_experiment


def _make(config, **options):
  options = {k: x for k, x in options.items() if k != 'data'}
  data = None if options.get('like') else toy_pairs.columns()
  return _make_experiment(config, data=data, **options)


class ComparisonTest(looping.LoopTest):

  @parameterized.parameters(1, 2)
  def test_standard_and_hard(self, jobs):
    experiment = _experiment(**{
        'compare': ('standard', 'hard'),
        'compare_jobs': jobs,
        'loss.temperature': 0.2,
        'loss.standard_temperature': 0.1,
        'train.epochs': 10,
    })
    workdir = self.workdir()
    scores = comparison.compare(experiment, workdir)
    self.assertEqual(
        list(scores), ['tf-idf', 'untrained', 'standard', 'hard']
    )
    standard = workdir_lib.load_config(workdir / 'standard')
    self.assertEqual(standard.loss.temperature, 0.1)
    self.assertEqual(standard.loss.beta, 0)
    lines = comparison.closing_lines(experiment, scores, workdir, 'hcl_jax')
    text = '\n'.join(lines)
    self.assertRegex(text, r'hard - standard: R@1 [+-]\d+\.\d ± \d+\.\d, MRR')
    self.assertIn(f'hcl_jax analyze --workdir={workdir}', text)
    self.assertNotIn('tf-idf', text)
    self.assertEqual(comparison.compare(experiment, workdir), scores)

  def test_side_by_side_is_one_by_one(self):
    found = []
    for jobs in (1, 2):
      if jobs > len(jax.local_devices()):
        self.skipTest('one device')
      experiment = _experiment(**{
          'compare': ('standard', 'hard'), 'compare_jobs': jobs,
      })  # fmt: skip
      found.append(comparison.compare(experiment, self.workdir()))
    for name in ('standard', 'hard'):
      self.assertAlmostEqual(
          found[0][name]['test/MRR'], found[1][name]['test/MRR'], places=5
      )


class EncoderTest(looping.LoopTest):

  def setUp(self):
    super().setUp()
    self.run_dir = self.workdir()
    self.experiment = _experiment(**{'train.epochs': 10})
    loop.train(self.experiment, self.run_dir)
    self.pairs = self.experiment.data.pairs

  def test_embeds_queries_and_documents(self):
    encoder = hcl_jax.load(self.run_dir)
    state = self.last_state(self.experiment, self.run_dir)
    state = jax.device_put(state, jax.local_devices()[0])
    for side, items in (
        ('query', self.pairs.queries), ('document', self.pairs.documents)
    ):  # fmt: skip
      found = getattr(encoder, side)(items[:70])
      expected = self.experiment.data.embed(state, side, np.arange(70))
      np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
      np.testing.assert_allclose(
          getattr(encoder, side)(items[3:5]), expected[3:5], rtol=1e-4,
          atol=1e-5,
      )  # fmt: skip
      np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(
        encoder(self.pairs.documents[:3]),
        encoder.document(self.pairs.documents[:3]),
    )
    for bad in ('abc', [], [1], np.ones((2, 2))):
      with self.assertRaisesRegex(ValueError, 'items must be texts'):
        encoder.query(bad)

  def test_an_index(self):
    encoder = hcl_jax.load(self.run_dir)
    path = self.run_dir.parent / 'index.npz'
    texts = list(self.pairs.documents)
    line = encoder.embed_rows(texts, texts, path)
    self.assertIn('embeddings of 300 documents, 8 numbers each', line)
    index = encoder_lib.read_index(path, encoder)
    cosines, rows = evaluation.nearest_neighbors(
        index['embeddings'], encoder.query(self.pairs.queries[:5]), k=3
    )
    finder = nearest.Finder(
        self.experiment, loop_state(self.experiment, self.run_dir)
    )
    for row, query in enumerate(self.pairs.queries[:5]):
      found = finder.find(query, 3)
      self.assertEqual([x.text for x in found], list(index['names'][rows[row]]))
      np.testing.assert_allclose(
          [x.cosine for x in found], cosines[row], rtol=1e-5, atol=1e-6
      )
    with self.assertRaisesRegex(ValueError, 'made by another encoder'):
      other = dataclasses.replace(
          encoder, state=self.experiment.create_state()
      )
      encoder_lib.read_index(path, other)
    np.savez(path, embeddings=np.ones((2, 2)))
    with self.assertRaisesRegex(ValueError, 'is no index'):
      encoder_lib.read_index(path, encoder)

  def test_looks_among_other_texts(self):
    state = loop_state(self.experiment, self.run_dir)
    finder = nearest.Finder(
        self.experiment, state, texts=['CBA', 'FED', 'IHG'], max_sentences=2
    )
    found = finder.find('abc', 10)
    self.assertCountEqual([x.text for x in found], ['CBA', 'FED'])

  def test_a_sample_to_look_at(self):
    sample = self.experiment.inspect(
        loop_state(self.experiment, self.run_dir)
    )
    count = len(sample.items)
    self.assertLen(sample.embeddings, count)
    anchors, columns = sample.negatives.anchors, sample.negatives.items
    for row, (anchor, column) in enumerate(zip(anchors, columns, strict=True)):
      self.assertEqual(
          sample.items[anchor][::-1].upper(), sample.items[column]
      )
      self.assertFalse(sample.negatives.where[row, row])
    for ranking in sample.rankings:
      right = [x for x in ranking.found if x.mark == 'right']
      self.assertEqual(bool(right), ranking.rank <= len(ranking.found))
      for found in right:
        self.assertEqual(found.text, ranking.query[::-1].upper())
    self.assertNotEmpty(sample.rankings)

  def test_begins_another_run(self):
    fields = {'train.epochs': 1, 'train.init_from': str(self.run_dir)}
    experiment = _experiment(**fields)
    workdir = self.workdir()
    loop.train(experiment, workdir)
    other = _experiment(toy_pairs.columns(seed=1), **fields)
    loop.train(other, self.workdir())
    changed = _experiment(**{**fields, 'model.buckets': 256})
    with self.assertRaisesRegex(ValueError, 'its query is not that of toy'):
      loop.train(changed, self.workdir())


def loop_state(experiment, workdir: pathlib.Path):
  with looping.open_checkpoints(workdir, experiment) as checkpoints:
    return loop.restore(experiment, checkpoints)


if __name__ == '__main__':
  absltest.main()
