# SPDX-License-Identifier: Apache-2.0
"""Sentence encoders: recurrent or a bag of words, alone and as a pair."""

import functools

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp

from hcl_jax.models import convolution
from hcl_jax.models import packed_text as sentences

ENCODERS = ('gru', 'bag')
POOLINGS = ('mean', 'sum')

_LIBRARY = 'xla_cpu_experimental_ynn_fusion_type'
_xavier_uniform = nn.initializers.xavier_uniform()


class Gru(nn.Module):
  r"""Gated recurrent unit, as in the first TensorFlow; the last state of each.

  From x, a word, and h, the state so far (0 before the first word),

  .. math::
    r, u = \sigma(W_g [x, h] + b_g), \qquad
    c = \tanh(W_c [x, r \circ h] + b_c), \qquad
    h' = u \circ h + (1 - u) \circ c

  The reset gate r acts before the product, unlike that of flax and torch.

  Attributes:
    width: of the state.
    reverse: read sentences from their end.
  """

  width: int
  reverse: bool = False

  @nn.compact
  def __call__(
      self, words: jax.Array, batch: sentences.SentenceBatch
  ) -> jax.Array:
    """Reads sentences.

    Args:
      words: vectors of the different words, ``[U, dim]``.
      batch: the sentences.

    Returns:
      States after the last word, ``[B, width]``; 0 without words.
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
    states = _recur(
        projected,
        *(kernel[dim:] for kernel in kernels),
        batch.places,
        _goes_on(batch.rows, self.reverse),
        self.reverse,
    )
    ends = batch.firsts if self.reverse else batch.lasts
    return jnp.take(
        states.reshape(-1, width), ends, axis=0, mode='fill', fill_value=0
    )


class RecurrentEncoder(nn.Module):
  """Word vectors, read forwards and backwards; both last states as one.

  Attributes:
    vocabulary_size: number of words.
    word_dim: of their vectors.
    dim: of the embedding, even; a half is from each direction.
  """

  vocabulary_size: int
  word_dim: int
  dim: int

  @nn.compact
  def __call__(self, batch: sentences.SentenceBatch) -> jax.Array:
    """Embeddings ``[B, dim]``; 0 for a sentence without words."""
    words = _look_up(self, batch)
    ends = [
        Gru(self.dim // 2, reverse, name=name)(words, batch)
        for name, reverse in (('forwards', False), ('backwards', True))
    ]
    return jnp.concatenate(ends, axis=-1)


class BagEncoder(nn.Module):
  """A linear function of the mean, or sum, of word vectors.

  Attributes:
    vocabulary_size: number of words.
    word_dim: of their vectors.
    dim: of the embedding.
    pooling: ``'mean'`` or ``'sum'``.
  """

  vocabulary_size: int
  word_dim: int
  dim: int
  pooling: str = 'mean'

  @nn.compact
  def __call__(self, batch: sentences.SentenceBatch) -> jax.Array:
    """Embeddings ``[B, dim]``; the bias for a sentence without words."""
    words = _look_up(self, batch)
    count, rows = batch.firsts.shape[0], batch.rows.reshape(-1)
    places = jnp.take(words, batch.places.reshape(-1), axis=0)
    pooled = jax.ops.segment_sum(places, rows, count)
    if self.pooling == 'mean':
      ones = jnp.ones((rows.shape[0], 1), words.dtype)
      pooled /= jnp.maximum(jax.ops.segment_sum(ones, rows, count), 1)
    return nn.Dense(self.dim, kernel_init=_xavier_uniform, name='out')(pooled)


class SentenceEncoders(nn.Module):
  """Two encoders with parameters of their own: a sentence, and its neighbours.

  Attributes:
    vocabulary_size: number of words.
    encoder: ``'gru'`` or ``'bag'``.
    word_dim: of the vectors of words.
    dim: of an embedding.
    pooling: of ``'bag'``.
  """

  vocabulary_size: int
  encoder: str = 'gru'
  word_dim: int = 620
  dim: int = 1200
  pooling: str = 'mean'

  def setup(self):
    _check_choice('encoder', self.encoder, ENCODERS)
    _check_choice('pooling', self.pooling, POOLINGS)
    if self.encoder == 'gru' and self.dim % 2:
      raise ValueError(
          f"dim must be even with encoder='gru', a half for each direction; "
          f'got {self.dim}.'
      )
    sizes = self.vocabulary_size, self.word_dim, self.dim
    if self.encoder == 'gru':
      make = functools.partial(RecurrentEncoder, *sizes)
    else:
      make = functools.partial(BagEncoder, *sizes, self.pooling)
    self.left, self.right = make(), make()

  def __call__(
      self, batch: sentences.SentenceBatch
  ) -> tuple[jax.Array, jax.Array]:
    """Embeddings by the one and by the other, each ``[B, dim]``."""
    return self.left(batch), self.right(batch)


@functools.cache
def compiler_options() -> dict[str, str]:
  """Options with which these encoders compile to run fastest on a CPU.

  Those of image encoders, but products are Eigen's too: some 1.2 times as fast
  as YNNPACK's at these sizes, and a row of one does not depend on how many rows
  there are, if more than one, so padding changes no bit of an embedding.
  """
  options = dict(convolution.compiler_options())
  if _LIBRARY in options:
    options[_LIBRARY] = 'LIBRARY_FUSION_TYPE_REDUCE'
  return options


def _look_up(module, batch):
  """Vectors of the different words of a batch, from a table of all."""
  shape = module.vocabulary_size, module.word_dim
  table = module.param('words', _between_tenths, shape)
  return jnp.take(table, batch.words, axis=0)


def _between_tenths(key, shape, dtype=jnp.float32):
  return jax.random.uniform(key, shape, dtype, -0.1, 0.1)


def _check_choice(argument, value, known):
  if value not in known:
    raise ValueError(
        f'{argument} must be one of {", ".join(map(repr, known))}; got '
        f'{value!r}.'
    )


def _goes_on(rows, reverse):
  """Whether a place continues the sentence of the place read before it."""
  same = rows[1:] == rows[:-1]
  edge = jnp.zeros_like(rows[:1], dtype=bool)
  return jnp.concatenate([same, edge] if reverse else [edge, same])


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _recur(projected, w_gates, w_candidate, places, goes_on, reverse):
  """The states ``[T, R, width]`` of lanes.

  Args:
    projected: the words' part of the products, with bias, ``[U, 3 width]``.
    w_gates: the state's part, ``[width, 2 width]``.
    w_candidate: the same, ``[width, width]``.
    places: words, ``[T, R]``.
    goes_on: False where the state before is 0, ``[T, R]``.
    reverse: go from the last place to the first.

  Returns:
    The states.
  """
  return _recur_forwards(
      projected, w_gates, w_candidate, places, goes_on, reverse
  )[0]


def _recur_forwards(projected, w_gates, w_candidate, places, goes_on, reverse):
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
  inputs = projected, w_gates, w_candidate, places, goes_on
  return states, (inputs, steps)


def _recur_backwards(reverse, residuals, d_states):
  """The derivative; that of weights in one product over all places.

  JAX's own would add up the weights' gradients place by place.
  """
  (projected, w_gates, w_candidate, places, goes_on), steps = residuals
  width = w_candidate.shape[0]
  # Transposed here, because that of an operand in a loop is slow on a CPU.
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
      d_projected,
      jnp.matmul(before.T, d_gates),
      jnp.matmul(kept.T, d_candidate),
      None,
      None,
  )


_recur.defvjp(_recur_forwards, _recur_backwards)
