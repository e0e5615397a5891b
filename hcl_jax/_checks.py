# SPDX-License-Identifier: Apache-2.0
"""Reads and checks arguments; errors name the argument and its value.

Checks of losses, first in this file, look at shapes, dtypes and Python numbers
only: they never inspect a traced value, so they cost nothing inside a compiled
step. Checks of analysis and evaluation run on the host and look at values too:
otherwise a NaN or an unlabeled row would look like a low accuracy.
"""

import math
import numbers as numbers_lib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import _vectors

_ROWS = 4096
_LARGEST = float(np.finfo(np.float32).max)  # more becomes infinite
_SMALLEST = float(np.finfo(np.float32).tiny)  # processors round less to 0


def embeddings(**arrays: Any) -> list[jax.Array]:
  """Reads ``[batch, dim]`` embeddings of one shape and one float dtype."""
  read = [matrix(name, array) for name, array in arrays.items()]
  names, first = list(arrays), read[0]
  for name, array in zip(names[1:], read[1:], strict=True):
    if array.shape != first.shape:
      raise ValueError(
          f'{names[0]} and {name} must have the same shape, row i of one '
          f'belonging to row i of the other; got {first.shape} and '
          f'{array.shape}.'
      )
    same_dtype(names[0], first, name, array)
  return read


def matrix(name: str, array: Any) -> jax.Array:
  """Reads a non-empty ``[rows, dim]`` float array."""
  array = floats(name, array)
  if array.ndim != 2:
    raise ValueError(
        f'{name} must have rank 2, [rows, dim]; got shape {array.shape}.'
    )
  if 0 in array.shape:
    raise ValueError(
        f'{name} must have at least one row and one column; got shape '
        f'{array.shape}.'
    )
  return array


def floats(name: str, array: Any) -> jax.Array:
  """Reads a real floating-point array."""
  array = _array(name, array, 'a floating-point array')
  if not jnp.issubdtype(array.dtype, jnp.floating):
    raise ValueError(
        f'{name} must be a floating-point array; got dtype {array.dtype}. '
        'Cast it first.'
    )
  return array


def same_dtype(
    name: str, array: jax.Array, other_name: str, other: jax.Array
) -> None:
  """Raises a ValueError unless both arrays have the same dtype."""
  if array.dtype != other.dtype:
    raise ValueError(
        f'{name} and {other_name} must have the same dtype; got {array.dtype} '
        f'and {other.dtype}. Cast one of them.'
    )


def same_width(
    name: str, array: jax.Array, other_name: str, other: jax.Array
) -> None:
  """Raises a ValueError unless both arrays have the same last dimension."""
  if array.shape[-1] != other.shape[-1]:
    raise ValueError(
        f'{name} and {other_name} must have the same last dimension; got '
        f'shapes {array.shape} and {other.shape}.'
    )


def enough_pairs(pairs: int, what: str = 'pairs') -> None:
  """Raises a ValueError if there are no negatives in the global batch."""
  if pairs < 2:
    raise ValueError(
        f'An in-batch loss needs at least 2 {what} in the global batch, '
        f'otherwise there are 0 negatives; got {pairs}.'
    )


def integers(name: str, array: Any) -> jax.Array:
  """Reads an integer array."""
  array = _array(name, array, 'an integer array')
  if not jnp.issubdtype(array.dtype, jnp.integer):
    raise ValueError(
        f'{name} must be an integer array; got dtype {array.dtype}.'
    )
  return array


def labels(name: str, array: Any, shape: tuple[int, ...]) -> jax.Array:
  """Reads an integer array with one value per example."""
  array = integers(name, array)
  if array.shape != shape:
    raise ValueError(
        f'{name} must have shape {shape}, one per example; got {array.shape}.'
    )
  return array


def mask(name: str, array: Any, shape: tuple[int, ...]) -> jax.Array:
  """Reads a boolean mask that broadcasts to ``shape``; True means keep."""
  array = _array(name, array, 'a boolean array')
  if array.dtype != jnp.bool_:
    raise ValueError(
        f'{name} must be a boolean array, True where an entry counts; got '
        f'dtype {array.dtype}.'
    )
  try:
    fits = np.broadcast_shapes(array.shape, shape) == shape
  except ValueError:
    fits = False
  if not fits:
    raise ValueError(
        f'{name} must broadcast to shape {shape}; got shape {array.shape}.'
    )
  return array


