# SPDX-License-Identifier: Apache-2.0
"""Sentence encoders: recurrent or bag of words, single or as a pair."""

import functools
from typing import NamedTuple

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp

from hcl_jax import _checks
from hcl_jax.models import convolution
from hcl_jax.models import packed_text as sentences

ENCODERS = ('gru', 'bag')
POOLINGS = ('mean', 'sum')

_LIBRARY = 'xla_cpu_experimental_ynn_fusion_type'
_xavier_uniform = nn.initializers.xavier_uniform()


class Gru(nn.Module):
  r"""Gated recurrent unit of TensorFlow 1; returns last states.

  From a word x and the state h so far (0 before the first word), computes

  .. math::
    r, u = \sigma(W_g [x, h] + b_g), \qquad
    c = \tanh(W_c [x, r \circ h] + b_c), \qquad
    h' = u \circ h + (1 - u) \circ c

  The reset gate r applies before the product, unlike in flax and torch.

  Attributes:
    width: width of the state.
    reverse: whether to read sentences from their end.
  """

  width: int
  reverse: bool = False

  @nn.compact
  def __call__(
      self, words: jax.Array, batch: sentences.SentenceBatch
  ) -> jax.Array:
    """Returns states after the last word, ``[B, width]``.

    Vectors of the distinct words are ``[U, dim]``. A sentence without words
    has state 0.
    """
    dim, width = words.shape[-1], self.width
    kernels = [
        self.param(f'{name}_kernel', _xavier_uniform, (dim + width, size))
        for name, size in (('gates', 2 * width), ('candidate', width))
    ]
    biases = [
        self.param('gates_bias', nn.initializers.ones, (2 * width,)),
        self.param('candidate_bias', nn.initializers.zeros, (width,)),
    ]
    from_words = jnp.concatenate([x[:dim] for x in kernels], axis=1)
    projected = jnp.matmul(words, from_words) + jnp.concatenate(biases)[None]
    inputs = _RecurrentInputs(
        projected,
        *(kernel[dim:] for kernel in kernels),
        batch.places,
        _goes_on(batch.rows, self.reverse),
    )
    states = _recur(inputs, self.reverse)
    ends = batch.firsts if self.reverse else batch.lasts
    return jnp.take(
        states.reshape(-1, width), ends, axis=0, mode='fill', fill_value=0
    )


class _Encoder(nn.Module):
  """Maps sentences to embeddings ``[B, dim]``, by vectors of their words.

  Attributes:
    vocabulary_size: number of words.
    word_dim: width of word vectors.
    dim: width of the embedding.
  """

  vocabulary_size: int
  word_dim: int
  dim: int


