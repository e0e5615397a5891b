# SPDX-License-Identifier: Apache-2.0
"""Prepares sentences of plain text.

  python -m hcl_jax.prepare --dataset=books --text=books.txt.xz

--text takes sentences in their order, a file or a folder of files with a
sentence a line, or with --split_sentences prose (see
hcl_jax/sentences/corpus.py). The data set is sentences/books.
"""

from collections.abc import Mapping
import pathlib
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from hcl_jax.sentences import corpus as corpus_lib
from hcl_jax.storage import locations
from hcl_jax.storage import preparing
from hcl_jax.storage import sources
from hcl_jax.storage.preparing import Flag

FLAGS = {
    'text': Flag(
        str, None, 'Text file or folder with a sentence a line.', is_source=True
    ),
    'split_sentences': Flag(
        bool, False, '--text is prose, to be split into sentences.'
    ),
    'cased': Flag(bool, False, 'Keep capital letters of --text.'),
    'vocabulary_size': Flag(
        int, corpus_lib.VOCABULARY_SIZE, 'Commonest words of --text to keep.'
    ),
    'min_count': Flag(
        int, 1, 'Words of --text that are less common are left out.'
    ),
    'validation_documents': Flag(
        int, None,
        'Last documents of --text, files of a folder or segments of a file, '
        'that are the validation split; by default about 5 % of the sentences.',
    ),
}  # fmt: skip
DATASETS = f'{corpus_lib.NAME}/NAME'

# Sentences of a split that can be trained and scored on.
_FEWEST = 3
# From here on an epoch takes minutes.
_MANY = 50_000
_VERSION = tfds.core.Version('1.0.0')
_CHUNK = 1000  # sentences of a record


def owns(dataset: str) -> bool:
  """Returns whether a name is that of a corpus."""
  return dataset.partition(':')[0].partition('/')[0] == corpus_lib.NAME


def full_name(dataset: str) -> str:
  """Returns ``'sentences/NAME'``, also for ``'NAME'`` alone."""
  return dataset if owns(dataset) else f'{corpus_lib.NAME}/{dataset}'


def source(
    dataset: str, options: Mapping[str, Any]
) -> Mapping[str, Any] | None:
  """Returns what tells the given text, and what is made of it, apart."""
  if not options['text']:
    return None
  others = {name: x for name, x in options.items() if name != 'text'}
  return sources.measure(options['text'], **others)


def builder(
    dataset: str,
    options: Mapping[str, Any],
    source: Mapping[str, Any] | None,
    **where: Any,
) -> Any:
  """Returns the builder of a corpus."""
  _, config, _ = locations.parse(full_name(dataset))
  if not config or not options['text']:
    raise ValueError(
        f'--dataset={corpus_lib.NAME}/NAME needs a name of your choice and '
        'takes its text by --text.'
    )
  print(f'Reading {options["text"]}')
  return CorpusBuilder(config=config, options=options, source=source, **where)


def describe(dataset: str, info: Any, where: str) -> str:
  """Returns the number of sentences and how to load them."""
  counts = ', '.join(
      f'{name} {split["sentences"]} sentences of {split["tokens"]} words, '
      f'{split["unknown"]:.1%} of them unknown'
      for name, split in info.metadata['splits'].items()
  )
  return f'({counts}): hcl_jax.sentences.load_sentences({dataset!r}{where})'


def train_flags(dataset: str, info: Any) -> list[str]:
  """Returns the configuration that trains on a corpus, if it is divided."""
  counts = {k: x['sentences'] for k, x in info.metadata['splits'].items()}
  if len(counts) < 2 or min(counts.values()) < _FEWEST:
    return []
  size = 'tiny' if counts['train'] < _MANY else 'small'
  flags = [f'--config=sentences:{size},hard', f'--config.data.name={dataset}']
  return flags + preparing.batch_size_flags(counts['train'], 64)


class CorpusBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Writes a corpus as the data set ``sentences/NAME``, in its order."""

  name = corpus_lib.NAME
  VERSION = _VERSION

  def __init__(
      self,
      *,
      config: str,
      options: Mapping[str, Any],
      source: Mapping[str, Any],
      **kwargs,
  ):
    """Reads a text, holds out its last documents, numbers the other's words."""
    corpus = corpus_lib.read(
        pathlib.Path(options['text']),
        split_sentences=options['split_sentences'],
        cased=options['cased'],
    )
    self._source = source
    self._vocabulary, self._splits = corpus_lib.divide(
        corpus,
        validation_documents=options['validation_documents'],
        vocabulary_size=options['vocabulary_size'],
        min_count=options['min_count'],
        cased=options['cased'],
    )
    config = tfds.core.BuilderConfig(name=config, version=_VERSION)
    self.BUILDER_CONFIGS = [config]
    super().__init__(config=config, **kwargs)

  def _info(self):
    # As bytes they are read at once, not number by number.
    numbers = tfds.features.Tensor(
        shape=(None,), dtype=np.int32, encoding=tfds.features.Encoding.BYTES
    )
    return tfds.core.DatasetInfo(
        builder=self,
        description='Sentences of a text in its order, some in each record.',
        features=tfds.features.FeaturesDict({
            # Words of all sentences of the record.
            'token': numbers,
            # Of each sentence: its number of words, and its segment.
            'length': numbers,
            'segment': numbers,
        }),
        metadata=tfds.core.MetadataDict(
            source=self._source,
            splits={k: _measure(*v) for k, v in self._splits.items()},
        ),
        disable_shuffling=True,
    )

  def _split_generators(self, dl_manager):
    del dl_manager
    # At this time the path is that of a folder that is renamed when complete.
    self._vocabulary.save(self.data_path / corpus_lib.VOCABULARY)
    return {
        name: self._generate_examples(*arrays)
        for name, arrays in self._splits.items()
    }

  def _generate_examples(self, tokens, lengths, segments):
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    for first in range(0, len(lengths), _CHUNK):
      last = min(first + _CHUNK, len(lengths))
      yield first, {
          'token': tokens[starts[first] : starts[last]],
          'length': lengths[first:last],
          'segment': segments[first:last],
      }


def _measure(tokens, lengths, segments):
  return {
      'sentences': len(lengths),
      'segments': len(np.unique(segments)),
      'tokens': len(tokens),
      'unknown': float(np.mean(tokens == 0)),
  }
