# SPDX-License-Identifier: Apache-2.0
"""Times candidates in turns.

Every repetition runs every candidate, in reverse order every other time. Times
are medians over repetitions and ratios medians of the ratios of a repetition,
so that all share a slow minute of the machine.
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

LEAST_SECONDS = 0.05  # a faster candidate is called again in a repetition


class Candidate(NamedTuple):
  """One row of the tables.

  Attributes:
    name: what to print.
    function: what to time; its first output is the loss, if it is a scalar.
    inputs: makes the arguments of ``function`` from two views ``[batch, dim]``.
    need: estimates its bytes from batch and dim; None if it always fits.
    is_jax: whether ``function`` can be compiled and its memory be known; if
      not, it runs on the host.
    is_reference: whether the tables divide the times of all by its time.
  """

  name: str
  function: Callable[..., Any]
  inputs: Callable[..., tuple[Any, ...]]
  need: Callable[[int, int], float] | None = None
  is_jax: bool = True
  is_reference: bool = False


def matrices(bytes_per_entry: int) -> Callable[[int, int], float]:
  """Returns the need of a candidate that holds ``[2B, 2B]`` matrices."""
  return lambda batch, dim: bytes_per_entry * (2 * batch) ** 2


@functools.lru_cache(maxsize=1)
def views(batch: int, dim: int) -> tuple[jax.Array, jax.Array]:
  """Returns unit vectors, the second view near the first."""
  rng = np.random.default_rng(0)
  z1, noise = rng.standard_normal((2, batch, dim), dtype=np.float32)
  return tuple(
      jnp.asarray(z / np.linalg.norm(z, axis=1, keepdims=True))
      for z in (z1, z1 + noise)
  )


@dataclasses.dataclass
class Run:
  """A candidate at one batch size, with its measurements so far."""

  candidate: Candidate
  batch: int
  status: str = 'ok'
  function: Callable[..., Any] | None = None
  call: Callable[[], Any] | None = None
  calls: int = 1  # of a repetition
  seconds: list[float] = dataclasses.field(default_factory=list)
  compile_seconds: float | None = None
  temp_bytes: int | None = None
  loss: float | None = None

  def stop(self, status: str) -> None:
    """Ends the run without times."""
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
  """Compiles without allocating arrays, and reads the planned memory."""
  run.function = run.candidate.function
  if not run.candidate.is_jax:
    return
  view = jax.ShapeDtypeStruct((run.batch, dim), jnp.float32)
  shapes = jax.eval_shape(run.candidate.inputs, view, view)
  start = clock()
  run.function = jax.jit(run.candidate.function).lower(*shapes).compile()
  run.compile_seconds = clock() - start
  memory = run.function.memory_analysis()
  run.temp_bytes = getattr(memory, 'temp_size_in_bytes', None)


def warm_up(run: Run, dim: int, limit: float) -> None:
  """Makes the arrays and calls once, unless that needs too much memory."""
  need = run.candidate.need
  if need is not None and need(run.batch, dim) > limit:
    run.stop(f'would need {need(run.batch, dim) / 2**30:.1f} GiB')
    return
  function, args = run.function, run.candidate.inputs(*views(run.batch, dim))
  run.call = lambda: jax.block_until_ready(function(*args))
  start = time.perf_counter()
  first = run.call()[0]
  seconds = time.perf_counter() - start
  run.loss = float(first) if first.ndim == 0 else None
  if seconds < LEAST_SECONDS:
    run.calls = math.ceil(LEAST_SECONDS / time_call(run, time.perf_counter))


def time_call(run: Run, clock: Callable[[], float]) -> float:
  """Returns the seconds of a call."""
  start = clock()
  for _ in range(run.calls):
    run.call()
  return (clock() - start) / run.calls


def time_run(run: Run, clock: Callable[[], float]) -> None:
  """Adds a repetition to the times of a run."""
  run.seconds.append(time_call(run, clock))


def measure(
    candidates: list[Candidate],
    batch: int,
    *,
    dim: int,
    repetitions: int,
    limit: float,
    clock: Callable[[], float],
) -> list[dict[str, Any]]:
  """Times all candidates at one batch size.

  Args:
    candidates: what to time.
    batch: pairs of a batch.
    dim: width of the embeddings.
    repetitions: how often; 0 only compiles.
    limit: bytes that a candidate may need.
    clock: returns seconds.

  Returns:
    One row for each candidate.
  """
  runs = [Run(candidate, batch) for candidate in candidates]
  for run in runs:
    guarded(compile_run, run, dim, clock)
    if repetitions:
      guarded(warm_up, run, dim, limit)
    elif run.status == 'ok':
      run.stop('not run')
    output.say(f'B={batch}: {run.candidate.name}: {run.status}', detail=True)
  for run in in_turns(runs, repetitions, f'B={batch}: '):
    guarded(time_run, run, clock)
  references = [run for run in runs if run.candidate.is_reference]
  return [row(run, references) for run in runs]


def row(run: Run, references: list[Run]) -> dict[str, Any]:
  """Returns the measurements of a run for the tables and the JSON."""
  return {
      'batch': run.batch,
      'name': run.candidate.name,
      'status': run.status,
      'on_host': not run.candidate.is_jax,
      'ms': 1e3 * statistics.median(run.seconds) if run.seconds else None,
      'repetition_ms': [1e3 * x for x in run.seconds],
      'ratios': {
          other.candidate.name: paired_ratio(run.seconds, other.seconds)
          for other in references
      },
      'compile_seconds': run.compile_seconds,
      'temp_bytes': run.temp_bytes,
      'loss': run.loss,
  }


def paired_ratio(times: list[float], others: list[float]) -> float | None:
  """Returns the median of ratios by repetition; None without times."""
  if not times or not others:
    return None
  return statistics.median(a / b for a, b in zip(times, others, strict=True))


@dataclasses.dataclass
class Timed:
  """A function with its times so far.

  Attributes:
    name: what to print.
    call: what to time; returns when it is done.
    first_seconds: seconds of the first call, which compiles.
    seconds: seconds of a call, one for each repetition.
  """

  name: str
  call: Callable[[], Any]
  first_seconds: float
  seconds: list[float] = dataclasses.field(default_factory=list)


def timed(name: str, call: Callable[[], Any]) -> Timed:
  """Calls a function once, to compile it, and returns it with that time."""
  _, clock = choose_clock()
  start = clock()
  call()
  return Timed(name, call, clock() - start)


def in_turns(
    runs: Sequence[Any], repetitions: int, prefix: str = ''
) -> Iterator[Any]:
  """Yields all in every repetition, in reverse order every other time."""
  for i in range(repetitions):
    yield from runs[::-1] if i % 2 else runs
    output.say(f'{prefix}repetition {i + 1} of {repetitions} done')


def time_all(
    runs: Sequence[Any], repetitions: int, clock: Callable[[], float]
) -> None:
  """Times all in turns."""
  for run in in_turns(runs, repetitions):
    start, calls = clock(), 0
    while not calls or clock() < start + LEAST_SECONDS:
      run.call()
      calls += 1
    run.seconds.append((clock() - start) / calls)


def pin_to_one_core() -> None:
  """Pins the process to a core; call it before XLA or torch start threads."""
  if not hasattr(os, 'sched_setaffinity'):
    raise command_lib.UsageError(
        '--one_core: this system cannot pin a process to a core.'
    )
  os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def choose_clock() -> tuple[str, Callable[[], float]]:
  """Returns a clock with its name: wall time, or on one core CPU time.

  Other work on the machine disturbs CPU time less.
  """
  if jax.default_backend() == 'cpu' and joblib.cpu_count() == 1:
    return 'process CPU time', time.process_time
  return 'wall time', time.perf_counter


def environment() -> dict[str, Any]:
  """Returns what a bench ran on."""
  return {
      'jax': jax.__version__,
      'backend': jax.default_backend(),
      'device_kind': jax.devices()[0].device_kind,
      'devices': jax.local_device_count(),
      'cores': joblib.cpu_count(),
      'clock': choose_clock()[0],
  }


def device_memory() -> dict[str, int]:
  """Returns limit and peak of the first device's memory, where known."""
  stats = jax.devices()[0].memory_stats() or {}
  names = 'bytes_limit', 'peak_bytes_in_use'
  return {name: stats[name] for name in names if name in stats}
