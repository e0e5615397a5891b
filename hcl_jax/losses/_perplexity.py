# SPDX-License-Identifier: Apache-2.0
r"""Chooses beta by how many negatives shall count.

The tilted negatives q_j ~ e^{beta s_j} count as if there were

.. math::
  e^{H(q_\beta)}, \qquad H(q_\beta) = L(\beta) - \beta L'(\beta), \qquad
  L(\beta) = \log \sum_j e^{\beta s_j}

of equal weight: their perplexity, which falls from N at beta = 0 as beta grows.
A search in two passes over the scores finds the beta of a given perplexity. The
first has betas a constant factor apart, and two of them bracket the result.
Between them L is taken as a cubic in log beta, by its values and slopes at both
ends. The second pass has 3 betas around the guess of that cubic; between two of
them another cubic gives the result. Where the entropy falls too steeply between
them for that, in any row, a third pass does the same again.

Cosines have the same 5 betas for all rows in the first pass, with sums relative
to the cosine 1. They reach a concentration beta / t of 32. For rows that need
more, the second pass has 3 larger betas, and the third polishes. Scores without
a bound have 7 betas by the differences in their row, which take a pass of their
own. Rows among themselves are compared once, for both: a pass costs half a
product.
"""

from collections.abc import Callable
import functools
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
# For cosines, which are at most 2 apart: beta / t of the first pass, at most
# such that no weight relative to the cosine 1 underflows.
_SHARED = 0.125, 0.5, 2.0, 8.0, 32.0
_SHARED_LARGEST = _LARGEST / 2
# Betas of the second pass: log beta less that of the guess.
_FINE = -0.17, 0.0, 0.17
# Passes after the first, and the fall of entropy from one of two points to the
# other that lets their cubic find the result.
_REFINEMENTS, _ENOUGH = 2, 0.3
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
  one = jnp.ones((), rows.dtype)
  betas = _of_scores(lambda x: x.of_scores(rows, keep), rows, fraction, one)
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

  def gather(what):
    if tiles is None:
      assert cosines is not None
      found = what.of_scores(cosines, _columns.mask(columns, cosines))
    else:
      found = _by_tiles(tiles, what, axis_name)
    if own is not None:
      found = what.merge(found, what.of_scores(own, own_where))
    return found

  if normalized:
    betas = of_cosines(gather, rows, fraction, scale, axis_name)
  else:
    betas = _of_scores(gather, rows, fraction, scale, axis_name)
  return stop_gradient(betas)


class _Inputs(NamedTuple):
  """Arguments of :func:`of_columns` that are arrays or None."""

  columns: _columns.Columns
  cosines: jax.Array | None
  own: jax.Array | None
  own_where: jax.Array | None
  fraction: jax.Array
  scale: jax.Array


# --- Passes over the scores -------------------------------------------------


