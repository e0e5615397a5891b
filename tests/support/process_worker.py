# SPDX-License-Identifier: Apache-2.0
"""hcl_jax.train with a tiny experiment, as a process of its own.

  python tests/support/process_worker.py KNOBS FLAGS...

KNOBS is a JSON object:
  devices: how many this process has.
  pause: seconds before each batch.
  nan_step: a step whose batch gives NaN.
  save_pause: seconds before and after a checkpoint's record is written, when
    its arrays are on disk or about to be.

Prints ``batch STEP`` and ``save STEP`` as it comes to them, and the checksum of
each state that is evaluated.
"""

import dataclasses
import functools
import hashlib
import json
import os
import signal
import sys
import time
from unittest import mock

import jax
import numpy as np

from hcl_jax import configurations
from hcl_jax import domains
from hcl_jax import hosts
from hcl_jax import train
from hcl_jax.images import data as image_data
from hcl_jax.images import experiment as image_experiment
from hcl_jax.runs import checkpoint
from hcl_jax.runs import checksums
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import fields
from tests.support import compiler
from tests.support import tiny


class _Experiment(experiment_lib.Experiment):
  """Prints the states that are evaluated."""

  def evaluate(self, state, *args, **kwargs):
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
      digest.update(np.asarray(leaf).tobytes())
    print(f'step {int(state.step)} {digest.hexdigest()}', flush=True)
    return super().evaluate(state, *args, **kwargs)


def _batches(made, pause, nan_step, first_step, num_steps):
  """Slow, or poisoned in the rows of the last process, if asked to."""
  last = jax.process_index() == jax.process_count() - 1
  for step, batch in enumerate(made(first_step, num_steps), first_step + 1):
    print(f'batch {step}', flush=True)
    time.sleep(pause)
    if step == nan_step and last:
      batch['label'][-1] = 99
    yield batch


def _task():
  task = tiny.simclr_task(norm='batch', cross_device=True)
  honest = task.loss

  def loss(embeddings, state, batch, step):
    bad = jax.numpy.where(batch['label'] == 99, np.nan, 1.0)
    return honest(embeddings, state, batch, step) * bad

  object.__setattr__(task, 'loss', loss)
  return task


def _images(rows, seed):
  rng = np.random.default_rng(seed)
  images = rng.integers(0, 256, (rows, 4, 4, 3), np.uint8)
  return image_data.Images(images, np.arange(rows, dtype=np.int32) % 2)


def prepare(pause, nan_step, config):
  """The experiment, whatever data and task the configuration names."""
  # SGD, because Adam hides a gradient that is n-fold.
  sgd = {'optimizer.name': 'sgd', 'optimizer.learning_rate': 0.5,
         'optimizer.schedule': 'constant', 'optimizer.warmup_epochs': 0.0,
         'optimizer.weight_decay': 0.0}  # fmt: skip
  config = fields.with_values(config, sgd)
  data = image_experiment.Data(_images(70, 0), _images(50, 1), _images(30, 2))
  task = _task()
  made = image_experiment.from_images(config, data, lambda *_, **__: task)
  parts = {x.name: getattr(made, x.name) for x in dataclasses.fields(made)}
  parts['batches'] = functools.partial(
      _batches, made.batches, pause, nan_step
  )
  return _Experiment(**parts)


def _announce_saves():
  save = checkpoint.Checkpoints.save

  def announced(self, step, *args, **kwargs):
    self.wait()  # the step before is complete
    print(f'save {step}', flush=True)
    return save(self, step, *args, **kwargs)

  return mock.patch.object(checkpoint.Checkpoints, 'save', announced)


def _slow_saves(pause):
  write = checksums.write_record

  def slow(*args):
    time.sleep(pause)
    write(*args)
    time.sleep(pause)

  return mock.patch.object(checksums, 'write_record', slow)


def run(*, devices, pause=0.0, nan_step=0, save_pause=0.0):
  """Runs the command with the flags in sys.argv."""
  # A shell starts background jobs, tests maybe, with SIGINT ignored.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  os.environ['XLA_FLAGS'] = compiler.xla_flags(devices, parts=32)
  make = functools.partial(prepare, pause, nan_step)
  with (
      mock.patch.object(domains, 'make_experiment', make),
      _announce_saves(),
      _slow_saves(save_pause),
  ):
    hosts.run(
        'hcl_jax.train', train.main, own_flags=[configurations.PREFIX]
    )


if __name__ == '__main__':
  run(**json.loads(sys.argv.pop(1)))