class RecurrentEncoder(_Encoder):
  """Bidirectional GRU; each direction gives one half of the embedding."""

  @nn.compact
  def __call__(self, batch: sentences.SentenceBatch) -> jax.Array:
    """Returns embeddings ``[B, dim]``; 0 for a sentence without words."""
    words = _look_up(self, batch)
    ends = [
        Gru(self.dim // 2, reverse, name=name)(words, batch)
        for name, reverse in (('forwards', False), ('backwards', True))
    ]
    return jnp.concatenate(ends, axis=-1)


class BagEncoder(_Encoder):
  """Linear function of the ``'mean'``, or ``'sum'``, of word vectors."""

  pooling: str = 'mean'

  @nn.compact
  def __call__(self, batch: sentences.SentenceBatch) -> jax.Array:
    """Returns embeddings ``[B, dim]``; the bias for one without words."""
    words = _look_up(self, batch)
    count, rows = batch.firsts.shape[0], batch.rows.reshape(-1)
    places = jnp.take(words, batch.places.reshape(-1), axis=0)
    pooled = jax.ops.segment_sum(places, rows, count)
    if self.pooling == 'mean':
      ones = jnp.ones((rows.shape[0], 1), words.dtype)
      pooled /= jnp.maximum(jax.ops.segment_sum(ones, rows, count), 1)
    return nn.Dense(self.dim, kernel_init=_xavier_uniform, name='out')(pooled)


class SentenceEncoders(nn.Module):
  """Pair of encoders with separate parameters, for a sentence and neighbors.

  Attributes:
    vocabulary_size: number of words.
    encoder: ``'gru'`` or ``'bag'``.
    word_dim: width of word vectors.
    dim: width of an embedding.
    pooling: pooling of ``'bag'``.
  """

  vocabulary_size: int
  encoder: str = 'gru'
  word_dim: int = 620
  dim: int = 1200
  pooling: str = 'mean'

  def setup(self):
    _checks.choice('encoder', self.encoder, ENCODERS)
    _checks.choice('pooling', self.pooling, POOLINGS)
    if self.encoder == 'gru' and self.dim % 2:
      raise ValueError(
          f"dim must be even with encoder='gru', one half per direction; got "
          f'{self.dim}.'
      )
    sizes = self.vocabulary_size, self.word_dim, self.dim
    if self.encoder == 'gru':
      make = functools.partial(RecurrentEncoder, *sizes)
    else:
      make = functools.partial(BagEncoder, *sizes, self.pooling)
    self.left, self.right = make(), make()

  def __call__(
      self, batch: sentences.SentenceBatch, *, train: bool = False
  ) -> tuple[jax.Array, jax.Array]:
    """Returns embeddings by both encoders, each ``[B, dim]``."""
    del train  # nothing differs
    return self.left(batch), self.right(batch)


class Towers(nn.Module):
  """Pair of encoders of your own, for a sentence and neighbors.

  Attributes:
    left: module from a batch to embeddings ``[B, dim]``.
    right: the other one.
  """

  left: nn.Module
  right: nn.Module

  def __call__(
      self, batch: sentences.SentenceBatch, *, train: bool
  ) -> tuple[jax.Array, jax.Array]:
    """Returns embeddings by both encoders, each ``[B, dim]``."""
    return self.left(batch, train=train), self.right(batch, train=train)


@functools.cache
def compiler_options() -> dict[str, str]:
  """Returns options that make compiled encoders fastest on a CPU.

  These are the options of image encoders, with Eigen for products too: it is
  about 1.2 times as fast as YNNPACK at these sizes.
  """
  options = dict(convolution.compiler_options())
  if _LIBRARY in options:
    options[_LIBRARY] = 'LIBRARY_FUSION_TYPE_REDUCE'
  return options


def _look_up(module, batch):
  """Looks up the vectors of the distinct words of a batch."""
  shape = module.vocabulary_size, module.word_dim
  table = module.param('words', _between_tenths, shape)
  return jnp.take(table, batch.words, axis=0)


def _between_tenths(key, shape, dtype=jnp.float32):
  return jax.random.uniform(key, shape, dtype, -0.1, 0.1)


def _goes_on(rows, reverse):
  """Returns whether a place continues the sentence of the previous place."""
  same = rows[1:] == rows[:-1]
  edge = jnp.zeros_like(rows[:1], dtype=bool)
  return jnp.concatenate([same, edge] if reverse else [edge, same])


class _RecurrentInputs(NamedTuple):
  """Inputs of a recurrence over packed rows.

  Attributes:
    projected: products of words with their weights, plus bias,
      ``[U, 3 width]``.
    w_gates: weights from state to gates, ``[width, 2 width]``.
    w_candidate: weights from state to candidate, ``[width, width]``.
    places: words, ``[T, R]``.
    goes_on: False where the previous state is 0, ``[T, R]``.
  """

  projected: jax.Array
  w_gates: jax.Array
  w_candidate: jax.Array
  places: jax.Array
  goes_on: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _recur(inputs, reverse):
  """Computes the states ``[T, R, width]``, from the last place if reverse."""
  return _recur_forwards(inputs, reverse)[0]


def _recur_forwards(inputs, reverse):
  projected, w_gates, w_candidate, places, goes_on = inputs
  width = w_candidate.shape[0]

  def step(state, place):
    word, goes = place
    x = jnp.take(projected, word, axis=0)
    before = jnp.where(goes[:, None], state, 0)
    gates = jax.nn.sigmoid(x[:, : 2 * width] + jnp.matmul(before, w_gates))
    r, u = gates[:, :width], gates[:, width:]
    kept = r * before
    c = jnp.tanh(x[:, 2 * width :] + jnp.matmul(kept, w_candidate))
    state = c + u * (before - c)
    return state, (state, before, gates, kept, c)

  start = jnp.zeros((places.shape[1], width), projected.dtype)
  _, (states, *steps) = lax.scan(
      step, start, (places, goes_on), reverse=reverse
  )
  return states, (inputs, steps)


def _recur_backwards(reverse, residuals, d_states):
  """Computes cotangents; those of weights in one product over all places.

  JAX's own derivative would add the gradients of weights place by place.
  """
  (projected, w_gates, w_candidate, places, goes_on), steps = residuals
  width = w_candidate.shape[0]
  # Transposed here, because transposing inside the loop is slow on a CPU.
  to_gates, to_candidate = w_gates.T, w_candidate.T

  def step(d_after, place):
    d_state, goes, before, gates, _, c = place
    d_state = d_state + d_after
    r, u = gates[:, :width], gates[:, width:]
    d_c = d_state * (1 - u) * (1 - c * c)
    d_kept = jnp.matmul(d_c, to_candidate)
    d_r = d_kept * before * r * (1 - r)
    d_u = d_state * (before - c) * u * (1 - u)
    d_gates = jnp.concatenate([d_r, d_u], axis=1)
    d_before = d_state * u + d_kept * r + jnp.matmul(d_gates, to_gates)
    d_before = jnp.where(goes[:, None], d_before, 0)
    return d_before, (d_gates, d_c)

  _, (d_gates, d_candidate) = lax.scan(
      step,
      jnp.zeros_like(d_states[0]),
      (d_states, goes_on, *steps),
      reverse=not reverse,
  )
  before, _, kept, _ = steps
  before, kept, d_gates, d_candidate = (
      x.reshape(-1, x.shape[-1]) for x in (before, kept, d_gates, d_candidate)
  )
  d_projected = jnp.concatenate([
      jax.ops.segment_sum(x, places.reshape(-1), projected.shape[0])
      for x in (d_gates, d_candidate)
  ], axis=1)
  return (
      _RecurrentInputs(
          d_projected,
          jnp.matmul(before.T, d_gates),
          jnp.matmul(kept.T, d_candidate),
          None,
          None,
      ),
  )


_recur.defvjp(_recur_forwards, _recur_backwards)
