# SPDX-License-Identifier: Apache-2.0
"""Sentences in lanes: all of them are there, whole and in order."""

from absl.testing import parameterized
import numpy as np

from hcl_jax.models import packed_text as sentences


def _sentences(lengths, places, seed=0):
  rng = np.random.default_rng(seed)
  tokens = rng.integers(0, 50, (len(lengths), places))
  return tokens, np.array(lengths)


def _read(batch, sentence):
  """The words of a sentence, by its two ends."""
  lanes = batch.places.shape[1]
  first, last = (int(x[sentence]) for x in (batch.firsts, batch.lasts))
  if first == batch.places.size:
    return []
  assert first % lanes == last % lanes
  places = range(first, last + 1, lanes)
  assert all(batch.rows.reshape(-1)[place] == sentence for place in places)
  return [batch.words[batch.places.reshape(-1)[place]] for place in places]


class PackTest(parameterized.TestCase):

  @parameterized.parameters(
      ([3, 1, 4, 1, 5, 0, 2, 6],), ([6] * 5,), ([1],), ([0, 0],), ([1] * 40,)
  )
  def test_every_sentence_is_whole(self, lengths):
    tokens, length = _sentences(lengths, 6)
    batch = sentences.pack(tokens, length)
    for i, n in enumerate(lengths):
      self.assertEqual(_read(batch, i), tokens[i, :n].tolist())
    self.assertEqual(np.sum(batch.rows < len(lengths)), sum(lengths))
    padding = batch.rows == len(lengths)
    np.testing.assert_array_equal(batch.places[padding], 0)
    for array in batch:
      self.assertEqual(array.dtype, np.int32)

  def test_words_are_there_once(self):
    tokens, length = _sentences([6] * 30, 6)
    batch = sentences.pack(tokens, length)
    used = batch.words[np.unique(batch.places)]
    np.testing.assert_array_equal(used, np.unique(tokens))
    self.assertLess(len(batch.words), 1.25 * len(used) + 1)

  def test_what_follows_a_sentence_is_not_read(self):
    tokens, length = _sentences([3, 1, 4, 0], 6)
    other = np.where(np.arange(6) < length[:, None], tokens, 10**6)
    for a, b in zip(
        sentences.pack(tokens, length), sentences.pack(other, length),
        strict=True,
    ):  # fmt: skip
      np.testing.assert_array_equal(a, b)

  def test_lanes_are_nearly_full(self):
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(2.4, 0.65, 400).astype(int), 1, 50)
    batch = sentences.pack(*_sentences(lengths, 50))
    used = np.unique(np.nonzero(batch.rows < 400)[1])
    self.assertLess(len(used) * 50, 1.03 * lengths.sum())
    self.assertLess(batch.places.size, 1.25 * lengths.sum())

  def test_sizes_are_few(self):
    sizes = {sentences._rounded(size) for size in range(1025)}
    self.assertLen(sizes, 36)
    for size in range(1, 1025):
      self.assertBetween(sentences._rounded(size), size, 1.25 * size)

  def test_sizes_that_are_given_are_the_least(self):
    tokens, length = np.array([[4, 7], [4, 1], [2, 0]]), np.array([2, 2, 1])
    batch = sentences.pack(tokens, length, min_packed_rows=9, min_words=11)
    self.assertEqual(batch.places.shape, (2, 9))
    self.assertEqual(batch.words.shape, (11,))
    self.assertEqual(batch.rows[0, 2:].tolist(), [2, *[3] * 6])
    batch = sentences.pack(tokens, length, min_packed_rows=2, min_words=2)
    self.assertEqual(batch.places.shape, (2, 3))
    self.assertEqual(batch.words.shape, (4,))

  def test_what_is_known_of_sentences_comes_along(self):
    tokens, length = _sentences([2, 2, 0], 4)
    batch = sentences.pack(tokens, length, [3, 3, 4], [7, 8, -1])
    np.testing.assert_array_equal(batch.segment, [3, 3, 4])
    np.testing.assert_array_equal(batch.index, [7, 8, -1])
    plain = sentences.pack(tokens, length)
    np.testing.assert_array_equal(plain.segment, [0, 0, 0])
    np.testing.assert_array_equal(plain.index, [0, 1, 2])

  @parameterized.parameters(([3, 1, 4, 0, 6],), ([0],), ([2] * 30,))
  def test_sentences_without_padding_are_packed_alike(self, lengths):
    tokens, length = _sentences(lengths, 6)
    flat = np.concatenate([
        row[:n] for row, n in zip(tokens, length, strict=True)
    ])
    rows = np.arange(len(length))
    for a, b in zip(
        sentences.pack(tokens, length, rows // 2, rows + 7, min_packed_rows=3),
        sentences.pack_flat(
            flat, length, rows // 2, rows + 7, places=6, min_packed_rows=3
        ),
        strict=True,
    ):
      np.testing.assert_array_equal(a, b)
    with self.assertRaisesRegex(ValueError, r'tokens must have shape \(\d+,\)'):
      sentences.pack_flat(np.append(flat, 1), length, places=6)
    if max(lengths):
      with self.assertRaisesRegex(ValueError, 'length must be 0 to 1'):
        sentences.pack_flat(flat, length, places=1)

  def test_what_does_not_fit_is_refused(self):
    tokens, length = _sentences([2, 3], 4)
    for arguments, message in (
        ((tokens.astype(float), length), 'tokens must be integers .* float64'),
        ((tokens[0], length), r'got int64 of shape \(4,\)'),
        ((tokens, length[:1]), r'length must have shape \(2,\).*got \(1,\)'),
        ((tokens, length + 2), 'length must be 0 to 4.*got 4 to 5'),
        ((tokens, -length), 'got -3 to -2'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        sentences.pack(*arguments)
