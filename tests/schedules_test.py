# SPDX-License-Identifier: Apache-2.0
"""Schedules of beta."""

from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import schedules
from tests import reference


class SchedulesTest(parameterized.TestCase):

  def test_constant(self):
    schedule = schedules.constant(1.5)
    np.testing.assert_array_equal([schedule(k) for k in (0, 7, 10**9)], 1.5)

  @parameterized.product(
      total_steps=(1, 7, 100, 1001),
      num_changes=(1, 3, 9, 200),
      direction=('down', 'up'),
  )
  def test_anneal_is_the_paper(self, total_steps, num_changes, direction):
    schedule = schedules.anneal(2.0, total_steps, num_changes, direction)
    np.testing.assert_allclose(
        schedule(jnp.arange(total_steps)),
        reference.anneal(2.0, total_steps, num_changes, direction),
        rtol=1e-6,
    )

  @parameterized.parameters(
      lambda beta: schedules.constant(beta),
      lambda beta: schedules.anneal(beta, 12, 5, 'up'),
      lambda beta: schedules.released(beta, 12, 1),
  )
  def test_beta_may_be_traced(self, make):
    steps = jnp.arange(12)
    betas = jnp.float32([0.5, 3.0])
    traced = jax.jit(jax.vmap(lambda beta: make(beta)(steps)))(betas)
    known = [make(float(beta))(steps) for beta in betas]
    np.testing.assert_allclose(traced, known, rtol=1e-6)

  def test_anneal_stays_on_its_last_stair(self):
    down = schedules.anneal(2.0, 10, 4)
    self.assertEqual([float(down(k)) for k in (9, 10, 10**6)], [0.5] * 3)
    up = schedules.anneal(2.0, 10, 4, direction='up')
    self.assertEqual([float(up(k)) for k in (0, 9, 10**6)], [0.5, 2.0, 2.0])

  @parameterized.parameters(9, 18, 100, 200, 400, 500, 1000)
  def test_released_is_the_released_loop(self, total_epochs):
    schedule = schedules.released(3.0, total_epochs, steps_per_epoch=5)
    np.testing.assert_allclose(
        schedule(5 * jnp.arange(total_epochs) + 4),
        reference.released_schedule(3.0, total_epochs),
        rtol=1e-6,
    )

  @parameterized.parameters(1, 2, 8, 10, 17, 20, 50)
  def test_released_never_fails_on_the_lengths_that_crash(self, total_epochs):
    schedule = schedules.released(3.0, total_epochs, steps_per_epoch=2)
    values = np.array([schedule(k) for k in range(2 * total_epochs + 2)])
    self.assertTrue(np.all((values >= 0) & (values <= 3)))
    self.assertTrue(np.all(np.diff(values) <= 0))
    self.assertEqual(values[0], 3.0)

  def test_released_table_of_400_epochs(self):
    schedule = schedules.released(8.0, 400, steps_per_epoch=1)
    first_epochs = [1, 89, 133, 177, 221, 265, 309, 353, 397]
    values = [float(schedule(epoch - 1)) for epoch in first_epochs]
    self.assertEqual(values, [8, 7, 6, 5, 4, 3, 2, 1, 0])
    before = [float(schedule(epoch - 2)) for epoch in first_epochs[1:]]
    self.assertEqual(before, values[:-1])

  def test_one_trace_serves_the_run(self):
    schedule = schedules.anneal(2.0, 10, 4)
    chex.clear_trace_counter()
    traced = jax.jit(chex.assert_max_traces(schedule, n=1))
    self.assertEqual(
        [float(traced(k)) for k in range(10)],
        [float(schedule(k)) for k in range(10)],
    )

  def test_rejects_bad_arguments(self):
    for call, message in (
        (lambda: schedules.constant(-1.0), 'beta'),
        (lambda: schedules.constant(float('nan')), 'beta'),
        (lambda: schedules.anneal(1.0, 0, 3), 'total_steps'),
        (lambda: schedules.anneal(1.0, 10, 2.5), 'num_changes'),
        (lambda: schedules.anneal(1.0, 10, 3, 'sideways'), 'direction'),
        (lambda: schedules.anneal('1', 10, 3), 'beta'),
        (lambda: schedules.released(1.0, -1, 3), 'total_epochs'),
        (lambda: schedules.released(1.0, 10, 0), 'steps_per_epoch'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        call()
