# SPDX-License-Identifier: Apache-2.0
"""The train step: devices, chunks, and what a step leaves behind."""

import dataclasses
import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

import hcl_jax
from hcl_jax.images import config as image_config
from hcl_jax.images import data as image_data
from hcl_jax.images import experiment as image_experiment
from hcl_jax.images import task as image_tasks
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib
from tests.support import tiny

_ROWS = 16


@functools.cache
def _run(make_task, norm, *, devices, steps=3, chunk=None, ema=False, **knobs):
  """Losses and the last state of a few steps of SGD."""
  task = make_task(norm=norm, **knobs)
  # SGD, because Adam hides a gradient that is n-fold.
  optimizer = optax.sgd(0.5, momentum=0.9)
  rules = step_lib.Rules(task, optimizer, seed=3, ema_decay=0.5)
  where = jax.local_devices()[:devices]
  take = step_lib.make_step(
      lambda _: rules, microbatch_size=chunk, devices=where
  )
  with jax.numpy_dtype_promotion('standard'):  # optax needs it
    state = state_lib.create(
        task, optimizer, tiny.batch(2), seed=3, with_ema=ema
    )
    state = jax.device_put(state, state_lib.replicated(where))
    losses = []
    for i in range(steps):
      state, metrics = take({}, state, tiny.batch(_ROWS, seed=i))
      losses.append(float(metrics['loss']))
  return losses, jax.device_get(state)


class DevicesTest(parameterized.TestCase):

  @parameterized.parameters('batch', 'group')
  def test_same_curve_on_any_number_of_devices(self, norm):
    run = functools.partial(
        _run, tiny.simclr_task, norm, cross_device=norm == 'batch'
    )
    one, state = run(devices=1)
    for devices in (2, 8):
      losses, other = run(devices=devices)
      np.testing.assert_allclose(losses, one, rtol=2e-6)
      chex.assert_trees_all_close(other.params, state.params, atol=1e-5)
      chex.assert_trees_all_close(
          other.task_state, state.task_state, rtol=1e-5, atol=1e-5
      )

  def test_statistics_per_device_are_averaged(self):
    one, _ = _run(tiny.simclr_task, 'batch', devices=1)
    four, state = _run(tiny.simclr_task, 'batch', devices=4)
    self.assertGreater(np.abs(np.subtract(one, four)).max(), 1e-4)
    chex.assert_tree_all_finite(state.task_state)

  def test_moco_is_the_same_on_devices(self):
    one, state = _run(tiny.moco_task, 'group', devices=1)
    four, other = _run(tiny.moco_task, 'group', devices=2)
    np.testing.assert_allclose(four, one, rtol=2e-6)
    chex.assert_trees_all_close(
        other.task_state.queue, state.task_state.queue, atol=2e-6
    )

  def test_the_state_stays_replicated_and_compiles_once(self):
    task = tiny.simclr_task()
    rules = step_lib.Rules(task, optax.identity(), seed=0)
    traced = chex.assert_max_traces(n=1)(task.loss)
    object.__setattr__(task, 'loss', traced)
    take = step_lib.make_step(lambda _: rules, devices=jax.local_devices())
    state = state_lib.create(task, rules.optimizer, tiny.batch(2), seed=0)
    state = jax.device_put(state, state_lib.replicated())
    for i in range(3):
      state, _ = take({}, state, tiny.batch(_ROWS, seed=i))
    self.assertEqual(int(state.step), 3)
    self.assertLen(state.step.sharding.device_set, 8)
    chex.assert_shape(state.step, ())


class RulesTest(absltest.TestCase):

  def test_seed_and_average_are_those_of_the_configuration(self):
    rows, task = tiny.batch(4), tiny.simclr_task()
    images = image_data.Images(rows['image'], rows['label'])
    data = image_experiment.Data(images, images, images)
    states = []
    for decay in (0.0, 0.5):
      config = image_config.simclr()
      config.update_from_flattened_dict({
          'seed': 3, 'data.batch_size': 4, 'optimizer.ema_decay': decay
      })  # fmt: skip
      experiment = image_experiment.from_images(
          config, data, lambda *_, **__: task
      )
      rules = experiment.build(experiment.hyperparameters)
      self.assertEqual((rules.seed, rules.ema_decay), (3, decay))
      states.append(rules.create_state(rows))
    plain, averaged = states
    expected = state_lib.create(task, rules.optimizer, rows, seed=3)
    chex.assert_trees_all_equal(plain, expected)
    self.assertIsNone(plain.ema_params)
    chex.assert_trees_all_equal(averaged.ema_params, averaged.params)


