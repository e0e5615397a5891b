# SPDX-License-Identifier: Apache-2.0
"""SimCLR and MoCo as tasks: what meets what, on one device."""

from absl.testing import absltest
from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np

import hcl_jax
from hcl_jax.images import config as image_config
from hcl_jax.images import task as image_tasks
from hcl_jax.training import task as task_lib
from tests.support import tiny

_ROWS = 8
_KEY = jax.random.key(5)


def _embed(task, batch, params=None, state=None):
  if params is None:
    params, state = task.init(jax.random.key(0), batch)
  rows = jnp.arange(_ROWS, dtype=jnp.int32)
  embeddings, state = jax.jit(task.embed)(params, state, batch, _KEY, rows)
  return params, embeddings, state


class RowKeysTest(absltest.TestCase):

  def test_keys_depend_on_the_row_alone(self):
    rows = jnp.arange(_ROWS, dtype=jnp.int32)
    all_keys = jax.random.key_data(task_lib.row_keys(_KEY, rows, 2))
    some = jax.random.key_data(task_lib.row_keys(_KEY, rows[3:5], 2))
    np.testing.assert_array_equal(all_keys[3:5], some)
    flat = {tuple(map(int, key)) for key in all_keys.reshape(-1, 2)}
    self.assertLen(flat, 2 * _ROWS)


class TransformerTest(absltest.TestCase):

  def test_evaluated_images_may_have_another_size(self):
    config = image_config.simclr()
    config.update_from_flattened_dict(
        {'model.name': 'vit_tiny', 'augment.size': 8}
    )
    batch = {'image': np.zeros((2, 12, 12, 3), np.uint8)}
    shapes = []
    for size in (0, 16):
      config.evaluate.image_size = size
      task = image_tasks.create(config, total_steps=1, steps_per_epoch=1)
      params, state = jax.eval_shape(task.init, _KEY, batch)
      shapes.append(jax.tree.map(lambda x: x.shape, params))
      features = jax.eval_shape(task.features, params, state, batch)
      self.assertEqual(features.shape, (2, 128))
    self.assertEqual(*shapes)


class SimclrTest(parameterized.TestCase):

  def test_views_of_an_image_are_its_own(self):
    task = tiny.simclr_task(axis_name=None)
    batch = tiny.batch(_ROWS)
    params, (z1, z2), _ = _embed(task, batch)
    self.assertGreater(np.abs(z1 - z2).max(), 1e-3)
    batch['positive'] = batch['image'][::-1].copy()
    _, (same, other), _ = _embed(task, batch, params, task.init(_KEY, batch)[1])
    np.testing.assert_allclose(same, z1, rtol=1e-6)
    self.assertGreater(np.abs(other - z2).max(), 1e-3)

  def test_statistics_move_once_for_each_view(self):
    task = tiny.simclr_task(axis_name=None)
    batch = tiny.batch(_ROWS)
    params, _, state = _embed(task, batch)
    _, stats = task.init(jax.random.key(0), batch)
    keys = task_lib.row_keys(_KEY, jnp.arange(_ROWS, dtype=jnp.int32), 2)
    for i in (0, 1):
      views = tiny.augment(keys[:, i], batch['image'])
      _, stats = task.encoder.embed(params, stats, views)
    chex.assert_trees_all_close(state, stats, rtol=1e-5, atol=1e-6)

  def test_supervised_negatives_are_of_other_classes(self):
    batch = tiny.batch(_ROWS)
    knobs = {'temperature': 0.3, 'tau_plus': 0.1}
    task = tiny.simclr_task(axis_name=None, loss_options=knobs)
    _, z, state = _embed(task, batch)
    supervised = tiny.simclr_task(
        axis_name=None, loss_options=knobs, supervised_negatives=True
    )
    step = jnp.int32(0)
    for owner, labels in ((task, None), (supervised, batch['label'])):
      np.testing.assert_allclose(
          owner.loss(z, state, batch, step),
          hcl_jax.simclr_loss(*z, beta=1.0, labels=labels, **knobs),
          rtol=1e-6,
      )

  def test_beta_follows_its_schedule(self):
    beta = hcl_jax.schedules.anneal(2.0, 10, 2)
    task = hcl_jax_simclr(beta)
    batch = tiny.batch(_ROWS)
    _, z, state = _embed(task, batch)
    for step, expected in ((0, 2.0), (9, 1.0)):
      np.testing.assert_allclose(
          task.loss(z, state, batch, jnp.int32(step)),
          hcl_jax.simclr_loss(*z, beta=expected),
          rtol=1e-6,
      )
      metrics = task.metrics(z, batch, jnp.int32(step))
      self.assertEqual(metrics['beta'], expected)


  def test_a_share_of_negatives_takes_the_place_of_beta(self):
    batch, step = tiny.batch(_ROWS), jnp.int32(0)
    task = tiny.simclr_task(axis_name=None, effective_negatives=0.7)
    _, z, state = _embed(task, batch)
    np.testing.assert_allclose(
        task.loss(z, state, batch, step),
        hcl_jax.simclr_loss(*z, effective_negatives=0.7),
        rtol=1e-6,
    )
    shares = {'effective_negatives': np.float32(0.7)}
    self.assertEqual(task.metrics(z, batch, step), shares)
    task = tiny.moco_task(axis_name=None, effective_negatives=0.7)
    _, (q, k), state = _embed(task, batch)
    np.testing.assert_allclose(
        task.loss((q, k), state, batch, step),
        hcl_jax.moco_loss(q, k, state.queue.keys, effective_negatives=0.7),
        rtol=1e-6,
    )
    self.assertEqual(task.metrics((q, k), batch, step), shares)
    for name in ('simclr', 'moco'):
      config = getattr(image_config, name)()
      config.loss.effective_negatives = 0.7
      task = image_tasks.create(config, total_steps=10, steps_per_epoch=5)
      self.assertEqual(task.effective_negatives, 0.7)


