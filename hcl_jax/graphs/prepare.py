# SPDX-License-Identifier: Apache-2.0
"""Prepares graphs in the text format of TU Dortmund.

  python -m hcl_jax.prepare --dataset=MUTAG
  python -m hcl_jax.prepare --dataset=MUTAG --graphs=MUTAG.zip
  python -m hcl_jax.prepare --dataset=tu_graphs/NAME --graphs=FOLDER

The eight collections of the paper are known by name and can be downloaded.
--graphs takes a zip archive or a folder (see hcl_jax/graphs/tu_text.py).
"""

from collections.abc import Mapping
import pathlib
from typing import Any

from hcl_jax.graphs import published
from hcl_jax.storage import locations
from hcl_jax.storage import sources
from hcl_jax.storage.preparing import Flag

FLAGS = {
    'graphs': Flag(
        str, None, 'Zip archive or folder with graphs.', is_source=True
    ),
}
DATASETS = f'{published.NAME}/NAME, or one of {", ".join(published.STATISTICS)}'

full_name = published.full_name


def owns(dataset: str) -> bool:
  """Returns whether a name is that of a collection."""
  name = full_name(dataset).partition(':')[0]
  return name.partition('/')[0] == published.NAME


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
  from hcl_jax.graphs import tu_graphs

  _, collection, _ = locations.parse(full_name(dataset))
  if not collection:
    raise ValueError(
        f'--dataset={published.NAME}/NAME needs the name of a collection and '
        'takes its files by --graphs.'
    )
  path = pathlib.Path(options['graphs']) if options['graphs'] else None
  return tu_graphs.TuGraphs(
      collection=collection, path=path, source=source, **where
  )


def describe(dataset: str, info: Any, where: str) -> str:
  """Returns the number of graphs and how to load them."""
  return (
      f'({info.splits["train"].num_examples} graphs): '
      f'hcl_jax.graphs.load_graphs({dataset!r}{where})'
  )
