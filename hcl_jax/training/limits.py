# SPDX-License-Identifier: Apache-2.0
"""What each field of a configuration may be."""

from collections.abc import Callable
from collections.abc import Mapping
import math
from typing import Any

import ml_collections
import numpy as np

from hcl_jax.data import sentence_tasks
from hcl_jax.evaluation import cross_validation
from hcl_jax.training import config as config_lib

PROTOCOLS = ('knn', 'linear', 'linear_released')
GRAPH_PROTOCOLS = ('svm', 'logistic')
SENTENCE_PROTOCOLS = ('retrieval', 'sentences')


def check(config: ml_collections.ConfigDict) -> None:
  """Raises a ValueError for a value that cannot work, naming its field."""
  if config.get('sweep'):
    raise ValueError(
        f'config.sweep has values to sweep ({", ".join(config.sweep)}), which '
        'a single run cannot have; python -m hcl_jax.sweep takes them.'
    )
  conditions = _CONDITIONS | {
      'infograph': _GRAPH_CONDITIONS,
      'quick_thoughts': _SENTENCE_CONDITIONS,
  }.get(config.task, _IMAGE_CONDITIONS)
  for field, (condition, wish) in conditions.items():
    value = _get(config, field)
    if not _holds(condition, value):
      raise ValueError(f'config.{field} must be {wish}, got {value!r}.')
  if config.optimizer.final_learning_rate > config.optimizer.learning_rate:
    raise ValueError(
        'config.optimizer.final_learning_rate must not exceed '
        f'config.optimizer.learning_rate, got '
        f'{config.optimizer.final_learning_rate} and '
        f'{config.optimizer.learning_rate}.'
    )
  if config.task in ('simclr', 'moco'):
    _check_images_together(config)
  if config.task == 'quick_thoughts':
    _check_sentences_together(config)


def _check_sentences_together(config):
  size, window = config.data.batch_size, config.loss.window
  if size < 2 * window + 1:
    raise ValueError(
        f'config.data.batch_size must be at least 2 * config.loss.window + 1 = '
        f'{2 * window + 1}, got {size}.'
    )
  if config.model.encoder == 'gru' and config.model.dim % 2:
    raise ValueError(
        "config.model.dim must be even with config.model.encoder='gru', a half "
        f'for each direction, got {config.model.dim}.'
    )
  if 'sentences' in config.evaluate.protocols and not config.evaluate.tasks_dir:
    raise ValueError(
        "config.evaluate.tasks_dir must be a folder of tasks, with 'sentences' "
        "in config.evaluate.protocols; got ''."
    )


def _check_images_together(config):
  size = config.data.batch_size
  if config.task == 'moco' and config.moco.queue_size < size:
    raise ValueError(
        f'config.moco.queue_size must be at least config.data.batch_size, got '
        f'{config.moco.queue_size} and {size}.'
    )
  _check_mixing(config)
  for field in ('data.true_label_positives', 'loss.supervised_negatives'):
    if config.task == 'moco' and _get(config, field):
      raise ValueError(f"config.{field} needs config.task='simclr'.")
  if config.model.cross_device_bn and config.model.bn_splits > 1:
    raise ValueError(
        'config.model.cross_device_bn joins the statistics of devices and '
        'config.model.bn_splits divides those of one; choose one.'
    )


def _check_mixing(config):
  mochi = config.mochi
  if mochi.num_hardest and config.task != 'moco':
    raise ValueError("config.mochi.num_hardest needs config.task='moco'.")
  if mochi.num_hardest > config.moco.queue_size:
    raise ValueError(
        'config.mochi.num_hardest must not exceed config.moco.queue_size, got '
        f'{mochi.num_hardest} and {config.moco.queue_size}.'
    )
  if bool(mochi.num_hardest) != bool(mochi.num_mixed + mochi.num_with_query):
    raise ValueError(
        'config.mochi.num_hardest is what config.mochi.num_mixed and '
        'num_with_query are made of: give it and one of these, or none; got '
        f'{mochi.num_hardest}, {mochi.num_mixed} and {mochi.num_with_query}.'
    )


def check_devices(
    config: ml_collections.ConfigDict, devices: int
) -> None:
  """Raises a ValueError if the batch cannot be split over devices."""
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
  splits = config.model.bn_splits
  if (chunk or rows) % splits:
    raise ValueError(
        f'config.model.bn_splits={splits} does not divide the {chunk or rows} '
        'rows that are embedded at a time.'
    )