class ChunksTest(parameterized.TestCase):

  @parameterized.parameters((1, 2), (2, 4))
  def test_chunks_give_the_gradient_of_the_whole_batch(self, devices, size):
    run = functools.partial(_run, tiny.simclr_task, 'group', devices=devices)
    whole, state = run(cross_device=False)
    losses, other = run(chunk=size)
    np.testing.assert_allclose(losses, whole, rtol=1e-5)
    chex.assert_trees_all_close(other.params, state.params, atol=1e-5)

  @parameterized.parameters(tiny.simclr_task, tiny.moco_task)
  def test_chunks_without_norm(self, task):
    """Rows that are treated separately, with a gradient."""
    whole, state = _run(task, 'none', devices=2)
    losses, other = _run(task, 'none', devices=2, chunk=4)
    self.assertGreater(np.ptp(whole), 1e-3)
    np.testing.assert_allclose(losses, whole, rtol=1e-5)
    chex.assert_trees_all_close(other.params, state.params, atol=1e-5)

  def test_chunks_of_moco(self):
    whole, state = _run(tiny.moco_task, 'group', devices=2)
    losses, other = _run(tiny.moco_task, 'group', devices=2, chunk=4)
    np.testing.assert_allclose(losses, whole, rtol=1e-5)
    chex.assert_trees_all_close(other.params, state.params, atol=1e-5)
    chex.assert_trees_all_close(
        other.task_state.queue, state.task_state.queue, atol=1e-5
    )

  def test_one_chunk_is_the_whole_batch_even_with_batch_norm(self):
    whole, state = _run(tiny.simclr_task, 'batch', devices=1)
    losses, other = _run(tiny.simclr_task, 'batch', devices=1, chunk=_ROWS)
    np.testing.assert_allclose(losses, whole, rtol=1e-5)
    chex.assert_trees_all_close(
        other.task_state, state.task_state, rtol=1e-5, atol=1e-6
    )

  def test_chunks_take_their_own_batch_statistics(self):
    whole, _ = _run(tiny.simclr_task, 'batch', devices=1)
    chunked, _ = _run(tiny.simclr_task, 'batch', devices=1, chunk=4)
    self.assertNotAlmostEqual(whole[0], chunked[0], places=4)


class StateTest(parameterized.TestCase):

  def test_a_step_is_the_gradient_of_the_loss_of_the_batch(self):
    """One step of SGD against the loss differentiated by hand."""
    task = tiny.simclr_task(norm='group', axis_name=None)
    batch = tiny.batch(_ROWS)
    key = step_lib.Rules(task, optax.identity(), seed=3).key(jnp.int32(0))
    optimizer = optax.sgd(0.5, momentum=0.9)
    state = state_lib.create(task, optimizer, tiny.batch(2), seed=3)

    def loss(params):
      keys = task_lib.row_keys(key, jnp.arange(_ROWS, dtype=jnp.int32), 2)
      views = [tiny.augment(keys[:, i], batch['image']) for i in (0, 1)]
      z1, z2 = (
          task.encoder.module.apply({'params': params}, view, train=True)[1]
          for view in views
      )
      return hcl_jax.simclr_loss(z1, z2, beta=1.0).mean()

    value, grads = jax.jit(jax.value_and_grad(loss))(state.params)
    expected = jax.tree.map(lambda p, g: p - 0.5 * g, state.params, grads)
    losses, new = _run(tiny.simclr_task, 'group', devices=8, steps=1)
    self.assertAlmostEqual(losses[0], float(value), places=5)
    chex.assert_trees_all_close(new.params, expected, atol=1e-5)

  def test_average_of_parameters(self):
    run = functools.partial(_run, tiny.simclr_task, 'group', devices=1)
    _, first = run(steps=1, ema=True)
    _, second = run(steps=2, ema=True)
    expected = jax.tree.map(
        lambda average, new: (average + new) / 2,
        first.ema_params,
        second.params,
    )
    chex.assert_trees_all_close(second.ema_params, expected, atol=1e-6)


