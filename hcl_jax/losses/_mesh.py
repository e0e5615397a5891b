# SPDX-License-Identifier: Apache-2.0
"""Splits a loss by rows over the devices of a mesh, under jit.

XLA does not split a scan over tiles: given sharded arrays, every device would
compute all of it. Here each device takes its rows by ``shard_map``, as with
``axis_name``.
"""

from collections.abc import Callable
import dataclasses
import functools
import math
from typing import Any

import jax
from jax import core
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

Mesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


@dataclasses.dataclass(frozen=True)
class Split:
  """Names the axes of a mesh over which rows are split."""

  mesh: Mesh
  axes: tuple[str, ...]

  @property
  def devices(self) -> int:
    """Returns how many devices share the rows."""
    return math.prod(self.mesh.shape[axis] for axis in self.axes)


def choose(
    mesh: Mesh | None, axis_name: Any, embeddings: jax.Array, *, tiled: bool
) -> Split | None:
  """Finds how to split rows; None: not at all.

  A mesh of the caller's is always used. Otherwise it is that of the embeddings'
  sharding, which JAX knows inside ``jit`` too, or that of ``jax.set_mesh``. XLA
  splits what is not tiled by itself, unless an axis has the type Explicit.

  Args:
    mesh: the argument of a loss.
    axis_name: the argument of a loss, which excludes a mesh.
    embeddings: one row for each example.
    tiled: whether the loss would be computed in tiles.

  Returns:
    The axes of the mesh that split the rows evenly.
  """
  given = mesh
  if axis_name is not None:
    if given is None:
      return None
    raise ValueError(
        'mesh and axis_name exclude each other; got axis_name='
        f'{axis_name!r} and mesh={mesh}. Give axis_name inside pmap and '
        'shard_map, and mesh under jit.'
    )
  scope = jax.sharding.get_abstract_mesh()
  if mesh is None:
    mesh = _mesh_of(embeddings)
  if mesh is None or mesh.empty:
    mesh = scope
  types = *mesh.axis_types, *scope.axis_types
  if AxisType.Manual in types:
    if given is None:
      return None
    raise ValueError(
        f'mesh must not be given inside pmap or shard_map; got {mesh}. Give '
        'axis_name there.'
    )
  if given is None and not tiled and AxisType.Explicit not in types:
    return None
  rows = embeddings.shape[0]
  split = Split(mesh, ())
  for axis, size in mesh.shape.items():
    if size > 1 and rows % (split.devices * size) == 0:
      split = Split(mesh, (*split.axes, axis))
  if given is not None and split.devices < given.size:
    raise ValueError(
        f'mesh has {given.size} devices, which must divide the rows of the '
        f'batch; got {rows} rows. Take another batch size or another mesh.'
    )
  return split if split.axes else None


def call(
    function: Callable[..., jax.Array],
    split: Split | None,
    rows: dict[str, Any],
    whole: dict[str, Any] | None = None,
    *,
    axis_name: Any,
    **options: Any,
) -> jax.Array:
  """Calls a loss, on all devices of a mesh with a part of the rows each.

  Args:
    function: ``(axis_name=..., **rows, **whole, **options) -> [batch]``.
    split: how to split the rows; None: a plain call.
    rows: trees of scalars and of arrays with one row for each example.
    whole: trees of arrays that every device gets.
    axis_name: for a plain call.
    **options: hashable arguments.

  Returns:
    What the function returns for all rows.
  """
  given = rows, whole or {}
  if split is None:
    return function(**given[0], **given[1], axis_name=axis_name, **options)
  leaves, tree = jax.tree.flatten(given)
  count = len(jax.tree.leaves(rows))
  specs = tuple(
      PartitionSpec(split.axes) if x.ndim and i < count else PartitionSpec()
      for i, x in enumerate(leaves)
  )
  return _on_devices(
      function, split, tree, specs, tuple(sorted(options.items()))
  )(given)


def _mesh_of(embeddings):
  """Returns the mesh of a sharding: with its devices, if the array has a value.

  What a traced function closes over has one. Of a tracer only the type is
  known, and the devices are those of the arguments of ``jit``.
  """
  if isinstance(embeddings, core.Tracer):
    return jax.typeof(embeddings).sharding.mesh
  return getattr(embeddings.sharding, 'mesh', None)


@functools.lru_cache(maxsize=256)
def _on_devices(function, split, tree, specs, options):
  """Maps a function over devices; once, so that jit finds it again."""
  specs = jax.tree.unflatten(tree, specs)

  def local(given):
    rows, whole = given
    return function(**rows, **whole, axis_name=split.axes, **dict(options))

  mapped = jax.shard_map(
      local,
      mesh=split.mesh,
      in_specs=(specs,),
      out_specs=PartitionSpec(split.axes),
  )

  def on_devices(given):
    if AxisType.Explicit in split.mesh.axis_types:
      given = jax.tree.map(
          lambda x, spec: jax.sharding.reshard(
              x, NamedSharding(split.mesh, spec)
          ),
          given,
          specs,
      )
    return mapped(given)

  return jax.jit(on_devices)
