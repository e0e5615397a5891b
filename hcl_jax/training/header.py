# SPDX-License-Identifier: Apache-2.0
"""Says in a few lines what a run trains, on what, and how sure scores are."""

from collections.abc import Iterator

import jax

from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import state as state_lib

_FEW_ROWS = 100


def lines(experiment: experiment_lib.Experiment) -> list[str]:
  """Returns what a run prints at its start: data, device and model, loss."""
  return [
      *shared_lines(experiment),
      f'loss: {loss(experiment.config)}',
      *warnings(experiment),
  ]


def shared_lines(experiment: experiment_lib.Experiment) -> list[str]:
  """Returns the lines that runs with other hyperparameters have too."""
  return [experiment.summary, f'{_devices(experiment)}; {_model(experiment)}']


def loss(config: fields_lib.Config) -> str:
  """Returns the hyperparameters of the loss, those that it has."""
  fields = config.get('loss') or {}
  names = (
      'variant', 'beta', 'effective_negatives', 'annealing', 'tau_plus',
      'temperature',
  )  # fmt: skip
  values = {name: fields.get(name) for name in names}
  if values['effective_negatives'] is not None:
    values['beta'] = None  # the share is in its place
  if values['annealing'] == 'constant':
    values['annealing'] = None
  beta, temperature = values['beta'], values['temperature']
  if beta is not None and temperature:
    values['beta/temperature'] = beta / temperature
  return ', '.join(_named(values)) or str(config.task)


def warnings(experiment: experiment_lib.Experiment) -> list[str]:
  """Returns a line if so few rows are scored that shares say little."""
  rows = experiment.num_scored
  if rows is None or rows >= _FEW_ROWS:
    return []
  return [
      f'warning: only {rows} {experiment.unit} are scored, so scores are '
      f'rough: a share has a standard error of up to {50 / rows**0.5:.0f} %'
  ]


def about_errors(experiment: experiment_lib.Experiment) -> str:
  """Returns a line that says what the standard errors of scores are."""
  rows = experiment.num_scored
  number = '' if rows is None else f'{rows} '
  return (
      f'± is the standard error over the {number}{experiment.unit} that are '
      'scored; one seed.'
  )


def _devices(experiment):
  device = experiment.device
  devices = state_lib.all_devices() if device is None else [device]
  number = '1 device' if len(devices) == 1 else f'{len(devices)} devices'
  return f'{number} ({devices[0].device_kind})'


def _model(experiment):
  """Returns the name of the model, its sizes, and how many parameters."""
  rules = experiment.build(experiment.hyperparameters)
  state = jax.eval_shape(rules.create_state, experiment.example)
  count = sum(x.size for x in jax.tree.leaves(state.params))
  fields = experiment.config.get('model') or {}
  name = fields.get('encoder') or fields.get('name')  # Yours replaces ours.
  words = [name] if name else []
  words += _named({
      name: value
      for name, value in fields.items()
      if type(value) is int and value > 1
      if experiment.model_fields is None or name in experiment.model_fields
  })
  return (
      f'{experiment.config.task} of {", ".join(words)}; {count:,} parameters'
  )


def _named(values) -> Iterator[str]:
  for name, value in values.items():
    if value is not None:
      value = f'{value:g}' if isinstance(value, float) else value
      yield f'{name} {value}'
