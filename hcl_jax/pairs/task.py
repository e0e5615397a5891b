# SPDX-License-Identifier: Apache-2.0
"""Two towers: queries against documents, the others of a batch negatives."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp
from jax.typing import ArrayLike

import hcl_jax
from hcl_jax.models import text_encoder
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import modules
from hcl_jax.training import task as task_lib

SIDES = ('query', 'document')
_MAX_SCALE = 100.0  # of a learned one, as in CLIP
_SCALE = 'log_scale'


class Table(NamedTuple):
  """Describes a table of tokens.

  Attributes:
    tower: name of the tower whose it is.
    size: number of tokens.
    entries: entries of a batch that have such tokens.
  """

  tower: str
  size: int
  entries: tuple[str, ...]

  @property
  def list(self) -> str:
    """Returns the entry of a batch that lists its tokens."""
    return f'{self.tower}_tokens'


class Towers(nn.Module):
  """Encoders of both sides and, if it is learned, the temperature.

  Attributes:
    query: encoder of queries, ``(rows, train) -> [n, dim]``.
    document: that of documents; None: the same.
    temperature: what a learned temperature begins with; None: it is not
      learned.
  """

  query: nn.Module
  document: nn.Module | None = None
  temperature: ArrayLike | None = None

  def setup(self):
    if self.temperature is not None:
      begin = -jnp.log(jnp.asarray(self.temperature, jnp.float32))
      self.log_scale = self.param(_SCALE, lambda key: begin)

  def __call__(
      self, rows: Mapping[str, jax.Array], *, train: bool
  ) -> dict[str, jax.Array]:
    """Embeds rows of one side or both, by name."""
    encoders = {'query': self.query, 'document': self.document or self.query}
    return {
        side: encoders[side](x, train=train) for side, x in rows.items()
    }

  def scale(self) -> jax.Array | None:
    """Returns the factor of cosines, if it is learned."""
    if self.temperature is None:
      return None
    return jnp.exp(jnp.minimum(self.log_scale, jnp.log(_MAX_SCALE)))


@dataclasses.dataclass(frozen=True)
class TwoTowers:
  """Two encoders, and :func:`hcl_jax.in_batch_loss` between them.

  A batch is as ``batches.PairBatches`` makes it.

  Attributes:
    module: the encoders.
    beta: schedule of the concentration.
    loss_options: further options of the loss by name.
    has_repeats: whether pairs of a batch may share an id, which makes them
      positives of each other.
    effective_negatives: share of the negatives that counts, in place of beta.
    tables: those that are trained by the tokens that a batch lists; see
      ``training.tables``.
    axis_name: mapped axis of devices, or None.
  """

  module: Towers
  beta: hcl_jax.schedules.Schedule
  loss_options: dict[str, Any] = dataclasses.field(default_factory=dict)
  has_repeats: bool = False
  effective_negatives: ArrayLike | None = None
  tables: Sequence[Table] = ()
  axis_name: str | None = task_lib.AXIS

  # What the loss reads of a batch.
  read_by_loss = ('index', 'id', 'where')

  def init(self, key, batch):
    rows = {side: batch[side] for side in SIDES}
    return modules.init(self.module, key, rows, train=False)

  def rows_read(self, params, batch):
    """Returns the tokens of tables that a batch has on any device."""
    found = jax.tree.map(lambda _: None, params)
    for table in self.tables:
      tokens, size = batch[table.list], table.size
      if self.axis_name is not None and lax.axis_size(self.axis_name) > 1:
        tokens = lax.all_gather(tokens, self.axis_name, tiled=True)
        # Processes list tokens for themselves, so some stand there twice.
        there = jnp.zeros(size, bool).at[tokens].set(True, mode='drop')
        places = min(len(tokens), size)
        tokens = jnp.flatnonzero(there, size=places, fill_value=size)
      found[table.tower][text_encoder.TABLE] = tokens.astype(jnp.int32)
    return found

  def renumbered(self, batch, rows):
    """Returns a batch for tables of some tokens, without the lists of them."""
    batch = dict(batch)
    for table in self.tables:
      del batch[table.list]
      tokens = rows[table.tower][text_encoder.TABLE]
      numbers = jnp.zeros(table.size + 1, jnp.int32)
      numbers = numbers.at[tokens].set(jnp.arange(len(tokens)))
      numbers = numbers.at[-1].set(-1)  # padding remains padding
      for entry in table.entries:
        batch[entry] = numbers[batch[entry]]
    return batch

  def embed(self, params, state, batch, key, rows):
    negative = batch['negative']
    count, each = negative.shape[:2]
    documents = jnp.concatenate([
        batch['document'], negative.reshape(-1, *negative.shape[2:])
    ])  # fmt: skip
    calls = modules.keys_of_calls(key, rows, 1)
    found, state = modules.train(
        self.module,
        params,
        state,
        {'query': batch['query'], 'document': documents},
        key=calls[0],
    )
    state = modules.across_devices(state, self.axis_name)
    documents = found['document']
    embeddings = {
        'query': found['query'],
        'document': documents[:count],
        'negative': documents[count:].reshape(count, each, documents.shape[1]),
    }
    scale = self._scale(params, state)
    if scale is not None:  # The loss gets no parameters, so each row has it.
      embeddings['scale'] = jnp.broadcast_to(scale, (count,))
    return embeddings, state

  def loss(self, embeddings, state, batch, step):
    negatives, where = embeddings['negative'], batch['where']
    has_negatives = negatives.shape[1] > 0
    return hcl_jax.in_batch_loss(
        embeddings['query'],
        embeddings['document'],
        negatives=negatives if has_negatives else None,
        where=where if has_negatives else None,
        ids=batch['id'] if self.has_repeats else None,
        axis_name=self.axis_name,
        **self._hardness(step),
        **{**self.loss_options, 'temperature': self._temperature(embeddings)},
    )

  def update(self, params, state, embeddings, batch):
    return state

  def metrics(self, embeddings, batch, step):
    metrics = self._hardness(step)
    if 'scale' in embeddings:
      metrics['temperature'] = self._temperature(embeddings)
    return metrics

  def features(self, params, state, batch, keys=None):
    """Returns unit vectors of the one side that a batch has."""
    (embeddings,) = self._evaluate(params, state, batch).values()
    return embeddings

  def compared(self, params, state, batch, keys=None):
    """Returns unit vectors of queries and of documents."""
    found = self._evaluate(params, state, {k: batch[k] for k in SIDES})
    return tuple(found[side] for side in SIDES)

  def temperature(self, params: Any, state: Any) -> jax.Array:
    """Returns the temperature, also one that is learned."""
    scale = self._scale(params, state)
    return self.loss_options['temperature'] if scale is None else 1 / scale

  def _evaluate(self, params, state, rows):
    found = self.module.apply({'params': params, **state}, rows, train=False)
    return {side: _unit(x) for side, x in found.items()}

  def _hardness(self, step):
    return task_lib.hardness(self.beta, self.effective_negatives, step)

  def _scale(self, params, state):
    variables = {'params': params, **state}
    return self.module.apply(variables, method='scale')

  def _temperature(self, embeddings):
    if 'scale' in embeddings:
      return 1 / jnp.mean(embeddings['scale'])
    return self.loss_options['temperature']


def _unit(x):
  x = x.astype(jnp.float32)
  norms = jnp.linalg.norm(x, axis=-1, keepdims=True)
  return x / jnp.where(norms > 0, norms, 1)


def create(
    config: fields_lib.Config,
    module: Towers,
    *,
    total_steps: int,
    steps_per_epoch: int,
    has_repeats: bool = False,
    tables: Sequence[Table] = (),
) -> TwoTowers:
  """Makes the task that a configuration describes, for a run of some steps."""
  loss = config.loss
  margin = None
  if loss.margin is not None:
    margin = hcl_jax.Margin(loss.margin, relative=loss.relative_margin)
  return TwoTowers(
      module=module,
      beta=config_lib.beta_schedule(loss, total_steps, steps_per_epoch),
      loss_options={
          'temperature': loss.temperature,
          'tau_plus': loss.tau_plus,
          'positive_weight': loss.positive_weight,
          'margin': margin,
          'floor': loss.floor,
          'bidirectional': loss.bidirectional,
      },
      has_repeats=has_repeats,
      tables=tables,
      effective_negatives=loss.effective_negatives,
  )
