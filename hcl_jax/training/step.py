# SPDX-License-Identifier: Apache-2.0
"""The train step, written per device and mapped over devices: the only pmap.

Under pmap the derivative of a device's own mean is already the transpose across
devices, so ``pmean(grad(local_mean))`` is the gradient of the global loss.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from hcl_jax import models
from hcl_jax.training import state as state_lib
from hcl_jax.training import task as task_lib

Metrics = dict[str, jax.Array]
Knobs = dict[str, np.ndarray]
Step = Callable[
    [state_lib.TrainState, dict[str, np.ndarray]],
    tuple[state_lib.TrainState, Metrics],
]

_REPLICATED, _SPLIT = None, 0
_READ_BY_LOSS = ('label', 'index')


@dataclasses.dataclass(frozen=True)
class Rules:
  """What a step is made of.

  Attributes:
    task: the task.
    optimizer: the optimizer.
    seed: of all random numbers of the steps.
    ema_decay: of the average of parameters, if the state has one.
  """

  task: task_lib.Task
  optimizer: optax.GradientTransformation
  seed: int
  ema_decay: float = 0.999

  def key(self, step: jax.Array) -> jax.Array:
    """The key of a step; ``create`` has used number 0 of the seed."""
    root = jax.random.fold_in(jax.random.key(self.seed), 1)
    return jax.random.fold_in(root, step)

  def create_state(self, batch: dict[str, np.ndarray]) -> state_lib.TrainState:
    """The state before the first step, on one device; rows are for shapes."""
    return state_lib.create(
        self.task,
        self.optimizer,
        batch,
        seed=self.seed,
        with_ema=self.ema_decay > 0,
    )


def configured_rules(
    task: task_lib.Task,
    optimizer: optax.GradientTransformation,
    config: ml_collections.ConfigDict,
) -> Rules:
  """Those of a run, with seed and average of its whole configuration."""
  return Rules(task, optimizer, config.seed, config.optimizer.ema_decay)


def make_step(
    rules: Rules | Callable[[Knobs], Rules],
    *,
    knobs: Knobs | None = None,
    microbatch_size: int | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Step:
  """The function that trains on one batch.

  Args:
    rules: task, optimizer and seed, or the function that makes them of
      ``knobs``.
    knobs: numbers that are arguments of the compiled program, so that runs
      which differ in nothing else have the same one (but constants of it with
      ``microbatch_size``); None where ``rules`` take none.
    microbatch_size: rows of a device that are embedded at a time, a divisor of
      them; None for all at once. The gradient is that of the whole batch,
      except that BatchNorm takes its statistics from a chunk.
    devices: where to run; None: on all local devices. Those of other
      processes may be among them, ``state.all_devices()``; then all processes
      take the step together, and the state is replicated on all devices.

  Returns:
    ``(state, batch) -> (state, metrics)``; the state given is used up. Arrays
    of the batch have a leading axis of local devices.
  """
  place = _placer(devices)
  if microbatch_size is not None:
    rules = rules if knobs is None else rules(knobs)
    return _chunked_step(rules, microbatch_size, _mapper(devices), place)
  options = models.compiler_options()
  if knobs is None:
    step = _compiled(map_step(rules, devices), options)
    return lambda state, batch: step(state, place(batch))
  step = _compiled(_map_step_of_knobs(rules, devices), options)
  return lambda state, batch: step(knobs, state, place(batch))


def map_step(
    rules: Rules, devices: Sequence[jax.Device] | None = None
) -> Step:
  """The step on a whole batch as a mapped function, which can be lowered."""
  return _mapper(devices)(
      functools.partial(_whole_step, rules),
      in_axes=(_REPLICATED, _SPLIT),
      out_axes=(_REPLICATED, _REPLICATED),
      donate_argnums=0,
  )


def _map_step_of_knobs(rules, devices):
  def step(knobs, state, batch):
    # optax raises traced decays to whole powers, which may be forbidden.
    with jax.numpy_dtype_promotion('standard'):
      return _whole_step(rules(knobs), state, batch)

  return _mapper(devices)(
      step,
      in_axes=(_REPLICATED, _REPLICATED, _SPLIT),
      out_axes=(_REPLICATED, _REPLICATED),
      donate_argnums=1,
  )


def _compiled(mapped, options=None):
  """Compiles for each shape of arguments.

  Unlike a mapped function that is called, one that is compiled neither takes
  nor gives the shares of a process, but arrays over all devices.
  """
  executables = {}

  def call(*args):
    shapes = tuple(map(np.shape, jax.tree.leaves(args)))
    if shapes not in executables:
      lowered = mapped.lower(*args)
      executables[shapes] = lowered.compile(options)
    return executables[shapes](*args)

  return call


def _mapper(devices):
  devices = list(devices or jax.local_devices())
  return functools.partial(
      jax.pmap,
      axis_name=task_lib.AXIS,
      axis_size=len(devices),
      devices=devices,
  )


def _placer(devices):
  """The function that joins the rows of all processes to one batch."""
  sharding = _split_over(devices or jax.local_devices())
  if sharding.is_fully_addressable:
    return lambda batch: batch

  def place(batch):
    return {
        name: jax.make_array_from_process_local_data(sharding, x)
        for name, x in batch.items()
    }

  return place


def _split_over(devices):
  mesh = jax.sharding.Mesh(np.array(devices), (task_lib.AXIS,))
  spec = jax.sharding.PartitionSpec(task_lib.AXIS)
  return jax.sharding.NamedSharding(mesh, spec)


def lone_step(
    rules: Rules, state: state_lib.TrainState, batch: dict[str, jax.Array]
) -> tuple[state_lib.TrainState, Metrics]:
  """The step of a run that has one device, for :func:`compile_lone`."""
  return _whole_step(rules, state, batch, axis_name=None)


def compile_lone(
    function: Callable[..., Any],
    *,
    donate_argnums: int | tuple[int, ...] = (),
    compiler_options: dict[str, str] | None = None,
) -> Callable[..., Any]:
  """Compiles a function of knobs, state and batch for the device of the state.

  Args:
    function: of the three.
    donate_argnums: arguments that are used up.
    compiler_options: of the model, if it has others than image encoders.

  Returns:
    The function. Arrays of the batch have a further leading axis, of length
    one, as of devices; the others do not.
  """

  def of_device(knobs, state, batch):
    return function(knobs, state, jax.tree.map(lambda x: x[0], batch))

  return jax.jit(
      of_device,
      donate_argnums=donate_argnums,
      compiler_options=compiler_options or models.compiler_options(),
  )


def _whole_step(rules, state, batch, axis_name=task_lib.AXIS):
  rows = _global_rows(batch, axis_name=axis_name)
  key = rules.key(state.step)

  def local_mean(params):
    embeddings, task_state = rules.task.embed(
        params, state.task_state, batch, key, rows
    )
    losses = rules.task.loss(embeddings, state.task_state, batch, state.step)
    return losses.mean(), (embeddings, task_state)

  (loss, (embeddings, task_state)), grads = jax.value_and_grad(
      local_mean, has_aux=True
  )(state.params)
  if axis_name is not None:
    loss, grads = jax.lax.pmean((loss, grads), axis_name)
  return _finish(rules, state, batch, loss, grads, embeddings, task_state)


def _finish(rules, state, batch, loss, grads, embeddings, task_state):
  """Updates by the average over devices, and measures."""
  new = state_lib.next_state(
      state, grads, task_state, rules.optimizer, rules.ema_decay
  )
  new = new.replace(
      task_state=rules.task.update(new.params, task_state, embeddings, batch)
  )
  metrics = {
      'loss': loss,
      'grad_norm': optax.tree.norm(grads),
      **rules.task.metrics(embeddings, batch, state.step),
  }
  return new, metrics


def _global_rows(batch, first=0, total=None, axis_name=task_lib.AXIS):
  """Numbers, in the global batch, of the rows that this device has."""
  count = jax.tree.leaves(batch)[0].shape[0]
  total = count if total is None else total
  device = 0 if axis_name is None else jax.lax.axis_index(axis_name)
  start = device * total + first
  return start + jnp.arange(count, dtype=jnp.int32)


def _chunked_step(rules, size, pmap, place):
  """Embed by chunks, one loss over all, back-propagate by chunks.

  Chunks are a loop in Python over compiled functions, because XLA runs
  convolutions inside a compiled loop many times slower on a CPU.
  """
  embed = pmap(
      functools.partial(_embed_chunk, rules),
      in_axes=(*[_REPLICATED] * 3, _SPLIT, _REPLICATED, _REPLICATED),
      out_axes=(_SPLIT, _REPLICATED),
  )
  differentiate = _compiled(_map_loss(rules.task, pmap))
  backpropagate = pmap(
      functools.partial(_backpropagate_chunk, rules),
      in_axes=(
          _SPLIT, *[_REPLICATED] * 3, _SPLIT, _SPLIT, _REPLICATED, _REPLICATED
      ),  # fmt: skip
      out_axes=_SPLIT,
      donate_argnums=0,
  )
  finish = pmap(
      functools.partial(_finish_chunks, rules),
      in_axes=(_REPLICATED, _SPLIT, _SPLIT, _SPLIT, _SPLIT, _REPLICATED),
      out_axes=(_REPLICATED, _REPLICATED),
      donate_argnums=0,
  )
  zeros = pmap(
      lambda _, params: jax.tree.map(jnp.zeros_like, params),
      in_axes=(_SPLIT, _REPLICATED),  # pmap wants something that is split
      out_axes=_SPLIT,
  )
  options = models.compiler_options()
  embed = _compiled(embed, options)
  backpropagate = _compiled(backpropagate, options)
  finish, zeros = _compiled(finish), _compiled(zeros)

  def step(state, batch):
    rows = batch['index'].shape[1]
    starts = range(0, rows, size)
    chunks = [
        place({name: x[:, start : start + size] for name, x in batch.items()})
        for start in starts
    ]
    labels = place({name: batch[name] for name in _READ_BY_LOSS})
    embeddings, task_state = [], state.task_state
    for start, chunk in zip(starts, chunks, strict=True):
      z, task_state = embed(
          state.params, task_state, state.step, chunk, start, rows
      )
      embeddings.append(z)
    loss, cotangents = differentiate(
        embeddings, state.task_state, labels, state.step
    )
    grads = zeros(loss, state.params)
    for start, chunk, ct in zip(starts, chunks, cotangents, strict=True):
      grads = backpropagate(
          grads, state.params, state.task_state, state.step, chunk, ct, start,
          rows,
      )  # fmt: skip
    return finish(state, loss, grads, embeddings, labels, task_state)

  return step


def _embed_chunk(rules, params, task_state, step, chunk, start, total):
  rows = _global_rows(chunk, start, total)
  return rules.task.embed(params, task_state, chunk, rules.key(step), rows)


def _map_loss(task, pmap):
  """The loss, and its derivative by each chunk's embeddings."""

  def loss_of_chunks(chunks, task_state, batch, step):
    def local_mean(chunks):
      whole = _concatenate(chunks)
      return task.loss(whole, task_state, batch, step).mean()

    return jax.value_and_grad(local_mean)(chunks)

  # Axes of each entry, because pmap (jax 0.10) pairs axes with leaves wrongly
  # where arguments and leaves happen to be equally many and one is empty.
  batch_axes = dict.fromkeys(_READ_BY_LOSS, _SPLIT)
  return pmap(
      loss_of_chunks,
      in_axes=(_SPLIT, _REPLICATED, batch_axes, _REPLICATED),
      out_axes=(_SPLIT, _SPLIT),
  )


