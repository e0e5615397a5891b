# SPDX-License-Identifier: Apache-2.0
"""Quick-thoughts as a task: loss, what is logged, features."""

from absl.testing import parameterized
import chex
import jax
import numpy as np

import hcl_jax
from hcl_jax.models import gru
from hcl_jax.sentences import config as sentence_config
from hcl_jax.sentences import data as sentence_data
from hcl_jax.sentences import task as quick_thoughts
from tests import reference
from tests.support import corpus

_STEP = np.int32(0)


def _task(beta=1.0, **knobs):
  module = gru.SentenceEncoders(49, word_dim=3, dim=4)
  return quick_thoughts.QuickThoughts(module, lambda step: beta, knobs)


def _batch(padding=0):
  """Sentences 3 to 11 of the toy, of two chapters, and rows of padding."""
  toy = corpus.sentences()
  return sentence_data.pack_sentences(
      corpus.tokens(toy, range(3, 12)),
      max_length=9,
      num_rows=9 + padding,
      segment=np.pad(toy.segments[3:12], (0, padding)),
      index=np.pad(np.arange(9), (0, padding), constant_values=-1),
  )


def _embed(task, batch, params=None):
  if params is None:
    params, state = jax.jit(task.init)(jax.random.key(0), batch)
    assert state == {}
    # Larger than at first, so that the loss is not that of equal scores.
    params = jax.tree.map(lambda x: 4 * x, params)
  return params, jax.jit(task.embed)(params, {}, batch, None, None)[0]


class QuickThoughtsTaskTest(parameterized.TestCase):

  @parameterized.parameters(
      (0.0, 0.0, 0, None), (2.0, 0.3, 0, 2.0), (2.0, 0.3, 4, None)
  )
  def test_loss_and_clamp_fraction_match_the_oracle(
      self, beta, tau_plus, padding, clip_scale
  ):
    knobs = {'tau_plus': tau_plus, 'clip_scale': clip_scale, 'floor': 'soft'}
    task, batch = _task(beta, **knobs), _batch(padding)
    _, embeddings = _embed(task, batch)
    left, right = (np.float64(z[:9]) for z in embeddings)
    knobs |= {'beta': beta, 'segments': batch.segment[:9]}
    losses = reference.quick_thoughts(left @ right.T, **knobs)
    np.testing.assert_allclose(
        jax.jit(task.loss)(embeddings, {}, batch, _STEP),
        np.mean(losses),
        rtol=1e-5,
    )
    metrics = jax.jit(task.metrics)(embeddings, batch, _STEP)
    self.assertEqual(metrics['beta'], beta)
    self.assertAlmostEqual(
        float(metrics['clamp_fraction']),
        reference.quick_thoughts_clamp_fraction(left @ right.T, **knobs),
        places=6,
    )

  def test_a_share_of_negatives_takes_the_place_of_beta_and_its_clip(self):
    config = sentence_config.quick_thoughts()
    config.update_from_flattened_dict({
        'loss.effective_negatives': 0.6, 'loss.tau_plus': 0.1, 'model.dim': 4,
        'model.word_dim': 3,
    })  # fmt: skip
    task = quick_thoughts.create(
        config, vocabulary_size=49, total_steps=90, steps_per_epoch=9
    )
    batch = _batch(padding=2)
    _, embeddings = _embed(task, batch)
    given = {
        'effective_negatives': 0.6, 'tau_plus': 0.1, 'floor': 'soft',
        'segments': batch.segment[:9],
    }  # fmt: skip
    both = [z[:9] for z in embeddings]
    np.testing.assert_allclose(
        jax.jit(task.loss)(embeddings, {}, batch, _STEP),
        np.mean(hcl_jax.quick_thoughts_loss(*both, **given)),
        rtol=1e-5,
    )
    metrics = jax.jit(task.metrics)(embeddings, batch, _STEP)
    self.assertEqual(metrics, {
        'effective_negatives': np.float32(0.6),
        'clamp_fraction': hcl_jax.quick_thoughts_clamp_fraction(*both, **given),
    })  # fmt: skip

  def test_features_are_both_embeddings_of_length_one(self):
    task, batch = _task(), _batch(padding=2)
    params, embeddings = _embed(task, batch)
    features = jax.jit(task.features)(params, {}, batch)
    left, right = (np.float64(z[:9]) for z in embeddings)
    expected = np.concatenate([
        z / np.linalg.norm(z, axis=1, keepdims=True) for z in (left, right)
    ], axis=1)  # fmt: skip
    np.testing.assert_allclose(features[:9], expected, rtol=1e-5)
    np.testing.assert_array_equal(features[9:], 0)

  def test_padding_changes_no_feature(self):
    task = _task()
    params, _ = _embed(task, _batch())
    chex.assert_trees_all_equal(
        task.features(params, {}, _batch(padding=3))[:9],
        task.features(params, {}, _batch()),
    )

  def test_created_by_configuration(self):
    config = sentence_config.quick_thoughts()
    config.update_from_flattened_dict({
        'loss.beta': 2.0, 'loss.annealing': 'down', 'loss.clip_scale': 0.0,
        'loss.window': 2, 'loss.stop_gradient_clip': True, 'model.dim': 6,
        'model.word_dim': 5,
    })  # fmt: skip
    task = quick_thoughts.create(
        config, vocabulary_size=7, total_steps=90, steps_per_epoch=9
    )
    self.assertEqual(task.module, gru.SentenceEncoders(7, 'gru', 5, 6))
    self.assertEqual(task.loss_options, {
        'tau_plus': 0.0, 'window': 2, 'self_pair': 'zero', 'floor': 'soft',
        'clip_scale': None, 'stop_gradient_clip': True,
    })  # fmt: skip
    expected = hcl_jax.schedules.anneal(2.0, 90, 9)
    for step in (0, 45, 89):
      self.assertEqual(task.beta(step), expected(step))
