# SPDX-License-Identifier: Apache-2.0
"""The tfds builder of corpora of sentences."""

from collections.abc import Mapping
import pathlib
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from hcl_jax.models import vocabulary as vocabulary_lib
from hcl_jax.sentences import corpus as corpus_lib
from hcl_jax.storage import catalogue

_VERSION = tfds.core.Version('1.0.0')
# Sentences of a record.
_CHUNK = 1000


class Sentences(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """A corpus as the data set ``sentences/NAME``, in its order."""

  name = corpus_lib.NAME
  VERSION = _VERSION

  def __init__(
      self,
      *,
      config: str,
      path: pathlib.Path,
      options: corpus_lib.Options,
      source: Mapping[str, Any],
      **kwargs,
  ):
    """Reads a text, holds out its last documents, numbers the other's words."""
    corpus = corpus_lib.read(path, options)
    held_out = _held_out(corpus, options.validation_documents)
    self._source = source
    self._vocabulary = _vocabulary(corpus, ~held_out, options)
    ids = self._vocabulary.ids(corpus.words)[corpus.tokens]
    self._splits = {
        name: (
            ids[np.repeat(rows, corpus.lengths)],
            corpus.lengths[rows],
            corpus.segments[rows],
        )
        for name, rows in (('train', ~held_out), ('validation', held_out))
        if rows.any()
    }
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

  def download_and_prepare(self, **options):
    """Writes the corpus."""
    name = self.info.full_name
    with catalogue.announced(f'Writing {name} to {self.data_dir}'):
      super().download_and_prepare(**options)

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


def _held_out(corpus, num_documents):
  """Which sentences are of the last documents."""
  count = int(corpus.documents[-1]) + 1
  if not 0 <= num_documents < count:
    raise ValueError(
        f'validation_documents must be less than the documents of the text, '
        f'{count}; got {num_documents}.'
    )
  return corpus.documents >= count - num_documents


def _vocabulary(corpus, rows, options):
  """The commonest words of some sentences."""
  tokens = corpus.tokens[np.repeat(rows, corpus.lengths)]
  return vocabulary_lib.Vocabulary.of_counts(
      corpus.words,
      np.bincount(tokens, minlength=len(corpus.words)),
      size=options.vocabulary_size,
      min_count=options.min_count,
      cased=options.cased,
  )


def _measure(tokens, lengths, segments):
  return {
      'sentences': len(lengths),
      'segments': len(np.unique(segments)),
      'tokens': len(tokens),
      'unknown': float(np.mean(tokens == 0)),
  }
