# SPDX-License-Identifier: Apache-2.0
"""Colour refinement: which nodes a graph network cannot tell apart."""

import numpy as np


def colours_of_features(nodes: np.ndarray) -> np.ndarray:
  """Numbers that are equal where the features of nodes are.

  Args:
    nodes: features, ``[num_nodes, F]``.

  Returns:
    Colours from 0, int64 ``[num_nodes]``.
  """
  owners, columns = np.nonzero(nodes)
  _, values = np.unique(nodes[owners, columns], return_inverse=True)
  return _split(
      np.zeros(len(nodes), np.int64), owners, values * nodes.shape[1] + columns
  )


def refine(
    colours: np.ndarray, senders: np.ndarray, receivers: np.ndarray
) -> np.ndarray:
  """A round of Weisfeiler and Lehman's refinement.

  Args:
    colours: of the nodes, from 0, ``[num_nodes]``.
    senders: the node where each edge begins.
    receivers: the node where it ends.

  Returns:
    Colours from 0, int64 ``[num_nodes]``, equal where the colours were and
    where the neighbours have the same colours, each as often.
  """
  return _split(colours, receivers, colours[senders])


def _split(colours, owners, items):
  """Colours equal where the old ones and the multisets of items are.

  Exact, without hashes: the items of all owners are taken in, in ascending
  order, the first of each, then the second, and so on.
  """
  items = items[np.lexsort((items, owners))]
  counts = np.bincount(owners, minlength=len(colours))
  starts = np.cumsum(counts) - counts
  most_first = np.argsort(-counts, kind='stable')
  longer = np.searchsorted(-counts[most_first], -np.arange(counts.max()))
  colours = colours.astype(np.int64)
  base = items.max(initial=0) + 1
  unused = colours.max() + 1
  for place, number in enumerate(longer):
    nodes = most_first[:number]
    keys = colours[nodes] * base + items[starts[nodes] + place]
    found, numbers = np.unique(keys, return_inverse=True)
    # New ones, apart from all that nodes with fewer items keep.
    colours[nodes] = unused + numbers
    unused += len(found)
  return np.unique(colours, return_inverse=True)[1]
