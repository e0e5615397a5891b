# SPDX-License-Identifier: Apache-2.0
"""Prepares pairs: of a file of your own, or molecules.

  python -m hcl_jax.prepare --dataset=questions --pairs=questions.tsv
  python -m hcl_jax.prepare --dataset=code --pairs=code.jsonl.gz \\
      --query_column=docstring --document_column=code --group_column=repository
  python -m hcl_jax.prepare --dataset=vectors --pairs=embeddings.npz
  python -m hcl_jax.prepare --dataset=molecules

--pairs takes a table with a query and a document in each row (see
hcl_jax/pairs/reading.py): .tsv, .csv, .jsonl, .parquet, or .npz with arrays of
vectors. The data set is pairs/questions. Molecules are read from the package
chemicals.
"""

from collections.abc import Mapping
import pathlib
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from hcl_jax.pairs import items as items_lib
from hcl_jax.pairs import molecules
from hcl_jax.pairs import reading
from hcl_jax.pairs import tables
from hcl_jax.storage import catalogue
from hcl_jax.storage import locations
from hcl_jax.storage import preparing
from hcl_jax.storage import sources
from hcl_jax.storage.preparing import Flag

FLAGS = {
    'pairs': Flag(
        str, None, 'File with a query and a document a row.', is_source=True
    ),
    'query_column': Flag(str, 'query', 'Column of the queries of --pairs.'),
    'document_column': Flag(
        str, 'document', 'Column of the documents of --pairs.'
    ),
    'id_column': Flag(
        str, None,
        'Column of --pairs whose rows of one value answer each other.',
    ),
    'group_column': Flag(
        str, None, 'Column of --pairs that groups documents that are alike.'
    ),
    'negative_columns': Flag(
        str, None,
        'Columns of --pairs with negatives of a row, between commas.',
    ),
    'validation_share': Flag(
        float, tables.SHARE, 'Share of --pairs to validate on.'
    ),
    'test_share': Flag(float, tables.SHARE, 'Share of --pairs to test on.'),
}  # fmt: skip
DATASETS = f'{tables.NAME}/NAME'

full_name = tables.full_name

_VERSION = tfds.core.Version('1.0.0')
_CHUNK = 1000  # pairs of a record
# The encoder that is proposed, by the kind of items.
_ENCODERS = {'text': 'ngrams', 'vector': 'adapter', 'image': 'small'}


def owns(dataset: str) -> bool:
  """Returns whether a name is that of pairs."""
  name = dataset.partition(':')[0]
  return name.partition('/')[0] == tables.NAME or molecules.owns(name)


def source(
    dataset: str, options: Mapping[str, Any]
) -> Mapping[str, Any] | None:
  """Returns what tells the given file, and what is made of it, apart."""
  if not options['pairs']:
    return None
  others = {name: x for name, x in options.items() if name != 'pairs'}
  return sources.measure(options['pairs'], **others)


def builder(
    dataset: str,
    options: Mapping[str, Any],
    source: Mapping[str, Any] | None,
    **where: Any,
) -> Any:
  """Returns the builder of pairs."""
  name = full_name(dataset)
  _, config, _ = locations.parse(name)
  if molecules.owns(name.partition(':')[0]):
    if options['pairs']:
      raise ValueError(
          f'--dataset={dataset} is made of the package chemicals; give the '
          f'pairs of {options["pairs"]} a name of their own.'
      )
    return _molecules(config, **where)
  if not config or not options['pairs']:
    raise ValueError(
        f'--dataset={tables.NAME}/NAME needs a name of your choice and '
        'takes its pairs by --pairs.'
    )
  print(f'Reading {options["pairs"]}')
  return PairsBuilder(
      config=config,
      parts=_read(pathlib.Path(options['pairs']), options),
      source=source,
      **where,
  )


def describe(dataset: str, info: Any, where: str) -> str:
  """Returns the number of pairs and how to load them."""
  counts = ', '.join(
      f'{name} {split["pairs"]}'
      for name, split in info.metadata['splits'].items()
  )
  return f'({counts} pairs): hcl_jax.pairs.load_pairs({dataset!r}{where})'


def train_flags(dataset: str, info: Any) -> list[str]:
  """Returns the configuration that trains on pairs."""
  name = full_name(dataset)
  if molecules.owns(name):
    short = name.partition('/')[2]
    named = [] if short == 'molecules' else [f'--config.data.name={short}']
    return ['--config=molecules:hard', *named]
  count = info.metadata['splits']['train']['pairs']
  flags = ['--config=pairs:hard', f'--config.data.name={dataset}']
  query, document = (_ENCODERS[x] for x in info.metadata['kinds'])
  if query != _ENCODERS['text']:
    flags.append(f'--config.model.encoder={query}')
  if document != query:
    flags.append(f'--config.model.document_encoder={document}')
  return flags + preparing.batch_size_flags(count, 512)


