# SPDX-License-Identifier: Apache-2.0
"""Fields that all configurations share, and what follows from them."""

from ml_collections import config_dict
import numpy as np

from hcl_jax import schedules
from hcl_jax.training import fields as fields_lib
from hcl_jax.training.fields import Field

VARIANTS = ('standard', 'debiased', 'hard')

# Hyperparameters: arguments of the compiled step, so that runs which differ in
# nothing else share a program.
TRACED = (
    'seed',
    'loss.beta',
    'loss.effective_negatives',
    'loss.tau_plus',
    'loss.temperature',
    'loss.positive_weight',
    'loss.margin',
    'optimizer.learning_rate',
    'optimizer.final_learning_rate',
    'optimizer.b1',
    'optimizer.b2',
)

# A resumed run may differ in these.
MAY_CHANGE = (
    'data.dir',
    'data.max_gib_in_memory',
    'train.log_every_steps',
    'train.checkpoint_every_epochs',
    'train.keep_checkpoints',
    'train.profile_steps',
    'evaluate',
)

# Fields that runs of earlier versions lack, and what they had in effect; the
# domain follows from the task.
MAY_APPEAR = {
    'domain': ...,
    'model.encoder': '',
    'loss.effective_negatives': None,
    'train.init_from': '',
    'data.division': 0,
    'optimizer.lazy': False,
}

# A continued sweep may differ in these; scores of all members are by the same
# evaluation.
SWEEP_MAY_CHANGE = (
    'data.dir',
    'data.max_gib_in_memory',
    'train.checkpoint_every_epochs',
    'train.keep_checkpoints',
    'train.profile_steps',
    'evaluate.workers',
)


_STEPS = fields_lib.Check(
    lambda x: not x or (len(x) == 2 and 0 <= x[0] < x[1]),
    '() or two ints, the first step and the one after the last',
)


def run_fields(
    domain: str, tasks: tuple[str, ...], *, seed: str = 'of all that is random'
) -> dict[str, Field]:
  """Returns the fields at the top of a configuration.

  The first task is the default; ``seed`` says what the seed decides.
  """
  return {
      'domain': Field(domain, None, 'the room that defines the other fields'),
      'task': Field(tasks[0], fields_lib.one_of(*tasks), 'what is trained'),
      'seed': Field(0, fields_lib.SEED, seed),
  }


def hardness_fields() -> dict[str, Field]:
  """Returns the fields that say how hard negatives are."""
  return {
      'beta': Field(
          1.0, fields_lib.NON_NEGATIVE, 'hardness of negatives; 0: all alike'
      ),
      'effective_negatives': Field(
          config_dict.placeholder(float),
          fields_lib.or_none(fields_lib.number(0, 1, open_low=True)),
          'share of negatives that counts, in place of beta; None: beta',
      ),
  }


def annealing_fields() -> dict[str, Field]:
  """Returns the fields of a schedule of beta."""
  return {
      'annealing': Field(
          'constant',
          fields_lib.one_of('constant', 'down', 'up', 'released'),
          "schedule of beta: fixed, the paper's two, or its code's",
      ),
      'num_changes': Field(
          9, fields_lib.COUNT, "stairs of annealing 'down' and 'up'"
      ),
  }


def optimizer_fields(**defaults: float) -> dict[str, Field]:
  """Returns the fields of ``config.optimizer``, with some other defaults."""
  fields = {
      'name': Field(
          'adam',
          fields_lib.one_of('adam', 'adamw', 'sgd', 'lars'),
          'the optimizer',
      ),
      'learning_rate': Field(1e-3, fields_lib.POSITIVE, 'the highest rate'),
      'final_learning_rate': Field(
          0.0, fields_lib.NON_NEGATIVE, "what schedule 'cosine' ends with"
      ),
      'schedule': Field(
          'constant',
          fields_lib.one_of('constant', 'cosine'),
          'of the learning rate',
      ),
      'warmup_epochs': Field(
          0.0, fields_lib.NON_NEGATIVE, 'the rate grows from 0 in these'
      ),
      'weight_decay': Field(0.0, fields_lib.NON_NEGATIVE, 'of parameters'),
      'decay_vectors': Field(
          True, None, 'decay biases and normalization too, not only matrices'
      ),
      'momentum': Field(0.9, fields_lib.DECAY, 'of sgd and lars'),
      'b1': Field(0.9, fields_lib.DECAY, 'of adam and adamw'),
      'b2': Field(0.999, fields_lib.DECAY, 'of adam and adamw'),
      'clip_norm': Field(
          0.0, fields_lib.NON_NEGATIVE, 'largest norm of a gradient; 0: any'
      ),
      'ema_decay': Field(
          0.0,
          fields_lib.DECAY,
          'of an average of parameters to evaluate; 0: none',
      ),
  }
  for name, value in defaults.items():
    fields[name] = fields[name]._replace(default=value)
  return fields