def _backpropagate_chunk(
    rules, grads, params, task_state, step, chunk, cotangents, start, total
):
  def embed(params):
    return _embed_chunk(
        rules, params, task_state, step, chunk, start, total
    )[0]

  _, pull_back = jax.vjp(embed, params)
  return jax.tree.map(jnp.add, grads, pull_back(cotangents)[0])


def _finish_chunks(rules, state, loss, grads, embeddings, batch, task_state):
  whole = _concatenate(embeddings)
  loss, grads = jax.lax.pmean((loss, grads), task_lib.AXIS)
  return _finish(rules, state, batch, loss, grads, whole, task_state)


def _concatenate(chunks):
  return jax.tree.map(lambda *x: jnp.concatenate(x), *chunks)


def make_loss(
    task: task_lib.Task, devices: Sequence[jax.Device] | None = None
) -> Callable[..., Any]:
  """The function ``(chunks, task_state, batch, step) -> loss, cotangents``.

  Args:
    task: the task.
    devices: where to run; None: on all local devices.

  Returns:
    The function. ``chunks`` is a list of embeddings, ``batch`` has 'label' and
    'index'; the loss is each device's own mean, whose average is the global
    one.
  """
  return _map_loss(task, _mapper(devices))


def make_features(
    task: task_lib.Task, devices: Sequence[jax.Device] | None = None
) -> Callable[..., jax.Array]:
  """The function ``(params, task_state, batch) -> features``.

  Arrays of the batch and the features have a leading axis of devices.
  """
  in_axes = (_REPLICATED, _REPLICATED, _SPLIT)
  return _mapper(devices)(task.features, in_axes=in_axes)


def make_augmented_features(
    task: task_lib.Task,
    seed: int,
    devices: Sequence[jax.Device] | None = None,
) -> Callable[..., jax.Array]:
  """The function ``(params, task_state, batch, epoch) -> features``.

  Rows are augmented by keys of the seed, the epoch and ``batch['index']``.
  """

  def features(params, task_state, batch, epoch):
    key = jax.random.fold_in(jax.random.key(seed), 2)
    key = jax.random.fold_in(key, epoch)
    keys = task_lib.row_keys(key, batch['index'], 1)[:, 0]
    return task.features(params, task_state, batch, keys)

  in_axes = (_REPLICATED, _REPLICATED, _SPLIT, None)
  return _mapper(devices)(features, in_axes=in_axes)


def split_rows(batch: dict[str, Any], devices: int) -> dict[str, Any]:
  """Gives each array a leading axis of devices."""
  return {
      name: x.reshape(devices, x.shape[0] // devices, *x.shape[1:])
      for name, x in batch.items()
  }