class HyperparametersTest(absltest.TestCase):

  def _run(self, seed, beta, *, as_arguments, chunk=None):
    def rules(values):
      task = tiny.simclr_task()
      beta = hcl_jax.schedules.constant(values['beta'])
      task = dataclasses.replace(task, beta=beta)
      return step_lib.Rules(task, optax.sgd(0.5), seed=values['seed'])

    values = {'seed': np.int32(seed), 'beta': np.float32(beta)}
    constant = rules(values)
    take = step_lib.make_step(
        rules if as_arguments else lambda _: constant,
        microbatch_size=chunk,
        devices=jax.local_devices(),
    )
    plain = rules(values | {'seed': 0})
    with jax.numpy_dtype_promotion('standard'):
      state = plain.create_state(tiny.batch(2))
      state = jax.device_put(state, state_lib.replicated())
      rows = tiny.batch(4 * jax.local_device_count())
      for _ in range(3):
        state, metrics = take(values, state, rows)
    return jax.device_get((state.params, metrics))

  def test_as_arguments_or_constants_steps_are_the_same(self):
    for chunk in (None, 2):
      expected = self._run(3, 2.0, as_arguments=False, chunk=chunk)
      actual = self._run(3, 2.0, as_arguments=True, chunk=chunk)
      chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)
      for other in ((4, 2.0), (3, 0.0)):
        params, _ = self._run(*other, as_arguments=True, chunk=chunk)
        with self.assertRaises(AssertionError):
          chex.assert_trees_all_close(params, expected[0], atol=1e-4)

  def test_runs_that_differ_in_hyperparameters_have_one_program(self):
    batch = tiny.batch(2 * jax.local_device_count())
    rows = step_lib.split_rows(batch, jax.local_device_count())
    images = image_data.Images(batch['image'], batch['label'])

    def program(**fields):
      config = image_config.simclr()
      config.update_from_flattened_dict({
          'model.name': 'small', 'augment.size': 4, 'augment.blur': 0.0,
          'optimizer.schedule': 'cosine', 'data.batch_size': len(images),
          **fields,
      })  # fmt: skip
      data = image_experiment.Data(images, images, images)
      experiment = image_experiment.from_images(config, data)
      with jax.numpy_dtype_promotion('standard'):
        mapped = step_lib.map_step(experiment.build, jax.local_devices())
        state = jax.eval_shape(
            lambda: experiment.build(experiment.hyperparameters).create_state(
                experiment.example
            )
        )
        return mapped.lower(experiment.hyperparameters, state, rows).as_text()

    first = program()
    values = {
        'seed': 7, 'loss.beta': 0.0, 'loss.tau_plus': 0.0,
        'optimizer.learning_rate': 0.1, 'optimizer.b2': 0.9,
        'loss.temperature': 0.1,
    }  # fmt: skip
    self.assertTrue(program(**values) == first, 'other programs')
    self.assertFalse(program(**{'optimizer.clip_norm': 1.0}) == first)


class LoweringTest(parameterized.TestCase):

  @parameterized.parameters('tpu', 'cuda')
  def test_the_resnet50_step_lowers(self, platform):
    config = image_config.simclr()
    task = image_tasks.create(config, total_steps=10, steps_per_epoch=5)
    rules = step_lib.Rules(task, optax.adam(1e-3), seed=0)
    take = step_lib.map_step(lambda _: rules, jax.local_devices())
    rows = jax.eval_shape(
        lambda: {
            'image': jnp.zeros((8, 2, 32, 32, 3), jnp.uint8),
            'label': jnp.zeros((8, 2), jnp.int32),
            'index': jnp.zeros((8, 2), jnp.int32),
        }
    )
    with (
        jax.numpy_dtype_promotion('standard'),
        # Models ask it which formulation of a convolution to take.
        mock.patch.object(jax, 'default_backend', lambda: platform),
    ):
      state = jax.eval_shape(
          lambda: state_lib.create(
              task, rules.optimizer, {'image': np.zeros((1, 32, 32, 3), 'u1')},
              seed=0,
          )
      )  # fmt: skip
      exported = jax.export.export(
          jax.jit(lambda *args: take(*args)), platforms=[platform]
      )({}, state, rows)
    self.assertEqual(exported.nr_devices, 8)
    self.assertIn('stablehlo.all_reduce', exported.mlir_module())
