# SPDX-License-Identifier: Apache-2.0
r"""Chooses beta by how many negatives shall count.

The tilted negatives q_j ~ e^{beta s_j} count as if there were

.. math::
  e^{H(q_\beta)}, \qquad H(q_\beta) = L(\beta) - \beta L'(\beta), \qquad
  L(\beta) = \log \sum_j e^{\beta s_j}

of equal weight: their perplexity, which falls from N at beta = 0 as beta grows.
A search in two passes over the scores finds the beta of a given perplexity. The
first has 7 betas, each a constant factor above the one before, and two of them
bracket the result. Between them L is taken as a cubic in log beta, by its
values and slopes at both ends. The second pass has 4 betas around the guess of
that cubic; between two of them another cubic gives the result. Sums are
relative to the row's peak, as in tilting.
"""

from typing import NamedTuple

import jax
from jax import lax
from jax.lax import stop_gradient
import jax.numpy as jnp
from jax.typing import ArrayLike

from hcl_jax import _blocks
from hcl_jax import _checks
from hcl_jax import _devices
from hcl_jax import _vectors
from hcl_jax.losses import _columns

# Betas of the first pass times the largest difference of a row's logits: the
# least changes no perplexity by 1 %, the largest leaves only what ties.
_LEAST, _LARGEST, _COARSE = 0.25, 2.0**11, 7
# Betas of the second pass: log beta less that of the guess.
_FINE = -0.3, -0.08, 0.08, 0.3
_HALVINGS = 24
_FAR = -1e30


def beta_for_perplexity(
    neg_logits: jax.Array,
    fraction: ArrayLike,
    *,
    where: jax.Array | None = None,
    max_beta: ArrayLike | None = None,
) -> jax.Array:
  r"""Finds each anchor's beta such that a fraction of its negatives counts.

  The perplexity of the tilted negatives, :math:`e^{H(q_\beta)}`, becomes
  ``fraction`` times their number, within 1 %. So the hardness means the same at
  every temperature, number of negatives and size of embeddings. Pass the result
  as ``beta`` to :func:`hard_nce_loss`. It has no gradient.

  A fraction of 1 gives 0. One that no beta reaches gives the largest beta:
  below 1 / N, or below k / N if k negatives tie at the top. An anchor without
  negatives, or with equal ones, gets 0.

  Args:
    neg_logits: logits of negatives, ``[..., N]``.
    fraction: share of the negatives that shall count, in (0, 1]. May be traced.
    where: negatives to count, boolean, broadcastable to ``neg_logits``.
    max_beta: largest result, > 0. None: 2048 over the difference between the
      anchor's largest and smallest logit.

  Returns:
    One beta for each anchor, ``[...]``.

  Example:
    >>> import jax.numpy as jnp
    >>> logits = jnp.array([[4.0, 2.0, 0.0, -2.0]])
    >>> print(f'{beta_for_perplexity(logits, 0.5)[0]:.3f}')
    0.723
  """
  logits = _vectors.upcast(_checks.floats('neg_logits', neg_logits))
  if logits.ndim == 0 or logits.shape[-1] == 0:
    raise ValueError(
        'neg_logits must have shape [..., N] with N >= 1 negatives; got '
        f'{logits.shape}.'
    )
  _checks.fraction('fraction', fraction)
  if max_beta is not None:
    _checks.positive('max_beta', max_beta)
  if where is not None:
    where = _checks.mask('where', where, logits.shape)
  return _beta_for_perplexity(logits, fraction, where, max_beta)


@jax.jit
def _beta_for_perplexity(logits, fraction, where, max_beta):
  logits, fraction, max_beta = stop_gradient((logits, fraction, max_beta))
  shape = logits.shape
  rows = logits.reshape(-1, shape[-1])
  if where is None:
    keep = jnp.ones_like(rows, dtype=bool)
  else:
    keep = jnp.broadcast_to(where, shape).reshape(rows.shape)
  rows = jnp.where(keep, rows, 0)
  top = jnp.max(jnp.where(keep, rows, -jnp.inf), axis=1)
  bottom = jnp.min(jnp.where(keep, rows, jnp.inf), axis=1)
  span = jnp.where(jnp.any(keep, axis=1), top - bottom, 0)
  one = jnp.ones((), rows.dtype)

  def sums(betas, peak):
    return _add(_nothing(betas, peak), rows, keep, one, betas)

  betas = _search(rows, fraction, span, sums)
  if max_beta is not None:
    betas = jnp.minimum(betas, jnp.asarray(max_beta, betas.dtype))
  return betas.reshape(shape[:-1])


