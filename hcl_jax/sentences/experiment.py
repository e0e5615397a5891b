# SPDX-License-Identifier: Apache-2.0
"""Makes the experiment that a configuration of sentences describes."""

from collections.abc import Iterable
import dataclasses
import functools
from typing import NamedTuple

import jax
import ml_collections

from hcl_jax.models import gru
from hcl_jax.sentences import config as sentence_config
from hcl_jax.sentences import data as sentence_data
from hcl_jax.sentences import encode
from hcl_jax.sentences import evaluate
from hcl_jax.sentences import inspect
from hcl_jax.sentences import scored_tasks
from hcl_jax.sentences import task as quick_thoughts
from hcl_jax.storage import records
from hcl_jax.storage import sources
from hcl_jax.training import config as config_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import own_code


class Data(NamedTuple):
  """Holds the text of an experiment.

  Attributes:
    train: the corpus to train on.
    validation: another one, to score on.
    tasks: labeled sentences to score on, if any.
  """

  train: sentence_data.Sentences
  validation: sentence_data.Sentences
  tasks: tuple[scored_tasks.SentenceTask, ...]


def prepare(
    config: ml_collections.ConfigDict,
    *,
    to_train: bool = True,
    like: experiment_lib.Experiment | None = None,
    data: Iterable[str | Iterable[str]] | None = None,
) -> experiment_lib.Experiment:
  """Opens the data of a checked configuration, or those of ``like``.

  Args:
    config: the whole configuration.
    to_train: as in ``domains.make_experiment``.
    like: likewise; compiled programs are shared too.
    data: text at hand: an iterable of documents, each an iterable of sentences
      in their order, or of sentences. The last 5 % are held out to score on.
  """
  del to_train  # there always is a device
  if like:
    return dataclasses.replace(
        like, config=config, **_parts_of_seed(config, like.data)
    )
  train, validation = _load(config, data)
  protocols, tasks = sentence_config.final_protocols(config), ()
  if 'sentences' in protocols:
    tasks = evaluate.load_tasks(config.evaluate)
  text = Data(train, validation, tasks)
  digest = {}
  if data is not None:
    digest['data_digest'] = sources.digest(
        x for part in (train, validation)
        for x in (part.tokens, part.starts, part.segments)
    )  # fmt: skip
  size = config.data.batch_size
  rows = min(size, len(validation))  # of a batch of the retrieval
  retrieved = len(validation) // rows
  if config.evaluate.retrieval_batches:
    retrieved = min(retrieved, config.evaluate.retrieval_batches)
  parts = _parts_of_seed(config, text)
  make_task = functools.partial(
      quick_thoughts.create,
      vocabulary_size=len(train.vocabulary),
      total_steps=config_lib.total_steps(config, parts['steps_per_epoch']),
      steps_per_epoch=parts['steps_per_epoch'],
  )
  if own_code.named(config):
    _check_encoders(config, make_task(config))
  return experiment_lib.Experiment(
      config=config,
      make_task=make_task,
      example=encode.example(),
      evaluators=evaluate.make(config, make_task(config), *text),
      protocols=protocols,
      score=sentence_config.SCORE,
      rows_per_step=size,
      unit='sentences',
      sample=inspect.sample,
      data=text,
      inputs=encode.inputs(train) | digest,
      num_scored=None if tasks else retrieved * rows,
      device=jax.local_devices()[0],  # All sentences of a batch meet.
      compiler_options=gru.compiler_options(),
      **parts,
  )


def _check_encoders(config, task):
  """Raises a ValueError unless encoders of a user's own work."""
  own_code.check(task.module.left, (encode.example(),))
  if config.evaluate.word_vectors:
    params, _ = jax.eval_shape(task.init, jax.random.key(0), encode.example())
    evaluate.check_word_tables(config, params)


def _parts_of_seed(config, data):
  """Returns the parts of an experiment that depend on the seed."""
  epoch = sentence_data.SentenceBatches(
      data.train,
      seed=config.seed,
      batch_size=config.data.batch_size,
      order=config.data.order,
      block_size=config.data.block_size,
      max_length=config.data.max_length,
      lengths=sentence_data.lengths_up_to(config.data.max_length),
  )
  total = config_lib.total_steps(config, len(epoch))
  return {
      'batches': functools.partial(_batches, epoch),
      'steps_per_epoch': len(epoch),
      'summary': (
          f'{config.data.name}: {len(data.train)} sentences, {total} steps of '
          f'{config.data.batch_size}, seed {config.seed}; '
          f'{len(data.validation)} validation sentences'
      ),
  }


def _batches(epoch, first_step, num_steps):
  """Returns batches, made ahead in a thread."""
  steps = range(first_step, first_step + num_steps)
  return records.map_ahead(epoch.batch, steps)


def _load(config, given):
  """Returns the corpora to train on and to validate on."""
  data = config.data
  if given is not None:
    splits = sentence_data.collect(given)
    load = lambda split: _of_given(splits, split)  # noqa: E731
  else:
    load = lambda split: sentence_data.load_sentences(  # noqa: E731
        data.name, data_dir=data.dir or None, split=split
    )
  train, validation = load(data.train_split), load(data.validation_split)
  if data.batch_size > len(train):
    raise ValueError(
        f'config.data.batch_size must be at most {len(train)}, the sentences '
        f'of config.data.train_split={data.train_split!r}, got '
        f'{data.batch_size}; give a smaller one, or more text.'
    )
  least = 2 * config.loss.window + 1
  if len(validation) < least:
    raise ValueError(
        f'config.data.validation_split={data.validation_split!r} must have at '
        f'least 2 * config.loss.window + 1 = {least} sentences, got '
        f'{len(validation)}.'
    )
  return train, validation


def _of_given(splits, split):
  if split not in splits:
    raise ValueError(
        f'data has the splits {", ".join(splits)}, of which a longer text has '
        f'two; got {split!r}.'
    )
  return splits[split]
