# SPDX-License-Identifier: Apache-2.0
"""Batch and group normalization of the encoders."""

from collections.abc import Callable
import functools
import math
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp

_EPSILON = 1e-5
_GROUPS = 32
_PARTIAL_SUMS = 64


class BatchNorm(nn.Module):
  r"""Batch normalization with the conventions of the released encoders.

  .. math::
    y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \delta

  In training, mu and the biased variance are those of the batch, per channel,
  and update the running mean and the running *unbiased* variance with
  ``momentum``. Otherwise the running statistics are used. Statistics are
  float32 for any ``dtype``. The variance is the mean square of deviations,
  which is accurate for a mean far from zero.

  Attributes:
    axis_name: mapped axis whose devices share statistics; None: each device has
      its own.
    splits: number of equal parts of the batch, each normalized by its own
      statistics, as if on its own device; the running statistics use their
      average.
    momentum: share of the old running statistics that a step keeps.
    epsilon: added to the variance.
    dtype: dtype of the result.
  """

  axis_name: str | None = None
  splits: int = 1
  momentum: float = 0.9
  epsilon: float = _EPSILON
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(
      self, x: jax.Array, *, train: bool, counts: jax.Array | None = None
  ) -> jax.Array:
    """Normalizes the last axis of ``x [batch, ..., channels]``.

    Args:
      x: array to normalize.
      train: normalize by the statistics of the batch and update the running
        ones; otherwise by the running ones.
      counts: number of rows that each row of ``x [batch, channels]``
        represents, ``[batch]``; a row with count 0 may have any value and is in
        no statistic.
    """
    if counts is not None:
      _check_counts(x, counts, self.splits)
      x = jnp.where(counts[:, None] > 0, x, 0)
    channels = x.shape[-1]
    scale = self.param('scale', nn.initializers.ones, (channels,))
    bias = self.param('bias', nn.initializers.zeros, (channels,))
    affine = _Affine(scale, bias, self.epsilon)
    running_mean = self.variable('batch_stats', 'mean', jnp.zeros, (channels,))
    running_var = self.variable('batch_stats', 'var', jnp.ones, (channels,))
    if not train:
      rows = x.reshape(-1, channels)
      mean, var = running_mean.value[None], running_var.value[None]
      y = _apply_affine(rows, mean, var, affine)
    else:
      axis_name = None if self.is_initializing() else self.axis_name
      if counts is None:
        y, mean, var, count = _normalize_parts(
            x, affine, axis_name=axis_name, splits=self.splits
        )
      else:
        mean, var, count = _counted_statistics(x, counts, axis_name)
        y = _apply_affine(x, mean, var, affine)
      if not self.is_initializing():
        running_mean.value = self._follow(running_mean.value, mean)
        running_var.value = self._follow(running_var.value, _unbias(var, count))
    return y.astype(self.dtype).reshape(x.shape)

  def _follow(self, running, parts):
    new = jnp.mean(parts.reshape(-1, parts.shape[-1]), axis=0)
    return (
        self.momentum * running
        + (1 - self.momentum) * jax.lax.stop_gradient(new)
    )


class _Affine(NamedTuple):
  """Parameters of the affine map after normalization."""

  scale: jax.Array
  bias: jax.Array
  epsilon: float


def _normalize_parts(x, affine, *, axis_name, splits):
  """Normalizes each part of the batch; also returns statistics and count."""
  if x.shape[0] % splits:
    raise ValueError(
        f'The batch of a device must divide into bn_splits={splits} equal '
        f'parts; got {x.shape[0]} images. Change one of them.'
    )

  def normalize(rows, affine):
    mean, var = _statistics(rows, axis_name)
    return _apply_affine(rows, mean, var, affine), mean, var

  rows = x.reshape(-1, x.shape[-1])
  # No vmap over one part: XLA:CPU takes thirty times as long to sum products
  # of arrays with an axis of length one.
  if splits > 1:
    rows = rows.reshape(splits, -1, x.shape[-1])
    normalize = jax.vmap(normalize, in_axes=(0, None))
  devices = 1 if axis_name is None else jax.lax.axis_size(axis_name)
  return *normalize(rows, affine), rows.shape[-2] * devices


def _apply_affine(rows, mean, var, affine):
  factor = jax.lax.rsqrt(var + affine.epsilon) * affine.scale[None]
  return (rows.astype(jnp.float32) - mean) * factor + affine.bias[None]


def _statistics(rows, axis_name):
  """Returns mean and biased variance ``[1, channels]``."""
  rows = rows.astype(jnp.float32)
  mean = jnp.mean(rows, axis=0, keepdims=True)
  var = jnp.mean(jnp.square(rows - mean), axis=0, keepdims=True)
  if axis_name is None:
    return mean, var
  # One exchange, and no difference of large squares.
  means, variances = jax.lax.all_gather((mean, var), axis_name)
  mean = jnp.mean(means, axis=0)
  return mean, jnp.mean(variances + jnp.square(means - mean[None]), axis=0)


def _counted_statistics(rows, counts, axis_name):
  """Returns mean, biased variance and total count of rows with counts."""
  # Row i is added to partial sum i mod 64, in order: further rows of 0 change
  # no bit, as they would in a sum whose splitting depends on its length.
  sums = jnp.arange(rows.shape[0], dtype=jnp.int32) % _PARTIAL_SUMS
  counts = counts.astype(jnp.float32)[:, None]

  def total(values):
    values = jax.ops.segment_sum(counts * values, sums, _PARTIAL_SUMS)
    total = jnp.sum(values, axis=0, keepdims=True)
    return total if axis_name is None else jax.lax.psum(total, axis_name)

  rows = rows.astype(jnp.float32)
  count = jnp.maximum(total(jnp.ones_like(counts)), 1)
  mean = total(rows) / count
  return mean, total(jnp.square(rows - mean)) / count, count


def _check_counts(x, counts, splits):
  if x.ndim != 2 or counts.shape != x.shape[:1]:
    raise ValueError(
        'counts must have a value for each row of x [batch, channels]; got '
        f'shapes {counts.shape} and {x.shape}.'
    )
  if splits > 1:
    raise ValueError(f'counts excludes splits={splits}; leave out one of them.')


def _unbias(var, count):
  if isinstance(count, jax.Array):  # the sum of counts
    return var * (count / jnp.maximum(count - 1, 1))
  if count < 2:
    raise ValueError(
        'BatchNorm needs more than one value per channel to train; got a '
        'batch of one. Use a larger batch per device, fewer bn_splits, or '
        "norm='group'."
    )
  return var * (count / (count - 1))


class GroupNorm(nn.Module):
  """Normalization of each image separately, in up to 32 groups of channels."""

  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    """Normalizes ``x [batch, ..., channels]``; ``train`` has no effect."""
    del train
    norm = nn.GroupNorm(
        num_groups=math.gcd(_GROUPS, x.shape[-1]),
        epsilon=_EPSILON,
        use_fast_variance=False,
        dtype=jnp.float32,
    )
    return norm(x.astype(jnp.float32)).astype(self.dtype)


def make(
    name: str, *, axis_name: str | None, splits: int, dtype: jnp.dtype
) -> Callable[..., nn.Module]:
  """Returns a constructor of ``'batch'`` or ``'group'`` normalization layers.

  It takes the submodule's ``name``. :class:`BatchNorm` has the other arguments.
  """
  return {
      'batch': functools.partial(
          BatchNorm, axis_name=axis_name, splits=splits, dtype=dtype
      ),
      'group': functools.partial(GroupNorm, dtype=dtype),
  }[name]
