# SPDX-License-Identifier: Apache-2.0
"""Fields of configurations of points; also a config file of its own."""

from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training.fields import Field

SCORE = 'nearest/accuracy'

FIELDS = {
    **config_lib.run_fields('tests.support.toy', ('points',)),
    'data': {
        'name': Field('circle', None, 'a name'),
        'dir': Field('', None, 'not used'),
        'num_points': Field(64, fields_lib.COUNT, 'to train on'),
        'batch_size': Field(16, fields_lib.number(2), 'points'),
    },
    'model': {'dim': Field(8, fields_lib.COUNT, 'of an embedding')},
    'loss': {
        'temperature': Field(0.5, fields_lib.POSITIVE, 'divides cosines'),
        'beta': Field(1.0, fields_lib.NON_NEGATIVE, 'hardness'),
        'tau_plus': Field(0.0, fields_lib.DECAY, 'class prior'),
        **config_lib.annealing_fields(),
    },
    'optimizer': config_lib.optimizer_fields(learning_rate=1e-2),
    'train': config_lib.train_fields(
        epochs=3,
        checkpoint_every_epochs=Field(1.0, fields_lib.POSITIVE, 'epochs'),
    ),
    'evaluate': {
        'nearest_every_epochs': Field(1.0, fields_lib.NON_NEGATIVE, 'epochs'),
        'protocols': Field(
            ('nearest',), fields_lib.all_of('nearest'), 'at the end'
        ),
    },
}


def get_config():
  return fields_lib.make(FIELDS)


def check(config) -> None:
  config_lib.check(config, FIELDS)
