# SPDX-License-Identifier: Apache-2.0
"""The tfds builder of TU collections."""

from collections.abc import Mapping
import pathlib
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from hcl_jax.graphs import published
from hcl_jax.graphs import tu_text as text
from hcl_jax.storage import catalogue

_VERSION = tfds.core.Version('1.0.0')


class TuGraphs(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """A collection as the data set ``tu_graphs/COLLECTION``, in its order."""

  name = published.NAME
  VERSION = _VERSION
  BUILDER_CONFIGS = [
      tfds.core.BuilderConfig(name=name, version=_VERSION)
      for name in published.STATISTICS
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
      self._graphs = _read(path, collection)
    elif collection not in published.STATISTICS:
      raise ValueError(
          f'{collection} is not one of '
          f'{", ".join(published.STATISTICS)}, which can be downloaded; give '
          'its zip archive or folder with --graphs.'
      )
    config = collection
    if collection not in published.STATISTICS:
      config = tfds.core.BuilderConfig(name=collection, version=_VERSION)
    super().__init__(config=config, **kwargs)

  def _info(self):
    if self._graphs is not None:
      classes = published.measure(self._graphs).classes
    else:
      classes = published.STATISTICS[self._collection].classes
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

  def download_and_prepare(self, **options):
    """Downloads the collection, unless its files were given, and writes it."""
    if self._graphs is None:
      return super().download_and_prepare(**options)
    name = self.info.full_name
    with catalogue.announced(f'Writing {name} to {self.data_dir}'):
      super().download_and_prepare(**options)

  def _split_generators(self, dl_manager):
    graphs = self._graphs
    if graphs is None:
      graphs = self._download(dl_manager)
    return {'train': self._generate_examples(graphs)}

  def _download(self, dl_manager):
    path = pathlib.Path(
        dl_manager.download(published.URL.format(self._collection))
    )
    try:
      return _read(path, self._collection)
    except ValueError:
      path.unlink()  # Or it would be found again instead of downloaded.
      raise

  def _generate_examples(self, graphs):
    yield from enumerate(split(graphs))


def split(graphs: text.TuGraphs) -> list[dict[str, np.ndarray]]:
  """The graphs one by one, nodes numbered within each."""
  numbers = np.arange(len(graphs.labels) + 1)
  starts = np.searchsorted(graphs.graph_ids, numbers)
  edge_starts = np.searchsorted(graphs.graph_ids[graphs.receivers], numbers)
  examples = []
  for i, label in enumerate(graphs.labels):
    nodes = slice(starts[i], starts[i + 1])
    edges = slice(edge_starts[i], edge_starts[i + 1])
    examples.append({
        'num_nodes': np.int32(nodes.stop - nodes.start),
        'node_label': graphs.node_labels[nodes].astype(np.int32),
        'sender': (graphs.senders[edges] - nodes.start).astype(np.int32),
        'receiver': (graphs.receivers[edges] - nodes.start).astype(np.int32),
        'label': int(label),
    })
  return examples


def _read(path, collection):
  graphs = text.read(path, collection)
  published.check(path, collection, graphs)
  return graphs
