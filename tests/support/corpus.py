# SPDX-License-Identifier: Apache-2.0
"""A toy corpus: the sentences of a chapter share words that others have not."""

from unittest import mock

import numpy as np

from hcl_jax.models import vocabulary as vocabulary_lib
from hcl_jax.sentences import data as sentence_data

_CHAPTERS = 12
_SENTENCES = 6  # of a chapter
_WORDS = 4  # of a chapter


def sentences(seed=0) -> sentence_data.Sentences:
  """72 sentences of 'w1', 'w2', ..., in which a tenth is unknown."""
  rng = np.random.default_rng(seed)
  segments = np.repeat(np.arange(_CHAPTERS), _SENTENCES)
  # The same in every chapter, so that batches have one shape.
  lengths = 3 + np.arange(len(segments)) % 6
  own = 1 + _WORDS * np.repeat(segments, lengths)
  drawn = own + rng.integers(0, _WORDS, len(own))
  words = [f'w{i}' for i in range(1, 1 + _WORDS * _CHAPTERS)]
  return sentence_data.Sentences(
      tokens=np.where(rng.random(len(own)) < 0.1, 0, drawn),
      lengths=lengths,
      segments=segments,
      vocabulary=vocabulary_lib.Vocabulary(['<unk>', *words]),
  )


def tokens(corpus: sentence_data.Sentences, rows) -> list[np.ndarray]:
  """Words of some sentences, as ids."""
  starts = corpus.starts
  return [corpus.tokens[starts[row] : starts[row + 1]] for row in rows]


def patch(test):
  """Puts the toy in the place of prepared data for the length of a test."""
  load = lambda *_, split, **__: sentences(seed=int(split == 'validation'))  # noqa: E731
  test.enter_context(mock.patch.object(sentence_data, 'load_sentences', load))


def write_tasks(folder, rows=40):
  """Six small tasks: words of early chapters or of late ones.

  Args:
    folder: gets a folder for each task.
    rows: of each file.
  """
  rng = np.random.default_rng(0)

  def sentence(label):
    first = 1 + 24 * label
    return ' '.join(f'w{i}' for i in rng.integers(first, first + 24, 5))

  def write(path, lines):
    path = folder / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(f'{line}\n' for line in lines), encoding='utf-8')

  for path, label in (
      ('MR/rt-polarity.pos', 1), ('MR/rt-polarity.neg', 0),
      ('CR/custrev.pos', 1), ('CR/custrev.neg', 0),
      ('SUBJ/subj.objective', 1), ('SUBJ/subj.subjective', 0),
      ('MPQA/mpqa.pos', 1), ('MPQA/mpqa.neg', 0),
  ):  # fmt: skip
    write(path, [sentence(label) for _ in range(rows)])
  for path in ('TREC/train_5500.label', 'TREC/TREC_10.label'):
    write(path, [
        f'{("HUM", "LOC")[row % 2]}:x {sentence(row % 2)}'
        for row in range(rows)
    ])  # fmt: skip
  for path in ('MRPC/msr_paraphrase_train.txt', 'MRPC/msr_paraphrase_test.txt'):
    pairs = [(int(row % 3 > 0), sentence(row % 2)) for row in range(rows)]
    write(path, ['Quality\t#1 ID\t#2 ID\t#1 String\t#2 String', *(
        f'{same}\t1\t2\t{first}\t{first if same else sentence(row % 2)}'
        for row, (same, first) in enumerate(pairs)
    )])  # fmt: skip
