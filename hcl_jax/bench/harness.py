# SPDX-License-Identifier: Apache-2.0
"""Contestants, and rounds in which each of them is timed.

Every round runs every contestant, in the opposite order every other round;
times are medians over rounds and ratios medians of per-round ratios, so that a
slow minute of the machine is shared by all.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
import math
import os
import statistics
import time
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import joblib
import numpy as np

from hcl_jax import command as command_lib
from hcl_jax.bench import output

LEAST_SECONDS = 0.05  # a contestant faster than this is repeated in a round


class Contestant(NamedTuple):
  """One row of the tables.

  Attributes:
    name: what to print.
    function: what to time; its first output is the loss, if it is a scalar.
    inputs: makes the arguments of ``function`` of two views ``[batch, dim]``.
    need: about how many bytes it takes, of batch and dim; None if so few that
      it is always run.
    is_jax: whether ``function`` can be compiled, and its memory be known; if
      not, it runs on the host.
    is_reference: whether the times of all are compared with its.
  """

  name: str
  function: Callable[..., Any]
  inputs: Callable[..., tuple[Any, ...]]
  need: Callable[[int, int], float] | None = None
  is_jax: bool = True
  is_reference: bool = False


def matrices(bytes_per_entry: int) -> Callable[[int, int], float]:
  """The need of something that holds matrices of all rows by all rows."""
  return lambda batch, dim: bytes_per_entry * (2 * batch) ** 2


@functools.lru_cache(maxsize=1)
def views(batch: int, dim: int) -> tuple[jax.Array, jax.Array]:
  """Unit vectors, the second view near the first."""
  rng = np.random.default_rng(0)
  z1, noise = rng.standard_normal((2, batch, dim), dtype=np.float32)
  return tuple(
      jnp.asarray(z / np.linalg.norm(z, axis=1, keepdims=True))
      for z in (z1, z1 + noise)
  )


@dataclasses.dataclass
class Run:
  """A contestant at one batch size, and what is known of it so far."""

  contestant: Contestant
  batch: int
  status: str = 'ok'
  function: Callable[..., Any] | None = None
  call: Callable[[], Any] | None = None
  repeats: int = 1
  seconds: list[float] = dataclasses.field(default_factory=list)
  compile_seconds: float | None = None
  temp_bytes: int | None = None
  loss: float | None = None

  def stop(self, status: str) -> None:
    self.status, self.seconds = status, []
    self.function = self.call = None


def guarded(step: Callable[..., None], run: Run, *args: Any) -> None:
  """Calls ``step(run, ...)``; running out of memory ends only this run."""
  if run.status != 'ok':
    return
  try:
    step(run, *args)
  except (RuntimeError, MemoryError) as error:
    signs = 'RESOURCE_EXHAUSTED', "can't allocate memory"
    known = any(sign in str(error) for sign in signs)
    if not known and not isinstance(error, MemoryError):
      raise
    run.stop('out of memory')


def compile_run(run: Run, dim: int, clock: Callable[[], float]) -> None:
  """Compiles without allocating arrays, and reads the memory planned."""
  run.function = run.contestant.function
  if not run.contestant.is_jax:
    return
  view = jax.ShapeDtypeStruct((run.batch, dim), jnp.float32)
  shapes = jax.eval_shape(run.contestant.inputs, view, view)
  start = clock()
  run.function = jax.jit(run.contestant.function).lower(*shapes).compile()
  run.compile_seconds = clock() - start
  memory = run.function.memory_analysis()
  run.temp_bytes = getattr(memory, 'temp_size_in_bytes', None)


def warm_up(run: Run, dim: int, limit: float) -> None:
  """Makes the arrays and calls once, unless it would need too much."""
  need = run.contestant.need
  if need is not None and need(run.batch, dim) > limit:
    run.stop(f'would need {need(run.batch, dim) / 2**30:.1f} GiB')
    return
  function, args = run.function, run.contestant.inputs(*views(run.batch, dim))
  run.call = lambda: jax.block_until_ready(function(*args))
  start = time.perf_counter()
  first = run.call()[0]
  seconds = time.perf_counter() - start
  run.loss = float(first) if first.ndim == 0 else None
  if seconds < LEAST_SECONDS:
    run.repeats = math.ceil(LEAST_SECONDS / time_call(run, time.perf_counter))


def time_call(run: Run, clock: Callable[[], float]) -> float:
  start = clock()
  for _ in range(run.repeats):
    run.call()
  return (clock() - start) / run.repeats


def time_run(run: Run, clock: Callable[[], float]) -> None:
  run.seconds.append(time_call(run, clock))


def measure(
    contestants: list[Contestant],
    batch: int,
    *,
    dim: int,
    rounds: int,
    limit: float,
    clock: Callable[[], float],
) -> list[dict[str, Any]]:
  """Runs all contestants at one batch size; 0 rounds only compile them."""
  runs = [Run(contestant, batch) for contestant in contestants]
  for run in runs:
    guarded(compile_run, run, dim, clock)
    if rounds:
      guarded(warm_up, run, dim, limit)
    elif run.status == 'ok':
      run.stop('not run')
    output.say(f'B={batch}: {run.contestant.name}: {run.status}', detail=True)
  for run in in_turns(runs, rounds, f'B={batch}: '):
    guarded(time_run, run, clock)
  references = [run for run in runs if run.contestant.is_reference]
  return [row(run, references) for run in runs]


def row(run: Run, references: list[Run]) -> dict[str, Any]:
  """What the tables and the JSON say of a run."""
  return {
      'batch': run.batch,
      'name': run.contestant.name,
      'status': run.status,
      'on_host': not run.contestant.is_jax,
      'ms': 1e3 * statistics.median(run.seconds) if run.seconds else None,
      'round_ms': [1e3 * x for x in run.seconds],
      'ratios': {
          other.contestant.name: paired_ratio(run.seconds, other.seconds)
          for other in references
      },
      'compile_seconds': run.compile_seconds,
      'temp_bytes': run.temp_bytes,
      'loss': run.loss,
  }


def paired_ratio(times: list[float], others: list[float]) -> float | None:
  if not times or not others:
    return None
  return statistics.median(a / b for a, b in zip(times, others, strict=True))


@dataclasses.dataclass
class Timed:
  """Something to call again and again, and how long it took so far.

  Attributes:
    name: what to print.
    call: what to time; returns when it is done.
    first_seconds: seconds of the first call, which compiles.
    seconds: of a call, one for each round.
  """

  name: str
  call: Callable[[], Any]
  first_seconds: float
  seconds: list[float] = dataclasses.field(default_factory=list)


def timed(name: str, call: Callable[[], Any]) -> Timed:
  """Calls once to warm up."""
  _, clock = choose_clock()
  start = clock()
  call()
  return Timed(name, call, clock() - start)


def in_turns(
    runs: Sequence[Any], rounds: int, prefix: str = ''
) -> Iterator[Any]:
  """Yields all in every round, and back again every other round."""
  for i in range(rounds):
    yield from runs[::-1] if i % 2 else runs
    output.say(f'{prefix}round {i + 1} of {rounds} done')


def time_rounds(
    runs: Sequence[Any], rounds: int, clock: Callable[[], float]
) -> None:
  """Times all in turns."""
  for run in in_turns(runs, rounds):
    start, calls = clock(), 0
    while not calls or clock() < start + LEAST_SECONDS:
      run.call()
      calls += 1
    run.seconds.append((clock() - start) / calls)


def pin_to_one_core() -> None:
  """To be called before XLA or torch start their threads."""
  if not hasattr(os, 'sched_setaffinity'):
    raise command_lib.UsageError(
        '--one_core: this system cannot pin a process to a core.'
    )
  os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def choose_clock() -> tuple[str, Callable[[], float]]:
  """CPU time where it means something: neighbours disturb it less."""
  if jax.default_backend() == 'cpu' and joblib.cpu_count() == 1:
    return 'process CPU time', time.process_time
  return 'wall time', time.perf_counter


def environment() -> dict[str, Any]:
  """Where a bench ran, for its results."""
  return {
      'jax': jax.__version__,
      'backend': jax.default_backend(),
      'device_kind': jax.devices()[0].device_kind,
      'devices': jax.local_device_count(),
      'cores': joblib.cpu_count(),
      'clock': choose_clock()[0],
  }


def device_memory() -> dict[str, int]:
  stats = jax.devices()[0].memory_stats() or {}
  names = 'bytes_limit', 'peak_bytes_in_use'
  return {name: stats[name] for name in names if name in stats}
