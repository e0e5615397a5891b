# SPDX-License-Identifier: Apache-2.0
"""Makes the schedule of beta that a configuration describes."""

import ml_collections

from hcl_jax import schedules


def beta_schedule(
    config: ml_collections.ConfigDict, total_steps: int, steps_per_epoch: int
) -> schedules.Schedule:
  """Makes beta as a function of the step.

  Args:
    config: ``config.loss``.
    total_steps: length of the run.
    steps_per_epoch: steps of an epoch.

  Returns:
    A function of the step.
  """
  if config.annealing == 'constant':
    return schedules.constant(config.beta)
  if config.annealing == 'released':
    epochs = max(total_steps // steps_per_epoch, 1)
    return schedules.released(config.beta, epochs, steps_per_epoch)
  return schedules.anneal(
      config.beta, total_steps, config.num_changes, config.annealing
  )
