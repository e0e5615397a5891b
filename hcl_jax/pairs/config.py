# SPDX-License-Identifier: Apache-2.0
"""Fields of configurations of pairs: queries and their documents."""

import ml_collections
from ml_collections import config_dict

from hcl_jax import models
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import own_code
from hcl_jax.training.fields import Field

SCORE = 'validation/R@1'  # evaluated during training; chooses the best step
PROTOCOLS = ('validation', 'test')
MEASURES = (
    'R@1', 'R@5', 'R@10', 'R@100', 'MRR', 'nDCG@10', 'group R@1'
)  # fmt: skip
VARIANTS = (*config_lib.VARIANTS, 'grouped', 'mined')
ORDERS = ('random', 'grouped')
# What encodes an item, by the kind of the items.
ENCODERS = {
    'text': ('ngrams', 'words', 'gru', 'transformer'),
    'vector': ('adapter',),
    'image': models.NAMES,
}
# Fields of the model that an encoder has, beside ``dim``.
_OF_ENCODER = {
    'ngrams': ('width', 'token_dim', 'buckets', 'length'),
    'words': ('width', 'token_dim', 'length', 'vocabulary_size'),
    'gru': ('token_dim', 'length', 'vocabulary_size'),
    'transformer': (
        'width', 'layers', 'heads', 'length', 'vocabulary_size',
    ),
}  # fmt: skip
EVALUATE_FLAGS = {'measures': 'evaluate.measures'}

_ALL_ENCODERS = tuple(name for names in ENCODERS.values() for name in names)


def _or_none(check: fields_lib.Check, help: str) -> Field:
  return Field(
      config_dict.placeholder(float), fields_lib.or_none(check), help
  )


FIELDS = {
    **config_lib.run_fields('pairs', ('two_towers',)),
    'compare': Field(
        (),
        fields_lib.all_of(*config_lib.VARIANTS),
        'variants to train into sub-folders; () for one run',
    ),
    'compare_jobs': Field(
        1,
        fields_lib.COUNT,
        'variants to train at a time on a CPU, each on its share of the cores',
    ),
    'data': {
        'name': Field('molecules', None, 'a data set of pairs'),
        'dir': Field('', None, "folder of data sets; '': tfds's default"),
        'division': Field(
            0,
            fields_lib.COUNT_OR_ZERO,
            'other parts of these sizes, one for each number; 0: as prepared',
        ),
        'batch_size': Field(512, fields_lib.number(2), 'over all devices'),
        'order': Field(
            'random',
            fields_lib.one_of(*ORDERS),
            'pairs at random, or those of a group side by side',
        ),
        'num_negatives': Field(
            0,
            fields_lib.COUNT_OR_ZERO,
            "further negatives of a pair: mined ones, or the data's own",
        ),
    },
    'mining': {
        'every_epochs': Field(
            0.0,
            fields_lib.NON_NEGATIVE,
            'mine negatives anew after so many; 0: do not mine',
        ),
        'depth': Field(
            10, fields_lib.COUNT, 'mined documents of a pair to draw from'
        ),
        'skip': Field(
            0, fields_lib.COUNT_OR_ZERO, 'most similar documents to leave out'
        ),
        'margin': _or_none(
            fields_lib.number(-2, 2),
            'leaves out documents nearly as similar as the own; None: none',
        ),
    },
    'model': {
        'encoder': Field(
            'ngrams',
            own_code.one_of(*_ALL_ENCODERS),
            "of both sides, or your own, 'package.module:factory'",
        ),
        'document_encoder': Field(
            '',
            fields_lib.one_of('', *_ALL_ENCODERS),
            "of documents, if another; '': the same",
        ),
        'shared': Field(False, None, 'one tower for queries and documents'),
        'dim': Field(128, fields_lib.COUNT, 'of an embedding'),
        'width': Field(256, fields_lib.COUNT, 'of hidden layers'),
        'token_dim': Field(96, fields_lib.COUNT, 'of a token, in bags'),
        'buckets': Field(32768, fields_lib.number(2), 'of hashed n-grams'),
        'ngrams': Field(
            (1, 4),
            fields_lib.integers(fields_lib.COUNT, 'two ints >= 1', least=2),
            'least and greatest length of n-grams, in characters',
        ),
        'length': Field(256, fields_lib.COUNT, 'tokens of a text that count'),
        'tokens': Field(
            'characters',
            fields_lib.one_of('characters', 'words'),
            "what 'gru' and 'transformer' read",
        ),
        'vocabulary_size': Field(
            20000, fields_lib.COUNT, 'commonest words or characters to know'
        ),
        'layers': Field(2, fields_lib.COUNT, "of 'transformer'"),
        'heads': Field(4, fields_lib.COUNT, "of 'transformer'"),
        'dtype': Field(
            'float32',
            fields_lib.one_of('float32', 'bfloat16'),
            "of the computation of 'transformer' and of images",
        ),
    },
    'loss': {
        'temperature': Field(0.1, fields_lib.POSITIVE, 'divides cosines'),
        'standard_temperature': _or_none(
            fields_lib.POSITIVE,
            "that of the variant 'standard'; None: temperature",
        ),
        'learned_temperature': Field(
            False, None, 'temperature is what training begins with'
        ),
        **config_lib.hardness_fields(),
        'tau_plus': Field(
            0.0,
            fields_lib.DECAY,
            'probability that a negative is relevant',
        ),
        'positive_weight': Field(
            1.0,
            fields_lib.NON_NEGATIVE,
            'of the positive in the denominator; 0: the decoupled loss',
        ),
        'margin': _or_none(
            fields_lib.number(-2, 2),
            'drops negatives nearly as similar as the positive; None: none',
        ),
        'relative_margin': Field(
            False, None, "margin is a share of the positive's cosine"
        ),
        'bidirectional': Field(
            True, None, 'documents look for their queries, too'
        ),
        'floor': Field(
            'sphere',
            fields_lib.one_of('sphere', 'soft', 'none'),
            'what debiased estimates are kept above',
        ),
        **config_lib.annealing_fields(),
    },
    'optimizer': {
        **config_lib.optimizer_fields(learning_rate=3e-3, schedule='cosine'),
        'lazy': Field(
            True, None, 'tokens that a batch lacks stay as they are'
        ),
    },
    'train': {
        **config_lib.train_fields(
            epochs=4,
            checkpoint_every_epochs=Field(
                1.0, fields_lib.POSITIVE, 'epochs between checkpoints'
            ),
        ),
        'microbatch_size': Field(
            0,
            fields_lib.COUNT_OR_ZERO,
            'rows of a device that are embedded at a time; 0: all',
        ),
    },
    'evaluate': {
        'validation_every_epochs': Field(
            1.0, fields_lib.NON_NEGATIVE, '0: never during training'
        ),
        'protocols': Field(
            ('validation',), fields_lib.all_of(*PROTOCOLS), 'at the end'
        ),
        'measures': Field(
            MEASURES, fields_lib.some_of(MEASURES), 'scores to show'
        ),
        'max_queries': Field(
            0, fields_lib.COUNT_OR_ZERO, 'of a split, drawn once; 0: all'
        ),
        'batch_size': Field(
            1024, fields_lib.COUNT, 'items embedded at a time'
        ),
    },
}


