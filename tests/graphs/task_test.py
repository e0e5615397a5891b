# SPDX-License-Identifier: Apache-2.0
"""InfoGraph as a task: loss, prior, padding, and runs of a sweep."""

from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np

import hcl_jax
from hcl_jax.graphs import config as graph_config
from hcl_jax.graphs import task as infograph
from hcl_jax.models import gin
from hcl_jax.models import graph_batch as graphs_lib
from hcl_jax.training import task as task_lib
from tests import reference
from tests.support import testing
from tests.support import tu

_KEY = jax.random.key(5)
_STEP = np.int32(0)


def _task(beta=1.0, **knobs):
  with_prior = knobs.get('prior_weight', 0) > 0
  module = gin.InfoGraph(gin.Gin(4, 2), with_prior)
  return infograph.InfoGraph(module, lambda step: beta, **knobs)


def _batch(more=0):
  graphs = tu.random_graphs()
  padding = graphs.padding(range(8))
  padding = graphs_lib.Padding(*(size + more for size in padding))
  return graphs.batch(range(8), padding)


def _embed(task, batch, params=None, state=None):
  if params is None:
    params, state = jax.jit(task.init)(jax.random.key(0), batch)
  rows = jnp.zeros(3, jnp.int32)
  embeddings, state = jax.jit(task.embed)(params, state, batch, _KEY, rows)
  return params, embeddings, state