def number(name: str, value: Any) -> None:
  """Accepts a finite Python number or a scalar array, which may be traced."""
  if _known(value):
    exact = value.item() if isinstance(value, np.generic) else value
    if not abs(exact) <= _LARGEST:  # NaN is refused too
      raise ValueError(f'{name} must be finite, got {value}.')
    return
  dtype = getattr(value, 'dtype', None)
  kinds = jnp.integer, jnp.floating
  if dtype is None or not any(jnp.issubdtype(dtype, kind) for kind in kinds):
    raise ValueError(f'{name} must be a real number, got {value!r}.')
  if value.shape != ():
    raise ValueError(
        f'{name} must be a scalar; got shape {value.shape}. Use jax.vmap '
        'to evaluate several.'
    )


def temperature(value: Any) -> None:
  """Accepts a number > 0 that is not 0 in float32."""
  positive('temperature', value)
  if _known(value) and value < _SMALLEST:
    raise ValueError(
        f'temperature must be at least {_SMALLEST:.4g}, got {value}; a '
        'smaller one is 0 in float32.'
    )


def logit_scale(value: Any) -> None:
  """Accepts a number > 0."""
  number('logit_scale', value)
  if _known(value) and not value > 0:
    raise ValueError(
        f'logit_scale must be > 0, got {value}; it is the factor of the '
        'cosines. If you have its logarithm, pass jnp.exp of it.'
    )


def beta(value: Any, *shapes: tuple[int, ...]) -> None:
  """Accepts a number >= 0, or an array of one of the shapes."""
  shape = getattr(value, 'shape', ())
  if shape and shape in shapes:
    if not jnp.issubdtype(value.dtype, jnp.floating):
      raise ValueError(
          f'beta must be floating-point; got dtype {value.dtype}. Cast it.'
      )
    return
  if shape and shapes:
    allowed = ' or '.join(str(x) for x in shapes)
    raise ValueError(
        f'beta must be a scalar or, with one for each anchor, have shape '
        f'{allowed}; got {shape}.'
    )
  number('beta', value)
  if _known(value) and value < 0:
    raise ValueError(
        f'beta must be >= 0, got {value}; 0 gives all negatives equal weights.'
    )


def tau_plus(value: Any) -> None:
  """Accepts a probability below 1."""
  number('tau_plus', value)
  if _known(value) and not 0 <= value < 1:
    raise ValueError(
        f'tau_plus must be in [0, 1), got {value}; it is the probability that '
        "a negative has the anchor's class."
    )


def positive_weight(value: Any) -> None:
  """Accepts a number >= 0."""
  number('positive_weight', value)
  if _known(value) and value < 0:
    raise ValueError(
        f'positive_weight must be >= 0, got {value}; 1 gives InfoNCE, 0 the '
        'decoupled loss.'
    )


def fraction(name: str, value: Any) -> None:
  """Accepts a number in (0, 1]."""
  number(name, value)
  if _known(value) and not 0 < value <= 1:
    raise ValueError(
        f'{name} must be in (0, 1], got {value}; it is the share of the '
        'negatives that counts.'
    )


def soft_floor(value: Any) -> None:
  """Accepts a number strictly between 0 and 1."""
  number('soft_floor', value)
  if _known(value) and not 0 < value < 1:
    raise ValueError(f'soft_floor must be in (0, 1), got {value}.')


def positive(name: str, value: Any) -> None:
  """Accepts a number > 0."""
  number(name, value)
  if _known(value) and not value > 0:
    raise ValueError(f'{name} must be > 0, got {value}.')


def positive_int(name: str, value: Any, *, least: int = 1) -> None:
  """Accepts an int >= ``least``, of Python or numpy."""
  if isinstance(value, bool) or not isinstance(value, numbers_lib.Integral):
    raise ValueError(f'{name} must be an int, got {value!r}.')
  if value < least:
    raise ValueError(f'{name} must be >= {least}, got {value}.')


def choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
  """Accepts one of the allowed values."""
  # For an array, `in` is ambiguous.
  if getattr(value, 'ndim', 0) or value not in allowed:
    raise ValueError(
        f'{name} must be one of {", ".join(map(repr, allowed))}; got '
        f'{value!r}.'
    )


def units(name: str, array: Any, *, rows: int = 1) -> np.ndarray:
  """Reads finite embeddings ``[n, dim]``, n >= rows, as unit vectors.

  A row of zeros stays zero and has similarity 0 to every other row.
  """
  array = matrix(name, array)
  if len(array) < rows:
    raise ValueError(
        f'{name} must have at least {rows} rows; got shape {array.shape}.'
    )
  _refuse_non_finite(name, np.asarray(array))
  return np.asarray(_vectors.normalize(array))


def host_labels(name: str, array: Any, rows: int) -> np.ndarray:
  """Reads an integer array with one value per row, on the host."""
  return np.asarray(labels(name, array, (rows,)))


def numbers(name: str, array: Any, *, least: int = 1) -> np.ndarray:
  """Reads a vector of ``least`` or more finite numbers as float64."""
  try:
    array = np.asarray(array, np.float64)
  except (TypeError, ValueError):
    raise ValueError(
        f'{name} must be a sequence of numbers; got {array!r}.'
    ) from None
  if array.ndim != 1 or len(array) < least:
    raise ValueError(
        f'{name} must have rank 1 and at least {least} entries; got shape '
        f'{array.shape}.'
    )
  _refuse_non_finite(name, array)
  return array


def share(name: str, value: Any) -> None:
  """Accepts a number strictly between 0 and 1."""
  number(name, value)
  if not 0 < value < 1:
    raise ValueError(f'{name} must be in (0, 1), got {value}.')


def features(name: str, array: Any, width: int | None = None) -> np.ndarray:
  """Reads a non-empty, finite float array ``[n, F]`` as float32, on the host.

  ``width`` is the expected F; None accepts any. Float32 is not copied.
  """
  array = np.asarray(array)
  if not jnp.issubdtype(array.dtype, jnp.floating):
    raise ValueError(
        f'{name} must be a floating-point array; got dtype {array.dtype}. '
        'Cast it first.'
    )
  if array.ndim != 2 or 0 in array.shape:
    raise ValueError(
        f'{name} must be a non-empty array [rows, features]; got shape '
        f'{array.shape}.'
    )
  if width is not None and array.shape[1] != width:
    raise ValueError(
        f'{name} must have {width} features per row, as other arrays have; got '
        f'shape {array.shape}.'
    )
  with np.errstate(over='ignore'):
    array = array.astype(np.float32, copy=False)
  # In blocks, so that the mask of a large bank is never in memory.
  for start in range(0, len(array), _ROWS):
    finite = np.isfinite(array[start : start + _ROWS]).all(axis=1)
    if not finite.all():
      raise ValueError(
          f'{name} must be finite in float32; row {start + finite.argmin()} '
          'contains NaN or infinity.'
      )
  return array


def classes(
    name: str, array: Any, rows: int, num_classes: int | None = None
) -> np.ndarray:
  """Reads one class of ``range(num_classes)`` per row as int32 ``[rows]``.

  Without a number of classes, any class from 0 is accepted.
  """
  array = np.asarray(array)
  if array.dtype.kind not in 'iu' or array.shape != (rows,):
    raise ValueError(
        f'{name} must be {rows} integers, one per row of features; got dtype '
        f'{array.dtype} and shape {array.shape}.'
    )
  if num_classes is None:
    num_classes = int(array.max(initial=0)) + 1
  wrong = np.flatnonzero((array < 0) | (array >= num_classes))
  if wrong.size:
    raise ValueError(
        f'{name} must lie between 0 and num_classes - 1 = {num_classes - 1}; '
        f'got {array[wrong[0]]} in row {wrong[0]}, and {wrong.size} such rows '
        'in all. Leave out unlabeled rows (label -1).'
    )
  return array.astype(np.int32)