class Pass(NamedTuple):
  """Results that a pass over the scores gathers for each row.

  The first results are maxima, the others sums. ``of_tile`` returns those of a
  tile, ``(sides, scores, keep, axes) -> [results, n]`` for each axis: 1 for its
  rows, 0 for its columns.
  """

  maxima: int
  results: int
  sides: jax.Array  # what the pass needs of each row, ``[number, rows]``
  of_tile: Callable[..., list[jax.Array]]

  def nothing(self, shape: tuple[int, ...]) -> jax.Array:
    """Returns the results of no scores, ``[results, *shape]``."""
    lowest = jnp.finfo(self.sides.dtype).min
    parts = (self.maxima, lowest), (self.results - self.maxima, 0)
    return jnp.concatenate(
        [jnp.full((n, *shape), x, self.sides.dtype) for n, x in parts]
    )

  def merge(self, a: jax.Array, b: jax.Array) -> jax.Array:
    """Merges the results of two samples."""
    m = self.maxima
    return jnp.concatenate([jnp.maximum(a[:m], b[:m]), a[m:] + b[m:]])

  def of_scores(
      self, scores: jax.Array, keep: jax.Array | None
  ) -> jax.Array:
    """Returns the results of scores ``[rows, n]`` that are in memory."""
    n, columns = scores.shape
    # On a CPU, so many that they fit into its cache.
    entries = 2**17 if jax.default_backend() == 'cpu' else 2**24
    block = _blocks.even_block(n, max(entries // columns, 1))
    split = functools.partial(_blocks.split, block=block)
    if keep is not None:
      keep = split(jnp.broadcast_to(keep, scores.shape))
    parts = lax.map(
        lambda x: self.of_tile((x[0],), *x[1:], (1,))[0],
        (self.side_blocks(block), split(scores), keep),
    )
    return self.join(parts)

  def side_blocks(self, block: int) -> jax.Array:
    """Returns the sides of blocks of rows, ``[k, number, block]``."""
    split = functools.partial(_blocks.split, block=block)
    return jax.vmap(split, out_axes=1)(self.sides)

  def join(self, found: jax.Array) -> jax.Array:
    """Joins the results of blocks of rows."""
    found = jnp.swapaxes(found, 0, 1).reshape(self.results, -1)
    return found[:, : self.sides.shape[1]]


def _by_tiles(tiles, what, axis_name):
  """Gathers from the columns of all tiles."""
  k, block = tiles.rows.shape[:2]
  sides = what.side_blocks(block)

  def fold_tile(found, c, keep, i):
    (new,) = what.of_tile((sides[i],), c, keep, (1,))
    return what.merge(found, new)

  start = jnp.swapaxes(what.nothing((k, block)), 0, 1)
  start = _devices.varying_as(start, tiles.rows)
  return what.join(_columns.fold(tiles, start, fold_tile, axis_name))


def _extent(like):
  """Gathers the top, minus the bottom, and the number of scores."""

  def of_tile(sides, c, keep, axes):
    (axis,) = axes
    return [
        jnp.stack([
            _top(c, keep, axis), _top(-c, keep, axis), _count(c, keep, axis)
        ])
    ]  # fmt: skip

  return Pass(2, 3, _no_sides(like), of_tile)


def _no_sides(like):
  return jnp.zeros((0, like.shape[0]), like.dtype)


def _shared(betas, scale, like):
  """Gathers top, number and sums relative to 1 at betas of all rows."""

  def of_tile(sides, c, keep, axes):
    d = scale * (c - 1)
    if isinstance(keep, tuple):
      sums = [
          _sums(d, kept, betas, (axis,))[0]
          for kept, axis in zip(keep, axes, strict=True)
      ]
    else:
      sums = _sums(d, keep, betas, axes)
    keeps = keep if isinstance(keep, tuple) else (keep,) * len(axes)
    return [
        jnp.concatenate([
            jnp.stack([_top(c, kept, axis), _count(c, kept, axis)]), of_axis
        ])
        for kept, axis, of_axis in zip(keeps, axes, sums, strict=True)
    ]  # fmt: skip

  return Pass(1, 2 + 2 * betas.shape[0], _no_sides(like), of_tile)


def _single(betas, scale, top):
  """Gathers sums relative to the top at betas of each row."""

  def of_tile(sides, c, keep, axes):
    keeps = keep if isinstance(keep, tuple) else (keep,) * len(axes)
    found = []
    for side, kept, axis in zip(sides, keeps, axes, strict=True):
      peak, *_ = side = jnp.expand_dims(side, 1 + axis)
      found += _sums(scale * (c - peak), kept, side[1:], (axis,))
    return found

  sides = jnp.concatenate([top[None], betas])
  return Pass(0, 2 * betas.shape[0], sides, of_tile)


def _sums(d, keep, betas, axes):
  """Sums e^{beta d} at each beta, then d e^{beta d}, along each axis."""
  # Every beta gives what does not count the weight 0.
  d = d if keep is None else jnp.where(keep, d, _FAR)

  def at(beta):
    weights = jnp.exp(beta * d)
    return [
        (jnp.sum(weights, axis=axis), jnp.sum(weights * d, axis=axis))
        for axis in axes
    ]

  return [jnp.concatenate(sums) for sums in lax.map(at, betas)]


def _top(scores, keep, axis):
  lowest = jnp.finfo(scores.dtype).min
  if keep is not None:
    scores = jnp.where(keep, scores, lowest)
  return jnp.max(scores, axis=axis)


def _count(scores, keep, axis):
  if keep is None:
    number = scores.shape[axis]
    return jnp.full(scores.shape[1 - axis], number, scores.dtype)
  return jnp.sum(keep, axis=axis, dtype=scores.dtype)


# --- The search -------------------------------------------------------------


def of_cosines(
    gather: Callable[[Pass], jax.Array],
    like: jax.Array,
    fraction: jax.Array,
    scale: jax.Array,
    axis_name: str | None,
) -> jax.Array:
  """Finds the beta of each row from its cosines.

  Args:
    gather: makes a pass over them, ``[results, rows]``.
    like: an array with the rows.
    fraction: see :func:`beta_for_perplexity`.
    scale: 1 / temperature.
    axis_name: mapped axis of devices that make passes together.

  Returns:
    One beta for each row.
  """
  betas = jnp.asarray(_SHARED, like.dtype) / scale
  top, number, *sums = gather(_shared(betas, scale, like))
  top = jnp.where(number > 0, top, 1)
  betas = jnp.broadcast_to(betas[:, None], (betas.shape[0], top.shape[0]))
  points = _Points.of(betas, jnp.stack(sums)).above(scale * (1 - top))
  return _search(
      points,
      number,
      fraction,
      lambda betas: gather(_single(betas, scale, top)),
      largest=_SHARED_LARGEST / scale,
      axis_name=axis_name,
  )


def _of_scores(gather, like, fraction, scale, axis_name=None):
  """Finds the beta of each row from scores of any size."""
  top, bottom, number = gather(_extent(like))
  top = jnp.where(number > 0, top, 0)
  span = jnp.where(number > 0, scale * (top + bottom), 0)
  span = jnp.where(span > 0, span, 1)
  powers = jnp.arange(_COARSE, dtype=like.dtype) / (_COARSE - 1)
  betas = (_LEAST * (_LARGEST / _LEAST) ** powers)[:, None] / span[None]

  def sums_at(betas):
    return gather(_single(betas, scale, top))

  points = _Points.of(betas, sums_at(betas))
  return _search(points, number, fraction, sums_at, axis_name=axis_name)


class _State(NamedTuple):
  """Rows in a search: between which points the result is."""

  step: jax.Array  # passes so far, after the first
  ends: '_Points'
  far: jax.Array  # rows whose result is above the ends
  pending: jax.Array  # rows that need another pass
  hardest: jax.Array  # entropy at the largest beta


def _search(
    points, number, fraction, sums_at, *, largest=None, axis_name=None
):
  """Finds the beta at which the perplexity is ``fraction`` of the number.

  Args:
    points: those of the first pass.
    number: of scores, ``[rows]``.
    fraction: see :func:`beta_for_perplexity`.
    sums_at: ``betas -> sums``, one pass over the scores.
    largest: beta; None: the last one of the points.
    axis_name: mapped axis of devices that make passes together.

  Returns:
    One beta for each row.
  """
  fraction = jnp.asarray(fraction, number.dtype)
  whole = jnp.log(jnp.where(number > 0, number, 1))
  target = whole + jnp.log(fraction)
  hardest = points.entropies[-1]
  searched = (number > 0) & (fraction < 1)
  too_soft = points.entropies[0] < target
  too_hard = searched & (hardest >= target)
  far = too_hard & (largest is not None)

  def refine(state):
    _, ends, far, pending, hardest = state
    betas = ends.fine(target)
    if largest is not None:
      betas = jnp.where(far[None], ends.larger(largest), betas)
    between = _Points.of(betas, sums_at(betas))
    inside = ends.with_inner(between).around(target)
    above = ends.with_last(between).around(target)
    found = above.where(far, inside)
    # The result of a row does not depend on what others need.
    return _State(
        state.step + 1,
        found.where(pending, ends),
        jnp.zeros_like(far),
        pending & (far | (found.drop > _ENOUGH)),
        jnp.where(far, between.entropies[-1], hardest),
    )

  def more(state):
    return (state.step < _REFINEMENTS) & _any(state.pending, axis_name)

  state = lax.while_loop(
      more,
      refine,
      _State(
          jnp.zeros((), jnp.int32),
          points.around(target),
          far,
          searched & ~too_soft & (far | ~too_hard),
          hardest,
      ),
  )
  beta = state.ends.solve(target)
  # Nearly the whole: perplexity falls with the square of a small beta.
  deficit = whole - points.entropies[0]
  share = jnp.sqrt(-jnp.log(fraction) / jnp.where(deficit > 0, deficit, 1))
  beta = jnp.where(
      too_soft, points.betas[0] * jnp.minimum(share, 1), beta
  )
  last = points.betas[-1] if largest is None else largest
  beta = jnp.where(too_hard & (state.hardest >= target), last, beta)
  same = too_hard & (state.hardest >= whole - 1e-5)  # all are equal
  return jnp.where(searched & ~same, beta, 0)


def _any(mask, axis_name):
  """Returns whether a mask is true anywhere, on all devices alike."""
  found = jnp.any(mask)
  if axis_name is not None:
    found = lax.pmax(found.astype(jnp.int32), axis_name) > 0
  return found


class _Points(NamedTuple):
  """L and its slope at rising betas, each ``[betas, rows]``."""

  betas: jax.Array
  values: jax.Array
  slopes: jax.Array

  @classmethod
  def of(cls, betas, sums):
    """Returns the points of a pass."""
    total, moments = jnp.split(sums, 2)
    total = jnp.where(total > 0, total, 1)
    return cls(betas, jnp.log(total), moments / total)

  def above(self, rise):
    """Returns points relative to a score whose logit is lower by ``rise``."""
    return self._replace(
        values=self.values + self.betas * rise[None],
        slopes=self.slopes + rise[None],
    )

  @property
  def entropies(self):
    """Computes the entropies of the weights, which fall with beta."""
    return self.values - self.betas * self.slopes

  @property
  def drop(self):
    """Computes how much the entropy falls from the first to the last point."""
    entropies = self.entropies
    return entropies[0] - entropies[-1]

  def around(self, target):
    """Returns the two points between which the entropy is the target."""
    last = jnp.sum(self.entropies >= target[None], axis=0) - 1
    last = jnp.clip(last, 0, self.betas.shape[0] - 2)
    both = jnp.stack([last, last + 1])
    return _Points(*(jnp.take_along_axis(x, both, axis=0) for x in self))

  def fine(self, target):
    """Returns betas around the guess between two points."""
    factors = jnp.exp(jnp.asarray(_FINE, self.betas.dtype))[:, None]
    guess = self.solve(target)
    return jnp.clip(guess[None] * factors, self.betas[:1], self.betas[1:])

  def larger(self, largest):
    """Returns betas from the second of two points to the largest."""
    low, number = self.betas[1:], len(_FINE)
    steps = jnp.arange(1, number + 1, dtype=low.dtype) / number
    return low * (largest / low) ** steps[:, None]

  def with_inner(self, inner):
    """Returns two points with others between them."""
    return _joined(_first(self), inner, _last(self))

  def with_last(self, others):
    """Returns the second of two points, and others above it."""
    return _joined(_last(self), others)

  def where(self, mask, others):
    """Returns own points where the mask is true, and others elsewhere."""
    return _Points(
        *(
            jnp.where(mask[None], *both)
            for both in zip(self, others, strict=True)
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


def _first(points):
  return jax.tree.map(lambda x: x[:1], points)


def _last(points):
  return jax.tree.map(lambda x: x[-1:], points)


def _joined(*points):
  return jax.tree.map(lambda *x: jnp.concatenate(x), *points)