class InfoGraphTaskTest(parameterized.TestCase):

  @parameterized.product(
      variant=('paper', 'released', 'infograph'), tau_plus=(None, 0.3)
  )
  def test_loss_is_that_of_heads(self, variant, tau_plus):
    task = _task(2.0, variant=variant, tau_plus=tau_plus)
    batch = _batch()
    _, (nodes, pooled, logits), state = _embed(task, batch)
    self.assertIsNone(logits)
    rows = np.repeat(batch.members, batch.member_counts)
    ids = np.repeat(batch.graph_ids, batch.member_counts)
    scores = np.float64(nodes[rows]) @ np.float64(pooled[:8]).T
    if tau_plus is None:
      tau_plus = 0.5 if variant == 'released' else 0.0
    self.assertLessEqual(
        testing.value_error(
            jax.jit(task.loss)((nodes, pooled, None), state, batch, _STEP),
            reference.infograph(scores, ids, 2.0, tau_plus, variant),
        ),
        1e-5,
    )

  def test_a_share_of_negatives_takes_the_place_of_beta(self):
    config = graph_config.infograph()
    config.update_from_flattened_dict({
        'loss.effective_negatives': 0.7, 'model.width': 4,
        'model.num_layers': 2,
    })  # fmt: skip
    task = infograph.create(config, total_steps=10, steps_per_epoch=5)
    batch = _batch(more=3)
    _, (nodes, pooled, logits), state = _embed(task, batch)
    rows = np.repeat(batch.members, batch.member_counts)
    ids = np.repeat(batch.graph_ids, batch.member_counts)
    expected = hcl_jax.infograph_loss(
        nodes[rows], pooled[:8], ids, effective_negatives=0.7
    )
    np.testing.assert_allclose(
        jax.jit(task.loss)((nodes, pooled, logits), state, batch, _STEP),
        expected,
        rtol=1e-5,
    )
    self.assertEqual(
        task.metrics((nodes, pooled, logits), batch, _STEP),
        {'effective_negatives': np.float32(0.7)},
    )

  def test_prior_matches_numpy(self):
    batch = _batch()
    task, plain = _task(prior_weight=0.25), _task()
    params, embeddings, state = _embed(task, batch)
    nodes, pooled, _ = embeddings
    with_prior = task.loss(embeddings, state, batch, _STEP)
    without = plain.loss((nodes, pooled, None), state, batch, _STEP)

    variables = {'params': params, **task.init(jax.random.key(0), batch)[1]}
    (features, *_), _ = task.module.apply(
        variables, batch, train=True, mutable=['batch_stats']
    )
    keys = task_lib.row_keys(_KEY, jnp.arange(8, dtype=jnp.int32), 1)[:, 0]
    noise = np.stack([jax.random.uniform(key, (8,)) for key in keys])
    self.assertTrue(np.all((noise >= 0) & (noise < 1)))

    def probability(x):
      logits = task.module.apply({'params': params}, x, method='discriminate')
      return 1 / (1 + np.exp(-np.float64(logits)))

    expected = -0.25 * (
        np.log(probability(noise)).mean()
        + np.log(1 - probability(features[:8])).mean()
    )
    self.assertAlmostEqual(float(with_prior - without), expected, places=4)

  def test_prior_trains_discriminator_and_encoder(self):
    batch = _batch()
    task = _task(prior_weight=0.1)
    params, state = task.init(jax.random.key(0), batch)

    def prior(params):
      embeddings, _ = task.embed(params, state, batch, _KEY, None)
      only = _task().loss((*embeddings[:2], None), state, batch, _STEP)
      return task.loss(embeddings, state, batch, _STEP) - only

    grads = jax.jit(jax.grad(prior))(params)
    for part in ('discriminator', 'encoder'):
      sizes = [np.abs(leaf).max() for leaf in jax.tree.leaves(grads[part])]
      self.assertGreater(max(sizes), 1e-4, part)

  @parameterized.parameters(0.0, 0.1)
  def test_padding_changes_neither_loss_nor_features(self, prior_weight):
    task = _task(prior_weight=prior_weight)
    batch = _batch()
    params, embeddings, state = _embed(task, batch)
    padded = _batch(more=7)
    _, other, other_state = _embed(
        task, padded, params, jax.jit(task.init)(jax.random.key(0), batch)[1]
    )
    chex.assert_trees_all_equal(other_state, state)
    np.testing.assert_allclose(
        jax.jit(task.loss)(other, state, padded, _STEP),
        jax.jit(task.loss)(embeddings, state, batch, _STEP),
        rtol=1e-5,
    )
    np.testing.assert_array_equal(
        task.features(params, state, padded)[:8],
        task.features(params, state, batch)[:8],
    )

  def test_features_are_the_encoder_in_evaluation_mode(self):
    batch = _batch()
    task = _task()
    params, _, state = _embed(task, batch)
    _, expected = gin.Gin(4, 2).apply(
        {'params': params['encoder'],
         'batch_stats': state['batch_stats']['encoder']},
        batch, train=False,
    )  # fmt: skip
    np.testing.assert_allclose(
        task.features(params, state, batch), expected, rtol=1e-6
    )

  def test_runs_of_a_sweep_are_single_runs(self):
    batch = _batch()

    def run(seed, beta, tau_plus):
      task = _task(beta, tau_plus=tau_plus, prior_weight=0.1)
      params, state = task.init(jax.random.key(seed), batch)

      def loss(params):
        embeddings, new = task.embed(
            params, state, batch, jax.random.key(seed), None
        )
        return task.loss(embeddings, new, batch, _STEP)

      return jax.value_and_grad(loss)(params)

    betas, taus = np.float32([0, 1, 10]), np.float32([0, 0.1, 0])
    runs = np.uint32([0, 1, 2]), betas, taus
    together = jax.jit(jax.vmap(run))(*runs)
    alone = jax.jit(run)
    for i, values in enumerate(zip(*runs, strict=True)):
      chex.assert_trees_all_close(
          jax.tree.map(lambda x, i=i: x[i], together), alone(*values),
          rtol=1e-4, atol=1e-4,
      )  # fmt: skip

  def test_created_by_configuration(self):
    config = graph_config.infograph()
    config.update_from_flattened_dict({
        'loss.variant': 'released', 'loss.prior_weight': 0.1,
        'loss.beta': 2.0, 'loss.annealing': 'down', 'model.width': 8,
    })  # fmt: skip
    task = infograph.create(config, total_steps=90, steps_per_epoch=9)
    self.assertEqual(task.module, gin.InfoGraph(gin.Gin(8, 3), with_prior=True))
    self.assertEqual((task.variant, task.tau_plus), ('released', None))
    expected = hcl_jax.schedules.anneal(2.0, 90, 9)
    for step in (0, 45, 89):
      self.assertEqual(task.metrics(None, None, step)['beta'], expected(step))