def check_batch(config: ml_collections.ConfigDict, num_examples: int) -> None:
  """Raises a ValueError if there is no full batch of training images."""
  size, split = config.data.batch_size, config.data.train_split
  if size > num_examples:
    raise ValueError(
        f'config.data.batch_size must be at most {num_examples}, the images of '
        f'config.data.train_split={split!r}, got {size}.'
    )


def check_graphs(
    config: ml_collections.ConfigDict, labels: np.ndarray
) -> None:
  """Raises a ValueError if graphs do not fit the batches or the folds.

  Args:
    config: the whole configuration.
    labels: classes of the graphs.
  """
  size, num_graphs = config.data.batch_size, len(labels)
  if num_graphs % size == 1:
    raise ValueError(
        f'config.data.batch_size={size} leaves a last batch of one graph of '
        f'the {num_graphs} of {config.data.name}, which has no negatives; '
        'choose another.'
    )
  evaluate = config.evaluate
  if evaluate.protocols or evaluate.svm_every_epochs:
    try:
      cross_validation.check_folds(evaluate.folds, evaluate.inner_folds, labels)
    except ValueError as error:
      raise ValueError(f'config.evaluate.{error}') from error


def check_labels(
    config: ml_collections.ConfigDict, labels: Mapping[str, np.ndarray]
) -> None:
  """Raises a ValueError where labels are needed and missing.

  Args:
    config: the whole configuration.
    labels: those of each split, -1 where there is none.
  """
  data = config.data
  needs = {}
  if config.evaluate.protocols or config.evaluate.knn_every_epochs:
    reason = 'config.evaluate.protocols=() and knn_every_epochs=0'
    needs['bank_split'] = needs['test_split'] = reason
  if data.true_label_positives:
    needs['train_split'] = 'config.data.true_label_positives=False'
  if config.loss.supervised_negatives:
    needs['train_split'] = 'config.loss.supervised_negatives=False'
  for field, remedy in needs.items():
    if np.any(labels[data[field]] < 0):
      raise ValueError(
          f'config.data.{field}={data[field]!r} has images without a label; '
          f'choose another split, or set {remedy}.'
      )


def _get(config, field: str) -> Any:
  for name in field.split('.'):
    config = config[name]
  return config


def _holds(condition, value):
  try:
    return condition(value)
  except (TypeError, OverflowError):  # of another kind altogether
    return False


def _number(low, high=math.inf, *, open_low=False, open_high=False):
  left, right = '(' if open_low else '[', ')' if open_high else ']'
  if high == math.inf:
    wish = f'{">" if open_low else ">="} {low:g} and finite'
  else:
    wish = f'in {left}{low:g}, {high:g}{right}'

  def condition(x):
    above = x > low if open_low else x >= low
    return math.isfinite(x) and above and (x < high if open_high else x <= high)

  return condition, wish


def _among(*choices: Any) -> tuple[Callable[[Any], bool], str]:
  return (lambda x: x in choices), f'one of {", ".join(map(repr, choices))}'


def _all_among(*choices):
  wish = f'a tuple of {", ".join(map(repr, choices))}'
  return (lambda x: all(item in choices for item in x)), wish


def _all(condition, wish, *, least=0):
  holds, _ = condition

  def all_hold(x):
    whole = all(isinstance(item, int) for item in x)
    return whole and len(x) >= least and all(map(holds, x))

  return all_hold, wish


def _or_none(condition):
  holds, wish = condition
  return (lambda x: x is None or holds(x)), f'None or {wish}'


_COUNT, _NONE_OR_COUNT = _number(1), _number(0)
_NON_NEGATIVE, _POSITIVE = _number(0), _number(0, open_low=True)
_PROBABILITY, _DECAY = _number(0, 1), _number(0, 1, open_high=True)
_SEED = _number(0, 2**31 - 1)
_SEEDS = _all(_SEED, 'one or more whole numbers >= 0, below 2**31', least=1)

_CONDITIONS = {
    'seed': _SEED,
    'task': _among(*config_lib.BEST),
    'data.batch_size': _number(2),
    'loss.beta': _NON_NEGATIVE,
    'loss.annealing': _among('constant', 'down', 'up', 'released'),
    'loss.num_changes': _COUNT,
    'optimizer.name': _among('adam', 'adamw', 'sgd', 'lars'),
    'optimizer.learning_rate': _POSITIVE,
    'optimizer.final_learning_rate': _NON_NEGATIVE,
    'optimizer.schedule': _among('constant', 'cosine'),
    'optimizer.warmup_epochs': _NON_NEGATIVE,
    'optimizer.weight_decay': _NON_NEGATIVE,
    'optimizer.momentum': _DECAY,
    'optimizer.b1': _DECAY,
    'optimizer.b2': _DECAY,
    'optimizer.clip_norm': _NON_NEGATIVE,
    'optimizer.ema_decay': _DECAY,
    'train.epochs': _COUNT,
    'train.steps': _NONE_OR_COUNT,
    'train.log_every_steps': _COUNT,
    'train.checkpoint_every_epochs': _COUNT,
    'train.keep_checkpoints': _COUNT,
}

