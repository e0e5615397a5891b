# SPDX-License-Identifier: Apache-2.0
"""The paper's experiments on images, as sweeps: at small scale, or in full.

  python -m hcl_jax.sweep --config=configs/paper.py:hardness --workdir=DIR \\
      --jobs=2
  python -m hcl_jax.sweep --config=configs/paper.py:hardness,full --workdir=DIR

Each with seeds 0, 1 and 2, kNN and linear probe:

  methods_cifar10    standard, debiased, hard, and hard without debiasing: beta
  methods_cifar100   0 and 1 by tau_plus 0 and that of the data set; the epoch
  methods_stl10      in which a method reaches what standard ends with is in
  methods_tiny_imagenet  the curves of the same runs
  hardness           beta 0, 0.5, 1, 2 and 6, positives from augmentation and,
                     as if by an oracle, of the same class (CIFAR-10)
  annealing          the same betas but 0, falling in nine stairs (CIFAR-10)
  batch_standard     batches of 16 to 256, so 30 to 510 negatives (STL-10)
  batch_hard         the same with beta = 1, tau_plus = 0.1
  moco               MoCo-v2, beta 0, 0.2 and 1, with and without older keys of
                     the query's own image (CIFAR-10)
  mochi              MoCo-v2 with MoCHi's synthetic negatives, a rival

full is the paper's scale, for an accelerator: a ResNet-50 (MoCo: a ResNet-18),
400 epochs (MoCo: 200), crops of its size, STL-10 with its unlabeled images. It
was not run by us.

small, the default, is for a CPU: the small encoder (0.6 M parameters), crops of
24 pixels, batches of 128, Adam at 1e-3 with a cosine, and epochs that make
about 200,000 images of each of the sets of RESULTS.md, some of which are parts
of what can be downloaded; half as many where batches are compared. MoCo has
10,000 of CIFAR-10's images and 12,800 keys. Images are read out at 32 pixels,
on CIFAR-10 with the labels of 10,000 of them. Encoder, crop, batch and rate
were chosen on the standard loss alone, as RESULTS.md tells, which also has what
came of these sweeps.
"""

from typing import NamedTuple

from flax import traverse_util

from hcl_jax.images import config as image_config

_SEEDS = (0, 1, 2)
_BETAS = (0.0, 0.5, 1.0, 2.0, 6.0)
_BATCHES = (16, 32, 64, 128, 256)
_KNN_TIMES = 5  # in a small run


class _Images(NamedTuple):
  """A data set.

  Attributes:
    tau_plus: one over the number of classes, and what the paper took where it
      says so.
    epochs: of a small run.
    labeled: images that the scores of a small run learn from.
    train_split: of a full run; the labeled images are that of a small one.
    test_split: images with labels to score on.
    crop: pixels, of a full run.
  """

  tau_plus: float
  epochs: int
  labeled: str = 'train'
  train_split: str = 'train'
  test_split: str = 'test'
  crop: int = 32


_IMAGES = {
    'cifar10': _Images(tau_plus=0.1, epochs=4, labeled='train[:10000]'),
    'cifar100': _Images(tau_plus=0.01, epochs=12),
    'stl10': _Images(tau_plus=0.1, epochs=40, train_split='train+unlabelled'),
    'tiny_imagenet': _Images(
        tau_plus=0.01, epochs=40, test_split='validation', crop=64
    ),
}


def _methods(name):
  return name, {'loss.beta': (0.0, 1.0),
                'loss.tau_plus': (0.0, _IMAGES[name].tau_plus)}  # fmt: skip


# The data set, and what is swept beside the seed.
_EXPERIMENTS = {
    **{f'methods_{name}': _methods(name) for name in _IMAGES},
    'hardness': (
        'cifar10',
        {'data.true_label_positives': (False, True), 'loss.beta': _BETAS},
    ),
    'annealing': (
        'cifar10',
        {'loss.annealing': ('down',), 'loss.beta': _BETAS[1:]},
    ),
    'batch_standard': (
        'stl10',
        {'data.batch_size': _BATCHES, 'loss.beta': (0.0,),
         'loss.tau_plus': (0.0,)},
    ),  # fmt: skip
    'batch_hard': ('stl10', {'data.batch_size': _BATCHES}),
    'moco': (
        'cifar10',
        {'loss.beta': (0.0, 0.2, 1.0), 'moco.mask_own_image': (True, False)},
    ),
    'mochi': ('cifar10', {'loss.beta': (0.0,)}),
}


def get_config(argument='methods_cifar10'):
  name, _, scale = argument.partition(',')
  if name not in _EXPERIMENTS or scale not in ('', 'small', 'full'):
    raise ValueError(
        'the argument must be EXPERIMENT or EXPERIMENT,full with one of '
        f'{", ".join(_EXPERIMENTS)}; got {argument!r}.'
    )
  data_set, values = _EXPERIMENTS[name]
  images = _IMAGES[data_set]
  if name.startswith('batch'):  # of which there are many, and small ones slow
    images = images._replace(epochs=images.epochs // 2)
  if name in ('moco', 'mochi'):
    config = image_config.moco()
  else:
    config = image_config.simclr()
    config.loss.tau_plus = images.tau_plus
  config.data.name = data_set
  config.data.test_split = images.test_split
  if scale == 'full':
    _make_full(config, images)
  else:
    _make_small(config, images)
  if name == 'mochi':
    _mix_hardest(config)
  values = {**values, 'seed': _SEEDS}
  config.sweep = traverse_util.unflatten_dict(values, sep='.')
  return config


def _mix_hardest(config):
  """MoCHi's numbers for a queue of 16,384 keys, or in proportion for fewer."""
  keys = min(config.moco.queue_size, 16_384)
  config.mochi.num_hardest = keys // 16
  config.mochi.num_mixed = keys // 16
  config.mochi.num_with_query = keys // 128
  config.mochi.warmup_epochs = config.train.epochs / 20


def _make_full(config, images):
  config.data.train_split = images.train_split
  config.augment.size = images.crop
  config.augment.blur_kernel = images.crop // 20 * 2 + 1  # a tenth, odd


def _make_small(config, images):
  config.train.epochs = images.epochs
  if config.task == 'moco':
    _make_moco_small(config)
  config.model.name = 'small'
  config.data.batch_size = 128
  config.data.bank_split = images.labeled
  config.augment.size = 24
  config.evaluate.image_size = 32
  config.optimizer.schedule = 'cosine'
  every = config.train.epochs / _KNN_TIMES
  config.train.checkpoint_every_epochs = every
  config.evaluate.knn_every_epochs = every


def _make_moco_small(config):
  """The rate and readout of the others, and a queue that outlasts an epoch.

  The paper's 65,536 keys of 50,000 images hold older keys of the query's own
  image, which is what there is to mask. So do 12,800 keys of 10,000 images, a
  fifth of CIFAR-10's, in five times as many epochs.
  """
  of_images = image_config.simclr()
  config.optimizer.update(of_images.optimizer)
  config.evaluate.update(of_images.evaluate)
  config.data.train_split = 'train[:10000]'
  config.train.epochs *= 5
  config.moco.queue_size = 12_800
  config.moco.momentum = 0.99
