# SPDX-License-Identifier: Apache-2.0
"""Tokens of texts against loops over their characters."""

import collections
import json

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from hcl_jax.models import tokens

_CCO = [11024, 19172, 21685, 25729, 25729, -1]
_TEXTS = ['CCO', 'C1=CC=C(C=C1)O', 'a', 'Grüße, 世界 🎉', 'aaaaaaaa']


def _ngrams(text, least, most):
  return collections.Counter(
      text[i : i + n]
      for n in range(least, most + 1)
      for i in range(len(text) - n + 1)
  )


class HashedNgramsTest(parameterized.TestCase):

  @parameterized.parameters((1, 4), (2, 3), (3, 3))
  def test_has_each_ngram_as_often_as_it_occurs(self, least, most):
    tokenizer = tokens.HashedNgrams(least, most, buckets=2**20, length=99)
    known = {}
    for text, row in zip(_TEXTS, tokenizer(_TEXTS), strict=True):
      counts = _ngrams(text, least, most)
      found = collections.Counter(row[row >= 0].tolist())
      self.assertEqual(sorted(found.values()), sorted(counts.values()))
      np.testing.assert_array_equal(row[sum(counts.values()) :], -1)
      for ngram in counts:  # The hash of an n-gram depends on nothing else.
        if len(ngram) == least == most:
          hashed = tokenizer([ngram])[0, 0]
          self.assertEqual(known.setdefault(ngram, hashed), hashed)
          self.assertIn(hashed, found)

  def test_chunks_do_not_matter(self):
    tokenizer = tokens.HashedNgrams(length=16)
    many = _TEXTS * 2000
    np.testing.assert_array_equal(
        tokenizer(many), np.tile(tokenizer(_TEXTS), (2000, 1))
    )

  def test_keeps_the_same_part_of_what_long_texts_share(self):
    tokenizer = tokens.HashedNgrams(1, 3, length=20)
    shared = 'abcdefghijklmnopqrstuvwxyz'
    first, second = tokenizer([f'{shared}1', f'{shared}2'])
    self.assertGreaterEqual(len(np.intersect1d(first, second)), 17)

  def test_hashes_stay_what_they_are(self):
    # Runs that were trained keep their meaning.
    row = tokens.HashedNgrams(1, 2, buckets=32768, length=6)(['CCO'])[0]
    self.assertEqual(row.tolist(), _CCO)

  def test_a_text_that_is_shorter_than_an_ngram(self):
    tokenizer = tokens.HashedNgrams(1, 6, length=20)
    for length in range(9):
      alone = tokenizer(['abcdefghi'[:length]])
      beside = tokenizer(['abcdefghi'[:length], 'a much longer text'])
      np.testing.assert_array_equal(alone[0], beside[0])

  def test_an_empty_text_has_none(self):
    rows = tokens.HashedNgrams(length=4)(['', 'a'])
    self.assertEqual((rows >= 0).sum(axis=1).tolist(), [0, 1])


class WordsTest(parameterized.TestCase):

  def test_words(self):
    given = ['the cat, the dog', 'The bird']
    tokenizer = tokens.Words.of_texts(given, size=3, length=5)
    words = tokenizer.vocabulary.words
    self.assertEqual(words, ['<unk>', 'the', ',', 'The'])
    rows = tokenizer(['the cat', 'The , the the the the', ''])
    self.assertEqual(rows.tolist(), [
        [1, 0, -1, -1, -1], [3, 2, 1, 1, 1], [-1] * 5
    ])  # fmt: skip

  def test_characters(self):
    tokenizer = tokens.Characters.of_texts(_TEXTS, size=100, length=4)
    rows = tokenizer(['CCO', 'C?'])
    self.assertEqual(rows[0, 0], rows[0, 1])
    self.assertEqual(rows[0, 3], -1)
    self.assertEqual(rows[1, 1], 0)


class JsonTest(parameterized.TestCase):

  @parameterized.parameters(
      tokens.HashedNgrams(1, 3, 100, 8),
      tokens.Words.of_texts(_TEXTS, size=5, length=6),
      tokens.Characters.of_texts(_TEXTS, size=5, length=6),
  )
  def test_round_trip(self, tokenizer):
    content = json.loads(json.dumps(tokenizer.to_json()))
    found = tokens.from_json(content)
    self.assertEqual(type(found), type(tokenizer))
    self.assertEqual(found.num_tokens, tokenizer.num_tokens)
    np.testing.assert_array_equal(found(_TEXTS), tokenizer(_TEXTS))


if __name__ == '__main__':
  absltest.main()
