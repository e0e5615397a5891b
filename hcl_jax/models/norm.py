# SPDX-License-Identifier: Apache-2.0
"""Batch and group normalisation of the encoders."""

from collections.abc import Callable
import functools
import math

from flax import linen as nn
import jax
import jax.numpy as jnp

_EPSILON = 1e-5
_GROUPS = 32
_LANES = 64


class BatchNorm(nn.Module):
  r"""Batch normalisation with the conventions of the released encoders.

  .. math::
    y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \delta

  In training mu and the biased variance are those of the batch, per channel;
  the running mean and the running *unbiased* variance follow them with
  ``momentum``. Otherwise the running ones take their place. Statistics are
  float32 whatever ``dtype`` says, and the variance is the mean square of the
  deviations, which a mean far from zero does not spoil.

  Attributes:
    axis_name: mapped axis over whose devices the statistics are taken
      together; None: each device has its own.
    splits: number of equal parts of the batch, each normalised by its own
      statistics, as that many devices would; the running ones follow the
      average over the parts.
    momentum: share of the old running statistics that a step keeps.
    epsilon: added to the variance.
    dtype: of the result.
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
    """Normalises the last axis of ``x [batch, ..., channels]``.

    Args:
      x: what to normalise.
      train: by the statistics of the batch, which the running ones follow;
        otherwise by the running ones.
      counts: how many rows each row of ``x [batch, channels]`` stands for,
        ``[batch]``; one that stands for 0 may hold anything and enters no
        statistic.

    Returns:
      An array of the shape of ``x``.
    """
    if counts is not None:
      _check_counts(x, counts, self.splits)
      x = jnp.where(counts[:, None] > 0, x, 0)
    channels = x.shape[-1]
    scale = self.param('scale', nn.initializers.ones, (channels,))
    bias = self.param('bias', nn.initializers.zeros, (channels,))
    running_mean = self.variable('batch_stats', 'mean', jnp.zeros, (channels,))
    running_var = self.variable('batch_stats', 'var', jnp.ones, (channels,))
    if not train:
      rows = x.reshape(-1, channels)
      mean, var = running_mean.value[None], running_var.value[None]
      y = _affine(rows, mean, var, scale, bias, self.epsilon)
    else:
      axis_name = None if self.is_initializing() else self.axis_name
      if counts is None:
        y, mean, var, count = _normalize_parts(
            x, scale, bias, self.epsilon, axis_name, self.splits
        )
      else:
        mean, var, count = _counted_statistics(x, counts, axis_name)
        y = _affine(x, mean, var, scale, bias, self.epsilon)
      if not self.is_initializing():
        running_mean.value = self._follow(running_mean.value, mean)
        running_var.value = self._follow(
            running_var.value, _unbias(var, count)
        )
    return y.astype(self.dtype).reshape(x.shape)

  def _follow(self, running, parts):
    new = jnp.mean(parts.reshape(-1, parts.shape[-1]), axis=0)
    return (
        self.momentum * running
        + (1 - self.momentum) * jax.lax.stop_gradient(new)
    )


def _normalize_parts(x, scale, bias, epsilon, axis_name, splits):
  """_normalize of each part of the batch, and the rows of a part."""
  if x.shape[0] % splits:
    raise ValueError(
        f'The batch of a device must divide into bn_splits={splits} equal '
        f'parts; got {x.shape[0]} images. Change one of them.'
    )
  rows = x.reshape(-1, x.shape[-1])
  normalize = functools.partial(
      _normalize, epsilon=epsilon, axis_name=axis_name
  )
  # Not one part by vmap: on CPU, XLA sums products of arrays with an axis of
  # length one thirty times slower.
  if splits > 1:
    rows = rows.reshape(splits, -1, x.shape[-1])
    normalize = jax.vmap(normalize, in_axes=(0, None, None))
  count = _count(rows.shape[-2], axis_name)
  return *normalize(rows, scale, bias), count


def _normalize(rows, scale, bias, epsilon, axis_name):
  """Normalises ``[rows, channels]`` by the statistics of the batch.

  Returns:
    Normalised rows, float32, and their mean and biased variance
    ``[1, channels]``.
  """
  mean, var = _statistics(rows, axis_name)
  return _affine(rows, mean, var, scale, bias, epsilon), mean, var


def _affine(rows, mean, var, scale, bias, epsilon):
  factor = jax.lax.rsqrt(var + epsilon) * scale[None]
  return (rows.astype(jnp.float32) - mean) * factor + bias[None]


def _statistics(rows, axis_name):
  """Mean and biased variance ``[1, channels]``."""
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
  """As _statistics, of rows that stand for several, and of how many in all."""
  # Row i is added to lane i mod 64, one after the other: more rows of 0 change
  # no bit, as they would in a sum that is divided up by its length.
  lanes = jnp.arange(rows.shape[0], dtype=jnp.int32) % _LANES
  counts = counts.astype(jnp.float32)[:, None]

  def total(values):
    values = jax.ops.segment_sum(counts * values, lanes, _LANES)
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
    raise ValueError(f'counts does not go with splits={splits}; leave out one.')


def _count(rows, axis_name):
  """Number of rows behind a statistic, over all devices."""
  return rows * (1 if axis_name is None else jax.lax.axis_size(axis_name))


def _unbias(var, count):
  if isinstance(count, jax.Array):  # that counts add up to
    return var * (count / jnp.maximum(count - 1, 1))
  if count < 2:
    raise ValueError(
        'BatchNorm needs more than one value per channel to train; got a '
        'batch of one. Use a larger batch per device, fewer bn_splits, or '
        "norm='group'."
    )
  return var * (count / (count - 1))


class GroupNorm(nn.Module):
  """Normalisation of each image by itself, in up to 32 groups of channels.

  Attributes:
    dtype: of the result.
  """

  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    """Normalises ``x [batch, ..., channels]``; the same in both modes."""
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
  """The constructor of the normalisation called ``name``.

  Args:
    name: ``'batch'`` or ``'group'``.
    axis_name: as of :class:`BatchNorm`.
    splits: as of :class:`BatchNorm`.
    dtype: of the results.

  Returns:
    A function of the submodule's ``name``.
  """
  return {
      'batch': functools.partial(
          BatchNorm, axis_name=axis_name, splits=splits, dtype=dtype
      ),
      'group': functools.partial(GroupNorm, dtype=dtype),
  }[name]
