# SPDX-License-Identifier: Apache-2.0
"""Graph isomorphism network, with InfoGraph's heads and prior."""

from flax import linen as nn
import jax
import jax.numpy as jnp

from hcl_jax.models import graph_batch as graphs
from hcl_jax.models import norm as norms

_xavier_uniform = nn.initializers.xavier_uniform()


class Gin(nn.Module):
  r"""Graph isomorphism network, with sum pooling.

  Layer k maps the row of node v to

  .. math::
    x_v^{k+1} = BN(ReLU(W_2 \, ReLU(W_1 (x_v^k + \sum_{u \to v} x_u^k) + b_1)
      + b_2))

  BatchNorm is over the nodes of all graphs of the batch. The embedding of a
  node concatenates its rows of all layers; that of a graph is the sum over its
  nodes.

  Attributes:
    width: width of a layer.
    num_layers: number of layers.
  """

  width: int = 32
  num_layers: int = 3

  @nn.compact
  def __call__(
      self, batch: graphs.GraphBatch, *, train: bool
  ) -> tuple[jax.Array, jax.Array]:
    """Embeds nodes and graphs.

    In training, BatchNorm takes the statistics of the batch and updates the
    running ones, collection ``'batch_stats'``; otherwise it takes those.

    Returns:
      Nodes ``[N, num_layers * width]``, arbitrary in padding, and graphs
      ``[G, num_layers * width]``, 0 in padding.
    """
    x = graphs.masked_nodes(batch)
    layers = []
    for k in range(self.num_layers):
      x = x + graphs.sum_neighbors(batch, x)
      x = nn.relu(_linear(x, self.width, f'hidden_{k}'))
      x = nn.relu(_linear(x, self.width, f'out_{k}'))
      norm = norms.BatchNorm(name=f'norm_{k}')
      x = norm(x, train=train, counts=batch.node_counts)
      layers.append(x)
    nodes = jnp.concatenate(layers, axis=-1)
    return nodes, graphs.sum_nodes(batch, nodes)


class FeedForward(nn.Module):
  """Three linear layers with ReLU, plus a linear shortcut; keeps the width."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps ``[rows, dim]`` to ``[rows, dim]``."""
    dim = x.shape[-1]
    y = x
    for k in range(3):
      y = nn.relu(_linear(y, dim, f'hidden_{k}'))
    return y + _linear(x, dim, 'shortcut')


class Discriminator(nn.Module):
  """Three linear layers with ReLU between, to a logit of the prior."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps ``[rows, dim]`` to ``[rows]``."""
    y = x
    for k in range(2):
      y = nn.relu(_linear(y, x.shape[-1], f'hidden_{k}'))
    return _linear(y, 1, 'out')[:, 0]


class InfoGraph(nn.Module):
  """Encoder with heads for nodes and for graphs, and optionally a prior.

  Attributes:
    encoder: :class:`Gin`, or another module that is called like it.
    with_prior: whether to add a discriminator for the prior.
  """

  encoder: nn.Module
  with_prior: bool = False

  def setup(self):
    self.local_head = FeedForward()
    self.global_head = FeedForward()
    if self.with_prior:
      self.discriminator = Discriminator()

  def __call__(
      self, batch: graphs.GraphBatch, *, train: bool
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Embeds nodes and graphs; ``train`` is that of :class:`Gin`.

    Returns:
      Graphs ``[G, dim]`` of the encoder, for evaluation; nodes ``[N, dim]`` and
      graphs ``[G, dim]`` of the heads, for the loss.
    """
    nodes, features = self.encoder(batch, train=train)
    if self.with_prior and self.is_initializing():
      self.discriminator(features)
    return features, self.local_head(nodes), self.global_head(features)

  def discriminate(self, x: jax.Array) -> jax.Array:
    """Returns logits ``[rows]`` that rows ``[rows, dim]`` are of the prior."""
    return self.discriminator(x)


def _linear(x, features, name):
  return nn.Dense(features, kernel_init=_xavier_uniform, name=name)(x)
