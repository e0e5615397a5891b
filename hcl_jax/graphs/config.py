# SPDX-License-Identifier: Apache-2.0
"""Fields of configurations of graphs; defaults are the released settings."""

import ml_collections
from ml_collections import config_dict
import numpy as np

from hcl_jax.evaluation import cross_validation
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import own_code
from hcl_jax.training.fields import Field

SCORE = 'svm/accuracy'  # evaluated during training; chooses the best step
PROTOCOLS = ('svm', 'logistic')
EVALUATE_FLAGS = {'seeds': 'evaluate.fold_seeds'}
SMALL_RUNS = True  # a core, or a share of an accelerator, is enough for one

FIELDS = {
    **config_lib.run_fields(
        'graphs',
        ('infograph',),
        seed='of parameters and of the order of graphs, the same in all epochs',
    ),
    'data': {
        'name': Field('MUTAG', None, 'a collection'),
        'dir': Field('', None, "folder of data sets; '': tfds's default"),
        'batch_size': Field(
            128,
            fields_lib.number(2),
            'the last batch of an epoch has what is left',
        ),
    },
    'model': {
        'encoder': Field(
            '',
            own_code.one_of(''),
            "your own network, 'package.module:factory'; '': GIN",
        ),
        'width': Field(32, fields_lib.COUNT, 'of a layer of GIN'),
        'num_layers': Field(3, fields_lib.COUNT, 'of GIN'),
    },
    'loss': {
        'variant': Field(
            'paper',
            fields_lib.one_of('paper', 'released', 'infograph'),
            "the paper's, its code's (weights of the other sign), the baseline",
        ),
        **config_lib.hardness_fields(),
        'tau_plus': Field(
            config_dict.placeholder(float),
            fields_lib.or_none(fields_lib.DECAY),
            "probability of a negative of the anchor's class; None: variant's",
        ),
        'prior_weight': Field(
            0.0, fields_lib.NON_NEGATIVE, "InfoGraph's, 0.1 where it is used"
        ),
        **config_lib.annealing_fields(),
    },
    'optimizer': config_lib.optimizer_fields(),
    'train': config_lib.train_fields(
        epochs=200,
        checkpoint_every_epochs=Field(
            100, fields_lib.COUNT, 'epochs between checkpoints'
        ),
    ),
    'evaluate': {
        'svm_every_epochs': Field(
            0, fields_lib.COUNT_OR_ZERO, '0: never during training'
        ),
        'protocols': Field(
            ('svm',), fields_lib.all_of(*PROTOCOLS), 'at the end'
        ),
        'folds': Field(10, fields_lib.number(2), 'to score on'),
        'inner_folds': Field(5, fields_lib.number(2), 'to choose C on'),
        'fold_seeds': Field(
            (0,),
            fields_lib.SEEDS,
            'seeds of divisions into folds; scores are means',
        ),
        'svm_gamma': Field(
            'scale', fields_lib.one_of('scale', 'auto'), 'of the RBF kernel'
        ),
        'workers': Field(
            0, fields_lib.COUNT_OR_ZERO, 'processes; 0: chosen by size'
        ),
    },
}


def infograph() -> ml_collections.ConfigDict:
  """Returns InfoGraph with hard negatives on MUTAG, by released settings."""
  return fields_lib.make(FIELDS)


def check(config: ml_collections.ConfigDict) -> None:
  """Raises a ValueError for a value that cannot work, naming its field."""
  config_lib.check(config, FIELDS)
  loss = config.loss
  if loss.effective_negatives is not None and loss.variant != 'paper':
    raise ValueError(
        "config.loss.effective_negatives needs config.loss.variant='paper', "
        f'got {loss.variant!r}.'
    )


def check_graphs(config: ml_collections.ConfigDict, labels: np.ndarray) -> None:
  """Raises a ValueError if graphs do not fit the batches or the folds."""
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