_GRAPH_CONDITIONS = {
    'model.width': _COUNT,
    'model.num_layers': _COUNT,
    'loss.variant': _among('paper', 'released', 'infograph'),
    'loss.tau_plus': _or_none(_DECAY),
    'loss.prior_weight': _NON_NEGATIVE,
    'evaluate.svm_every_epochs': _NONE_OR_COUNT,
    'evaluate.protocols': _all_among(*GRAPH_PROTOCOLS),
    'evaluate.folds': _number(2),
    'evaluate.inner_folds': _number(2),
    'evaluate.fold_seeds': _SEEDS,
    'evaluate.svm_gamma': _among('scale', 'auto'),
    'evaluate.workers': _NONE_OR_COUNT,
}

_TASKS = *sentence_tasks.TASKS, 'MSRP'
_SENTENCE_CONDITIONS = {
    'data.order': _among('consecutive', 'blocks'),
    'data.block_size': _number(2),
    'data.max_length': _COUNT,
    'model.encoder': _among('gru', 'bag'),
    'model.word_dim': _COUNT,
    'model.dim': _COUNT,
    'model.pooling': _among('mean', 'sum'),
    'loss.tau_plus': _DECAY,
    'loss.window': _COUNT,
    'loss.self_pair': _among('zero', 'drop'),
    'loss.clip_scale': _NON_NEGATIVE,
    'loss.floor': _among('sphere', 'soft', 'none'),
    'optimizer.clip_each_norm': _NON_NEGATIVE,
    'train.checkpoint_every_epochs': _POSITIVE,
    'evaluate.retrieval_every_epochs': _NON_NEGATIVE,
    'evaluate.protocols': _all_among(*SENTENCE_PROTOCOLS),
    'evaluate.retrieval_batches': _NONE_OR_COUNT,
    'evaluate.batch_size': _COUNT,
    'evaluate.tasks': (
        lambda x: x and all(task in _TASKS for task in x),
        f'one or more of {", ".join(map(repr, sentence_tasks.TASKS))}',
    ),
    'evaluate.workers': _NONE_OR_COUNT,
}

_IMAGE_CONDITIONS = {
    'compare': _all_among(*config_lib.VARIANTS),
    'data.max_gib_in_memory': _NON_NEGATIVE,
    'augment.size': _COUNT,
    'model.name': _among(
        'resnet10', 'resnet18', 'resnet34', 'resnet50', 'small'
    ),
    'model.stem': _among('cifar', 'strided', 'imagenet'),
    'model.head': _among('simclr', 'moco', 'linear'),
    'model.head_width': _NONE_OR_COUNT,
    'model.embedding_dim': _COUNT,
    'model.norm': _among('batch', 'group'),
    'model.bn_splits': _COUNT,
    'model.dtype': _among('float32', 'bfloat16'),
    'loss.temperature': _POSITIVE,
    'loss.tau_plus': _DECAY,
    'loss.floor': _among('sphere', 'soft', 'none'),
    'loss.block_size': _NONE_OR_COUNT,
    'moco.queue_size': _COUNT,
    'moco.momentum': _PROBABILITY,
    'mochi.num_hardest': _NONE_OR_COUNT,
    'mochi.num_mixed': _NONE_OR_COUNT,
    'mochi.num_with_query': _NONE_OR_COUNT,
    'mochi.warmup_epochs': _NON_NEGATIVE,
    'train.microbatch_size': _NONE_OR_COUNT,
    'train.checkpoint_every_epochs': _POSITIVE,
    'evaluate.knn_every_epochs': _NON_NEGATIVE,
    'evaluate.protocols': _all_among(*PROTOCOLS),
    'evaluate.batch_size': _COUNT,
    'evaluate.image_size': _NONE_OR_COUNT,
    'evaluate.knn_k': _COUNT,
    'evaluate.knn_temperature': _POSITIVE,
    'evaluate.linear_epochs': _COUNT,
    'evaluate.linear_batch_size': _COUNT,
    'evaluate.linear_optimizer': _among('adam', 'sgd'),
    'evaluate.linear_learning_rate': _POSITIVE,
    'evaluate.linear_weight_decay': _NON_NEGATIVE,
    'evaluate.linear_decay_epochs': _all(_COUNT, 'whole numbers >= 1'),
    'evaluate.linear_seeds': _SEEDS,
}
