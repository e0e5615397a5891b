# SPDX-License-Identifier: Apache-2.0
"""Trains runs side by side, each in a process with cores of its own.

Otherwise the cores work on one run after the other. The processes share
nothing: a worker sends lines to show and, at its end, its result. A worker
whose parent is gone saves its run and leaves.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import io
import multiprocessing
from multiprocessing import connection
import os
import signal
import sys
import threading
import traceback
from typing import Any
from typing import NamedTuple

import jax
import joblib

from hcl_jax import domains
from hcl_jax.runs import allocator
from hcl_jax.runs import checkpoint
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import grid
from hcl_jax.sweeps import slots
from hcl_jax.training import loop

_POLL_SECONDS = 0.5
# What a run may end with; all else is a bug.
_ERRORS = (
    loop.Interrupted,
    workdir_lib.WorkdirError,
    checkpoint.StateMismatch,
    checkpoint.DamagedCheckpoint,
    OSError,
)


class WorkerFailed(RuntimeError):
  """Raised where a process died without a result, by a signal or a bug."""


def check(num_processes: int) -> None:
  """Raises ValueError if so many runs cannot have cores of their own."""
  cores = joblib.cpu_count()
  if not 1 <= num_processes <= cores:
    raise ValueError(
        f'--jobs must be between 1 and {cores}, the cores that there are; got '
        f'{num_processes}.'
    )
  if num_processes > 1 and jax.default_backend() != 'cpu':
    raise ValueError(
        f'--jobs={num_processes} needs a CPU, where runs share the cores; the '
        f'backend is {jax.default_backend()!r}, of which a run takes all.'
    )


def train(
    jobs: Sequence[slots.Job],
    num_processes: int,
    poll: Callable[[], None],
    show: Callable[[str], None],
) -> Iterator[tuple[grid.Run, slots.Result]]:
  """Trains runs, so many at a time.

  Where ``poll`` raises or a process fails, the other processes save their runs
  and leave, and then that error is raised.

  Args:
    jobs: the runs.
    num_processes: how many are trained at a time; checked before.
    poll: called often; raises to leave.
    show: gets the lines of all processes.

  Yields:
    Runs in the order in which they end, each with its result.
  """
  waiting = collections.deque(jobs)
  shares = _shares_of_cores(num_processes)
  workers: dict[connection.Connection, _Worker] = {}
  problem = None
  try:
    while workers or (waiting and problem is None):
      while waiting and shares and problem is None:
        worker = _start(waiting.popleft(), shares.pop())
        workers[worker.receiver] = worker
      for receiver in connection.wait(list(workers), _POLL_SECONDS):
        kind, value = _receive(workers[receiver])
        if kind == 'line':
          show(value)
          continue
        worker = workers.pop(receiver)
        shares.append(worker.cores)
        if kind == 'result':
          yield worker.run, value
        else:
          problem = problem or value
          _ask_to_leave(workers)
      if problem is None:
        try:
          poll()
        except loop.Interrupted as stop:
          problem = stop
          _ask_to_leave(workers)
  finally:
    _ask_to_leave(workers)
    for worker in workers.values():
      worker.process.join()
  if problem is not None:
    raise problem


class _Worker(NamedTuple):
  """Is a process that trains a run, and where its messages arrive."""

  run: grid.Run
  process: multiprocessing.Process
  receiver: connection.Connection
  cores: frozenset[int]


def _start(job, cores) -> _Worker:
  context = multiprocessing.get_context('spawn')  # JAX has threads.
  receiver, sender = context.Pipe(duplex=False)
  process = context.Process(target=_work, args=(sender, job))
  with _pinned(cores):
    process.start()
  sender.close()  # Or the end of the process would not end the pipe.
  return _Worker(job.run, process, receiver, cores)


def _receive(worker: _Worker) -> tuple[str, Any]:
  """Receives ``'line'``, ``'result'`` or ``'error'``, and what it is."""
  label = worker.run.label
  try:
    kind, value = worker.receiver.recv()
  except EOFError:
    worker.process.join()
    return 'error', WorkerFailed(
        f'the process of {label} ended with status {worker.process.exitcode}. '
        'The same command continues.'
    )
  if kind == 'line':
    return kind, value if value.startswith(label) else f'{label}: {value}'
  worker.process.join()
  return kind, value


def _ask_to_leave(workers) -> None:
  for worker in workers.values():
    worker.process.terminate()


@contextlib.contextmanager
def _pinned(cores: frozenset[int]) -> Iterator[None]:
  """Pins this thread, and a process that it starts, to some cores.

  A process that pins itself has imported numpy by then, whose threads for all
  cores would wait for each other on one.
  """
  if not cores:
    yield
    return
  before = os.sched_getaffinity(0)
  os.sched_setaffinity(0, cores)
  try:
    yield
  finally:
    os.sched_setaffinity(0, before)


def _work(sender, job) -> None:
  """Does the work of a process."""
  # A terminal sends Ctrl-C to all; the parent tells its workers to leave.
  allocator.keep_freed_memory()
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  threading.Thread(target=_leave_with_parent, daemon=True).start()
  sys.stderr = _Lines(sender)
  try:
    experiment = domains.make_experiment(job.run.config)
    message = 'result', slots.train_one(experiment, job)
  except Exception as error:
    message = 'error', _plain(error)
  _send(sender, message)


def _plain(error: Exception) -> Exception:
  """Strips an error to its message, so that it can be sent."""
  for kind in _ERRORS:
    if isinstance(error, kind):
      return kind(str(error))
  return WorkerFailed('\n'.join(traceback.format_exception(error)))


def _leave_with_parent() -> None:
  multiprocessing.parent_process().join()
  os.kill(os.getpid(), signal.SIGTERM)


def _send(sender, message) -> None:
  try:
    sender.send(message)
  except BrokenPipeError:
    pass  # The parent is gone, and its sweep continues without this word.


class _Lines(io.TextIOBase):
  """Sends whole lines of what is written."""

  def __init__(self, sender):
    super().__init__()
    self._sender = sender
    self._rest = ''

  def write(self, text: str) -> int:
    *lines, self._rest = (self._rest + text).split('\n')
    for line in lines:
      if line:
        _send(self._sender, ('line', line))
    return len(text)


def _shares_of_cores(number: int) -> list[frozenset[int]]:
  """Divides the cores; into empty parts where cores cannot be chosen."""
  if not hasattr(os, 'sched_setaffinity'):
    return [frozenset()] * number
  cores = sorted(os.sched_getaffinity(0))
  return [frozenset(cores[i::number]) for i in range(number)]
