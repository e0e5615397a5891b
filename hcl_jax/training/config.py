# SPDX-License-Identifier: Apache-2.0
"""The released settings as configurations, and their variants."""

from typing import Any

import ml_collections
from ml_collections import config_dict

VARIANTS = ('standard', 'debiased', 'hard')


def image_config() -> ml_collections.ConfigDict:
  """SimCLR with hard negatives on CIFAR-10, as the paper's code released it."""
  return ml_collections.ConfigDict({
      'seed': 0,
      'task': 'simclr',
      # Variants to train one after the other, into sub-folders; empty for one.
      'compare': (),
      'data': {
          'name': 'cifar10',
          'dir': '',  # '' is the default of tfds
          'train_split': 'train',
          'bank_split': 'train',  # labelled images for kNN and linear readout
          'test_split': 'test',
          'batch_size': 256,  # over all devices
          'true_label_positives': False,
          'max_gib_in_memory': 4.0,  # larger sets are streamed
      },
      'augment': {
          'size': 32,
          'scale': (0.08, 1.0),
          'ratio': (3 / 4, 4 / 3),
          'flip': 0.5,
          'jitter': 0.8,
          'brightness': 0.4,
          'contrast': 0.4,
          'saturation': 0.4,
          'hue': 0.1,
          'grayscale': 0.2,
          'blur': 0.5,
          'blur_kernel': 3,
          'blur_sigma': (0.1, 2.0),
          'mean': (0.4914, 0.4822, 0.4465),
          'std': (0.2023, 0.1994, 0.2010),
      },
      'model': {
          'name': 'resnet50',
          'stem': 'cifar',
          'head': 'simclr',
          'head_width': 0,  # 0: as released, 512 (simclr) or that of features
          'embedding_dim': 128,
          'norm': 'batch',
          'cross_device_bn': False,
          'bn_splits': 1,
          'dtype': 'float32',
      },
      'loss': {
          'temperature': 0.5,
          'beta': 1.0,
          'tau_plus': 0.1,
          'floor': 'sphere',
          'stop_gradient_weights': False,
          'supervised_negatives': False,
          'block_size': 0,  # 0: chosen by size
          # Of beta: 'constant', 'down', 'up' (the paper's), 'released'.
          'annealing': 'constant',
          'num_changes': 9,  # stairs of 'down' and 'up'
      },
      'moco': {
          'queue_size': 65536,
          'momentum': 0.999,
          'shuffle': True,
          'mask_own_image': True,
      },
      'mochi': {  # synthetic negatives of moco: MoCHi's N, s and s'
          'num_hardest': 0,  # 0: none
          'num_mixed': 0,
          'num_with_query': 0,
          'warmup_epochs': 0.0,
      },
      'optimizer': _optimizer(weight_decay=1e-6),
      'train': {
          'epochs': 400,
          'steps': 0,  # if not 0, instead of epochs
          'microbatch_size': 0,  # rows of a device at a time; 0: all
          'log_every_steps': 20,
          'checkpoint_every_epochs': 10.0,
          'keep_checkpoints': 3,
      },
      'evaluate': {
          'knn_every_epochs': 10.0,  # 0: never during training
          'protocols': ('knn', 'linear'),  # at the end
          'batch_size': 512,
          'image_size': 0,  # pixels to resize to; 0: as large as they are
          'knn_k': 200,
          'knn_temperature': 0.5,
          'linear_epochs': 100,
          'linear_batch_size': 512,
          'linear_optimizer': 'adam',
          'linear_learning_rate': 1e-3,
          'linear_weight_decay': 1e-6,
          'linear_decay_epochs': (),  # from each on, a tenth of the rate
          'linear_standardize': True,  # not in 'linear_released'
          'linear_seeds': (0,),
      },
  })


def moco_config() -> ml_collections.ConfigDict:
  """MoCo-v2 with hard negatives on CIFAR-10.

  Of its run the paper says 200 epochs, batches of 128, 65,536 keys, beta = 0.2
  and tau_plus = 0. The rest is MoCo-v2's, and ResNet-18 with BatchNorm in eight
  parts MoCo's own choice for CIFAR-10.
  """
  config = image_config()
  config.task = 'moco'
  config.data.batch_size = 128

  config.model.name = 'resnet18'
  config.model.head = 'moco'
  config.model.bn_splits = 8

  config.augment.scale = (0.2, 1.0)

  config.loss.temperature = 0.2
  config.loss.beta = 0.2
  config.loss.tau_plus = 0.0

  config.optimizer.name = 'sgd'
  config.optimizer.learning_rate = 0.015
  config.optimizer.schedule = 'cosine'
  config.optimizer.weight_decay = 1e-4
  config.train.epochs = 200

  config.evaluate.knn_temperature = 0.1
  config.evaluate.linear_optimizer = 'sgd'
  config.evaluate.linear_learning_rate = 30.0
  config.evaluate.linear_weight_decay = 0.0
  config.evaluate.linear_batch_size = 256
  config.evaluate.linear_decay_epochs = (60, 80)
  config.evaluate.linear_standardize = False
  return config


def graph_config() -> ml_collections.ConfigDict:
  """InfoGraph with hard negatives on MUTAG, as the paper's code released it."""
  return ml_collections.ConfigDict({
      'seed': 0,  # of the order of the graphs too, which is that of every epoch
      'task': 'infograph',
      'data': {
          'name': 'MUTAG',
          'dir': '',  # '' is the default of tfds
          'batch_size': 128,  # the last batch of an epoch has what is left
      },
      'model': {
          'width': 32,
          'num_layers': 3,
      },
      'loss': {
          'variant': 'paper',  # or 'released', 'infograph'
          'beta': 1.0,
          'tau_plus': config_dict.placeholder(float),  # None: as the variant
          'prior_weight': 0.0,  # InfoGraph's, 0.1 where it is used
          'annealing': 'constant',
          'num_changes': 9,
      },
      'optimizer': _optimizer(weight_decay=0.0),
      'train': {
          'epochs': 200,
          'steps': 0,  # if not 0, instead of epochs
          'log_every_steps': 20,
          'checkpoint_every_epochs': 100,
          'keep_checkpoints': 3,
      },
      'evaluate': {
          'svm_every_epochs': 0,  # 0: never during training
          'protocols': ('svm',),  # at the end
          'folds': 10,
          'inner_folds': 5,  # to choose C on
          'fold_seeds': (0,),  # divisions into folds; scores are their means
          'svm_gamma': 'scale',  # or 'auto'
          'workers': 0,  # processes; 0: chosen by size
      },
  })


def sentence_config() -> ml_collections.ConfigDict:
  """Quick-thoughts with hard negatives, by its released settings.

  How hard negatives entered was not released: clip_scale is the paper's number
  for graphs, and the floor, which acts with tau_plus > 0 only, is ours.
  """
  config = ml_collections.ConfigDict({
      'seed': 0,
      'task': 'quick_thoughts',
      'data': {
          'name': 'books',
          'dir': '',  # '' is the default of tfds
          'train_split': 'train',
          'validation_split': 'validation',
          'batch_size': 400,
          'order': 'consecutive',  # or 'blocks', in an order of the seed
          'block_size': 50,  # sentences of a block
          'max_length': 50,  # longer sentences are cut off
      },
      'model': {
          'encoder': 'gru',  # or 'bag'
          'word_dim': 620,
          'dim': 1200,  # of an embedding; features have twice as many
          'pooling': 'mean',  # or 'sum', of 'bag'
      },
      'loss': {
          'beta': 1.0,
          'tau_plus': 0.0,
          'window': 1,
          'self_pair': 'zero',  # or 'drop'
          'clip_scale': 2.0,  # 0: no clipping of weights
          'stop_gradient_clip': False,
          'floor': 'soft',
          'annealing': 'constant',
          'num_changes': 9,
      },
      'optimizer': _optimizer(weight_decay=0.0),
      'train': {
          'epochs': 1,
          'steps': 0,  # if not 0, instead of epochs
          'log_every_steps': 20,
          'checkpoint_every_epochs': 0.01,
          'keep_checkpoints': 3,
      },
      'evaluate': {
          'retrieval_every_epochs': 0.01,  # 0: never during training
          'protocols': ('retrieval',),  # at the end
          'retrieval_batches': 25,  # of the validation split; 0: all
          'batch_size': 2048,  # sentences embedded at a time, at most
          # Folder of labelled sentences to score on too, at the end; '': none.
          'tasks_dir': '',
          'tasks': ('MR', 'CR', 'SUBJ', 'MPQA', 'TREC', 'MRPC'),
          'word_vectors': '',  # a file, for words that are unknown; '': none
          'workers': 0,  # processes that score; 0: one for each core
      },
  })
  config.optimizer.learning_rate = 5e-4
  config.optimizer.clip_each_norm = 5.0  # for each variable; 0: no clipping
  return config


def _optimizer(weight_decay: float) -> dict[str, Any]:
  return {
      'name': 'adam',
      'learning_rate': 1e-3,
      'final_learning_rate': 0.0,  # of 'cosine'
      'schedule': 'constant',
      'warmup_epochs': 0.0,
      'weight_decay': weight_decay,
      'decay_vectors': True,  # also biases and normalisation
      'momentum': 0.9,  # of sgd and lars
      'b1': 0.9,  # of adam and adamw
      'b2': 0.999,
      'clip_norm': 0.0,  # 0: no clipping
      'ema_decay': 0.0,  # of an average of weights to evaluate; 0: none
  }


# What a run is evaluated by on the way, and its best step chosen by.
BEST = {
    'simclr': 'knn/top1',
    'moco': 'knn/top1',
    'infograph': 'svm/accuracy',
    'quick_thoughts': 'retrieval/accuracy',
}

_DEFAULTS = {
    'simclr': image_config,
    'moco': image_config,
    'infograph': graph_config,
    'quick_thoughts': sentence_config,
}

# A resumed run may differ in these.
MAY_CHANGE = (
    'data.dir',
    'data.max_gib_in_memory',
    'train.log_every_steps',
    'train.checkpoint_every_epochs',
    'train.keep_checkpoints',
    'evaluate',
)

# A continued sweep may differ in these; scores of all members are by the same
# evaluation.
SWEEP_MAY_CHANGE = (
    'data.dir',
    'data.max_gib_in_memory',
    'train.checkpoint_every_epochs',
    'train.keep_checkpoints',
    'evaluate.workers',
)


def final_protocols(config: ml_collections.ConfigDict) -> tuple[str, ...]:
  """What a run is scored by at its end; by tasks too, where it is given any."""
  protocols = tuple(config.evaluate.protocols)
  if config.evaluate.get('tasks_dir') and 'sentences' not in protocols:
    protocols += ('sentences',)
  return protocols


def fill_defaults(config: ml_collections.ConfigDict) -> None:
  """Gives the configuration of an older run the fields it was made without.

  The default of a new field says what runs were before there was one.

  Raises:
    ValueError: it is not the configuration of a run.
  """
  task = config.get('task')
  if task not in list(_DEFAULTS):
    raise ValueError(
        f'config.task must be one of {", ".join(map(repr, _DEFAULTS))}, got '
        f'{task!r}.'
    )
  _fill(config, _DEFAULTS[task](), 'config')


def _fill(config, defaults, path):
  for name, value in defaults.items():
    if name not in config:
      config[name] = value
    elif isinstance(value, ml_collections.ConfigDict):
      if not isinstance(config[name], ml_collections.ConfigDict):
        raise ValueError(
            f'{path}.{name} must be a group of fields, got {config[name]!r}.'
        )
      _fill(config[name], value, f'{path}.{name}')
    elif isinstance(value, tuple) and not isinstance(config[name], tuple):
      raise ValueError(
          f'{path}.{name} must be a tuple, got {config[name]!r}.'
      )


def set_variant(config: ml_collections.ConfigDict, variant: str) -> None:
  """Turns a hard configuration into a baseline: numbers, not another loss.

  Args:
    config: what to change.
    variant: ``'hard'`` changes nothing, ``'debiased'`` sets beta to 0, and
      ``'standard'`` tau_plus too.
  """
  if variant not in VARIANTS:
    raise ValueError(
        f'the variant must be one of {", ".join(VARIANTS)}; got {variant!r}.'
    )
  if variant != 'hard':
    config.loss.beta = 0.0
  if variant == 'standard':
    config.loss.tau_plus = 0.0
