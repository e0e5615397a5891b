# SPDX-License-Identifier: Apache-2.0
"""Fields of configurations of sentences; defaults are the released settings."""

from collections.abc import Collection

import ml_collections

from hcl_jax.sentences import scored_tasks
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import own_code
from hcl_jax.training.fields import Field

SCORE = 'retrieval/accuracy'  # evaluated during training; chooses the best step
PROTOCOLS = ('retrieval', 'sentences')
EVALUATE_FLAGS = {
    'tasks': 'evaluate.tasks',
    'tasks_dir': 'evaluate.tasks_dir',
    'word_vectors': 'evaluate.word_vectors',
}

FIELDS = {
    **config_lib.run_fields('sentences', ('quick_thoughts',)),
    'data': {
        'name': Field('books', None, 'a corpus'),
        'dir': Field('', None, "folder of data sets; '': tfds's default"),
        'train_split': Field('train', None, 'text to train on'),
        'validation_split': Field('validation', None, 'text to score on'),
        'batch_size': Field(400, fields_lib.number(2), 'sentences'),
        'order': Field(
            'consecutive',
            fields_lib.one_of('consecutive', 'blocks'),
            'of the text, or of blocks of it, shuffled by the seed',
        ),
        'block_size': Field(50, fields_lib.number(2), 'sentences of a block'),
        'max_length': Field(
            50, fields_lib.COUNT, 'longer sentences are cut off'
        ),
    },
    'model': {
        'encoder': Field(
            'gru',
            own_code.one_of('gru', 'bag'),
            "recurrent, of words, or your own, 'package.module:factory'",
        ),
        'word_dim': Field(620, fields_lib.COUNT, 'of a word'),
        'dim': Field(
            1200, fields_lib.COUNT, 'of an embedding; features have twice that'
        ),
        'pooling': Field('mean', fields_lib.one_of('mean', 'sum'), "of 'bag'"),
    },
    'loss': {
        **config_lib.hardness_fields(),
        'tau_plus': Field(
            0.0,
            fields_lib.DECAY,
            "probability that a negative has the anchor's class",
        ),
        'window': Field(1, fields_lib.COUNT, 'neighbors on each side'),
        'self_pair': Field(
            'zero',
            fields_lib.one_of('zero', 'drop'),
            'a sentence is a negative of itself with score 0, or none',
        ),
        'clip_scale': Field(
            2.0, fields_lib.NON_NEGATIVE, 'clips weights by beta; 0: does not'
        ),
        'stop_gradient_clip': Field(
            False, None, 'what weights are clipped by is a constant'
        ),
        'floor': Field(
            'soft',
            fields_lib.one_of('sphere', 'soft', 'none'),
            'what debiased estimates are kept above',
        ),
        **config_lib.annealing_fields(),
    },
    'optimizer': {
        **config_lib.optimizer_fields(learning_rate=5e-4),
        'clip_each_norm': Field(
            5.0,
            fields_lib.NON_NEGATIVE,
            'largest norm of the gradient of a variable; 0: any',
        ),
    },
    'train': config_lib.train_fields(
        epochs=1,
        checkpoint_every_epochs=Field(
            0.01, fields_lib.POSITIVE, 'epochs between checkpoints'
        ),
    ),
    'evaluate': {
        'retrieval_every_epochs': Field(
            0.01, fields_lib.NON_NEGATIVE, '0: never during training'
        ),
        'protocols': Field(
            ('retrieval',), fields_lib.all_of(*PROTOCOLS), 'at the end'
        ),
        'retrieval_batches': Field(
            25, fields_lib.COUNT_OR_ZERO, 'of the validation split; 0: all'
        ),
        'batch_size': Field(
            2048, fields_lib.COUNT, 'sentences embedded at a time, at most'
        ),
        'tasks_dir': Field(
            '', None, "folder of labeled tasks to score on at the end; '': none"
        ),
        'tasks': Field(
            ('MR', 'CR', 'SUBJ', 'MPQA', 'TREC', 'MRPC'),
            fields_lib.some_of(scored_tasks.TASKS, 'MSRP'),
            'names of tasks in tasks_dir to score on',
        ),
        'word_vectors': Field(
            '', None, "file of vectors for unknown words; '': none"
        ),
        'workers': Field(
            0, fields_lib.COUNT_OR_ZERO, 'processes; 0: one for each core'
        ),
    },
}


def quick_thoughts() -> ml_collections.ConfigDict:
  """Returns quick-thoughts with hard negatives, by its released settings.

  How hard negatives entered was not released: clip_scale is the paper's number
  for graphs, and the floor, which acts with tau_plus > 0 only, is ours.
  """
  return fields_lib.make(FIELDS)


def check(config: ml_collections.ConfigDict) -> None:
  """Raises a ValueError for a value that cannot work, naming its field."""
  config_lib.check(config, FIELDS)
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


def final_protocols(config: ml_collections.ConfigDict) -> tuple[str, ...]:
  """Returns what a run is scored by at its end; by tasks too, if it has any."""
  protocols = tuple(config.evaluate.protocols)
  if config.evaluate.tasks_dir and 'sentences' not in protocols:
    protocols += ('sentences',)
  return protocols


def set_protocols(
    config: ml_collections.ConfigDict,
    protocols: tuple[str, ...],
    flags: Collection[str],
) -> None:
  """Sets what a run is scored by, and nothing else.

  Raises:
    ValueError: the given ``EVALUATE_FLAGS`` and protocols do not fit.
  """
  config.evaluate.protocols = protocols
  if 'sentences' not in protocols:
    if flags:
      raise ValueError(f'--{min(flags)} needs --protocol=sentences.')
    config.evaluate.tasks_dir = ''  # or its tasks would be read
  elif not config.evaluate.tasks_dir:
    raise ValueError(
        '--protocol=sentences needs --tasks_dir, the folder of the tasks.'
    )