def of_columns(
    columns: _columns.Columns,
    *,
    fraction: jax.Array,
    scale: jax.Array,
    cosines: jax.Array | None,
    block: int | None,
    own: jax.Array | None = None,
    own_where: jax.Array | None = None,
    axis_name: str | None = None,
    normalized: bool = True,
) -> jax.Array:
  """Finds the beta of each row for its negatives among columns, ``[batch]``.

  Arguments are those of :func:`_blockwise.negatives_of`.
  """
  inputs = _Inputs(columns, cosines, own, own_where, fraction, scale)
  inputs = stop_gradient(_devices.same_varying(inputs))
  columns, cosines, own, own_where, fraction, scale = inputs
  rows = columns.rows
  tiles = None if block is None else _columns.split(columns, block)

  def sums(betas, peak):
    start = _nothing(betas, peak)
    if tiles is None:
      assert cosines is not None
      keep = _columns.mask(columns, cosines)
      total = _add(start, cosines, keep, scale, betas)
    else:
      total = _by_tiles(tiles, start, scale, betas, axis_name)
    if own is not None:
      total = _add(total, own, own_where, scale, betas)
    return total

  if normalized:  # Cosines are at most 2 apart.
    span = jnp.broadcast_to(2 * scale, rows.shape[:1])
  else:
    span = scale * _spans(columns, tiles, cosines, own, own_where, axis_name)
  return stop_gradient(_search(rows, fraction, span, sums))


def _spans(columns, tiles, cosines, own, own_where, axis_name):
  """Returns the largest difference of each row's scores, ``[rows]``."""
  rows = columns.rows

  def extend(ends, scores, keep):
    if keep is None:
      keep = jnp.ones_like(scores, dtype=bool)
    top = jnp.max(scores, axis=1, where=keep, initial=-jnp.inf)
    bottom = jnp.min(scores, axis=1, where=keep, initial=jnp.inf)
    return jnp.stack(
        [jnp.maximum(ends[0], top), jnp.minimum(ends[1], bottom)]
    )

  infinite = jnp.full(rows.shape[:1], jnp.inf, rows.dtype)
  ends = _devices.varying_as(jnp.stack([-infinite, infinite]), rows)
  if tiles is None:
    ends = extend(ends, cosines, _columns.mask(columns, cosines))
  else:
    block = tiles.rows.shape[1]
    split = jax.vmap(lambda x: _blocks.split(x, block), out_axes=1)
    ends = _columns.fold(
        tiles,
        split(ends),
        lambda ends, c, keep, i: extend(ends, c, keep),
        axis_name,
    )
    ends = jnp.swapaxes(ends, 0, 1).reshape(2, -1)[:, : rows.shape[0]]
  if own is not None:
    ends = extend(ends, own, own_where)
  top, bottom = ends
  return jnp.where(top > bottom, top - bottom, 0)


class _Inputs(NamedTuple):
  """Arguments of :func:`of_columns` that are arrays or None."""

  columns: _columns.Columns
  cosines: jax.Array | None
  own: jax.Array | None
  own_where: jax.Array | None
  fraction: jax.Array
  scale: jax.Array


class _Sums(NamedTuple):
  """Sums of a row's scores at several betas, with d = scale (score - peak)."""

  peak: jax.Array  # [rows]
  number: jax.Array  # [rows]
  weights: jax.Array  # sum of e^{beta d}, [betas, rows]
  moments: jax.Array  # sum of d e^{beta d}, [betas, rows]


def _nothing(betas, peak):
  """Returns the sums of no scores; ``peak`` is a bound of those to come."""
  zeros = jnp.zeros_like(betas)
  return _Sums(peak, zeros[0], zeros, zeros)


def _add(sums, scores, keep, scale, betas):
  """Adds scores ``[rows, n]`` to the sums at betas ``[betas, rows]``."""
  if keep is None:
    keep = jnp.ones_like(scores, dtype=bool)
  keep = jnp.broadcast_to(keep, scores.shape)
  lowest = jnp.finfo(scores.dtype).min
  peak = jnp.max(jnp.where(keep, scores, lowest), axis=1)
  peak = jnp.maximum(sums.peak, peak)
  # Every beta gives what does not count the weight 0.
  d = jnp.where(keep, scale * (scores - peak[:, None]), _FAR)

  def at(beta):
    weights = jnp.exp(beta[:, None] * d)
    return jnp.sum(weights, axis=1), jnp.sum(weights * d, axis=1)

  weights, moments = lax.map(at, betas)
  drop = jnp.where(sums.number > 0, scale * (sums.peak - peak), 0)[None]
  shrink = jnp.exp(betas * drop)
  return _Sums(
      peak,
      sums.number + jnp.sum(keep, axis=1, dtype=scores.dtype),
      shrink * sums.weights + weights,
      shrink * (sums.moments + drop * sums.weights) + moments,
  )


def _by_tiles(tiles, start, scale, betas, axis_name):
  """Adds the columns of all tiles to the sums."""
  block = tiles.rows.shape[1]
  n = start.peak.shape[0]
  number = betas.shape[0]
  in_blocks = jax.vmap(lambda x: _blocks.split(x, block), out_axes=1)
  betas = in_blocks(betas)

  def stacked(sums):
    return jnp.stack([sums.peak, sums.number, *sums.weights, *sums.moments])

  def unstacked(rows):
    return _Sums(rows[0], rows[1], rows[2 : 2 + number], rows[2 + number :])

  def fold_tile(fold, c, keep, i):
    return stacked(_add(unstacked(fold), c, keep, scale, betas[i]))

  folds = _columns.fold(
      tiles, in_blocks(stacked(start)), fold_tile, axis_name
  )
  return unstacked(jnp.swapaxes(folds, 0, 1).reshape(2 + 2 * number, -1)[:, :n])


def _search(like, fraction, span, sums_at):
  """Finds the beta at which the perplexity is ``fraction`` of the number.

  Args:
    like: an array with the rows and the dtype of the scores.
    fraction: see :func:`beta_for_perplexity`.
    span: upper bound of the differences of a row's logits, ``[rows]``.
    sums_at: ``(betas, peak) -> sums``, one pass over the scores.

  Returns:
    One beta for each row.
  """
  fraction = jnp.asarray(fraction, like.dtype)
  span = jnp.where(span > 0, span, 1)
  powers = jnp.arange(_COARSE, dtype=like.dtype) / (_COARSE - 1)
  grid = _LEAST * (_LARGEST / _LEAST) ** powers
  betas = grid[:, None] / span[None]
  lowest = jnp.full_like(span, jnp.finfo(like.dtype).min)
  sums = sums_at(betas, _devices.varying_as(lowest, like))
  number = jnp.where(sums.number > 0, sums.number, 1)
  target = jnp.log(number) + jnp.log(fraction)
  points = _Points.of(betas, sums)
  too_soft = points.entropies[0] < target
  too_hard = points.entropies[-1] >= target
  ends = points.around(target)
  guess = ends.solve(target)
  factors = jnp.exp(jnp.asarray(_FINE, like.dtype))[:, None]
  fine = jnp.clip(guess[None] * factors, ends.betas[:1], ends.betas[1:])
  between = _Points.of(fine, sums_at(fine, sums.peak))
  beta = ends.with_inner(between).around(target).solve(target)
  # Nearly the whole: perplexity falls with the square of a small beta.
  deficit = jnp.log(number) - points.entropies[0]
  share = jnp.sqrt(-jnp.log(fraction) / jnp.where(deficit > 0, deficit, 1))
  beta = jnp.where(too_soft, betas[0] * jnp.minimum(share, 1), beta)
  beta = jnp.where(too_hard, betas[-1], beta)
  same = points.entropies[-1] >= jnp.log(number) - 1e-5  # all are equal
  return jnp.where((sums.number > 0) & (fraction < 1) & ~same, beta, 0)


class _Points(NamedTuple):
  """L and its slope at rising betas, each ``[betas, rows]``."""

  betas: jax.Array
  values: jax.Array
  slopes: jax.Array

  @classmethod
  def of(cls, betas, sums):
    """Returns the points of a pass."""
    total = jnp.where(sums.weights > 0, sums.weights, 1)
    return cls(betas, jnp.log(total), sums.moments / total)

  @property
  def entropies(self):
    """Computes the entropies of the weights, which fall with beta."""
    return self.values - self.betas * self.slopes

  def around(self, target):
    """Returns the two points between which the entropy is the target."""
    last = jnp.sum(self.entropies >= target[None], axis=0) - 1
    last = jnp.clip(last, 0, self.betas.shape[0] - 2)
    both = jnp.stack([last, last + 1])
    return _Points(*(jnp.take_along_axis(x, both, axis=0) for x in self))

  def with_inner(self, inner):
    """Returns two points with others between them."""
    return _Points(
        *(
            jnp.concatenate([x[:1], y, x[1:]])
            for x, y in zip(self, inner, strict=True)
        )
    )

  def solve(self, target):
    """Finds the beta between two points by a cubic L of log beta."""
    start, stop = jnp.log(self.betas)
    width = stop - start
    low, high = self.values
    low_slope, high_slope = width[None] * self.betas * self.slopes
    rise = high - low
    b = 3 * rise - 2 * low_slope - high_slope
    c = low_slope + high_slope - 2 * rise
    safe = jnp.where(width > 0, width, 1)

    def entropy(x):
      value = low + x * (low_slope + x * (b + x * c))
      return value - (low_slope + x * (2 * b + x * 3 * c)) / safe

    def halve(_, ends):
      left, right = ends
      middle = (left + right) / 2
      is_soft = entropy(middle) >= target
      left, right = (
          jnp.where(is_soft, middle, left), jnp.where(is_soft, right, middle)
      )  # fmt: skip
      return left, right

    ends = jnp.zeros_like(low), jnp.ones_like(low)
    left, right = lax.fori_loop(0, _HALVINGS, halve, ends)
    return jnp.exp(start + (left + right) / 2 * width)