def hcl_jax_simclr(beta):
  base = tiny.simclr_task(axis_name=None)
  return type(base)(base.encoder, beta, axis_name=None)


class MocoTest(parameterized.TestCase):

  def test_no_gradient_reaches_the_keys(self):
    task = tiny.moco_task(norm='group', axis_name=None)
    batch = tiny.batch(_ROWS)
    params, state = task.init(jax.random.key(0), batch)
    rows = jnp.arange(_ROWS, dtype=jnp.int32)

    def loss(params, key_params):
      embeddings, _ = task.embed(
          params, state._replace(key_params=key_params), batch, _KEY, rows
      )
      return task.loss(embeddings, state, batch, jnp.int32(0)).mean()

    to_query, to_key = jax.jit(jax.grad(loss, argnums=(0, 1)))(
        params, state.key_params
    )
    chex.assert_trees_all_equal(to_key, jax.tree.map(jnp.zeros_like, to_key))
    largest = max(np.abs(x).max() for x in jax.tree.leaves(to_query))
    self.assertGreater(largest, 0)

  def test_shuffling_changes_batch_statistics_only(self):
    batch = tiny.batch(_ROWS)
    plain, shuffled = (
        tiny.moco_task(norm='group', axis_name=None, shuffle=shuffle)
        for shuffle in (False, True)
    )
    _, (q1, k1), _ = _embed(plain, batch)
    _, (q2, k2), _ = _embed(shuffled, batch)
    np.testing.assert_allclose(q1, q2, rtol=1e-6)
    np.testing.assert_allclose(k1, k2, rtol=1e-5, atol=1e-6)

  def test_loss_masks_older_keys_of_the_own_image(self):
    batch = tiny.batch(_ROWS)
    task = tiny.moco_task(axis_name=None)
    params, (q, k), state = _embed(task, batch)
    state = task.update(params, state, (q, k), batch)
    where = np.asarray(state.queue.index)[None] != batch['index'][:, None]
    self.assertEqual((~where).sum(), _ROWS)
    np.testing.assert_allclose(
        task.loss((q, k), state, batch, jnp.int32(0)),
        hcl_jax.moco_loss(q, k, state.queue.keys, beta=0.2, where=where),
        rtol=1e-6,
    )
    unmasked = tiny.moco_task(axis_name=None, mask_own_image=False)
    np.testing.assert_allclose(
        unmasked.loss((q, k), state, batch, jnp.int32(0)),
        hcl_jax.moco_loss(q, k, state.queue.keys, beta=0.2),
        rtol=1e-6,
    )

  def test_mixed_keys_are_further_negatives_after_the_warmup(self):
    batch = tiny.batch(_ROWS)
    mixing = image_tasks.Mixing(4, 3, 2, warmup_steps=5)
    task = tiny.moco_task(axis_name=None, mixing=mixing)
    _, (q, k, mixed), state = _embed(task, batch)
    self.assertEqual(mixed.shape, (_ROWS, 5, 4))
    _, (same, _), _ = _embed(tiny.moco_task(axis_name=None), batch)
    np.testing.assert_allclose(q, same, rtol=1e-6)
    where = task._negatives(state, batch)
    for step, extra in ((4, None), (5, mixed)):
      np.testing.assert_allclose(
          task.loss((q, k, mixed), state, batch, jnp.int32(step)),
          hcl_jax.moco_loss(
              q, k, state.queue.keys, beta=0.2, where=where, extra=extra
          ),
          rtol=1e-6,
      )

  def test_update_averages_the_encoder_and_queues_the_keys(self):
    batch = tiny.batch(_ROWS)
    task = tiny.moco_task(axis_name=None)
    params, (q, k), state = _embed(task, batch)
    moved = jax.tree.map(lambda x: x + 1, params)
    new = task.update(moved, state, (q, k), batch)
    chex.assert_trees_all_close(
        new.key_params, jax.tree.map(lambda x: x + 0.1, params), atol=1e-6
    )
    unit = k / np.linalg.norm(k, axis=1, keepdims=True)
    np.testing.assert_allclose(new.queue.keys[:_ROWS], unit, rtol=1e-5)
    np.testing.assert_array_equal(new.queue.index[:_ROWS], batch['index'])
