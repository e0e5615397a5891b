# SPDX-License-Identifier: Apache-2.0
"""The task of two towers: its loss, its temperature, what it embeds."""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

import hcl_jax
from hcl_jax import domains
from hcl_jax.pairs import config as pair_config
from hcl_jax.pairs import tables
from tests.support import toy_pairs

_NEGATIVES = [[f'other {i}', f'more {i}'][: i % 3] for i in range(300)]
_IDS = [i // 2 for i in range(300)]


def _experiment(data=None, **fields):
  config = toy_pairs.config(**fields)
  pair_config.check(config)
  return domains.make_experiment(config, data=data or toy_pairs.columns())


def _loss(experiment, step=0):
  """The losses of a first batch, and the embeddings they are of."""
  task, batch = experiment.task, experiment.batches.batch(0)
  state = experiment.create_state()

  def local(params, task_state, batch):
    embeddings, task_state = task.embed(
        params, task_state, batch, jax.random.key(0), batch['index']
    )
    losses = task.loss(embeddings, task_state, batch, step)
    return losses, embeddings, task.metrics(embeddings, batch, step)

  tree = jax.tree.map(
      lambda x: jnp.asarray(x)[None],
      (state.params, state.task_state, batch),
  )
  found = jax.vmap(local, axis_name=task.axis_name)(*tree)
  return *jax.tree.map(lambda x: np.asarray(x)[0], found), batch


class TwoTowersTest(parameterized.TestCase):

  @parameterized.parameters(
      {},
      {'bidirectional': False, 'tau_plus': 0.1},
      {'effective_negatives': 0.5},
      {'positive_weight': 0.5, 'margin': -0.1},
      {'margin': 0.05, 'relative_margin': True, 'floor': 'none'},
  )
  def test_is_the_loss_of_the_library(self, **loss):
    data = {**toy_pairs.columns(), 'negatives': _NEGATIVES, 'id': _IDS}
    experiment = _experiment(
        data,
        **{'data.num_negatives': 2},
        **{f'loss.{name}': x for name, x in loss.items()},
    )
    losses, embeddings, metrics, batch = _loss(experiment)
    margin = loss.pop('margin', None)
    if margin is not None:
      margin = hcl_jax.Margin(
          margin, relative=loss.pop('relative_margin', False)
      )
    if 'effective_negatives' in loss:
      self.assertEqual(metrics['effective_negatives'], 0.5)
    else:
      loss['beta'] = 1.0
      self.assertEqual(metrics['beta'], 1)
    expected = hcl_jax.in_batch_loss(
        embeddings['query'],
        embeddings['document'],
        negatives=embeddings['negative'],
        where=batch['where'],
        ids=batch['id'],
        margin=margin,
        **{'temperature': 0.1, 'bidirectional': True, 'tau_plus': 0.0, **loss},
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    self.assertTrue(batch['where'].any())
    self.assertFalse(batch['where'].all())

  def test_ids_are_compared_only_if_some_repeat(self):
    self.assertFalse(_experiment().task.has_repeats)
    data = {**toy_pairs.columns(), 'id': _IDS}
    self.assertTrue(_experiment(data).task.has_repeats)

  def test_a_learned_temperature(self):
    experiment = _experiment(
        **{'loss.learned_temperature': True, 'loss.temperature': 0.25}
    )
    losses, embeddings, metrics, _ = _loss(experiment)
    expected = hcl_jax.in_batch_loss(
        embeddings['query'], embeddings['document'], temperature=0.25,
        beta=1.0, tau_plus=0.0, bidirectional=True,
    )  # fmt: skip
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    self.assertAlmostEqual(float(metrics['temperature']), 0.25, places=6)
    state = experiment.create_state()
    programs = experiment.programs()
    for batch in experiment.batches(0, 3):
      state, metrics = programs.step(experiment.hyperparameters, state, batch)
    learned = experiment.task.temperature(state.params, state.task_state)
    self.assertNotAlmostEqual(float(learned), 0.25, places=4)
    self.assertGreaterEqual(float(learned), 0.01)

  def test_towers_are_two_or_one(self):
    params = _experiment().create_state().params
    self.assertEqual(set(params), {'query', 'document'})
    shared = _experiment(**{'model.shared': True}).create_state().params
    self.assertEqual(set(shared), {'query'})

  def test_features_are_of_length_one(self):
    experiment = _experiment()
    state = experiment.create_state()
    features = experiment.task.features(
        state.params, state.task_state, {'query': np.array([[1, 2], [-1, -1]])}
    )
    norms = np.linalg.norm(features, axis=1)
    np.testing.assert_allclose(norms[0], 1, rtol=1e-6)

  def test_microbatches_change_nothing(self):
    given = {'train.epochs': 1}
    states = []
    for size in (0, 2):
      experiment = _experiment(**given, **{'train.microbatch_size': size})
      state, programs = experiment.create_state(), experiment.programs()
      for batch in experiment.batches(0, 3):
        state, _ = programs.step(experiment.hyperparameters, state, batch)
      states.append(jax.device_get(state.params))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
        *states,
    )


class EncodersTest(parameterized.TestCase):

  @parameterized.parameters(*pair_config.ENCODERS['text'])
  def test_encoders_of_text_learn(self, name):
    self.enter_context(jax.numpy_dtype_promotion('standard'))
    experiment = _experiment(
        **{'model.encoder': name, 'model.heads': 2, 'model.layers': 1}
    )
    state, programs = experiment.create_state(), experiment.programs()
    losses = []
    for batch in experiment.batches(0, 16):
      state, metrics = programs.step(experiment.hyperparameters, state, batch)
      losses.append(float(metrics['loss']))
    self.assertTrue(np.isfinite(losses).all())
    if name != 'words':  # No word is known from another pair.
      self.assertLess(np.mean(losses[-3:]), np.mean(losses[:3]))

  @parameterized.parameters(
      ({'query': 'v', 'document': 'v'}, {'model.encoder': 'adapter'}),
      ({'query': 'i', 'document': 'i'}, {'model.encoder': 'small'}),
      ({'query': 't', 'document': 'v'}, {'model.document_encoder': 'adapter'}),
  )
  def test_other_items(self, kinds, fields):
    rng = np.random.default_rng(0)
    made = {
        'v': rng.standard_normal((300, 5), np.float32),
        'i': rng.integers(0, 256, (300, 16, 16, 3), np.uint8),
        't': toy_pairs.columns()['query'],
    }
    data = {side: made[kind] for side, kind in kinds.items()}
    experiment = _experiment(data, **fields)
    state, programs = experiment.create_state(), experiment.programs()
    batch = next(iter(experiment.batches(0, 1)))
    _, metrics = programs.step(experiment.hyperparameters, state, batch)
    self.assertTrue(np.isfinite(float(metrics['loss'])))

  @parameterized.parameters(
      ({'model.encoder': 'adapter'}, 'reads no text, of which the query is'),
      ({'model.document_encoder': 'small'}, 'model.document_encoder=.small'),
      ({'data.batch_size': 400}, 'batch_size must be 2 to 2'),
      ({'model.ngrams': (4, 2)}, 'least and the greatest length'),
      ({'mining.every_epochs': 1.0}, 'data.num_negatives must be 1 or more'),
      ({'mining.every_epochs': 1.0, 'data.num_negatives': 11},
       'mining.depth must be at least .*=11'),
      ({'loss.relative_margin': True}, 'loss.margin must be a number'),
      ({'optimizer.name': 'lars'}, 'optimizer.lazy must be False with'),
      ({'model.shared': True, 'model.document_encoder': 'gru'},
       "document_encoder must be ''"),
  )  # fmt: skip
  def test_bad_fields(self, fields, message):
    with self.assertRaisesRegex(ValueError, message):
      _experiment(**fields)

  def test_batches_that_do_not_divide(self):
    with self.assertRaisesRegex(ValueError, 'does not divide over 8 devices'):
      _experiment(**{'data.batch_size': 30})
    _experiment(**{
        'data.batch_size': 30, 'compare': ('standard', 'hard'),
        'compare_jobs': 2,
    })  # fmt: skip

  def test_a_part_that_is_not_there(self):
    parts = tables.divide(toy_pairs.columns(), test_share=0)
    with mock.patch.object(tables, 'divide', lambda *_: parts):
      with self.assertRaisesRegex(ValueError, "train, validation; got 'test'"):
        _experiment()
      fields = {'evaluate.protocols': ('validation',)}
      self.assertEqual(
          _experiment(**fields).num_scored, len(parts['validation'].ids)
      )

  def test_one_tower_needs_items_of_one_shape(self):
    data = {
        'query': np.ones((300, 3)) * np.arange(300)[:, None],
        'document': np.ones((300, 4)) * np.arange(300)[:, None],
    }
    with self.assertRaisesRegex(ValueError, r'one kind and shape.*3\].*4\]'):
      _experiment(
          data, **{'model.shared': True, 'model.encoder': 'adapter'}
      )


if __name__ == '__main__':
  absltest.main()
