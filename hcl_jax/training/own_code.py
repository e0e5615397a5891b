# SPDX-License-Identifier: Apache-2.0
"""Makes modules of a user's own, which a configuration names by a path.

``config.model.encoder='package.module:factory'`` names a function, or a class,
that is called as ``factory(config)`` and returns a ``flax.linen.Module``; if it
takes an argument ``rngs``, it returns a ``flax.nnx.Module``. It is called
several times, so equal calls must return equal modules. The room says how the
module is called and what it must return.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import functools
import importlib
import inspect
import pathlib
import re
import traceback
from typing import Any
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import ml_collections

from hcl_jax.training import fields as fields_lib
from hcl_jax.training import modules

FIELD = 'model.encoder'
_FORM = 'package.module:factory'
# Rows of each output of a module by name, given its inputs.
Rows = Callable[..., Mapping[str, int]]


def one_of(*names: str) -> fields_lib.Check:
  """Accepts some names, and the path of a factory."""
  wish = f'one of {", ".join(map(repr, names))}, or {_FORM!r}'

  def holds(x):
    return x in names or bool(re.fullmatch(r'\w+(\.\w+)*:\w+', x))

  return fields_lib.Check(holds, wish)


def named(config: fields_lib.Config) -> dict[str, str]:
  """Returns the fields that name code of a user's own, with its paths."""
  model = config.get('model')
  if not isinstance(model, ml_collections.ConfigDict):
    return {}
  path = model.get('encoder')
  return {FIELD: path} if isinstance(path, str) and ':' in path else {}


def create(config: fields_lib.Config, rows: Rows, **options: Any) -> nn.Module:
  """Makes the module that a configuration names.

  Args:
    config: the whole configuration, which the factory gets.
    rows: what the module must return: floats ``[rows, D]``, with one D, by
      name. It returns one array, or a tuple if there are several names.
    **options: further arguments of the factory.

  Returns:
    A linen module. It is called with inputs and ``train``, which it passes on
    to a module that takes it, and returns float32.

  Raises:
    ValueError: there is no such factory, or it fails.
  """
  factory, source = _load(config.model.encoder)
  with source.explains('calling it'):
    make = functools.partial(factory, config, **options)
    if 'rngs' in inspect.signature(factory).parameters:
      return _Adapted(_from_nnx(make), _call_nnx, rows, source)
    module = make()
  if not isinstance(module, nn.Module):
    raise ValueError(
        f'{source} must return a flax.linen.Module, got '
        f'{type(module).__name__}; a flax.nnx.Module is made by a factory that '
        'takes an argument rngs.'
    )
  return _Adapted(module, _call, rows, source)


def check(
    module: nn.Module,
    inputs: tuple[Any, ...],
    trained: tuple[Any, ...] | None = None,
    axis_name: str | None = None,
) -> None:
  """Raises a ValueError unless a module of :func:`create` works.

  Nothing is computed but shapes.

  Args:
    module: the module.
    inputs: what it is evaluated on.
    trained: what it is trained on; None: the same.
    axis_name: of the devices that train it, if they share a batch.
  """

  def run(key, inputs, trained):
    params, state = modules.init(module, key, *inputs, train=False)
    module.apply({'params': params, **state}, *inputs, train=False)
    _, updated = modules.train(module, params, state, *trained, key=key)
    return state, updated

  if axis_name is not None:
    run = jax.vmap(
        run, in_axes=None, out_axes=None, axis_name=axis_name, axis_size=1
    )
  trained = inputs if trained is None else trained
  states = jax.eval_shape(run, jax.random.key(0), inputs, trained)
  before, after = map(_shapes, states)
  if before != after:
    raise ValueError(
        f'{module.source} must keep names, shapes and dtypes of its state in '
        f'training; it begins with {before} and becomes '
        f'{after}.'
    )


class _Source(NamedTuple):
  """Path of a factory and the file that has it, for messages."""

  path: str
  file: str = ''

  def __str__(self):
    return f'config.{FIELD}={self.path!r}'

  @contextlib.contextmanager
  def explains(self, doing: str) -> Iterator[None]:
    """Raises a ValueError of one line, instead of any error of the code."""
    try:
      yield
    except Exception as error:  # whatever a user's code raises
      text = str(error).strip().partition('\n')[0]
      lines = [
          frame.lineno
          for frame in traceback.extract_tb(error.__traceback__)
          if frame.filename == self.file
      ]
      name = pathlib.Path(self.file).name
      place = f'{name}, line {lines[-1]}: ' if lines else ''
      raise ValueError(
          f'{self}: {doing} failed: {place}{type(error).__name__}: {text}'
      ) from error


