# SPDX-License-Identifier: Apache-2.0
"""Encoders as users write them, named by ``config.model.encoder``."""

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp

NOT_CALLABLE = 3


class Pooled(nn.Module):
  """Mean color, a dense layer, BatchNorm and dropout."""

  width: int

  @nn.compact
  def __call__(self, images, *, train):
    x = nn.Dense(self.width)(images.mean((1, 2)))
    x = nn.BatchNorm(use_running_average=not train)(x)
    return nn.Dropout(0.5, deterministic=not train)(nn.relu(x))


def pooled(config):
  del config
  return Pooled(6)


class PooledNnx(nnx.Module):
  """The same for NNX, whose layers know whether they train."""

  def __init__(self, width, rngs):
    self.dense = nnx.Linear(3, width, rngs=rngs)
    self.norm = nnx.BatchNorm(width, rngs=rngs)
    self.dropout = nnx.Dropout(0.5, rngs=rngs)

  def __call__(self, images):
    x = self.norm(self.dense(images.mean((1, 2))))
    return self.dropout(nnx.relu(x))


def pooled_nnx(config, rngs):
  del config
  return PooledNnx(6, rngs)


class Degrees(nn.Module):
  """Nodes and their sums over graphs, without edges."""

  @nn.compact
  def __call__(self, batch, *, train):
    del train
    there = batch.node_counts[:, None] > 0
    nodes = nn.Dense(4)(jnp.where(there, batch.nodes, 0))
    members = jnp.take(nodes, batch.members, axis=0, mode='fill', fill_value=0)
    return nodes, jax.ops.segment_sum(
        members, batch.graph_ids, len(batch.graph_mask)
    )


def degrees(config):
  del config
  return Degrees()


class Words(nn.Module):
  """Sum of the vectors of words; takes no ``train``."""

  vocabulary_size: int
  dim: int

  @nn.compact
  def __call__(self, batch):
    words = self.param(
        'words', nn.initializers.normal(), (self.vocabulary_size, self.dim)
    )
    vectors = words[batch.words][batch.places.reshape(-1)]
    return jax.ops.segment_sum(
        vectors, batch.rows.reshape(-1), len(batch.index)
    )


def words(config, vocabulary_size):
  return Words(vocabulary_size, config.model.dim)


class Tokens(nn.Module):
  """Mean of the vectors of tokens, for one side of pairs."""

  num_tokens: int
  dim: int

  @nn.compact
  def __call__(self, rows, *, train):
    del train
    vectors = nn.Embed(self.num_tokens, self.dim)(jnp.maximum(rows, 0))
    return jnp.mean(vectors, axis=1, where=(rows >= 0)[..., None])


def tokens(config, side, num_tokens):
  assert side in ('query', 'document')
  return Tokens(num_tokens, config.model.dim)


def too_few(config, side, num_tokens):
  del config, side, num_tokens
  return _Returns(lambda rows: jnp.zeros((1, 4)))


class _Returns(nn.Module):
  """Returns what a function makes of the inputs."""

  function: object

  @nn.compact
  def __call__(self, *inputs, train):
    del train
    return self.function(*inputs)


def maps(config):
  del config
  return _Returns(lambda images: images)


def integers(config):
  del config
  return _Returns(lambda images: jnp.zeros((len(images), 4), jnp.int32))


def pair(config):
  del config
  return _Returns(lambda images: (images.mean((1, 2)),) * 2)


def nodes_alone(config):
  del config
  return _Returns(lambda batch: batch.nodes)


def two_of_each(config, vocabulary_size):
  del config, vocabulary_size
  return _Returns(lambda batch: jnp.zeros((2 * len(batch.index), 4)))


def fails_to_run(config):
  del config
  return _Returns(lambda images: images @ jnp.zeros((7, 2)))


def no_module(config):
  del config
  return 'a module'


def no_module_nnx(config, rngs):
  del config, rngs
  return 'a module'


def raises(config):
  return config.model.no_such_field
