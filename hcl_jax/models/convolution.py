# SPDX-License-Identifier: Apache-2.0
"""Convolutions of the encoders, in the form that is fast on each backend."""

from collections.abc import Iterator
import contextlib
import contextvars
import functools

from flax import linen as nn
import jax
import jax.numpy as jnp

_CPU_OPTIONS = {
    # By default XLA:CPU uses YNNPACK for convolutions, which takes up to three
    # times as long as Eigen for the gradient of a kernel over large maps. This
    # is the default list of operations of YNNPACK, without convolutions.
    'xla_cpu_experimental_ynn_fusion_type': (
        'LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE'
    ),
    # Speeds up augmentations on processors with such vectors.
    'xla_cpu_prefer_vector_width': '512',
}

_plain = contextvars.ContextVar('plain', default=False)

he_normal_fan_out = nn.initializers.variance_scaling(2.0, 'fan_out', 'normal')


class Conv(nn.Module):
  """Square convolution without bias, padded by half its kernel.

  Attributes:
    features: channels of the result.
    size: side of the kernel, odd.
    stride: step of the window.
    kernel_init: initializer of the kernel ``[size, size, in, features]``.
    dtype: dtype of the computation; the kernel is float32.
  """

  features: int
  size: int
  stride: int = 1
  kernel_init: nn.initializers.Initializer = he_normal_fan_out
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps ``[batch, height, width, in]`` to ``[batch, ., ., features]``."""
    shape = self.size, self.size, x.shape[-1], self.features
    kernel = self.param('kernel', self.kernel_init, shape)
    return convolve(
        x.astype(self.dtype), kernel.astype(self.dtype), self.stride
    )


def convolve(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
  """Convolves images with a kernel; pads them by half the kernel.

  Args:
    x: images ``[batch, height, width, in]``.
    kernel: ``[size, size, in, out]``, size odd.
    stride: step of the window.

  Returns:
    ``[batch, ceil(height / stride), ceil(width / stride), out]``.
  """
  if jax.default_backend() == 'cpu' and not _plain.get():
    # XLA:CPU has no fast path for pointwise convolutions. Its derivatives of
    # strided ones are up to 19 times slower on small maps, and those over maps
    # smaller than the kernel up to 58 times.
    if kernel.shape[0] == 1:
      return _pointwise(x, kernel, stride)
    if kernel.shape[0] == 3 and (stride > 1 or min(x.shape[1:3]) < 3):
      return _unfolded(x, kernel, stride)
  return _windowed(x, kernel, stride)


@contextlib.contextmanager
def plain() -> Iterator[None]:
  """Keeps convolutions as they are, in functions first traced inside.

  Use it to compare with products; ``jit`` caches functions traced before.
  """
  token = _plain.set(True)
  try:
    yield
  finally:
    _plain.reset(token)


@functools.cache
def compiler_options() -> dict[str, str]:
  """Returns options that make compiled train steps of these encoders fastest.

  Pass them to ``jax.jit(step).lower(...).compile(compiler_options=...)``, or
  the same with ``jax.pmap``. They change results by rounding only, and are
  those that this version of XLA supports; none on GPU and TPU.
  """
  if jax.default_backend() != 'cpu':
    return {}
  return {name: x for name, x in _CPU_OPTIONS.items() if _known(name, x)}


def _known(option, value):
  try:
    jax.jit(lambda x: x, compiler_options={option: value})(0.0)
  except jax.errors.JaxRuntimeError:
    return False
  return True


def _pointwise(x, kernel, stride):
  x = x[:, ::stride, ::stride]
  # Rank 2: the gradient of the weight would contract over several axes, and
  # XLA transposes such operands.
  y = x.reshape(-1, x.shape[-1]) @ kernel[0, 0]
  return y.reshape(*x.shape[:-1], -1)


def _unfolded(x, kernel, stride):
  """Multiplies the kernel with the pixels of each window."""
  size, _, channels, features = kernel.shape
  pad = size // 2
  height, width = (-(-side // stride) for side in x.shape[1:3])
  x = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
  taps = [
      x[:, i : i + (height - 1) * stride + 1 : stride,
        j : j + (width - 1) * stride + 1 : stride]
      for i in range(size)
      for j in range(size)
  ]  # fmt: skip
  columns = jnp.concatenate(taps, axis=-1).reshape(-1, size**2 * channels)
  y = columns @ kernel.reshape(-1, features)
  return y.reshape(x.shape[0], height, width, features)


def _windowed(x, kernel, stride):
  pad = kernel.shape[0] // 2
  return jax.lax.conv_general_dilated(
      x,
      kernel,
      window_strides=(stride, stride),
      padding=((pad, pad), (pad, pad)),
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )
