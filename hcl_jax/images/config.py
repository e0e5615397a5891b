# SPDX-License-Identifier: Apache-2.0
"""Fields of configurations of images; defaults are the released settings."""

from collections.abc import Mapping

import ml_collections
import numpy as np

from hcl_jax import models
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import own_code
from hcl_jax.training.fields import Field

SCORE = 'knn/top1'  # evaluated during training; chooses the best step
PROTOCOLS = ('knn', 'linear', 'linear_released')
EVALUATE_FLAGS = {'seeds': 'evaluate.linear_seeds'}

FIELDS = {
    **config_lib.run_fields('images', ('simclr', 'moco')),
    'compare': Field(
        (),
        fields_lib.all_of(*config_lib.VARIANTS),
        'variants to train one after the other, into sub-folders; () for one',
    ),
    'data': {
        'name': Field('cifar10', None, 'name[/config][:version]'),
        'dir': Field('', None, "folder of data sets; '': tfds's default"),
        'train_split': Field('train', None, 'images to train on'),
        'bank_split': Field(
            'train', None, 'labeled images that kNN and linear probes learn of'
        ),
        'test_split': Field('test', None, 'labeled images to score on'),
        'batch_size': Field(256, fields_lib.number(2), 'over all devices'),
        'true_label_positives': Field(
            False, None, 'positives are other images of the class'
        ),
        'max_gib_in_memory': Field(
            4.0, fields_lib.NON_NEGATIVE, 'larger data sets are streamed'
        ),
    },
    'augment': {
        'size': Field(32, fields_lib.COUNT, 'pixels of a crop'),
        'scale': Field(
            (0.08, 1.0), None, 'least and greatest area of a crop, as shares'
        ),
        'ratio': Field(
            (3 / 4, 4 / 3), None, 'least and greatest width over height'
        ),
        'flip': Field(0.5, None, 'probability'),
        'jitter': Field(0.8, None, 'probability that colors change'),
        'brightness': Field(0.4, None, 'most that it changes by'),
        'contrast': Field(0.4, None, 'most that it changes by'),
        'saturation': Field(0.4, None, 'most that it changes by'),
        'hue': Field(0.1, None, 'most that it changes by, of the circle'),
        'grayscale': Field(0.2, None, 'probability'),
        'blur': Field(0.5, None, 'probability'),
        'blur_kernel': Field(3, None, 'pixels, odd'),
        'blur_sigma': Field((0.1, 2.0), None, 'least and greatest, in pixels'),
        'mean': Field((0.4914, 0.4822, 0.4465), None, 'of the channels'),
        'std': Field((0.2023, 0.1994, 0.2010), None, 'of the channels'),
    },
    'model': {
        'name': Field(
            'resnet50',
            fields_lib.one_of(*models.NAMES),
            'the backbone',
        ),
        'encoder': Field(
            '',
            own_code.one_of(''),
            "your own backbone, 'package.module:factory'; '': that of name",
        ),
        'stem': Field(
            'cifar',
            fields_lib.one_of('cifar', 'strided', 'imagenet'),
            'first layers of a ResNet, for small images or for large ones',
        ),
        'head': Field(
            'simclr',
            fields_lib.one_of('simclr', 'moco', 'linear'),
            'features to embeddings',
        ),
        'head_width': Field(
            0,
            fields_lib.COUNT_OR_ZERO,
            '0: as released, 512 (simclr) or the width of features',
        ),
        'embedding_dim': Field(128, fields_lib.COUNT, 'width of an embedding'),
        'norm': Field(
            'batch', fields_lib.one_of('batch', 'group'), 'normalization'
        ),
        'cross_device_bn': Field(
            False, None, 'devices share the statistics of a batch'
        ),
        'bn_splits': Field(
            1, fields_lib.COUNT, 'parts of a batch with their own statistics'
        ),
        'dtype': Field(
            'float32',
            fields_lib.one_of('float32', 'bfloat16'),
            'of the computation; parameters are float32',
        ),
    },
    'loss': {
        'temperature': Field(0.5, fields_lib.POSITIVE, 'divides cosines'),
        **config_lib.hardness_fields(),
        'tau_plus': Field(
            0.1,
            fields_lib.DECAY,
            "probability that a negative has the anchor's class",
        ),
        'floor': Field(
            'sphere',
            fields_lib.one_of('sphere', 'soft', 'none'),
            'what debiased estimates are kept above',
        ),
        'stop_gradient_weights': Field(
            False, None, 'weights of negatives are constants'
        ),
        'supervised_negatives': Field(
            False, None, "leave out negatives of the anchor's class"
        ),
        'block_size': Field(
            0, fields_lib.COUNT_OR_ZERO, 'rows of a tile; 0: chosen by size'
        ),
        **config_lib.annealing_fields(),
    },
    'moco': {
        'queue_size': Field(65536, fields_lib.COUNT, 'past keys'),
        'momentum': Field(
            0.999, fields_lib.PROBABILITY, 'of the average that embeds keys'
        ),
        'shuffle': Field(True, None, 'keys, before they are embedded'),
        'mask_own_image': Field(
            True, None, "leave out past keys of the query's image"
        ),
    },
    'mochi': {
        'num_hardest': Field(
            0, fields_lib.COUNT_OR_ZERO, "MoCHi's N; 0: no synthetic negatives"
        ),
        'num_mixed': Field(0, fields_lib.COUNT_OR_ZERO, "MoCHi's s"),
        'num_with_query': Field(0, fields_lib.COUNT_OR_ZERO, "MoCHi's s'"),
        'warmup_epochs': Field(
            0.0, fields_lib.NON_NEGATIVE, 'first epochs without them'
        ),
    },
    'optimizer': config_lib.optimizer_fields(weight_decay=1e-6),
    'train': {
        **config_lib.train_fields(
            epochs=400,
            checkpoint_every_epochs=Field(
                10.0, fields_lib.POSITIVE, 'epochs between checkpoints'
            ),
        ),
        'microbatch_size': Field(
            0,
            fields_lib.COUNT_OR_ZERO,
            'rows of a device that are embedded at a time; 0: all',
        ),
    },
    'evaluate': {
        'knn_every_epochs': Field(
            10.0, fields_lib.NON_NEGATIVE, '0: never during training'
        ),
        'protocols': Field(
            ('knn', 'linear'), fields_lib.all_of(*PROTOCOLS), 'at the end'
        ),
        'batch_size': Field(512, fields_lib.COUNT, 'images embedded at a time'),
        'image_size': Field(
            0,
            fields_lib.COUNT_OR_ZERO,
            'pixels to resize to; 0: as large as they are',
        ),
        'knn_k': Field(200, fields_lib.COUNT, 'neighbors; all, if fewer'),
        'knn_temperature': Field(0.5, fields_lib.POSITIVE, 'of their weights'),
        'linear_epochs': Field(100, fields_lib.COUNT, 'of a linear probe'),
        'linear_batch_size': Field(512, fields_lib.COUNT, 'of a linear probe'),
        'linear_optimizer': Field(
            'adam', fields_lib.one_of('adam', 'sgd'), 'of a linear probe'
        ),
        'linear_learning_rate': Field(
            1e-3, fields_lib.POSITIVE, 'of a linear probe'
        ),
        'linear_weight_decay': Field(
            1e-6, fields_lib.NON_NEGATIVE, 'of a linear probe'
        ),
        'linear_decay_epochs': Field(
            (),
            fields_lib.integers(fields_lib.COUNT, 'integers >= 1'),
            'from each on, a tenth of the rate',
        ),
        'linear_standardize': Field(
            True, None, "scale features, but not in 'linear_released'"
        ),
        'linear_seeds': Field(
            (0,),
            fields_lib.SEEDS,
            'seeds of linear probes; scores are their means',
        ),
    },
}