def images(array: Any, rank: int | None = None) -> jax.Array:
  """Reads non-empty uint8 images, ``[..., 3]``, of any rank or of ``rank``."""
  array = jnp.asarray(array)
  if array.dtype != jnp.uint8:
    raise ValueError(
        f'images must be uint8, 0 to 255; got dtype {array.dtype}.'
    )
  right_rank = array.ndim == (rank or array.ndim)
  if not right_rank or array.shape[-1:] != (3,) or 0 in array.shape:
    expected = '[batch, height, width, 3]' if rank else '[..., 3]'
    raise ValueError(
        f'images must have shape {expected}, not empty; got {array.shape}.'
    )
  return array


def keys(array: Any, batch: int) -> None:
  """Accepts typed PRNG keys ``[batch]``."""
  got = type(array).__name__
  if isinstance(array, jax.Array):
    typed = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    if typed and array.shape == (batch,):
      return
    got = f'shape {array.shape} of dtype {array.dtype}'
  raise ValueError(
      f'keys must be {batch} typed PRNG keys, one per image, such as '
      f'jax.random.split(jax.random.key(0), {batch}); got {got}.'
  )


def size(value: Any) -> None:
  """Accepts the side of an image, an int >= 1."""
  positive_int('size', value)


def kernel(value: Any, side: float) -> None:
  """Accepts an odd width that is reflected at most once at each border."""
  positive_int('blur_kernel', value)
  if value % 2 == 0 or value // 2 >= side:
    raise ValueError(
        f'blur_kernel must be odd and less than twice size ({side}), got '
        f'{value}.'
    )


def within(name: str, value: Any, most: float = math.inf) -> None:
  """Accepts a Python number from 0 to ``most``."""
  python_number(name, value)
  if not 0 <= value <= most:
    raise ValueError(f'{name} must be in [0, {most:g}], got {value}.')


def bounds(name: str, values: Any) -> tuple[float, float]:
  """Reads a pair of positive numbers, the smaller one first."""
  least, greatest = several(name, values, 2, 'the smaller one first')
  if not 0 < least <= greatest:
    raise ValueError(
        f'{name} must be two numbers > 0, the smaller one first; got '
        f'{(least, greatest)}.'
    )
  return least, greatest


def statistics(mean: Any, std: Any) -> tuple[tuple[float, ...], ...]:
  """Reads means and standard deviations of the three channels."""
  mean = several('mean', mean, 3, 'one per channel')
  std = several('std', std, 3, 'one per channel')
  if min(std) <= 0:
    raise ValueError(f'std must be three numbers > 0, got {std}.')
  return mean, std


def several(name: str, values: Any, count: int, what: str) -> tuple[float, ...]:
  """Reads ``count`` Python numbers; ``what`` describes them in the error."""
  try:
    values = tuple(values)
  except TypeError:
    values = (values,)
  if len(values) != count:
    raise ValueError(f'{name} must be {count} numbers, {what}; got {values}.')
  for value in values:
    python_number(name, value)
  return values


def python_number(name: str, value: Any) -> None:
  """Accepts a finite Python number, which is known at compile time."""
  if isinstance(value, bool) or not isinstance(value, numbers_lib.Real):
    raise ValueError(f'{name} must be a number, got {value!r}.')
  if not math.isfinite(value):
    raise ValueError(f'{name} must be finite, got {value}.')


def _array(name, value, what):
  try:
    return jnp.asarray(value)
  except (TypeError, ValueError, OverflowError) as error:
    raise ValueError(
        f'{name} must be {what}; got {type(value).__name__}: {error}'
    ) from None


def _known(value: Any) -> bool:
  known = int, float, np.integer, np.floating
  return isinstance(value, known) and not isinstance(value, bool)


def _refuse_non_finite(name, array):
  wrong = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1))
  if len(wrong):
    raise ValueError(
        f'{name} must be finite; {len(wrong)} of {len(array)} rows are not, '
        f'the first one is row {wrong[0]}. Leave them out, or fix what '
        'computed them.'
    )
