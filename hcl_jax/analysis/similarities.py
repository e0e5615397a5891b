# SPDX-License-Identifier: Apache-2.0
"""Cosine similarities of pairs: histograms, alignment, uniformity, margins.

Embeddings need not be unit vectors: directions are compared, in float32, and a
row of zeros has similarity 0 to everything. Similarities are computed in tiles,
so memory is linear in the number of rows.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import _checks
from hcl_jax import _vectors

_BLOCK_SIZE = 1024  # a tile of 4 MiB


class SimilarityHistograms(NamedTuple):
  """Counts of pairs by cosine similarity.

  Attributes:
    edges: edges of the bins, from -1 to 1, ``[num_bins + 1]``. A bin includes
      its lower edge, and the last bin also its upper edge.
    same: counts of pairs with the same label, ``[num_bins]``.
    different: counts of pairs with different labels, ``[num_bins]``.
  """

  edges: np.ndarray
  same: np.ndarray
  different: np.ndarray


class PairSimilarities(NamedTuple):
  """Similarities of anchors to their positives and negatives, ``[2 batch]``.

  The first half has the anchors of ``z1``, the second half those of ``z2``.

  Attributes:
    positive: cosine to the other view of the same row.
    mean_negative: mean cosine to the negatives, NaN without negatives.
    hardest_negative: largest cosine to a negative, NaN without negatives.
  """

  positive: np.ndarray
  mean_negative: np.ndarray
  hardest_negative: np.ndarray

  @property
  def margin(self) -> np.ndarray:
    """Cosine to the positive minus the mean cosine to negatives."""
    return self.positive - self.mean_negative

  @property
  def hardest_margin(self) -> np.ndarray:
    """Cosine to the positive minus that to the hardest negative."""
    return self.positive - self.hardest_negative


class FalseNegatives(NamedTuple):
  """Shares of false negatives among the hardest.

  Attributes:
    k: numbers of hardest negatives, ``[n]``.
    fraction: share of the k hardest with the anchor's label, ``[n]``.
    base_rate: share of all negatives with the anchor's label, which random
      negatives would have on average.
  """

  k: np.ndarray
  fraction: np.ndarray
  base_rate: float


def similarity_histograms(
    embeddings: Any,
    labels: Any,
    *,
    num_bins: int = 100,
    block_size: int = _BLOCK_SIZE,
) -> SimilarityHistograms:
  """Counts pairs by cosine similarity, separately for same and other labels.

  Every unordered pair of different rows is counted once, as in the histograms
  of the paper's ablations (Robinson et al., 2021).

  Args:
    embeddings: ``[n, dim]``.
    labels: integers ``[n]``.
    num_bins: number of bins of equal width from -1 to 1.
    block_size: rows and columns of a tile of similarities.

  Example:
    >>> import numpy as np
    >>> rows = np.float32([[1, 0], [2, 0], [0, 1]])
    >>> found = similarity_histograms(rows, [0, 0, 1], num_bins=2)
    >>> print(found.same, found.different)
    [0 1] [0 2]
  """
  _checks.positive_int('num_bins', num_bins)
  _checks.positive_int('block_size', block_size)
  units = _checks.units('embeddings', embeddings, rows=2)
  labels = _checks.host_labels('labels', labels, len(units))
  counts = np.zeros(3 * num_bins, np.int64)  # same, different, not a pair
  for rows, columns, cosines, once in _tiles(units, block_size):
    bins = ((cosines + 1) * np.float32(num_bins / 2)).astype(np.int32)
    bins = np.clip(bins, 0, num_bins - 1)
    bins += num_bins * (labels[rows, None] != labels[None, columns])
    bins[~once] = 2 * num_bins
    counts += np.bincount(bins.ravel(), minlength=3 * num_bins)
  same, different, _ = counts.reshape(3, num_bins)
  return SimilarityHistograms(np.linspace(-1, 1, num_bins + 1), same, different)


def overlap_coefficient(histograms: SimilarityHistograms) -> float:
  r"""Computes the overlap of the two histograms.

  .. math::
    \sum_b \min(p_b, q_b)

  Here p_b and q_b are the shares of pairs of either kind in bin b. The result
  is 0 if a threshold separates the kinds, 1 if their distributions agree, and
  NaN without pairs of one kind.

  References:
    Inman and Bradley, The Overlapping Coefficient as a Measure of Agreement
    Between Probability Distributions, 1989.
  """
  same, different = histograms.same, histograms.different
  if not (same.sum() and different.sum()):
    return float('nan')
  return float(np.minimum(same / same.sum(), different / different.sum()).sum())


def alignment(z1: Any, z2: Any) -> float:
  r"""Computes the mean squared distance of positives on the unit sphere.

  .. math::
    E \, \|f(x) - f(x^+)\|^2

  It is between 0 and 4; smaller is better. L_align of the paper is half of it,
  times the squared radius.

  Args:
    z1: first view, ``[batch, dim]``.
    z2: second view; row i is the positive of row i.

  References:
    Wang and Isola, Understanding Contrastive Representation Learning through
    Alignment and Uniformity on the Hypersphere, 2020.
  """
  z1, z2 = _two_views(z1, z2)
  return float(np.mean(np.sum((z1 - z2) ** 2, axis=1, dtype=np.float64)))


def uniformity(
    embeddings: Any, *, scale: float = 2.0, block_size: int = _BLOCK_SIZE
) -> float:
  r"""Computes the log of the mean Gaussian potential on the unit sphere.

  .. math::
    \log E \, e^{-s \|f(x) - f(y)\|^2}

  The mean is over pairs of different rows. Smaller is more uniform; equal
  embeddings give 0, the largest value.

  Args:
    embeddings: ``[n, dim]``.
    scale: s > 0; Wang and Isola use 2.
    block_size: rows and columns of a tile of similarities.

  References:
    Wang and Isola, 2020, see :func:`alignment`.
  """
  _checks.positive('scale', scale)
  _checks.positive_int('block_size', block_size)
  units = _checks.units('embeddings', embeddings, rows=2)
  total = -np.inf
  for *_, cosines, once in _tiles(units, block_size):
    exponents = -2 * scale * (1 - cosines.astype(np.float64))
    exponents[~once] = -np.inf
    total = np.logaddexp(total, _log_sum_exp(exponents))
  return float(total - np.log(len(units) * (len(units) - 1) / 2))


def pair_similarities(
    z1: Any,
    z2: Any,
    *,
    labels: Any = None,
    block_size: int = _BLOCK_SIZE,
) -> PairSimilarities:
  """Computes the similarities of anchors to their positives and negatives.

  Anchors, positives and negatives are those of :func:`hcl_jax.simclr_loss`.
  The result also has ``margin`` and ``hardest_margin``, the differences between
  positive and negatives.

  Args:
    z1: first view, ``[batch, dim]``.
    z2: second view; row i is the positive of row i.
    labels: integers ``[batch]``; rows with the anchor's label are not
      negatives.
    block_size: anchors in a tile of similarities; its other side is 2 batch.
  """
  _checks.positive_int('block_size', block_size)
  z1, z2 = _two_views(z1, z2)
  ids = read_ids('labels', labels, len(z1))
  both, ids = np.concatenate([z1, z2]), np.concatenate([ids, ids])
  positive = np.sum(z1 * z2, axis=1)
  mean, hardest = np.empty((2, len(both)), np.float32)
  for start in range(0, len(both), block_size):
    rows = slice(start, start + block_size)
    keep = ids[rows, None] != ids[None, :]
    mean[rows], hardest[rows] = _summary(_cosines(both[rows], both), keep)
  return PairSimilarities(np.concatenate([positive, positive]), mean, hardest)


def false_negatives(
    embeddings: Any,
    labels: Any,
    *,
    k: Sequence[int] = (1, 10, 100),
    ids: Any = None,
    block_size: int = _BLOCK_SIZE,
) -> FalseNegatives:
  """Computes how many of the hardest negatives have the anchor's label.

  Every row is an anchor, and all other rows are its negatives. Shares are
  averages over anchors.

  Args:
    embeddings: ``[n, dim]``.
    labels: integers ``[n]``.
    k: numbers of hardest negatives, at most as many as an anchor has.
    ids: integers ``[n]``; rows with the anchor's id, such as other views of its
      image, are not its negatives. By default every row has its own id.
    block_size: anchors in a tile of similarities; its other side is n.
  """
  _checks.positive_int('block_size', block_size)
  for number in k:
    _checks.positive_int('k', number)
  if not len(k):
    raise ValueError('k must have at least one number, got none.')
  units = _checks.units('embeddings', embeddings, rows=2)
  labels = _checks.host_labels('labels', labels, len(units))
  ids = read_ids('ids', ids, len(units))
  hits, false, negatives = np.zeros(max(k), np.int64), 0, 0
  for start in range(0, len(units), block_size):
    anchors = np.arange(start, min(start + block_size, len(units)))
    rows, _ = hardest_rows(units, ids, anchors, max(k))
    hits += np.sum(labels[rows] == labels[anchors, None], axis=0)
    keep = ids[anchors, None] != ids[None, :]
    negatives += keep.sum()
    false += np.sum(keep & (labels[anchors, None] == labels[None, :]))
  found = np.cumsum(hits)[np.asarray(k) - 1]
  return FalseNegatives(
      k=np.asarray(k),
      fraction=found / (len(units) * np.asarray(k)),
      base_rate=float(false / negatives),
  )


def read_ids(name: str, ids: Any, rows: int) -> np.ndarray:
  """Returns checked ids; None becomes a different id for each row."""
  if ids is None:
    return np.arange(rows)
  return _checks.host_labels(name, ids, rows)


def hardest_rows(
    units: np.ndarray, ids: np.ndarray, anchors: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns rows and similarities of the k hardest negatives, hardest first.

  Negatives are the rows with another id than the anchor. Ties are in the order
  of the rows.
  """
  keep = ids[anchors, None] != ids[None, :]
  count = keep.sum(axis=1)
  if count.min() < k:
    raise ValueError(
        f'k must not exceed the number of negatives; got k = {k}, and row '
        f'{anchors[count.argmin()]} has {count.min()} rows with another id.'
    )
  cosines, rows = _top(units[anchors], units, keep, k)
  return np.asarray(rows), np.asarray(cosines)


def _two_views(z1, z2):
  z1, z2 = _checks.embeddings(z1=z1, z2=z2)
  return _checks.units('z1', z1), _checks.units('z2', z2)


def _cosines(rows, columns):
  return np.asarray(_vectors.inner_products(rows, columns))


def _tiles(units, block_size) -> Iterator[tuple[np.ndarray, ...]]:
  """Yields rows, columns, cosines, and a mask that has each pair once."""
  starts = range(0, len(units), block_size)
  for first in starts:
    rows = np.arange(first, min(first + block_size, len(units)))
    for second in starts[first // block_size :]:
      columns = np.arange(second, min(second + block_size, len(units)))
      cosines = _cosines(units[rows], units[columns])
      yield rows, columns, cosines, rows[:, None] < columns[None, :]


def _log_sum_exp(exponents):
  peak = exponents.max()
  if not np.isfinite(peak):  # the tile has one row, and so no pair
    return peak
  return peak + np.log(np.exp(exponents - peak).sum())


def _summary(cosines, keep):
  """Returns mean and maximum of the kept cosines of each row, or NaN."""
  count = keep.sum(axis=1)
  total = np.sum(cosines, axis=1, where=keep, dtype=np.float64)
  largest = np.max(cosines, axis=1, where=keep, initial=-np.inf)
  some = count > 0
  return (
      np.where(some, total / np.maximum(count, 1), np.nan),
      np.where(some, largest, np.nan),
  )


@functools.partial(jax.jit, static_argnames='k')
def _top(anchors, units, keep, k):
  cosines = _vectors.inner_products(anchors, units)
  return jax.lax.top_k(jnp.where(keep, cosines, -jnp.inf), k)
