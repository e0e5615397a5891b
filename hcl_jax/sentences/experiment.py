# SPDX-License-Identifier: Apache-2.0
"""What a configuration of sentences stands for."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple

import jax
import ml_collections
import numpy as np
import optax

from hcl_jax.models import gru
from hcl_jax.models import packed_text as sentences_lib
from hcl_jax.sentences import config as sentence_config
from hcl_jax.sentences import data as sentence_data
from hcl_jax.sentences import evaluate as sentence_readout
from hcl_jax.sentences import scored_tasks
from hcl_jax.sentences import scoring as sentence_scoring
from hcl_jax.sentences import task as quick_thoughts
from hcl_jax.storage import threads
from hcl_jax.training import optimizer as optimizer_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib


class SentenceExperiment(NamedTuple):
  """All that a run on sentences needs; to the loop, an ``Experiment``.

  One device trains: all sentences of a batch meet.

  Attributes:
    config: the configuration.
    train: the corpus to train on.
    validation: another one, to score on.
    epoch: the batches of the former.
    total_steps: length of the run.
    task: model and loss.
    learning_rate: by step.
    optimizer: with that learning rate.
    tasks: labelled sentences to score on, if any.
  """

  config: ml_collections.ConfigDict
  train: sentence_data.Sentences
  validation: sentence_data.Sentences
  epoch: sentence_data.SentenceBatches
  total_steps: int
  task: task_lib.Task
  learning_rate: optax.Schedule
  optimizer: optax.GradientTransformation
  tasks: tuple[scored_tasks.SentenceTask, ...] = ()

  unit = 'sentences'
  score = sentence_config.SCORE

  @property
  def steps_per_epoch(self) -> int:
    return len(self.epoch)

  @property
  def rows_per_step(self) -> int:
    return self.config.data.batch_size

  @property
  def protocols(self) -> tuple[str, ...]:
    return sentence_config.final_protocols(self.config)

  @property
  def devices(self) -> list[jax.Device]:
    return jax.local_devices()[:1]

  def create_state(self) -> state_lib.TrainState:
    """The state before the first step."""
    some = sentences_lib.pack(np.zeros((3, 1), np.int32), np.ones(3, np.int32))
    state = self.rules().create_state(some._asdict())
    return jax.device_put(state, state_lib.replicated(self.devices))

  def rules(self) -> step_lib.Rules:
    return step_lib.configured_rules(self.task, self.optimizer, self.config)

  def make_step(self) -> step_lib.Step:
    """The function that trains on one batch."""
    rules = self.rules()
    step = step_lib.compile_lone(
        lambda _, state, batch: step_lib.lone_step(rules, state, batch),
        donate_argnums=1,
        compiler_options=gru.compiler_options(),
    )
    return lambda state, batch: step({}, state, batch)

  def batches(
      self, first_step: int, num_steps: int
  ) -> Iterator[dict[str, np.ndarray]]:
    """Batches first_step, first_step + 1, ..., made ahead in a thread."""

    def make(step):
      return self.epoch.batch(step)._asdict()

    return threads.map_ahead(make, range(first_step, first_step + num_steps))

  def reader(
      self, poll: Callable[[], None] = lambda: None
  ) -> sentence_readout.SentenceReader:
    """What evaluates; ``poll`` is called on the way and may raise."""
    return sentence_readout.SentenceReader(
        self.config,
        self.task,
        vocabulary=self.train.vocabulary,
        validation=self.validation,
        tasks=self.tasks,
        poll=poll,
    )

  def summary(self) -> str:
    """One line on what was trained and how it is scored."""
    config = self.config
    return (
        f'{config.data.name}: {len(self.train)} sentences, {self.total_steps} '
        f'steps of {config.data.batch_size}, seed {config.seed}; '
        f'{len(self.validation)} validation sentences'
    )


def prepare(
    config: ml_collections.ConfigDict, *, to_train: bool = True
) -> SentenceExperiment:
  """Opens the data of a checked configuration; writes nothing of a run."""
  del to_train  # one device is always there
  if jax.process_count() > 1:
    raise ValueError(
        f"config.task='quick_thoughts' trains in one process, got "
        f'{jax.process_count()}; give each of them a run of its own.'
    )
  data = config.data
  train, validation = (
      sentence_data.load_sentences(
          data.name, data_dir=data.dir or None, split=split
      )
      for split in (data.train_split, data.validation_split)
  )
  for split, corpus in (('train', train), ('validation', validation)):
    if data.batch_size > len(corpus):
      raise ValueError(
          f'config.data.batch_size must be at most {len(corpus)}, the '
          f'sentences of config.data.{split}_split='
          f'{data[f"{split}_split"]!r}, got {data.batch_size}.'
      )
  tasks = ()
  if 'sentences' in sentence_config.final_protocols(config):
    tasks = sentence_scoring.load_tasks(config.evaluate)
  epoch = sentence_data.SentenceBatches(
      train,
      seed=config.seed,
      batch_size=data.batch_size,
      order=data.order,
      block_size=data.block_size,
      max_length=data.max_length,
      lengths=sentence_readout.lengths(data.max_length),
  )
  total = config.train.steps or config.train.epochs * len(epoch)
  schedule = optimizer_lib.learning_rate(config.optimizer, total, len(epoch))
  return SentenceExperiment(
      config=config,
      train=train,
      validation=validation,
      epoch=epoch,
      total_steps=total,
      task=quick_thoughts.create(
          config,
          vocabulary_size=len(train.vocabulary),
          total_steps=total,
          steps_per_epoch=len(epoch),
      ),
      learning_rate=schedule,
      optimizer=optimizer_lib.create(config.optimizer, schedule),
      tasks=tasks,
  )
