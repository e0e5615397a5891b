# SPDX-License-Identifier: Apache-2.0
"""Color refinement: finds nodes that a graph network cannot tell apart."""

import numpy as np


def colors_of_features(nodes: np.ndarray) -> np.ndarray:
  """Returns numbers that are equal where the features of nodes are.

  Args:
    nodes: features, ``[num_nodes, F]``.

  Returns:
    Colors from 0, int64 ``[num_nodes]``.
  """
  owners, columns = np.nonzero(nodes)
  _, values = np.unique(nodes[owners, columns], return_inverse=True)
  return _split(
      np.zeros(len(nodes), np.int64), owners, values * nodes.shape[1] + columns
  )


def refine(
    colors: np.ndarray, senders: np.ndarray, receivers: np.ndarray
) -> np.ndarray:
  """Refines colors by one round of Weisfeiler and Lehman's algorithm.

  Args:
    colors: of the nodes, from 0, ``[num_nodes]``.
    senders: the node where each edge begins.
    receivers: the node where it ends.

  Returns:
    Colors from 0, int64 ``[num_nodes]``, equal where the colors were and
    where the neighbors have the same colors, each as often.
  """
  return _split(colors, receivers, colors[senders])


def _split(colors, owners, items):
  """Returns colors, equal where the old ones and multisets of items are.

  Exact, without hashes: the items of all owners are taken in, in ascending
  order, the first of each, then the second, and so on.
  """
  items = items[np.lexsort((items, owners))]
  counts = np.bincount(owners, minlength=len(colors))
  starts = np.cumsum(counts) - counts
  most_first = np.argsort(-counts, kind='stable')
  longer = np.searchsorted(-counts[most_first], -np.arange(counts.max()))
  colors = colors.astype(np.int64)
  base = items.max(initial=0) + 1
  unused = colors.max() + 1
  for place, number in enumerate(longer):
    nodes = most_first[:number]
    keys = colors[nodes] * base + items[starts[nodes] + place]
    found, numbers = np.unique(keys, return_inverse=True)
    # New ones, apart from all that nodes with fewer items keep.
    colors[nodes] = unused + numbers
    unused += len(found)
  return np.unique(colors, return_inverse=True)[1]
