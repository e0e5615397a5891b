# SPDX-License-Identifier: Apache-2.0
"""Corpora of sentences: texts, vocabularies, and padded batches."""

import collections
import doctest
import gzip
import json
import lzma
import os
import pathlib
import re
import tempfile
from unittest import mock

from absl import flags
from absl.testing import flagsaver
from absl.testing import parameterized
import numpy as np
import tensorflow_datasets as tfds

import hcl_jax
from hcl_jax import command
from hcl_jax import prepare
from hcl_jax.models import vocabulary
from hcl_jax.models import vocabulary as vocabulary_lib
from hcl_jax.sentences import corpus
from hcl_jax.sentences import data as sentence_data
from hcl_jax.sentences import prepare as sentence_prepare
from hcl_jax.storage import text_files

_TEXT = '''The cat sat.
A cat? "No," said he.

It rained; the cat ran.
  
'Tis the end, the very end.
'''


class _Test(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    tfds.disable_progress_bar()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    self.file, self.data_dir = self.root / 'toy.txt', self.root / 'data'

  def prepare(self, path=None, **options):
    return prepare.prepare(
        'sentences/toy', data_dir=self.data_dir, text=str(path or self.file),
        **options,
    )  # fmt: skip

  def load(self, split='train'):
    return sentence_data.load_sentences(
      'toy', data_dir=self.data_dir, split=split
    )


def _texts(sentences):
  return [sentences.text(row) for row in range(len(sentences))]


class PrepareTest(_Test):

  @parameterized.parameters(
      ('toy.txt', open), ('toy.txt.gz', gzip.open), ('toy.txt.xz', lzma.open)
  )
  def test_round_trip(self, name, opener):
    with opener(self.root / name, 'wb') as file:
      file.write(b'\xef\xbb\xbf' + _TEXT.replace('\n', '\r\n').encode())
    self.prepare(self.root / name)
    sentences = self.load()
    self.assertEqual(
        _texts(sentences),
        ['the cat sat .', 'a cat ? " no , " said he .',
         'it rained ; the cat ran .', "' tis the end , the very end ."],
    )  # fmt: skip
    np.testing.assert_array_equal(sentences.segments, [0, 0, 1, 2])
    np.testing.assert_array_equal(sentences.starts, [0, 4, 14, 21, 30])
    self.assertEqual(
        [sentences.tokens.dtype, sentences.starts.dtype,
         sentences.segments.dtype],
        [np.int32, np.int64, np.int32],
    )  # fmt: skip

  def test_words_are_numbered_by_count_then_spelling(self):
    self.file.write_text(_TEXT)
    self.prepare(vocabulary_size=7)
    sentences = self.load()
    counts = collections.Counter(
        re.findall(r'\w+|[^\w\s]', _TEXT.lower())
    )
    expected = sorted(counts, key=lambda word: (-counts[word], word))[:7]
    self.assertEqual(sentences.vocabulary.words, ['<unk>', *expected])
    self.assertEqual(_texts(sentences)[0], 'the cat <unk> .')
    shares = json.loads(next(self.data_dir.rglob('1.0.0/metadata.json'))
                        .read_text())['splits']['train']  # fmt: skip
    self.assertEqual((shares['sentences'], shares['segments']), (4, 3))
    self.assertAlmostEqual(
        shares['unknown'], 1 - sum(counts[w] for w in expected) / 30
    )

  def test_rare_words_and_capital_letters(self):
    self.file.write_text(_TEXT)
    self.prepare(min_count=2, cased=True)
    words = self.load().vocabulary.words
    self.assertEqual(words, ['<unk>', '.', 'cat', 'the', '"', ',', 'end'])
    self.assertEqual(self.load().vocabulary.encode('The cat').tolist(), [0, 2])

  def test_a_folder_has_a_document_in_each_file(self):
    folder = self.root / 'books'
    (folder / 'b').mkdir(parents=True)
    (folder / 'b' / 'two.txt').write_text('Two.\n\nTwo and a half.\n')
    (folder / 'a.txt').write_text('One. One.\nOne.')
    (folder / 'c.txt').write_text('Three and One.')
    (folder / 'notes.md').write_text('Not a text.')
    self.prepare(folder, validation_documents=2)
    train, held_out = self.load(), self.load('validation')
    self.assertEqual(_texts(train), ['one . one .', 'one .'])
    # Words are of the training split alone.
    self.assertEqual(
        _texts(held_out),
        ['<unk> .', '<unk> <unk> <unk> <unk> .', '<unk> <unk> one .'],
    )
    np.testing.assert_array_equal(held_out.segments, [0, 1, 2])
    self.assertLen(self.load('train+validation'), 5)

  def test_documents_of_a_file_are_its_segments(self):
    self.file.write_text(_TEXT)
    self.prepare(validation_documents=1)
    self.assertLen(self.load(), 3)
    self.assertLen(self.load('validation'), 1)

  def test_many_sentences_keep_their_order(self):
    rng = np.random.default_rng(0)
    count = 2 * sentence_prepare._CHUNK + 5
    lines = [f'w{n} of {rng.integers(50)}' for n in range(count)]
    self.file.write_text('\n'.join(lines))
    self.prepare(vocabulary_size=10**6, validation_documents=0)
    self.assertEqual(_texts(self.load()), lines)
    self.assertEqual(self.load().segments.max(), 0)

  def test_prose(self):
    self.file.write_text(
        'It was\nlate. Dr. No\nslept.\n\n"Wake up!" He did not.\n\n\nII\n'
    )
    self.prepare(split_sentences=True, validation_documents=0)
    sentences = self.load()
    self.assertEqual(
        _texts(sentences),
        ['it was late .', 'dr . no slept .', '" wake up ! "', 'he did not .',
         'ii'],
    )  # fmt: skip
    np.testing.assert_array_equal(sentences.segments, [0, 0, 0, 0, 1])

  @parameterized.parameters('\n\n', '\n\n\n')
  def test_a_twentieth_is_held_out(self, between):
    paragraphs = [f'It was {i}. So it was.' for i in range(200)]
    self.file.write_text(between.join(paragraphs))
    self.prepare(split_sentences=True)
    train, held_out = self.load(), self.load('validation')
    self.assertLen(train, 380)
    self.assertEqual(_texts(held_out)[1], 'so it was .')
    self.assertLen(held_out, 20)

  @parameterized.parameters(
      (b'One.\n\nTwo. Two.\n', 'no sentence has a neighbor; if it is prose'),
      (b'', 'toy.txt holds no sentence'),
      (b' \n\t\n', 'toy.txt holds no sentence'),
      (b'Fine.\nCaf\xe9.\n', 'toy.txt must be text in UTF-8, but line 2'),
  )
  def test_unsuitable_texts(self, content, message):
    self.file.write_bytes(content)
    with self.assertRaisesRegex(ValueError, message):
      self.prepare()
    self.assertFalse(self.data_dir.exists())

  @parameterized.parameters(('.gz', gzip), ('.xz', lzma))
  def test_damaged_texts(self, ending, module):
    path = self.root / f'toy.txt{ending}'
    content = module.compress(bytes(range(97, 120)) * 100)
    for damaged in (content[:-12], b'no archive'):
      path.write_bytes(damaged)
      with self.assertRaisesRegex(ValueError, f'is damaged, or not a {ending}'):
        self.prepare(path)
    self.assertFalse(self.data_dir.exists())

  @parameterized.parameters(
      ('.txt', lambda x: x), ('.txt.gz', gzip.compress),
      ('.txt.xz', lzma.compress),
  )  # fmt: skip
  def test_texts_that_are_too_large(self, ending, compress):
    path = self.root / f'toy{ending}'
    path.write_bytes(compress(2000 * b'one two\n'))
    with mock.patch.dict(os.environ, HCL_JAX_MAX_FILE_GIB='1e-5'):
      with self.assertRaisesRegex(
          ValueError, f'toy{ending} has more than 1e-05 GiB.*_GIB=NUMBER raises'
      ):
        self.prepare(path)
    with mock.patch.object(text_files, '_MAX_LINE_BYTES', 7):
      with self.assertRaisesRegex(ValueError, 'line 1 of .* longer than 7'):
        self.prepare(path)
    self.assertFalse(self.data_dir.exists())
    with mock.patch.dict(os.environ, HCL_JAX_MAX_FILE_GIB='2e-5'):
      with mock.patch.object(text_files, '_MAX_LINE_BYTES', 8):
        self.prepare(path)

  def test_a_limit_that_is_no_number(self):
    self.file.write_text('one two\n')
    with mock.patch.dict(os.environ, HCL_JAX_MAX_FILE_GIB='much'):
      with self.assertRaisesRegex(ValueError, "GIB must be a number, got 'mu"):
        self.prepare()

  def test_no_text(self):
    with self.assertRaisesRegex(FileNotFoundError, 'no file or folder'):
      self.prepare()
    with self.assertRaisesRegex(FileNotFoundError, 'must hold text files'):
      self.prepare(self.root)
    (self.root / 'toy.doc').write_text(_TEXT)
    with self.assertRaisesRegex(ValueError, r'toy.doc must end in one of .txt'):
      self.prepare(self.root / 'toy.doc')

  @parameterized.parameters(
      ({'validation_documents': 3}, 'documents of the text, 3; got 3'),
      ({'validation_documents': -1}, 'validation_documents must'),
      ({'vocabulary_size': 0}, 'vocabulary_size must be at least 1, got 0'),
      ({'min_count': 0}, 'min_count must be at least 1, got 0'),
  )
  def test_unsuitable_options(self, options, message):
    self.file.write_text(_TEXT)
    with self.assertRaisesRegex(ValueError, message):
      self.prepare(**options)
    self.assertFalse(self.data_dir.exists())

  def test_other_options_are_refused(self):
    self.file.write_text(_TEXT)
    directory = self.prepare(min_count=2)
    self.assertEqual(self.prepare(min_count=2), directory)
    with self.assertRaisesRegex(
        ValueError,
        'another source: cased was False and is True; min_count was 2 and is 1.'
        f'.*remove {directory} first',
    ):
      self.prepare(cased=True)
    self.file.write_text(2 * _TEXT)
    with self.assertRaisesRegex(ValueError, 'another source: bytes was'):
      self.prepare(min_count=2)

  def test_what_is_not_there(self):
    with self.assertRaisesRegex(
        FileNotFoundError, 'prepare --dataset=sentences/toy --text=FILE --data'
    ):
      self.load()
    self.file.write_text(_TEXT)
    self.prepare()
    with self.assertRaisesRegex(ValueError, "splits train,.*'validation'"):
      self.load('validation')

  def test_images_are_no_sentences(self):
    np.save(self.root / 'train_images.npy', np.zeros((4, 2, 2, 3), np.uint8))
    prepare.prepare(
        'sentences_not/toy', data_dir=self.data_dir, arrays=str(self.root)
    )
    with self.assertRaisesRegex(ValueError, 'has no sentences, only'):
      sentence_data.load_sentences('sentences_not/toy', data_dir=self.data_dir)


class CollectTest(parameterized.TestCase):

  def test_documents_and_sentences(self):
    sentences = [f'It was {i}.' for i in range(100)]
    splits = sentence_data.collect(sentences)
    self.assertLen(splits['train'], 92)
    self.assertEqual(splits['train'].text(91), 'it was 91 .')
    self.assertLen(splits['validation'], 8)
    splits = sentence_data.collect([sentences[:90], iter(sentences[90:])])
    self.assertLen(splits['validation'], 10)
    self.assertEqual(set(splits['train'].segments), {0})

  @parameterized.parameters(
      ('a text', TypeError, 'data must be an iterable of sentences.*got str'),
      (7, TypeError, 'data must be an iterable of sentences.*got int'),
      ([['One.'], [7]], TypeError, r'data\[1\]\[0\] must be a str, got int'),
      ([], ValueError, 'data has no sentence'),
      ([[' ']], ValueError, 'data has no sentence'),
  )
  def test_unsuitable_data(self, data, error, message):
    with self.assertRaisesRegex(error, message):
      sentence_data.collect(data)

  def test_other_text_is_another_run(self):
    config = hcl_jax.read_config('sentences:tiny', **{'model.encoder': 'bag'})
    texts = [f'It was {i % 7}.' for i in range(100)]
    made = [
        hcl_jax.make_experiment(config, data=x).inputs['data_digest']
        for x in (texts, texts, texts[::-1])
    ]
    self.assertEqual(made[0], made[1])
    self.assertNotEqual(made[0], made[2])


class CommandTest(_Test):

  def setUp(self):
    super().setUp()
    flags.FLAGS.mark_as_parsed()

  def test_flags_are_the_options(self):
    self.file.write_text(_TEXT)
    with flagsaver.flagsaver(
        dataset='sentences/toy', data_dir=str(self.data_dir),
        text=str(self.file), cased=True, vocabulary_size=3, min_count=2,
        validation_documents=1, split_sentences=True,
    ):  # fmt: skip
      with self.assertRaisesRegex(command.UsageError, 'documents of the text'):
        prepare.main([])
      flags.FLAGS.validation_documents = 0
      prepare.main([])
    self.assertEqual(self.load().vocabulary.words, ['<unk>', '.', 'cat', 'the'])
    self.assertTrue(self.load().vocabulary.cased)

  def test_says_how_to_use_it(self):
    self.file.write_text(_TEXT)
    words = prepare.describe('sentences/toy', self.prepare())
    self.assertIn('train 4 sentences of 30 words, 0.0% of them unk', words)
    call = words.split('): ')[-1]
    self.assertLen(eval(call, {'hcl_jax': hcl_jax}), 4)  # noqa: S307

  @parameterized.parameters(
      ({'dataset': 'toy', 'text': 'x'}, 'no file or folder x'),
      ({'dataset': 'sentences', 'text': 'x'}, 'needs a name of your choice'),
      ({'dataset': 'sentences/toy'}, 'takes its text by --text'),
      ({'dataset': 'sentences/t', 'text': 'x', 'images': 'x'}, 'give one of'),
  )
  def test_mistakes(self, values, message):
    with (
        flagsaver.flagsaver(data_dir=str(self.data_dir), **values),
        self.assertRaisesRegex(command.UsageError, message),
    ):
      prepare.main([])
    self.assertFalse(self.data_dir.exists())


class ProseTest(parameterized.TestCase):

  @parameterized.parameters(
      (['One.', 'Two!', 'Three?', '"Four."', '(Five...)', '6 is a number.'],),
      (['“Stop!” cried he.', '“Why?”', '‘Because.’', '[So it was.]'],),
      (['Mrs. Smith met J. R. Brown and Lt. E. Ray.', 'They left at 5 p.m.'],),
      (['So am I.', 'He lives in the U.S. Army camp.', 'See No. 5 and p. 7.'],),
      (['Say no.', 'No?', 'It is 3.5 km.', 'Élan is all… and so on.'],),
      (['He came… and went…', 'Yes.'],),
      (["It is the cat's.", 'It is the dog’s.', 'At 5 p.m. he left.'],),
      (['We met at 5 p.m.', "They said 'J. Smith' was no M.D. Yet he is."],),
  )
  def test_sentences(self, sentences):
    self.assertEqual(corpus.split_prose('  '.join(sentences)), sentences)

  def test_nothing(self):
    self.assertEqual(corpus.split_prose(' \n '), [])

  def test_examples(self):
    for module in (corpus, vocabulary, sentence_data):
      result = doctest.testmod(module)
      self.assertEqual((result.failed, result.attempted > 0), (0, True))


class VocabularyTest(parameterized.TestCase):

  def test_saves_and_loads(self):
    path = pathlib.Path(self.create_tempdir()) / 'words.json'
    for cased in (False, True):
      words = vocabulary_lib.Vocabulary(['<unk>', 'é', '"', 'The'], cased=cased)
      words.save(path)
      self.assertEqual(vocabulary_lib.Vocabulary.load(path), words)
    self.assertNotEqual(words, vocabulary_lib.Vocabulary(words.words))
    self.assertLen(words, 4)

  def test_encodes(self):
    words = vocabulary_lib.Vocabulary(['<unk>', 'the', '.'])
    ids = words.encode('The end. ')
    np.testing.assert_array_equal(ids, [1, 0, 2])
    self.assertEqual(ids.dtype, np.int32)
    self.assertEqual(words.encode('').shape, (0,))

  @parameterized.parameters([['a']], [['<unk>', 'a', 'a']], [[]])
  def test_unsuitable_words(self, words):
    with self.assertRaisesRegex(ValueError, "words must start with '<unk>'"):
      vocabulary_lib.Vocabulary(words)

  @parameterized.parameters('', '[]', '{"words": ["<unk>"]}', '{"cased": 0')
  def test_damaged_files(self, content):
    path = self.create_tempfile(content=content).full_path
    with self.assertRaisesRegex(ValueError, 'is no vocabulary'):
      vocabulary_lib.Vocabulary.load(path)


def _corpus(sizes=(7, 1, 12, 5), seed=0, longest=12):
  """Random sentences in segments of some sizes."""
  rng = np.random.default_rng(seed)
  lengths = rng.integers(1, longest + 1, sum(sizes))
  return sentence_data.Sentences(
      tokens=rng.integers(0, 9, lengths.sum()),
      lengths=lengths,
      segments=np.repeat(np.arange(len(sizes)) * 2, sizes),
      vocabulary=vocabulary_lib.Vocabulary(['<unk>', *'abcdefgh']),
  )


def _words(batch, row):
  """The words of a sentence, by its two ends."""
  lanes = batch.places.shape[1]
  places = np.arange(batch.firsts[row], batch.lasts[row] + 1, lanes)
  if batch.firsts[row] == batch.places.size:
    return []
  assert np.all(batch.rows.reshape(-1)[places] == row)
  return batch.words[batch.places.reshape(-1)[places]].tolist()


class BatchesTest(parameterized.TestCase):

  def check(self, corpus, batch, max_length, lengths):
    """Rows of a batch are those that its index says."""
    longest = 0
    for row, index in enumerate(batch.index):
      first, last = corpus.starts[index], corpus.starts[index + 1]
      tokens = corpus.tokens[first : min(last, first + max_length)]
      self.assertEqual(_words(batch, row), tokens.tolist())
      longest = max(longest, len(tokens))
    places = min(length for length in lengths if length >= longest)
    self.assertLen(batch.places, places)
    self.assertEqual({array.dtype for array in batch}, {np.dtype(np.int32)})

  @parameterized.parameters('consecutive', 'blocks')
  def test_rows(self, order):
    corpus = _corpus()
    lengths = (3, 6, 8, 20)
    batches = sentence_data.SentenceBatches(
        corpus, seed=1, batch_size=3, order=order, block_size=4, max_length=9,
        lengths=lengths,
    )  # fmt: skip
    self.assertLen(batches, 8)
    self.assertLen(list(batches), 8)
    for batch in batches:
      self.check(corpus, batch, 9, lengths)
    self.assertGreater(len({len(b.places) for b in batches}), 1)

  def test_consecutive(self):
    corpus = _corpus()
    batches = sentence_data.SentenceBatches(corpus, seed=0, batch_size=4)
    for step in (0, 5, 6, 17):
      rows = np.arange(4) + 4 * (step % 6)
      np.testing.assert_array_equal(batches.batch(step).index, rows)
      np.testing.assert_array_equal(
          batches.batch(step).segment, corpus.segments[rows]
      )

  def test_blocks_are_parts_of_segments(self):
    sizes = (7, 1, 12, 5)
    blocks = sentence_data._blocks(_corpus(sizes).segments, 4)
    expected, number = [], 0
    for size in sizes:
      for part in np.array_split(np.zeros(size), -(-size // 4)):
        expected.append(len(part))
    counts = np.bincount(blocks)
    self.assertEqual(sum(counts), 25)
    self.assertLessEqual(max(counts), 4)
    self.assertLen(counts, len(expected))
    for size in sizes:
      parts = -(-size // 4)
      found = sorted(counts[number : number + parts])
      self.assertEqual(found, sorted(expected[number : number + parts]))
      number += parts
    self.assertTrue(np.all(np.isin(np.diff(blocks), [0, 1])))

  def test_an_epoch_has_every_sentence_once_in_whole_blocks(self):
    corpus = _corpus()
    batches = sentence_data.SentenceBatches(
        corpus, seed=3, batch_size=5, order='blocks', block_size=3
    )
    orders = []
    for epoch in range(3):
      epoch_batches = [batches.batch(5 * epoch + i) for i in range(5)]
      index = np.concatenate([b.index for b in epoch_batches])
      segment = np.concatenate([b.segment for b in epoch_batches])
      np.testing.assert_array_equal(np.sort(index), np.arange(25))
      same = np.diff(segment) == 0
      np.testing.assert_array_equal(np.diff(index)[same], 1)
      np.testing.assert_array_equal(
          corpus.segments[index[1:]][same], corpus.segments[index[:-1]][same]
      )
      # A block is in one place.
      self.assertEqual(np.sum(~same) + 1, len(np.unique(segment)))
      orders.append(index.tolist())
    self.assertLen(set(map(tuple, orders)), 3)

  def test_a_batch_depends_on_seed_and_step_alone(self):
    knobs = {'batch_size': 4, 'order': 'blocks', 'block_size': 3}
    make = lambda seed: sentence_data.SentenceBatches(  # noqa: E731
        _corpus(), seed=seed, **knobs
    )
    one, other = make(1), make(1)
    forward = [one.batch(step) for step in range(20)]
    for step in reversed(range(20)):
      for a, b in zip(other.batch(step), forward[step], strict=True):
        np.testing.assert_array_equal(a, b)
    index = [make(seed).batch(0).index.tolist() for seed in range(4)]
    self.assertGreater(len(set(map(tuple, index))), 1)

  def test_numbers_of_batches(self):
    batches = sentence_data.SentenceBatches(_corpus(), seed=0, batch_size=4)
    np.testing.assert_array_equal(batches[-1].index, batches[5].index)
    with self.assertRaises(IndexError):
      batches[6]
    with self.assertRaisesRegex(ValueError, 'step must be 0 or more'):
      batches.batch(-1)

  @parameterized.parameters(
      ({'batch_size': 0}, 'batch_size must be at least 1.* got 0'),
      ({'batch_size': 26}, 'most the number of sentences, 25; got 26'),
      ({'order': 'random'}, "order must be one of .*, got 'random'"),
      ({'block_size': 1}, 'block_size must be at least 2'),
      ({'seed': -1}, 'seed must be 0 or more'),
      ({'max_length': 51}, 'lengths must ascend .* max_length=51'),
      ({'max_length': 0}, 'lengths must ascend .* max_length=0'),
      ({'lengths': (8, 8, 50)}, 'lengths must ascend'),
      ({'lengths': ()}, 'lengths must ascend'),
      ({'lengths': (0, 50)}, 'lengths must ascend'),
  )
  def test_mistakes(self, knobs, message):
    good = {'seed': 0, 'batch_size': 4}
    with self.assertRaisesRegex(ValueError, message):
      sentence_data.SentenceBatches(_corpus(), **good | knobs)

  def test_packs_given_sentences(self):
    rows = [[5, 6], [], [1, 2, 3, 4, 5, 6, 7]]
    batch = sentence_data.pack_sentences(
        [np.array(row, np.int64) for row in rows], max_length=4, num_rows=5
    )
    found = [_words(batch, row) for row in range(5)]
    self.assertEqual(found, [[5, 6], [0], [1, 2, 3, 4], [], []])
    self.assertLen(batch.places, 4)
    self.assertEqual({array.dtype for array in batch}, {np.dtype(np.int32)})
    for sentences, num_rows in (([], None), ([[1], [2]], 1)):
      with self.assertRaisesRegex(ValueError, 'sentences must be one or more'):
        sentence_data.pack_sentences(sentences, num_rows=num_rows)


class SentencesTest(parameterized.TestCase):

  @parameterized.parameters(
      ({'lengths': [2]}, 'an entry for each sentence'),
      ({'lengths': [3, 0]}, 'sentence 1 has 0'),
      ({'lengths': [2, 2]}, r'tokens must have shape \(4,\)'),
      ({'tokens': [0, 1, 2]}, 'ids of the vocabulary, 0 to 1; got 0 to 2'),
      ({'tokens': [0, 1, -1]}, 'ids of the vocabulary'),
      ({'segments': [1, 0]}, 'segments must be in ascending order'),
  )
  def test_arrays_that_do_not_fit_together(self, arrays, message):
    good = {
        'tokens': [0, 1, 1], 'lengths': [2, 1], 'segments': [0, 0],
        'vocabulary': vocabulary_lib.Vocabulary(['<unk>', 'a']),
    }  # fmt: skip
    sentence_data.Sentences(**good)
    with self.assertRaisesRegex(ValueError, message):
      sentence_data.Sentences(**good | arrays)