def make(dataset: str, root: pathlib.Path) -> None:
  """Prepares molecules, unless another process does so first."""
  _, config, _ = locations.parse(full_name(dataset))
  with catalogue.quiet():
    writing = _molecules(config, data_dir=root, file_format='array_record')
    title = f'{writing.info.full_name} (no download)'
    try:
      with catalogue.announced(f'Writing {title} to {writing.data_dir}'):
        writing.download_and_prepare()
    except OSError:
      # Another process may have finished first; its copy is as good.
      if not writing.is_prepared():
        raise


class PairsBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Writes pairs as the data set ``pairs/NAME``, a split for each part."""

  name = tables.NAME
  VERSION = _VERSION

  def __init__(
      self,
      *,
      config: str,
      parts: Mapping[str, tables.Table],
      source: Mapping[str, Any] | None,
      **kwargs,
  ):
    """Takes the table of each part, and where they come from."""
    self._parts, self._source = parts, source
    config = tfds.core.BuilderConfig(name=config, version=_VERSION)
    self.BUILDER_CONFIGS = [config]
    super().__init__(config=config, **kwargs)

  def _info(self):
    first = next(iter(self._parts.values()))
    return tfds.core.DatasetInfo(
        builder=self,
        description='Queries and their documents, many in each record.',
        features=tfds.features.FeaturesDict({
            **_features('query', first.queries),
            **_features('document', first.documents),
            # Of each pair.
            'id': _numbers(),
            'group': _numbers(),
            # Further documents, and how many of them each pair has.
            **_features('negative', first.negatives),
            'num_negatives': _numbers(),
        }),
        metadata=tfds.core.MetadataDict(
            source=self._source,
            kinds=[
                items_lib.kind(x) for x in (first.queries, first.documents)
            ],
            splits={
                name: {'pairs': len(x.ids), 'ids': len(np.unique(x.ids))}
                for name, x in self._parts.items()
            },
        ),
        disable_shuffling=True,
    )

  def _split_generators(self, dl_manager):
    del dl_manager
    return {
        name: self._generate_examples(table)
        for name, table in self._parts.items()
    }

  def _generate_examples(self, table):
    for first in range(0, len(table.ids), _CHUNK):
      rows = np.arange(first, min(first + _CHUNK, len(table.ids)))
      piece = tables.take(table, rows)
      yield first, {
          **_encoded('query', piece.queries),
          **_encoded('document', piece.documents),
          'id': piece.ids,
          'group': piece.groups,
          **_encoded('negative', piece.negatives),
          'num_negatives': piece.num_negatives,
      }


def _molecules(config, **where):
  columns = molecules.columns(config)
  parts = tables.divide(
      columns,
      where=config,
      validation_share=molecules.VALIDATION_SHARE,
      test_share=molecules.TEST_SHARE,
  )
  return PairsBuilder(
      config=config, parts=parts, source={'path': 'chemicals'}, **where
  )


def _read(path, options):
  """Reads a file and divides it."""
  names = {
      name: options[f'{name}_column']
      for name in tables.COLUMNS[:4]
      if options[f'{name}_column']
  }
  if options['negative_columns']:
    names['negatives'] = [
        x.strip() for x in options['negative_columns'].split(',') if x.strip()
    ]
  return tables.divide(
      reading.read(path, names),
      where=str(path),
      validation_share=options['validation_share'],
      test_share=options['test_share'],
  )


def _numbers():
  # As bytes they are read at once, not number by number.
  return tfds.features.Tensor(
      shape=(None,), dtype=np.int32, encoding=tfds.features.Encoding.BYTES
  )


def _features(name, items):
  """Returns the features of queries or documents."""
  if items_lib.kind(items) == 'text':
    # One after the other, as a few long texts are read faster than many.
    return {name: tfds.features.Text(), f'{name}_length': _numbers()}
  tensor = tfds.features.Tensor(
      shape=(None, *items.shape[1:]),
      dtype=items.dtype,
      encoding=tfds.features.Encoding.BYTES,
  )
  return {name: tensor}


def _encoded(name, items):
  if isinstance(items, np.ndarray):
    return {name: items}
  lengths = np.array([len(text) for text in items], np.int32)
  return {name: ''.join(items), f'{name}_length': lengths}