def simclr() -> ml_collections.ConfigDict:
  """Returns SimCLR with hard negatives on CIFAR-10, by released settings."""
  return fields_lib.make(FIELDS)


def moco() -> ml_collections.ConfigDict:
  """Returns MoCo-v2 with hard negatives on CIFAR-10.

  Of its run the paper says 200 epochs, batches of 128, 65,536 keys, beta = 0.2
  and tau_plus = 0. The rest is MoCo-v2's, and ResNet-18 with BatchNorm in eight
  parts MoCo's own choice for CIFAR-10.
  """
  config = simclr()
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


def check(config: ml_collections.ConfigDict) -> None:
  """Raises a ValueError for a value that cannot work, naming its field."""
  config_lib.check(config, FIELDS)
  size, mochi = config.data.batch_size, config.mochi
  if config.task == 'moco' and config.moco.queue_size < size:
    raise ValueError(
        f'config.moco.queue_size must be at least config.data.batch_size, got '
        f'{config.moco.queue_size} and {size}.'
    )
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
  for field in ('data.true_label_positives', 'loss.supervised_negatives'):
    if config.task == 'moco' and fields_lib.get(config, field):
      raise ValueError(f"config.{field} needs config.task='simclr'.")
  if config.model.cross_device_bn and config.model.bn_splits > 1:
    raise ValueError(
        'config.model.cross_device_bn joins the statistics of devices and '
        'config.model.bn_splits divides those of one; choose one.'
    )


def check_size(
    config: ml_collections.ConfigDict, image_shape: tuple[int, ...]
) -> None:
  """Raises a ValueError if patches do not fit views or evaluated images."""
  name, (height, width, _) = config.model.name, image_shape
  patch = 1 if config.model.encoder else models.patch_size(name)
  crop, resized = config.augment.size, config.evaluate.image_size
  shown = resized or f'0, for images of {height} x {width}'
  sizes = (resized,) if resized else (height, width)
  for field, got, whole in (
      ('augment.size', crop, crop % patch == 0),
      ('evaluate.image_size', shown, not any(x % patch for x in sizes)),
  ):
    if not whole:
      raise ValueError(
          f'config.{field} must be a multiple of {patch}, the patch of '
          f'config.model.name={name!r}, got {got}.'
      )


def check_devices(config: ml_collections.ConfigDict, devices: int) -> None:
  """Raises a ValueError if the batch cannot be split over devices."""
  config_lib.check_rows(config, devices)
  rows, chunk = config.data.batch_size // devices, config.train.microbatch_size
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
    fitting = 2 ** (num_examples.bit_length() - 1)
    remedy = (
        f'give --config.data.batch_size={fitting}'
        if fitting > 1
        else 'more images are needed'
    )
    raise ValueError(
        f'config.data.batch_size must be at most {num_examples}, the images of '
        f'config.data.train_split={split!r}, got {size}; {remedy}.'
    )


def is_scored(config: ml_collections.ConfigDict) -> bool:
  """Returns whether a run is scored, which takes labels."""
  return bool(config.evaluate.protocols or config.evaluate.knn_every_epochs)


def without_scores(
    config: ml_collections.ConfigDict,
) -> ml_collections.ConfigDict:
  """Returns the configuration of a run that nothing is scored in."""
  config = ml_collections.ConfigDict(config.to_dict())
  config.evaluate.protocols = ()
  config.evaluate.knn_every_epochs = 0.0
  return config


def check_labels(
    config: ml_collections.ConfigDict, labels: Mapping[str, np.ndarray]
) -> None:
  """Raises a ValueError where labels, by split, are needed and missing (-1)."""
  data = config.data
  needs = {}
  if is_scored(config):
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
