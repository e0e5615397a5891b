# SPDX-License-Identifier: Apache-2.0
"""Prepares graphs in the text format of TU Dortmund.

  python -m hcl_jax.prepare --dataset=MUTAG
  python -m hcl_jax.prepare --dataset=MUTAG --graphs=MUTAG.zip
  python -m hcl_jax.prepare --dataset=NAME --graphs=FOLDER

The eight collections of the paper are known by name and can be downloaded.
--graphs takes a zip archive or a folder (see hcl_jax/graphs/tu_collections.py);
the data set is tu_graphs/NAME.
"""

from collections.abc import Mapping
import pathlib
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from hcl_jax.graphs import tu_collections as tu
from hcl_jax.storage import locations
from hcl_jax.storage import sources
from hcl_jax.storage.preparing import Flag

FLAGS = {
    'graphs': Flag(
        str, None, 'Zip archive or folder with graphs.', is_source=True
    ),
}
DATASETS = f'{tu.NAME}/NAME, or one of {", ".join(tu.STATISTICS)}'

_VERSION = tfds.core.Version('1.0.0')


def owns(dataset: str) -> bool:
  """Returns whether a name is that of a collection."""
  name = tu.full_name(dataset).partition(':')[0]
  return name.partition('/')[0] == tu.NAME


def full_name(dataset: str) -> str:
  """Returns ``'tu_graphs/NAME'``, also for ``'NAME'`` alone."""
  is_full = dataset.partition(':')[0].partition('/')[0] == tu.NAME
  return dataset if is_full else f'{tu.NAME}/{dataset}'


def source(
    dataset: str, options: Mapping[str, Any]
) -> Mapping[str, Any] | None:
  """Returns what tells the given files from others."""
  return sources.measure(options['graphs']) if options['graphs'] else None


def builder(
    dataset: str,
    options: Mapping[str, Any],
    source: Mapping[str, Any] | None,
    **where: Any,
) -> Any:
  """Returns the builder of a collection."""
  _, collection, _ = locations.parse(full_name(dataset))
  if not collection:
    raise ValueError(
        f'--dataset={tu.NAME}/NAME needs the name of a collection and '
        'takes its files by --graphs.'
    )
  path = pathlib.Path(options['graphs']) if options['graphs'] else None
  return TuGraphs(collection=collection, path=path, source=source, **where)


def describe(dataset: str, info: Any, where: str) -> str:
  """Returns the number of graphs and how to load them."""
  return (
      f'({info.splits["train"].num_examples} graphs): '
      f'hcl_jax.graphs.load_graphs({dataset!r}{where})'
  )


def train_flags(dataset: str, info: Any) -> list[str]:
  """Returns the configuration that trains on a collection."""
  del info
  return [f'--config=graphs:{dataset}']


class TuGraphs(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Writes a collection as the data set ``tu_graphs/NAME``, in its order."""

  name = tu.NAME
  VERSION = _VERSION
  BUILDER_CONFIGS = [
      tfds.core.BuilderConfig(name=name, version=_VERSION)
      for name in tu.STATISTICS
  ]

  def __init__(
      self,
      *,
      collection: str,
      path: pathlib.Path | None = None,
      source: Mapping[str, Any] | None = None,
      **kwargs,
  ):
    """Reads a zip archive or folder, or downloads one of the known eight."""
    self._collection = collection
    self._source = source
    self._graphs = None
    if path is not None:
      self._graphs = tu.read(path, collection)
    elif collection not in tu.STATISTICS:
      raise ValueError(
          f'{collection} is not one of {", ".join(tu.STATISTICS)}, which can '
          'be downloaded; give its zip archive or folder with --graphs.'
      )
    config = collection
    if collection not in tu.STATISTICS:
      config = tfds.core.BuilderConfig(name=collection, version=_VERSION)
    super().__init__(config=config, **kwargs)

  def _info(self):
    if self._graphs is not None:
      classes = tu.measure(self._graphs).classes
    else:
      classes = tu.STATISTICS[self._collection].classes
    indices = tfds.features.Tensor(shape=(None,), dtype=np.int32)
    return tfds.core.DatasetInfo(
        builder=self,
        description='Graphs with a class; nodes may have a label.',
        features=tfds.features.FeaturesDict({
            'num_nodes': tfds.features.Scalar(np.int32),
            # Of each node, from 0; empty where nodes have none.
            'node_label': indices,
            # Of each edge, numbered within the graph.
            'sender': indices,
            'receiver': indices,
            'label': tfds.features.ClassLabel(num_classes=classes),
        }),
        homepage='https://chrsmrrs.github.io/datasets/',
        metadata=tfds.core.MetadataDict(source=self._source)
        if self._source
        else None,
        disable_shuffling=True,
    )

  def _split_generators(self, dl_manager):
    graphs = self._graphs or self._download(dl_manager)
    # At this time the path is that of a folder that is renamed when complete.
    tu.write_first_node_label(self.data_path, graphs)
    return {'train': self._generate_examples(graphs)}

  def _download(self, dl_manager):
    path = pathlib.Path(dl_manager.download(tu.URL.format(self._collection)))
    try:
      return tu.read(path, self._collection)
    except ValueError:
      path.unlink()  # Or it would be found again instead of downloaded.
      raise

  def _generate_examples(self, graphs):
    numbers = np.arange(len(graphs.labels) + 1)
    starts = np.searchsorted(graphs.graph_ids, numbers)
    edge_starts = np.searchsorted(graphs.graph_ids[graphs.receivers], numbers)
    for i, label in enumerate(graphs.labels):
      nodes = slice(starts[i], starts[i + 1])
      edges = slice(edge_starts[i], edge_starts[i + 1])
      senders, receivers = graphs.senders[edges], graphs.receivers[edges]
      yield i, {
          'num_nodes': np.int32(nodes.stop - nodes.start),
          'node_label': graphs.node_labels[nodes].astype(np.int32),
          'sender': (senders - nodes.start).astype(np.int32),
          'receiver': (receivers - nodes.start).astype(np.int32),
          'label': int(label),
      }