class _Adapted(nn.Module):
  """Calls a module of a user's own, and checks what it returns.

  Has the variables of the module, without a name of its own.
  """

  module: nn.Module
  call: Callable[..., Any]
  rows: Rows
  source: _Source

  def setup(self):
    nn.share_scope(self, self.module)

  def __call__(self, *inputs: Any, train: bool) -> Any:
    with self.source.explains('calling its module'):
      out = self.call(self.module, *inputs, train=train)
    rows = self.rows(*inputs)
    outputs = (out,) if len(rows) == 1 else out
    if not _fits(outputs, tuple(rows.values())):
      wish = ' and '.join(f'{name} [{n}, D]' for name, n in rows.items())
      raise ValueError(
          f'{self.source}: its module must return {wish}, of floats; got '
          f'{_describe(out)}.'
      )
    floats = tuple(x.astype(jnp.float32) for x in outputs)
    return floats[0] if len(rows) == 1 else floats


def _load(path):
  """Returns the factory of a path, and its source."""
  source = _Source(path)
  name, _, attribute = path.partition(':')
  try:
    with source.explains(f'importing {name!r}'):
      module = importlib.import_module(name)
  except ValueError as error:
    cause = error.__cause__
    if isinstance(cause, ModuleNotFoundError) and f'{name}.'.startswith(
        f'{cause.name}.'
    ):
      raise ValueError(
          f'{source}: there is no module {name!r}; run the command in the '
          'folder that has it, or name that in PYTHONPATH; in Python, add it '
          'to sys.path.'
      ) from None
    raise
  factory = getattr(module, attribute, None)
  if not callable(factory):
    found = 'nothing' if factory is None else type(factory).__name__
    raise ValueError(
        f'{source} must name a function or class of the module {name!r}; found '
        f'{found} by the name {attribute!r}.'
    )
  return factory, source._replace(file=module.__file__ or '')


def _call(module, *inputs, train):
  """Calls a module, with ``train`` if it takes that or any keyword."""
  parameters = inspect.signature(type(module).__call__).parameters.values()
  if any(x.name == 'train' or x.kind == x.VAR_KEYWORD for x in parameters):
    return module(*inputs, train=train)
  return module(*inputs)


def _from_nnx(make):
  """Returns the linen module that makes an NNX module, and has its state."""
  from flax import nnx  # most runs have none

  def build(rngs):
    # One stream for all names; without a key in evaluation, as all is known.
    key = rngs['params' if 'params' in rngs else 'default']()
    module = make(rngs=nnx.Rngs(key))
    if not isinstance(module, nnx.Module):
      raise TypeError(
          'a factory that takes rngs must return a flax.nnx.Module, got '
          f'{type(module).__name__}'
      )
    return module

  return nnx.bridge.ToLinen(build, metadata_fn=None)


def _call_nnx(module, *inputs, train):
  return module(*inputs, train=train, nnx_method=_call_in_mode)


def _call_in_mode(module, *inputs, train):
  """Calls an NNX module, whose layers know whether they train."""
  module.train() if train else module.eval()
  return _call(module, *inputs, train=train)


def _fits(outputs, rows):
  """Returns whether outputs are floats ``[rows, D]``, with one D."""
  return (
      isinstance(outputs, tuple | list)
      and len(outputs) == len(rows)
      and all(isinstance(x, jax.Array) and x.ndim == 2 for x in outputs)
      and all(jnp.issubdtype(x.dtype, jnp.floating) for x in outputs)
      and tuple(len(x) for x in outputs) == rows
      and len({x.shape[1] for x in outputs}) == 1
  )


def _describe(out):
  if isinstance(out, tuple | list):
    return f'({", ".join(map(_describe, out))})'
  if not isinstance(out, jax.Array):
    return type(out).__name__
  return f'{out.dtype} [{", ".join(map(str, out.shape))}]'


def _shapes(state):
  """Returns dtypes and shapes by dotted name."""
  flat, _ = jax.tree_util.tree_flatten_with_path(state)
  return {
      jax.tree_util.keystr(path, simple=True, separator='.'): (
          f'{x.dtype} {list(x.shape)}'
      )
      for path, x in flat
  }
