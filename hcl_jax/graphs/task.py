# SPDX-License-Identifier: Apache-2.0
"""InfoGraph: nodes against graphs, negatives from the other graphs."""

import dataclasses

from flax import linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

import hcl_jax
from hcl_jax.models import gin
from hcl_jax.training import config as config_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import modules
from hcl_jax.training import own_code
from hcl_jax.training import task


@dataclasses.dataclass(frozen=True)
class InfoGraph:
  r"""Joins a graph encoder and :func:`hcl_jax.infograph_loss` on its heads.

  With a prior, rows u drawn uniformly from :math:`[0, 1)^{dim}`, the encoder's
  graphs y and a discriminator D, the loss has the further term

  .. math::
    -\gamma \, \bigl(\overline{\log D(u)} + \overline{\log(1 - D(y))}\bigr)

  with one sign for the encoder and for D, as released: they do not play against
  each other. A batch is a ``GraphBatch`` and belongs to one device. ``beta``,
  ``effective_negatives`` and ``tau_plus`` may be traced.

  Attributes:
    module: the encoder with its heads.
    beta: schedule of the concentration.
    tau_plus: class prior; None: that of the variant.
    variant: of the loss.
    prior_weight: gamma; 0 for no prior, for which module has no D.
    effective_negatives: share of the negatives that counts, in place of beta.
  """

  module: gin.InfoGraph
  beta: hcl_jax.schedules.Schedule
  tau_plus: ArrayLike | None = None
  variant: str = 'paper'
  prior_weight: float = 0.0
  effective_negatives: ArrayLike | None = None

  def init(self, key, batch):
    return modules.init(self.module, key, batch, train=False)

  def embed(self, params, state, batch, key, rows):
    del rows  # Graphs have no random views.
    (features, nodes, pooled), state = modules.train(
        self.module, params, state, batch, key=jax.random.fold_in(key, 1)
    )
    logits = self._logits(params, features, key) if self.prior_weight else None
    return (nodes, pooled, logits), state

  def _logits(self, params, features, key):
    """Returns the discriminator's logits of the prior and of the graphs."""
    num_graphs, dim = features.shape
    numbers = jnp.arange(num_graphs, dtype=jnp.int32)
    # A key for each graph, so that padding does not change the others' rows.
    keys = task.row_keys(key, numbers, 1)[:, 0]
    noise = jax.vmap(lambda k: jax.random.uniform(k, (dim,)))(keys)
    return tuple(
        self.module.apply({'params': params}, x, method='discriminate')
        for x in (noise, features)
    )

  def loss(self, embeddings, state, batch, step):
    nodes, pooled, logits = embeddings
    loss = hcl_jax.infograph_loss(
        nodes,
        pooled,
        batch.graph_ids,
        **task.hardness(self.beta, self.effective_negatives, step),
        tau_plus=self.tau_plus,
        variant=self.variant,
        graph_mask=batch.graph_mask,
        node_rows=batch.members,
        node_counts=batch.member_counts,
    )
    if logits is None:
      return loss
    of_noise, of_graphs = logits
    surprise = jax.nn.softplus(-of_noise) + jax.nn.softplus(of_graphs)
    prior = jnp.mean(surprise, where=batch.graph_mask)
    return loss + self.prior_weight * prior

  def update(self, params, state, embeddings, batch):
    return state

  def metrics(self, embeddings, batch, step):
    return task.hardness(self.beta, self.effective_negatives, step)

  def features(self, params, state, batch, keys=None):
    return self._evaluate(params, state, batch)[0]

  def compared(self, params, state, batch, keys=None):
    return self._evaluate(params, state, batch)[1:]

  def _evaluate(self, params, state, batch):
    # Without keys, because graphs are not augmented.
    return self.module.apply({'params': params, **state}, batch, train=False)


def create(
    config: fields_lib.Config, *, total_steps: int, steps_per_epoch: int
) -> task.Task:
  """Makes the task that a configuration describes, for a run of some steps."""
  loss = config.loss
  return InfoGraph(
      module=gin.InfoGraph(create_encoder(config), loss.prior_weight > 0),
      beta=config_lib.beta_schedule(loss, total_steps, steps_per_epoch),
      tau_plus=loss.tau_plus,
      variant=loss.variant,
      prior_weight=loss.prior_weight,
      effective_negatives=loss.effective_negatives,
  )


def create_encoder(config: fields_lib.Config) -> nn.Module:
  """Makes the encoder of nodes and graphs."""
  options = dict(config.model)
  if options.pop('encoder'):
    return own_code.create(config, _rows_of_outputs)
  return gin.Gin(**options)


def _rows_of_outputs(batch):
  return {'nodes': len(batch.nodes), 'graphs': len(batch.graph_mask)}
