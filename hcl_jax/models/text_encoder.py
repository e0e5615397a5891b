# SPDX-License-Identifier: Apache-2.0
"""Encoders of rows of tokens: a bag, a GRU or a transformer; and an adapter."""

from collections.abc import Callable

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp

from hcl_jax import _checks
from hcl_jax.models import gru
from hcl_jax.models import packed_text
from hcl_jax.models import vit

NAMES = ('bag', 'gru', 'transformer')
TABLE = 'tokens'  # the parameter that has a vector for each token

_DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}


class Bag(nn.Module):
  """Sums vectors of tokens, whose order does not matter, and maps the sum.

  Attributes:
    num_tokens: tokens are below this; a negative one is padding.
    token_dim: width of a token's vector.
    width: width of the hidden layer.
    dim: width of the embedding.
  """

  num_tokens: int
  token_dim: int
  width: int
  dim: int

  @nn.compact
  def __call__(self, rows: jax.Array, *, train: bool) -> jax.Array:
    """Maps tokens ``[n, length]`` to embeddings ``[n, dim]``."""
    del train  # nothing differs
    table = _table(self, self.num_tokens, self.token_dim)
    total = _sum_of_tokens(table, rows)
    hidden = nn.relu(_dense(total, self.width, 'hidden'))
    return _dense(hidden, self.dim, 'out')


class Recurrent(nn.Module):
  """Reads tokens by a GRU in each direction, and joins their last states.

  Attributes:
    num_tokens: tokens are below this; a negative one is padding.
    token_dim: width of a token's vector.
    dim: width of the embedding, even.
  """

  num_tokens: int
  token_dim: int
  dim: int

  @nn.compact
  def __call__(self, rows: jax.Array, *, train: bool) -> jax.Array:
    """Maps tokens ``[n, length]`` to embeddings ``[n, dim]``."""
    del train
    table = _table(self, self.num_tokens, self.token_dim)
    batch = _as_packed(rows)
    ends = [
        gru.Gru(self.dim // 2, reverse, name=name)(table, batch)
        for name, reverse in (('forwards', False), ('backwards', True))
    ]
    return jnp.concatenate(ends, axis=-1)


class Transformer(nn.Module):
  """Blocks of self-attention; the mean of the last tokens is mapped.

  Positions are sines and cosines, which are no parameters.

  Attributes:
    num_tokens: tokens are below this; a negative one is padding.
    width: width of a token, a multiple of 4 and of ``heads``.
    depth: number of blocks.
    heads: number of attention heads.
    dim: width of the embedding.
    dtype: dtype of the computation.
  """

  num_tokens: int
  width: int
  depth: int
  heads: int
  dim: int
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, rows: jax.Array, *, train: bool) -> jax.Array:
    """Maps tokens ``[n, length]`` to embeddings ``[n, dim]``."""
    del train
    table = _table(self, self.num_tokens, self.width)
    places = vit.positions(1, rows.shape[1], self.width)
    x = (_look_up(table, rows) + places).astype(self.dtype)
    there = rows >= 0
    # Of a text without tokens, all places; nothing attends to nothing.
    seen = there | ~jnp.any(there, axis=1, keepdims=True)
    for index in range(self.depth):
      block = vit.Block(self.heads, self.dtype, name=f'block{index + 1}')
      x = block(x, seen[:, None, None, :])
    x = nn.LayerNorm(epsilon=1e-6, dtype=self.dtype, name='norm')(x)
    total = jnp.sum(x, axis=1, where=there[..., None], dtype=jnp.float32)
    count = jnp.sum(there, axis=1, keepdims=True).astype(jnp.float32)
    mean = total / jnp.maximum(count, 1)
    return nn.Dense(self.dim, name='out')(mean)


class Adapter(nn.Module):
  """Adds a hidden layer to a linear map of vectors from a frozen encoder.

  Attributes:
    width: width of the hidden layer.
    dim: width of the embedding.
  """

  width: int
  dim: int

  @nn.compact
  def __call__(self, rows: jax.Array, *, train: bool) -> jax.Array:
    """Maps vectors ``[n, d]`` to embeddings ``[n, dim]``."""
    del train
    hidden = nn.relu(nn.Dense(self.width, name='hidden')(rows))
    linear = nn.Dense(self.dim, use_bias=False, name='linear')(rows)
    return linear + nn.Dense(self.dim, name='out')(hidden)


def create(
    name: str,
    *,
    num_tokens: int,
    dim: int = 128,
    width: int = 256,
    token_dim: int = 96,
    depth: int = 2,
    heads: int = 4,
    dtype: str = 'float32',
) -> nn.Module:
  """Creates an encoder of rows of tokens, int32 ``[n, length]``.

  Negative tokens are padding.

  Args:
    name: ``'bag'``, ``'gru'`` or ``'transformer'``.
    num_tokens: tokens are below this.
    dim: width of the embedding.
    width: of the hidden layer of a bag, and of the tokens of a transformer.
    token_dim: width of the vector of a token, of a bag and a GRU.
    depth: blocks of a transformer.
    heads: attention heads of a transformer.
    dtype: ``'float32'`` or ``'bfloat16'``, dtype of the computation of a
      transformer; parameters and embeddings are float32.

  Returns:
    A linen module, ``encoder.apply(variables, rows, train=...)``.

  Raises:
    ValueError: a number does not suit the encoder.
  """
  _checks.choice('name', name, NAMES)
  _checks.choice('dtype', dtype, tuple(_DTYPES))
  if name == 'gru' and dim % 2:
    raise ValueError(
        f'dim must be even, a half for each direction of the GRU; got {dim}.'
    )
  if name == 'transformer' and (width % 4 or width % heads):
    raise ValueError(
        f'width must be a multiple of 4 and of heads={heads}; got {width}.'
    )
  makers: dict[str, Callable[[], nn.Module]] = {
      'bag': lambda: Bag(num_tokens, token_dim, width, dim),
      'gru': lambda: Recurrent(num_tokens, token_dim, dim),
      'transformer': lambda: Transformer(
          num_tokens, width, depth, heads, dim, _DTYPES[dtype]
      ),
  }
  return makers[name]()


def _table(module, num_tokens, dim):
  """Returns the vectors of tokens, a parameter, or of some of them.

  A train step gives those alone that its batch has, numbered anew.
  """
  if module.has_variable('params', TABLE):
    return module.get_variable('params', TABLE)
  scale = nn.initializers.normal(0.02)
  return module.param(TABLE, scale, (num_tokens, dim))


def _dense(x, width, name):
  """Maps ``[n, d]`` to ``[n, width]``, with biases that begin at random.

  If they were 0, twice a sum would be mapped to twice its embedding: the same
  direction. So a bag would not know how many tokens it has.
  """
  bound = x.shape[-1] ** -0.5

  def biases(key, shape, dtype):
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  return nn.Dense(width, bias_init=biases, name=name)(x)


def _look_up(table, rows):
  """Returns the vector of each token, 0 of padding."""
  # An index past the end is padding, a negative one would count from there.
  places = jnp.where(rows < 0, table.shape[0], rows)
  return jnp.take(table, places, axis=0, mode='fill', fill_value=0)


@jax.custom_vjp
def _sum_of_tokens(table, rows):
  """Returns the sum of the vectors of each row of tokens, ``[n, token_dim]``.

  Adds a place of all rows at a time, because vectors of all tokens would take
  more memory than all else, and most of the time. So does the derivative.
  """

  def add(total, tokens):
    return total + _look_up(table, tokens), None

  start = jnp.zeros((rows.shape[0], table.shape[1]), table.dtype)
  return lax.scan(add, start, rows.T)[0]


def _sum_forwards(table, rows):
  return _sum_of_tokens(table, rows), (table, rows)


def _sum_backwards(residuals, d_total):
  table, rows = residuals

  def add(d_table, tokens):
    # One past the end is dropped.
    tokens = jnp.where(tokens < 0, table.shape[0], tokens)
    return d_table.at[tokens].add(d_total, mode='drop'), None

  return lax.scan(add, jnp.zeros_like(table), rows.T)[0], None


_sum_of_tokens.defvjp(_sum_forwards, _sum_backwards)


def _as_packed(rows):
  """Returns rows of tokens as packed rows of one text each."""
  count, length = rows.shape
  there = rows >= 0
  text = jnp.where(there, jnp.arange(count)[:, None], count)
  num = jnp.sum(there, axis=1)
  first, none = jnp.arange(count), length * count
  return packed_text.SentenceBatch(
      words=jnp.zeros(0, jnp.int32),  # all that there are
      places=jnp.maximum(rows, 0).T,
      rows=text.T,
      firsts=jnp.where(num > 0, first, none),
      lasts=jnp.where(num > 0, first + (num - 1) * count, none),
      segment=jnp.zeros(count, jnp.int32),
      index=jnp.arange(count),
  )
