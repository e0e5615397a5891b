# SPDX-License-Identifier: Apache-2.0
"""Galleries: the hardest negatives of some anchors beside random ones."""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from hcl_jax import _checks
from hcl_jax.analysis import _hardest


class Gallery(NamedTuple):
  """Rows of a batch, to be shown as images, sentences or graphs.

  Attributes:
    anchors: ``[a]``.
    hardest: the most similar negatives of each, hardest first, ``[a, k]``.
    hardest_similarities: their cosines to the anchor, ``[a, k]``.
    random: other negatives, drawn uniformly without replacement, ``[a, k]``.
    random_similarities: their cosines to the anchor, ``[a, k]``.
  """

  anchors: np.ndarray
  hardest: np.ndarray
  hardest_similarities: np.ndarray
  random: np.ndarray
  random_similarities: np.ndarray


def hard_negative_gallery(
    embeddings: Any,
    anchors: Any,
    *,
    k: int = 10,
    ids: Any = None,
    seed: int = 0,
) -> Gallery:
  """Finds the hardest negatives of anchors, and random ones to compare with.

  As the paper's qualitative figure (Robinson et al., 2021, appendix).

  Args:
    embeddings: of the batch, ``[n, dim]``; need not be unit.
    anchors: rows of the batch, integers ``[a]``.
    k: negatives of either kind, for each anchor.
    ids: integers ``[n]``; rows with the anchor's id are no negatives of it.
      The number of the image leaves out its other views, a class label all
      positives. By default only the anchor itself is left out.
    seed: of the random ones.

  Returns:
    Rows and similarities; a random negative may also be one of the hardest.

  Example:
    >>> import numpy as np
    >>> rows = np.float32([[1, 0], [1, 0.1], [-1, 0], [0, 1]])
    >>> hard_negative_gallery(rows, [0], k=2).hardest
    array([[1, 3]], dtype=int32)
  """
  _checks.positive_int('k', k)
  units = _checks.units('embeddings', embeddings, rows=2)
  anchors = _read_anchors(anchors, len(units))
  ids = _hardest.read_ids(ids, len(units))
  hardest, similarities = _hardest.hardest(units, ids, anchors, k)
  rng = np.random.default_rng(seed)
  random = np.stack([
      rng.choice(np.flatnonzero(ids != ids[anchor]), k, replace=False)
      for anchor in anchors
  ]).astype(hardest.dtype)
  return Gallery(
      anchors=anchors,
      hardest=hardest,
      hardest_similarities=similarities,
      random=random,
      random_similarities=np.einsum(
          'ad,akd->ak', units[anchors], units[random]
      ),
  )


def gallery_text(
    gallery: Gallery, items: Sequence[str] | None = None, *, labels: Any = None
) -> str:
  """Writes a gallery as lines of text, for sentences or rows by number.

  Args:
    gallery: of :func:`hard_negative_gallery`.
    items: what to call the rows of the batch; by default their numbers, as for
      graphs.
    labels: integers ``[n]``; negatives with the anchor's label, which are
      false, are marked with a ``*``.

  Returns:
    For each anchor a heading, and its hardest and random negatives with their
    similarities.
  """
  rows = 1 + max(x.max() for x in (gallery.anchors, *gallery[1::2]))
  if items is None:
    items = [f'#{row}' for row in range(rows)]
  labels = np.arange(len(items)) if labels is None else np.asarray(labels)
  for name, of_rows in (('items', items), ('labels', labels)):
    if len(of_rows) < rows:
      raise ValueError(
          f'{name} must have an entry for every row of the batch, {rows} at '
          f'least; got {len(of_rows)}.'
      )
  lines = []
  for i, anchor in enumerate(gallery.anchors):
    lines.append(items[anchor])
    for kind in ('hardest', 'random'):
      rows = getattr(gallery, kind)[i]
      similarities = getattr(gallery, f'{kind}_similarities')[i]
      lines.append(f'  {kind}')
      lines += _lines(anchor, rows, similarities, items, labels)
  return '\n'.join(lines)


def _lines(anchor, rows, similarities, items, labels):
  for row, similarity in zip(rows, similarities, strict=True):
    mark = '*' if labels[row] == labels[anchor] else ' '
    yield f'  {mark} {similarity:+.3f}  {items[row]}'


def _read_anchors(anchors, rows):
  anchors = np.asarray(anchors)
  if anchors.ndim != 1 or not len(anchors) or anchors.dtype.kind not in 'iu':
    raise ValueError(
        'anchors must be rows of the batch, a vector of at least one integer; '
        f'got shape {anchors.shape} and dtype {anchors.dtype}.'
    )
  wrong = anchors[(anchors < 0) | (anchors >= rows)]
  if len(wrong):
    raise ValueError(
        f'anchors must be from 0 to {rows - 1}, the rows of the batch; got '
        f'{wrong[0]}.'
    )
  return anchors
