# SPDX-License-Identifier: Apache-2.0
"""Holds the train state: all that a run needs to go on bit for bit."""

from collections.abc import Sequence
from typing import Any
from typing import TypeAlias

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from hcl_jax import momentum
from hcl_jax.training import task as task_lib

Device: TypeAlias = Any  # a jax.Device, which is no type for a type checker


class TrainState(struct.PyTreeNode):
  """Is replicated over devices, without a device axis.

  There is no random key in it: the key of a step is made of the seed and the
  step.

  Attributes:
    step: number of steps taken.
    params: parameters.
    task_state: running statistics, queue and the like; see ``training.task``.
    opt_state: the optimizer's.
    ema_params: moving average of the parameters, or None.
  """

  step: jax.Array
  params: Any
  task_state: Any
  opt_state: Any
  ema_params: Any


def create(
    task: task_lib.Task,
    optimizer: optax.GradientTransformation,
    batch: task_lib.Batch,
    *,
    seed: int,
    with_ema: bool = False,
) -> TrainState:
  """Creates the state before the first step, on one device.

  Rows of the batch are for their shapes.
  """

  @jax.jit
  def init(key, batch):
    params, task_state = task.init(key, batch)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        task_state=task_state,
        opt_state=optimizer.init(params),
        ema_params=jax.tree.map(jnp.copy, params) if with_ema else None,
    )

  return init(jax.random.fold_in(jax.random.key(seed), 0), batch)


def next_state(
    state: TrainState, grads: Any, optimizer: optax.GradientTransformation
) -> TrainState:
  """Applies the gradient."""
  updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
  return state.replace(
      step=state.step + 1,
      params=optax.apply_updates(state.params, updates),
      opt_state=opt_state,
  )


def averaged(state: TrainState, ema_decay: float) -> TrainState:
  """Averages the parameters, if the state has an average."""
  if state.ema_params is None:
    return state
  return state.replace(
      ema_params=momentum.average(state.ema_params, state.params, ema_decay)
  )


def evaluated_params(state: TrainState) -> Any:
  """Returns the averaged parameters where there are any."""
  return state.params if state.ema_params is None else state.ema_params


def all_devices() -> list[Device]:
  """Returns devices of all processes, in the order of the rows of a batch."""
  return [
      device
      for process in range(jax.process_count())
      for device in jax.local_devices(process_index=process)
  ]


def replicated(
    devices: Sequence[Device] | None = None,
) -> jax.sharding.Sharding:
  """Returns the sharding of a copy on each device; None: each local one."""
  mesh = jax.sharding.Mesh(
      np.array(devices or jax.local_devices()), (task_lib.AXIS,)
  )
  return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def replicate(tree: Any, devices: Sequence[Device]) -> Any:
  """Puts a copy on each device, also where others have the same tree."""
  sharding = replicated(devices)
  if sharding.is_fully_addressable:
    return jax.device_put(tree, sharding)

  def put(x):
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)

  return jax.tree.map(put, tree)


def local(tree: Any) -> Any:
  """Returns the copies on devices of this process, as arrays of their own.

  They share memory with the replicated arrays of the tree.
  """
  here = replicated()

  def view(x):
    if x.is_fully_addressable:
      return x
    shards = {shard.device: shard.data for shard in x.addressable_shards}
    return jax.make_array_from_single_device_arrays(
        x.shape, here, [shards[device] for device in jax.local_devices()]
    )

  return jax.tree.map(view, tree)


def copies(tree: Any) -> list[Any]:
  """Returns a copy of a tree for each local device that holds it, on it alone.

  A run that trains on a device of its own is evaluated there, too.
  """
  sharding = jax.tree.leaves(tree)[0].sharding
  devices = [x for x in jax.local_devices() if x in sharding.device_set]
  if len(sharding.device_set) == 1:
    return [jax.device_put(tree, devices[0])]
  return [jax.device_put(local(tree), x) for x in devices]
