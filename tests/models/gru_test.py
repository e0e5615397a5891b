# SPDX-License-Identifier: Apache-2.0
"""Sentence encoders against numpy in float64, word by word."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax.models import gru
from hcl_jax.models import packed_text as sentences
from tests.support import testing

_VOCABULARY = 11
_LENGTHS = [3, 0, 5, 1, 2, 5, 4]


def _tokens(places=5, lengths=_LENGTHS):
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, _VOCABULARY, (len(lengths), 5))
  tokens = np.pad(tokens, ((0, 0), (0, places - 5)), constant_values=3)
  return tokens, np.array(lengths)


def _variables(module, batch, seed=0):
  """Random values everywhere, so that none is left out by being 0 or 1."""
  variables = jax.jit(module.init)(jax.random.key(seed), batch)
  rng = np.random.default_rng(seed)
  shift = lambda x: x + rng.uniform(-0.5, 0.5, x.shape).astype(x.dtype)  # noqa: E731
  return jax.tree.map(shift, variables)


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _gru(params, vectors):
  """The state after the last of some vectors."""
  h = np.zeros(params['candidate_bias'].shape[0])
  for x in vectors:
    gates = np.concatenate([x, h]) @ params['gates_kernel']
    r, u = np.split(_sigmoid(gates + params['gates_bias']), 2)
    c = np.concatenate([x, r * h]) @ params['candidate_kernel']
    h = u * h + (1 - u) * np.tanh(c + params['candidate_bias'])
  return h


def _recurrent(params, tokens, lengths):
  rows = []
  for row, n in zip(tokens, lengths, strict=True):
    vectors = params['words'][row[:n]]
    ends = _gru(params['forwards'], vectors), _gru(
        params['backwards'], vectors[::-1]
    )
    rows.append(np.concatenate(ends))
  return np.stack(rows)


def _bag(params, tokens, lengths, pooling='mean'):
  rows = []
  for row, n in zip(tokens, lengths, strict=True):
    pooled = params['words'][row[:n]].sum(axis=0)
    rows.append(pooled / max(n, 1) if pooling == 'mean' else pooled)
  return np.stack(rows) @ params['out']['kernel'] + params['out']['bias']


def _cases():
  sizes = _VOCABULARY, 3, 4
  return {
      'gru': (gru.RecurrentEncoder(*sizes), _recurrent),
      'mean': (gru.BagEncoder(*sizes), _bag),
      'sum': (
          gru.BagEncoder(*sizes, 'sum'),
          functools.partial(_bag, pooling='sum'),
      ),
  }


class EncoderTest(parameterized.TestCase):

  def _check(self, name, tokens, lengths):
    module, expected = _cases()[name]
    batch = sentences.pack(tokens, lengths)
    variables = _variables(module, batch)
    params = jax.tree.map(np.float64, variables['params'])
    np.testing.assert_allclose(
        jax.jit(module.apply)(variables, batch),
        expected(params, tokens, lengths),
        rtol=1e-5,
        atol=1e-6,
    )

  @parameterized.parameters(*_cases())
  def test_matches_numpy(self, name):
    self._check(name, *_tokens())

  @parameterized.parameters(*_cases())
  def test_lanes_of_one_place(self, name):
    self._check(name, np.array([[4], [7], [4]]), np.array([1, 1, 0]))

  @parameterized.parameters(*_cases())
  def test_gradient_matches_numpy(self, name):
    module, embed = _cases()[name]
    tokens, lengths = _tokens()
    batch = sentences.pack(tokens, lengths)
    variables = _variables(module, batch)
    weights = testing.normal(len(lengths), 4)
    grads = jax.grad(
        lambda v: jnp.sum(weights * module.apply(v, batch))
    )(variables)['params']  # fmt: skip
    leaves, tree = jax.tree.flatten(
        jax.tree.map(np.float64, variables['params'])
    )

    def slope(leaf, place):
      sums = []
      for change in (1e-6, -1e-6):
        moved = [x.copy() for x in leaves]
        moved[leaf][place] += change
        embedded = embed(jax.tree.unflatten(tree, moved), tokens, lengths)
        sums.append(np.sum(weights * embedded))
      return (sums[0] - sums[1]) / 2e-6

    for leaf, actual in enumerate(jax.tree.leaves(grads)):
      expected = np.empty(actual.shape)
      for place in np.ndindex(actual.shape):
        expected[place] = slope(leaf, place)
      self.assertLess(testing.gradient_error(actual, expected, 1e-2), 1e-4)

  @parameterized.parameters(*_cases())
  def test_padding_changes_nothing(self, name):
    module, _ = _cases()[name]
    tokens, lengths = _tokens()
    variables = _variables(module, sentences.pack(tokens, lengths))
    embed = jax.jit(module.apply)
    plain = embed(variables, sentences.pack(tokens, lengths))
    more_words = sentences.pack(tokens, lengths)
    more_words = more_words._replace(words=np.pad(more_words.words, (0, 5)))
    more_rows = _tokens(lengths=[*_LENGTHS, 0, 0, 0])
    for padded in (
        sentences.pack(*_tokens(places=9)), sentences.pack(*more_rows),
        more_words,
    ):  # fmt: skip
      # Products of other shapes are summed in another order on some CPUs.
      np.testing.assert_allclose(
          embed(variables, padded)[:7], plain, rtol=0, atol=5e-7
      )

  @parameterized.parameters(*_cases())
  def test_a_sentence_does_not_depend_on_its_company(self, name):
    module, _ = _cases()[name]
    tokens, lengths = _tokens()
    batch = sentences.pack(tokens, lengths)
    variables = _variables(module, batch)
    together = jax.jit(module.apply)(variables, batch)
    for i in range(len(lengths)):
      alone = sentences.pack(tokens[i : i + 1], lengths[i : i + 1])
      np.testing.assert_allclose(
          jax.jit(module.apply)(variables, alone)[0],
          together[i],
          rtol=1e-5,
          atol=1e-6,
      )

  def test_a_sentence_without_words_is_zero(self):
    module, _ = _cases()['gru']
    batch = sentences.pack(*_tokens())
    out = module.apply(_variables(module, batch), batch)
    np.testing.assert_array_equal(out[1], 0)


class InitialisationTest(absltest.TestCase):

  def test_is_that_of_tensorflow(self):
    batch = sentences.pack(*_tokens())
    module = gru.RecurrentEncoder(5000, 62, 120)
    params = module.init(jax.random.key(0), batch)['params']
    words = params['words']
    self.assertEqual(words.shape, (5000, 62))
    self.assertBetween(np.abs(words).max(), 0.0999, 0.1)
    self.assertAlmostEqual(np.std(words), 0.1 / np.sqrt(3), places=3)
    for name in ('forwards', 'backwards'):
      cell = params[name]
      for part, size in (('gates', 120), ('candidate', 60)):
        kernel = cell[f'{part}_kernel']
        self.assertEqual(kernel.shape, (62 + 60, size))
        bound = np.sqrt(6 / (62 + 60 + size))
        self.assertBetween(np.abs(kernel).max(), 0.99 * bound, bound)
      np.testing.assert_array_equal(cell['gates_bias'], 1)
      np.testing.assert_array_equal(cell['candidate_bias'], 0)
    a, b = (params[name]['gates_kernel'] for name in ('forwards', 'backwards'))
    self.assertGreater(np.abs(a - b).max(), 0.01)


class SentenceEncodersTest(parameterized.TestCase):

  @parameterized.parameters('gru', 'bag')
  def test_two_encoders_have_nothing_in_common(self, encoder):
    batch = sentences.pack(*_tokens())
    module = gru.SentenceEncoders(_VOCABULARY, encoder, word_dim=3, dim=4)
    variables = _variables(module, batch)
    left, right = jax.jit(module.apply)(variables, batch)
    chex.assert_shape((left, right), (7, 4))
    params = variables['params']
    self.assertEqual(set(params), {'left', 'right'})
    chex.assert_trees_all_equal_shapes(params['left'], params['right'])
    single, expected = _cases()['gru' if encoder == 'gru' else 'mean']
    del single
    for name, out in (('left', left), ('right', right)):
      np.testing.assert_allclose(
          out,
          expected(jax.tree.map(np.float64, params[name]), *_tokens()),
          rtol=1e-5,
          atol=1e-6,
      )

  def test_what_cannot_be_is_refused(self):
    batch = sentences.pack(*_tokens())
    for knobs, message in (
        ({'encoder': 'lstm'}, "one of 'gru', 'bag'; got 'lstm'"),
        ({'pooling': 'max'}, "one of 'mean', 'sum'; got 'max'"),
        ({'dim': 5}, 'dim must be even .* got 5'),
    ):
      module = gru.SentenceEncoders(_VOCABULARY, **knobs)
      with self.assertRaisesRegex(ValueError, message):
        module.init(jax.random.key(0), batch)
