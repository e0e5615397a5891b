# SPDX-License-Identifier: Apache-2.0
"""Makes the experiment that a configuration of pairs describes."""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import jax
import ml_collections
import numpy as np

from hcl_jax.pairs import batches as pair_batches
from hcl_jax.pairs import config as pair_config
from hcl_jax.pairs import data as pair_data
from hcl_jax.pairs import encode
from hcl_jax.pairs import evaluate
from hcl_jax.pairs import inspect
from hcl_jax.pairs import mining
from hcl_jax.pairs import readers as readers_lib
from hcl_jax.pairs import task as two_towers
from hcl_jax.pairs import towers
from hcl_jax.training import config as config_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import own_code


class Data(NamedTuple):
  """Holds the pairs of an experiment.

  Attributes:
    pairs: queries and documents, and which belong together.
    readers: make what encoders read, by side.
    arrays: what encoders read of all queries and documents.
    digest: that of pairs that came from no prepared data set, by name.
    embed: ``(state, side, rows, poll) -> [n, dim]``, of rows of one side.
  """

  pairs: pair_data.Pairs
  readers: dict[str, readers_lib.Reader]
  arrays: pair_batches.Arrays
  digest: dict[str, str]
  embed: Callable[..., np.ndarray] | None = None


def prepare(
    config: ml_collections.ConfigDict,
    *,
    to_train: bool = True,
    like: experiment_lib.Experiment | None = None,
    data: Any = None,
) -> experiment_lib.Experiment:
  """Opens the data of a checked configuration, or those of ``like``.

  Args:
    config: the whole configuration.
    to_train: as in ``domains.make_experiment``.
    like: likewise.
    data: pairs at hand, as ``data.collect`` takes them.
  """
  if to_train and not like:
    # Variants that train side by side have a core each.
    alone = config.compare and config.compare_jobs > 1
    alone = alone and jax.default_backend() == 'cpu'
    pair_config.check_devices(config, 1 if alone else jax.device_count())
  found = like.data if like else _load(config, data)
  pairs = found.pairs
  missing = [x for x in config.evaluate.protocols if x not in pairs.parts]
  if missing:
    raise ValueError(
        f'config.evaluate.protocols must be parts of {config.data.name}, '
        f'{", ".join(pairs.parts)}; got {missing[0]!r}.'
    )
  tables = ()
  if config.optimizer.lazy:
    tables = towers.tables(config, found.readers)
  epoch = pair_batches.PairBatches(
      pairs,
      'train',
      found.arrays,
      seed=config.seed,
      batch_size=config.data.batch_size,
      order=config.data.order,
      num_negatives=config.data.num_negatives,
      tables=tables,
      process_index=jax.process_index(),
      process_count=jax.process_count(),
  )
  per_epoch = len(epoch)
  total = config_lib.total_steps(config, per_epoch)
  make_task = functools.partial(
      _make_task,
      readers=found.readers,
      total_steps=total,
      steps_per_epoch=per_epoch,
      has_repeats=epoch.has_repeats,
      tables=tables,
  )
  task = make_task(config)
  example = {name: x[:1] for name, x in epoch.batch(0).items()}
  if own_code.named(config):
    towers.check(config, found.readers, task.axis_name)
  embed = functools.partial(_embed, encode.Embedder(task, config), found.arrays)
  return experiment_lib.Experiment(
      config=config,
      make_task=make_task,
      example=example,
      batches=epoch,
      evaluators=evaluate.make(config, pairs, embed),
      protocols=tuple(config.evaluate.protocols),
      score=pair_config.SCORE,
      steps_per_epoch=per_epoch,
      rows_per_step=config.data.batch_size,
      unit='pairs',
      summary=(
          f'{config.data.name}: {len(pairs.parts["train"].query)} pairs, '
          f'{total} steps of {config.data.batch_size}, seed {config.seed}; '
          f'scored against all {len(pairs.documents)} documents'
      ),
      num_scored=evaluate.num_scored(config, pairs),
      sample=inspect.sample,
      data=found._replace(embed=embed),
      inputs=encode.inputs(found.readers) | found.digest,
      refresh=mining.make(config, pairs, embed, per_epoch),
      model_fields=sorted(pair_config.model_fields(config)),
  )


def _make_task(config, *, readers, **options):
  return two_towers.create(config, towers.create(config, readers), **options)


def _embed(embedder, arrays, state, side, rows, poll=lambda *_: None):
  return embedder(state, side, getattr(arrays, side), rows, poll)


def _load(config, given) -> Data:
  """Returns pairs, prepared or at hand, as encoders read them."""
  digest = {}
  if given is None:
    pairs = pair_data.load_pairs(
        config.data.name, data_dir=config.data.dir or None
    )
  else:
    pairs = pair_data.collect(given)
    digest = {'data_digest': pair_data.digest(pairs)}
  if config.data.division:
    pairs = pair_data.divide_anew(pairs, config.data.division)
  readers = readers_lib.create(config, pairs)
  arrays = pair_batches.Arrays(
      query=readers['query'](pairs.queries),
      document=readers['document'](pairs.documents),
  )
  return Data(pairs, readers, arrays, digest)