def pairs() -> ml_collections.ConfigDict:
  """Returns two towers of hashed n-grams, with hard negatives."""
  return fields_lib.make(FIELDS)


def set_variant(config: ml_collections.ConfigDict, variant: str) -> None:
  """Sets what a variant is: of the loss, or how batches get negatives.

  Args:
    config: to be changed.
    variant: a variant of the loss; ``'grouped'``, batches of whole groups; or
      ``'mined'``, a mined negative for each pair.

  Raises:
    ValueError: there is no such variant.
  """
  if variant not in VARIANTS:
    raise ValueError(
        f'the variant must be one of {", ".join(VARIANTS)}; got {variant!r}.'
    )
  if variant == 'grouped':
    config.data.order = 'grouped'
  elif variant == 'mined':
    config.mining.every_epochs = 1.0
    config.data.num_negatives = 1
  else:
    config_lib.set_variant(config, variant)


def check(config: ml_collections.ConfigDict) -> None:
  """Raises a ValueError for a value that cannot work, naming its field."""
  config_lib.check(config, FIELDS)
  model, loss, mining = config.model, config.loss, config.mining
  least, most = model.ngrams[0], model.ngrams[-1]
  if len(model.ngrams) != 2 or least > most:
    raise ValueError(
        'config.model.ngrams must be the least and the greatest length, as '
        f'(1, 4); got {model.ngrams}.'
    )
  if mining.every_epochs and not config.data.num_negatives:
    raise ValueError(
        'config.data.num_negatives must be 1 or more, with '
        f'config.mining.every_epochs={mining.every_epochs:g}: it is how many '
        'mined negatives a pair gets; got 0.'
    )
  if config.data.num_negatives > mining.depth and mining.every_epochs:
    raise ValueError(
        f'config.mining.depth must be at least config.data.num_negatives='
        f'{config.data.num_negatives}, which are drawn from so many; got '
        f'{mining.depth}.'
    )
  if loss.relative_margin and loss.margin is None:
    raise ValueError(
        'config.loss.margin must be a number with '
        'config.loss.relative_margin=True; got None.'
    )
  if config.optimizer.lazy and config.optimizer.name == 'lars':
    raise ValueError(
        "config.optimizer.lazy must be False with config.optimizer.name='lars',"
        ' which needs whole tables of tokens for its rates; got True.'
    )
  if model.shared and model.document_encoder:
    raise ValueError(
        "config.model.document_encoder must be '' with config.model.shared="
        f'True, one tower for both sides; got {model.document_encoder!r}.'
    )


def check_devices(config: ml_collections.ConfigDict, devices: int) -> None:
  """Raises a ValueError if the batch cannot be split over devices."""
  config_lib.check_rows(config, devices)


def encoder_of(config: ml_collections.ConfigDict, side: str) -> str:
  """Returns the name of the encoder of 'query' or 'document'."""
  other = config.model.document_encoder if side == 'document' else ''
  return other or config.model.encoder


def model_fields(config: ml_collections.ConfigDict) -> set[str]:
  """Returns the fields of ``config.model`` that the encoders have."""
  found = {'dim'}
  for side in ('query', 'document'):
    found.update(_OF_ENCODER.get(encoder_of(config, side), ('width',)))
  return found
