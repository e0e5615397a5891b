# SPDX-License-Identifier: Apache-2.0
"""Embedding many sentences: as one by one, in few shapes."""

from absl.testing import parameterized
import jax
import numpy as np

from hcl_jax.models import packed_text as sentences
from hcl_jax.sentences import config as sentence_config
from hcl_jax.sentences import encode as embedding
from hcl_jax.sentences import task as quick_thoughts

_LENGTH = 12
_VOCABULARY = 50


def _given(count=150):
  """Sentences of all lengths, with none of words and with too many."""
  rng = np.random.default_rng(0)
  lengths = rng.integers(0, _LENGTH + 4, count)
  lengths[3] = 0
  return [rng.integers(0, _VOCABULARY, n).astype(np.int32) for n in lengths]


class EmbedderTest(parameterized.TestCase):

  def _embedder(self, encoder='bag'):
    config = sentence_config.quick_thoughts()
    config.update_from_flattened_dict({
        'data.max_length': _LENGTH, 'evaluate.batch_size': 64,
        'model.encoder': encoder, 'model.word_dim': 3, 'model.dim': 4,
    })  # fmt: skip
    task = quick_thoughts.create(
        config, vocabulary_size=_VOCABULARY, total_steps=1, steps_per_epoch=1
    )
    some = sentences.pack(np.zeros((1, 2), np.int32), np.array([2]))
    params, _ = jax.jit(task.init)(jax.random.key(0), some)
    return task, params, embedding.Embedder(task, config)

  @parameterized.parameters('gru', 'bag')
  def test_is_the_plain_way(self, encoder):
    task, params, embed = self._embedder(encoder)
    given, seen = _given(), []
    features = embed(params, given, seen.append)
    whole = np.zeros((len(given), _LENGTH), np.int32)
    for row, words in zip(whole, given, strict=True):
      row[: len(words)] = words[:_LENGTH]
    # No word at all counts as one that is unknown.
    length = np.clip([len(words) for words in given], 1, _LENGTH)
    plain = sentences.pack(whole, length)
    np.testing.assert_allclose(
        features,
        jax.jit(task.features)(params, {}, plain),
        rtol=1e-5,
        atol=1e-6,
    )
    self.assertEqual(seen, sorted(seen))
    self.assertEqual(seen[-1], len(given))
    self.assertGreater(len(seen), 3)

  def test_one_shape_for_many_and_one_for_few(self):
    _, params, embed = self._embedder()
    given, shapes = _given(), set()
    features = embed._features

    def record(params, state, batch):
      leaves, structure = jax.tree.flatten(batch)
      shapes.add((structure, *map(jax.typeof, leaves)))
      return features(params, state, batch)

    embed._features = record
    embed(params, given[:140])
    embed(params, given[5:])
    self.assertLen(shapes, 1)
    for row in range(4):
      embed(params, given[row : row + 1 + row])
    self.assertLen(shapes, 2)

  def test_short_sentences_fill_the_rows(self):
    _, params, embed = self._embedder()
    seen = []
    embed(params, [np.array([1])] * 100, seen.append)
    self.assertEqual(seen, [64, 100])

  def test_sentences_that_fill_packed_rows_badly(self):
    _, params, embed = self._embedder()
    rng = np.random.default_rng(0)
    given = list(rng.integers(0, _VOCABULARY, (40, 7)))
    features = embed(params, given)
    np.testing.assert_allclose(
        features[-1], embed(params, given[-1:])[0], rtol=1e-5, atol=1e-6
    )

  def test_polls_with_every_batch(self):
    calls = []

    def poll():
      calls.append(len(calls))
      if len(calls) == 2:
        raise KeyboardInterrupt

    _, params, embed = self._embedder()
    with self.assertRaises(KeyboardInterrupt):
      embed(params, _given(), poll=poll)
    self.assertLen(calls, 2)
