# SPDX-License-Identifier: Apache-2.0
"""Prepares sentences of plain text.

  python -m hcl_jax.prepare --dataset=sentences/books --text=books.txt.xz

--text takes sentences in their order, a file or a folder of files with a
sentence a line (see hcl_jax/sentences/corpus.py).
"""

from collections.abc import Mapping
import pathlib
from typing import Any

from hcl_jax.sentences import corpus
from hcl_jax.storage import locations
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
    'vocabulary_size': Flag(int, 20_000, 'Commonest words of --text to keep.'),
    'min_count': Flag(
        int, 1, 'Words of --text that are less common are left out.'
    ),
    'validation_documents': Flag(
        int, 0,
        'Last documents of --text, files of a folder or segments of a file, '
        'that are the validation split.',
    ),
}  # fmt: skip
DATASETS = f'{corpus.NAME}/NAME'


def owns(dataset: str) -> bool:
  """Returns whether a name is that of a corpus."""
  return dataset.partition(':')[0].partition('/')[0] == corpus.NAME


def full_name(dataset: str) -> str:
  """Returns the name as it is."""
  return dataset


def source(
    dataset: str, options: Mapping[str, Any]
) -> Mapping[str, Any] | None:
  """Returns what tells the given text, and what is made of it, apart."""
  if not options['text']:
    return None
  return sources.measure(options['text'], **_options(options)._asdict())


def builder(
    dataset: str,
    options: Mapping[str, Any],
    source: Mapping[str, Any] | None,
    **where: Any,
) -> Any:
  """Returns the builder of a corpus."""
  from hcl_jax.sentences import corpora

  _, config, _ = locations.parse(dataset)
  if not config or not options['text']:
    raise ValueError(
        f'--dataset={corpus.NAME}/NAME needs a name of your choice and takes '
        'its text by --text.'
    )
  print(f'Reading {options["text"]}')
  return corpora.Sentences(
      config=config,
      path=pathlib.Path(options['text']),
      options=_options(options),
      source=source,
      **where,
  )


def describe(dataset: str, info: Any, where: str) -> str:
  """Returns the number of sentences and how to load them."""
  counts = ', '.join(
      f'{name} {split["sentences"]} sentences of {split["tokens"]} words, '
      f'{split["unknown"]:.1%} of them unknown'
      for name, split in info.metadata['splits'].items()
  )
  return f'({counts}): hcl_jax.sentences.load_sentences({dataset!r}{where})'


def _options(options):
  return corpus.Options(**{
      name: options[name] for name in corpus.Options._fields
  })