def train_fields(
    *, epochs: int, checkpoint_every_epochs: Field
) -> dict[str, Field]:
  """Returns the fields of ``config.train``."""
  return {
      'epochs': Field(epochs, fields_lib.COUNT, 'length of the run'),
      'steps': Field(
          0, fields_lib.COUNT_OR_ZERO, 'if not 0, instead of epochs'
      ),
      'log_every_steps': Field(
          20, fields_lib.COUNT, 'steps between lines of metrics.jsonl'
      ),
      'checkpoint_every_epochs': checkpoint_every_epochs,
      'keep_checkpoints': Field(
          3, fields_lib.COUNT, 'the last so many stay, and the best'
      ),
      'profile_steps': Field(
          (),
          _STEPS,
          'write a JAX trace of the steps from the first to before the second',
      ),
      'init_from': Field(
          '', None, "workdir of a run whose encoder to begin with; '': none"
      ),
  }


def check(config: fields_lib.Config, fields: fields_lib.Fields) -> None:
  """Raises a ValueError for a value that cannot work, naming its field."""
  if config.get('sweep'):
    raise ValueError(
        f'config.sweep has values to sweep ({", ".join(config.sweep)}), which '
        'a single run cannot have; python -m hcl_jax.sweep takes them.'
    )
  fields_lib.check(config, fields)
  if config.optimizer.final_learning_rate > config.optimizer.learning_rate:
    raise ValueError(
        'config.optimizer.final_learning_rate must not exceed '
        f'config.optimizer.learning_rate, got '
        f'{config.optimizer.final_learning_rate} and '
        f'{config.optimizer.learning_rate}.'
    )
  loss = config.get('loss') or {}
  annealing = loss.get('annealing', 'constant')
  if loss.get('effective_negatives') is not None and annealing != 'constant':
    raise ValueError(
        "config.loss.annealing must be 'constant' with "
        'config.loss.effective_negatives, which is in place of the beta that '
        f'it anneals, got {annealing!r}.'
    )


def check_rows(config: fields_lib.Config, devices: int) -> None:
  """Raises a ValueError if rows of a batch do not divide over devices.

  Those of each device must divide into microbatches, too.
  """
  size, chunk = config.data.batch_size, config.train.microbatch_size
  if size % devices:
    lower = max(size // devices, 1) * devices
    raise ValueError(
        f'config.data.batch_size={size} does not divide over {devices} '
        f'devices; {lower} or {lower + devices} would.'
    )
  rows = size // devices
  if chunk and rows % chunk:
    raise ValueError(
        f'config.train.microbatch_size={chunk} does not divide the {rows} rows '
        'that each device has.'
    )


def total_steps(config: fields_lib.Config, steps_per_epoch: int) -> int:
  """Returns the length of a run in steps."""
  return config.train.steps or config.train.epochs * steps_per_epoch


def beta_schedule(
    config: fields_lib.Config, total_steps: int, steps_per_epoch: int
) -> schedules.Schedule:
  """Makes beta of ``config.loss`` as a function of the step."""
  if config.annealing == 'constant':
    return schedules.constant(config.beta)
  if config.annealing == 'released':
    epochs = max(total_steps // steps_per_epoch, 1)
    return schedules.released(config.beta, epochs, steps_per_epoch)
  return schedules.anneal(
      config.beta, total_steps, config.num_changes, config.annealing
  )


def hyperparameters(config: fields_lib.Config) -> dict[str, np.ndarray]:
  """Returns the values of ``TRACED`` fields by name, as scalars; not None.

  A room need not have all of the fields.
  """
  values = fields_lib.flatten(config)
  return {
      field: np.asarray(
          values[field], np.int32 if field == 'seed' else np.float32
      )
      for field in TRACED
      if values.get(field) is not None
  }


def set_variant(config: fields_lib.Config, variant: str) -> None:
  """Turns a hard configuration into a baseline: numbers, not another loss.

  ``'hard'`` changes nothing, ``'debiased'`` sets beta to 0, whatever share of
  negatives was to count, and ``'standard'`` tau_plus too, and the temperature
  to ``standard_temperature`` where there is one: that which suits it best.
  """
  if variant not in VARIANTS:
    raise ValueError(
        f'the variant must be one of {", ".join(VARIANTS)}; got {variant!r}.'
    )
  if variant != 'hard':
    config.loss.beta = 0.0
    if 'effective_negatives' in config.loss:
      config.loss.effective_negatives = None
  if variant == 'standard':
    config.loss.tau_plus = 0.0
    if config.loss.get('standard_temperature') is not None:
      config.loss.temperature = config.loss.standard_temperature
