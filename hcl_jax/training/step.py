# SPDX-License-Identifier: Apache-2.0
"""Makes the train step, written per device and mapped: the only pmap.

Under pmap the derivative of a device's own mean is already the transpose across
devices, so ``pmean(grad(local_mean))`` is the gradient of the global loss.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hcl_jax import chunking
from hcl_jax import models
from hcl_jax.training import state as state_lib
from hcl_jax.training import tables
from hcl_jax.training import task as task_lib

Metrics = dict[str, jax.Array]
Hyperparameters = dict[str, np.ndarray]
Step = Callable[
    [Hyperparameters, state_lib.TrainState, task_lib.Batch],
    tuple[state_lib.TrainState, Metrics],
]

_REPLICATED, _SPLIT = None, 0
# Entries of a batch that its loss reads, unless a task says otherwise.
READ_BY_LOSS = ('label', 'index')


@dataclasses.dataclass(frozen=True)
class Rules:
  """Holds what a step is made of.

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
    """Returns the key of a step; ``create`` has used number 0 of the seed."""
    root = jax.random.fold_in(jax.random.key(self.seed), 1)
    return jax.random.fold_in(root, step)

  def create_state(self, batch: task_lib.Batch) -> state_lib.TrainState:
    """Creates the state before the first step; rows are for shapes."""
    return state_lib.create(
        self.task,
        self.optimizer,
        batch,
        seed=self.seed,
        with_ema=self.ema_decay > 0,
    )


Build = Callable[[Hyperparameters], Rules]


def make_step(
    build: Build,
    *,
    devices: Sequence[state_lib.Device] | None = None,
    microbatch_size: int | None = None,
    read_by_loss: Sequence[str] = READ_BY_LOSS,
    has_tables: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> Step:
  """Makes the function that trains on one batch.

  Args:
    build: makes task, optimizer and seed of hyperparameters, which are
      arguments of the compiled program: runs that differ in nothing else have
      the same one.
    devices: those that share a batch. Those of other processes may be among
      them, ``state.all_devices()``; then all processes take the step together,
      and the state is replicated on all devices. None: the one device that
      the state is on takes it.
    microbatch_size: rows of a device that are embedded at a time, a divisor of
      them; None for all at once. The gradient is that of the whole batch,
      except that BatchNorm takes its statistics from a chunk. Needs
      ``devices``.
    read_by_loss: entries of a batch that the loss is given where the batch is
      embedded in chunks; 'index' among them.
    has_tables: whether the task is one that :mod:`hcl_jax.training.tables`
      trains by rows.
    compiler_options: XLA's; None: those of image encoders.

  Returns:
    ``(hyperparameters, state, batch) -> (state, metrics)``; the state given is
    used up. The batch has the rows of this process.
  """
  options = dict(compiler_options or models.compiler_options())
  if devices is None:
    return jax.jit(
        functools.partial(single_step, build),
        donate_argnums=1,
        compiler_options=options,
    )
  here = jax.process_index()
  count = sum(device.process_index == here for device in devices)
  split, join = functools.partial(split_rows, devices=count), _joiner(devices)
  if microbatch_size is not None:
    take = _chunked_step(
        build,
        microbatch_size,
        tuple(read_by_loss),
        has_tables=has_tables,
        pmap=_mapper(devices),
        join=join,
        options=options,
    )
    return lambda h, state, batch: take(h, state, split(batch))
  step = _compiled(map_step(build, devices), options)
  return lambda h, state, batch: step(h, state, join(split(batch)))


def map_step(build: Build, devices: Sequence[state_lib.Device]) -> Step:
  """Maps the step on a whole batch over devices; the result can be lowered.

  Arrays of its batch have a leading axis of devices.
  """
  return _mapper(devices)(
      _built(build, _whole_step),
      in_axes=(_REPLICATED, _REPLICATED, _SPLIT),
      out_axes=(_REPLICATED, _REPLICATED),
      donate_argnums=1,
  )


def single_step(
    build: Build,
    hyperparameters: Hyperparameters,
    state: state_lib.TrainState,
    batch: task_lib.Batch,
) -> tuple[state_lib.TrainState, Metrics]:
  """Takes a step on one device; can be compiled, and mapped over runs."""
  step = _built(build, _whole_step)
  return step(hyperparameters, state, batch, axis_name=None)


def _built(build, function):
  """Returns a function of rules as one of the hyperparameters they follow."""

  @functools.wraps(function)
  def call(hyperparameters, *args, **options):
    # Optax raises traced decays to integer powers, which may be forbidden.
    with jax.numpy_dtype_promotion('standard'):
      return function(build(hyperparameters), *args, **options)

  return call


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
  devices = list(devices)
  return functools.partial(
      jax.pmap,
      axis_name=task_lib.AXIS,
      axis_size=len(devices),
      devices=devices,
  )


def _joiner(devices):
  """Returns the function that joins the split rows of all processes."""
  mesh = jax.sharding.Mesh(np.array(devices), (task_lib.AXIS,))
  spec = jax.sharding.PartitionSpec(task_lib.AXIS)
  sharding = jax.sharding.NamedSharding(mesh, spec)
  if sharding.is_fully_addressable:
    return lambda batch: batch
  return lambda batch: jax.tree.map(
      lambda x: jax.make_array_from_process_local_data(sharding, x), batch
  )


def _whole_step(rules, state, batch, axis_name: str | None = task_lib.AXIS):
  whole, state, read = state, *_take(rules, state, batch)
  batch = _renumbered(rules.task, batch, read)
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
  return _finish(
      rules,
      whole,
      state.replace(task_state=task_state),
      read,
      batch,
      loss=loss,
      grads=grads,
      embeddings=embeddings,
  )


def _take(
    rules: Rules, state: state_lib.TrainState, batch: task_lib.Batch
) -> tuple[state_lib.TrainState, tables.Rows]:
  """Returns a state of the rows of tables that a batch reads, and the rows.

  Rows are None if the task has no tables, and the state is as it was.
  """
  if not tables.has_tables(rules.task):
    return state, None
  read = rules.task.rows_read(state.params, batch)
  return tables.take(rules.optimizer, state, read), read


def _renumbered(task, batch, read):
  """Returns a batch that points at the rows that were taken."""
  return batch if read is None else task.renumbered(batch, read)


def _finish(rules, whole, state, read, batch, *, loss, grads, embeddings):
  """Updates by the average over devices, and measures."""
  new = state_lib.next_state(state, grads, rules.optimizer)
  if read is not None:
    new = tables.put(rules.optimizer, whole, new, read)
  new = state_lib.averaged(new, rules.ema_decay)
  new = new.replace(
      task_state=rules.task.update(
          new.params, new.task_state, embeddings, batch
      )
  )
  metrics = {
      'loss': loss,
      'grad_norm': optax.tree.norm(grads),
      **rules.task.metrics(embeddings, batch, state.step),
  }
  return new, metrics


def _global_rows(
    batch, first=0, total=None, axis_name: str | None = task_lib.AXIS
):
  """Numbers, in the global batch, of the rows that this device has."""
  count = jax.tree.leaves(batch)[0].shape[0]
  total = count if total is None else total
  device = 0 if axis_name is None else jax.lax.axis_index(axis_name)
  start = device * total + first
  return start + jnp.arange(count, dtype=jnp.int32)


def _chunked_step(
    build, size, read_by_loss, *, has_tables, pmap, join, options
):
  """Embeds by chunks, takes one loss over all, back-propagates by chunks.

  Chunks are a loop in Python over compiled functions, because XLA runs
  convolutions inside a compiled loop many times slower on a CPU.
  """
  parts = _make_parts(build)
  embed = pmap(
      parts.embed,
      in_axes=(_REPLICATED, _REPLICATED, _CHUNK_AXES, *_REST_AXES),
      out_axes=(_SPLIT, _REPLICATED),
  )
  backpropagate = pmap(
      parts.backpropagate,
      in_axes=(
          _SPLIT, _REPLICATED, _REPLICATED, _CHUNK_AXES, _SPLIT, *_REST_AXES
      ),
      out_axes=_SPLIT,
      donate_argnums=0,
  )  # fmt: skip
  finish = pmap(
      _built(build, _finish_chunks),
      in_axes=(*(_REPLICATED,) * 4, _SPLIT, _SPLIT, _SPLIT),
      out_axes=(_REPLICATED, _REPLICATED),
      donate_argnums=1 if has_tables else 2,
  )
  take = _compiled(
      pmap(
          _built(build, _take),
          in_axes=(_REPLICATED, _REPLICATED, _SPLIT),
          out_axes=(_REPLICATED, _REPLICATED),
      )
  )
  parts = chunking.Parts(
      _compiled(embed, options),
      _compiled(_map_loss(parts.differentiate, pmap, read_by_loss)),
      _compiled(backpropagate, options),
  )
  finish = _compiled(finish)

  def step(hyperparameters, state, batch):
    rows = batch['index'].shape[1]
    chunks = [
        _Chunk(
            join({k: x[:, start : start + size] for k, x in batch.items()}),
            start,
            rows,
        )
        for start in range(0, rows, size)
    ]
    read = join({name: batch[name] for name in read_by_loss})
    taken, tables_read = state, None
    if has_tables:
      taken, tables_read = take(hyperparameters, state, join(batch))
    loss, grads, task_state, embeddings = chunking.run_parts(
        parts,
        taken.params,
        taken.task_state,
        chunks,
        read,
        hyperparameters,
        taken.task_state,
        taken.step,
        tables_read,
    )
    return finish(
        hyperparameters,
        state if has_tables else None,
        taken.replace(task_state=task_state),
        tables_read,
        read,
        embeddings,
        (loss, grads),
    )

  return step


class _Chunk(NamedTuple):
  """Holds some of the rows of each device.

  Attributes:
    batch: the rows.
    start: where they begin.
    total: rows of a device.
  """

  batch: task_lib.Batch
  start: Any
  total: Any


_CHUNK_AXES = _Chunk(_SPLIT, _REPLICATED, _REPLICATED)
# Hyperparameters, state of the loss, step, rows of tables.
_REST_AXES = (_REPLICATED,) * 4


def _make_parts(build):
  """Makes what is done with chunks, to be mapped over devices."""

  def embed(params, task_state, chunk, hyperparameters, _, step, read):
    def of_rules(rules):
      batch = _renumbered(rules.task, chunk.batch, read)
      rows = _global_rows(batch, chunk.start, chunk.total)
      return rules.task.embed(params, task_state, batch, rules.key(step), rows)

    return _built(build, of_rules)(hyperparameters)

  def local_mean(_, embeddings, batch, hyperparameters, task_state, step, __):
    def of_rules(rules):
      return rules.task.loss(embeddings, task_state, batch, step).mean()

    return _built(build, of_rules)(hyperparameters)

  return chunking.make_parts(embed, local_mean)


def _map_loss(function, pmap, read_by_loss=READ_BY_LOSS):
  # Axes of each entry, because pmap (jax 0.10) pairs axes with leaves wrongly
  # where arguments and leaves happen to be equally many and one is empty.
  batch_axes = dict.fromkeys(read_by_loss, _SPLIT)
  return pmap(
      function,
      in_axes=(_REPLICATED, _SPLIT, batch_axes, *_REST_AXES),
      out_axes=(_SPLIT, _SPLIT, _SPLIT),
  )


def _finish_chunks(rules, whole, state, read, batch, embeddings, gradient):
  loss, grads = jax.lax.pmean(gradient, task_lib.AXIS)
  embeddings = chunking.concatenate(embeddings)
  return _finish(
      rules,
      whole,
      state,
      read,
      batch,
      loss=loss,
      grads=grads,
      embeddings=embeddings,
  )


def make_loss(
    task: task_lib.Task, devices: Sequence[state_lib.Device]
) -> Callable[..., Any]:
  """Makes the function that differentiates the loss by embeddings.

  Returns:
    ``(chunks, task_state, batch, step) -> (loss, cotangents)``. ``chunks`` is a
    list of embeddings, ``batch`` has 'label' and 'index', and all of them have
    a leading axis of devices; the loss is each device's own mean, whose average
    is the global one.
  """
  parts = _make_parts(lambda _: Rules(task, optax.identity(), seed=0))
  mapped = _map_loss(parts.differentiate, _mapper(devices))

  def call(chunks, task_state, batch, step):
    loss, _, cotangents = mapped({}, chunks, batch, {}, task_state, step, None)
    return loss, cotangents

  return call


def make_features(
    task: task_lib.Task,
    devices: Sequence[state_lib.Device] | None = None,
    compiler_options: Mapping[str, Any] | None = None,
) -> Callable[..., jax.Array | np.ndarray]:
  """Makes ``(params, task_state, batch) -> features``, ``[rows, dim]``.

  Args:
    task: has the features.
    devices: those that share a batch, whose rows are a multiple of them; None:
      the one device that the parameters are on.
    compiler_options: XLA's, for one device; None: those of image encoders.
  """
  if devices is None:
    options = dict(compiler_options or models.compiler_options())
    return jax.jit(task.features, compiler_options=options)
  in_axes = (_REPLICATED, _REPLICATED, _SPLIT)
  return _joined(_mapper(devices)(task.features, in_axes=in_axes), devices)


def make_augmented_features(
    task: task_lib.Task, seed: int, devices: Sequence[state_lib.Device]
) -> Callable[..., np.ndarray]:
  """Makes ``(params, task_state, batch, epoch) -> features``, ``[rows, dim]``.

  Rows are augmented by keys of the seed, the epoch and ``batch['index']``, and
  are a multiple of the devices that share them.
  """

  def augmented(params, task_state, batch, epoch):
    key = jax.random.fold_in(jax.random.key(seed), 2)
    key = jax.random.fold_in(key, epoch)
    keys = task_lib.row_keys(key, batch['index'], 1)[:, 0]
    return task.features(params, task_state, batch, keys)

  in_axes = (_REPLICATED, _REPLICATED, _SPLIT, _REPLICATED)
  return _joined(_mapper(devices)(augmented, in_axes=in_axes), devices)


def _joined(features, devices):
  """Splits rows over devices, and joins the features of all."""

  def call(params, task_state, batch, *args):
    x = features(params, task_state, split_rows(batch, len(devices)), *args)
    return np.asarray(x).reshape(-1, x.shape[-1])

  return call


def split_rows(batch: task_lib.Batch, devices: int) -> task_lib.Batch:
  """Gives each array a leading axis of devices."""
  return jax.tree.map(
      lambda x: x.reshape(devices, x.shape[0] // devices, *x.shape[1:]), batch
  )
