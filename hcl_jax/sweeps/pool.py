# SPDX-License-Identifier: Apache-2.0
"""Runs of a sweep side by side, each in a process with cores of its own.

Otherwise the cores work on one run after the other. The processes share
nothing: a job sends lines to show and, at its end, what came of it. A job whose
parent is gone saves its run and leaves.
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
import pathlib
import signal
import sys
import threading
import traceback
from typing import Any
from typing import NamedTuple

import jax
import joblib

from hcl_jax import domains
from hcl_jax.runs import checkpoint
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import grid
from hcl_jax.training import finite
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


class JobFailed(RuntimeError):
  """A process ended without a word, as one does that is killed, or a bug."""


def check(num_jobs: int) -> None:
  """Raises ValueError where so many runs cannot have cores of their own."""
  cores = joblib.cpu_count()
  if not 1 <= num_jobs <= cores:
    raise ValueError(
        f'--jobs must be between 1 and {cores}, the cores that there are; got '
        f'{num_jobs}.'
    )
  if num_jobs > 1 and jax.default_backend() != 'cpu':
    raise ValueError(
        f'--jobs={num_jobs} needs a CPU, where runs share out the cores; the '
        f'backend is {jax.default_backend()!r}, of which a run takes all.'
    )


def train_member(member: grid.Member, folder: pathlib.Path) -> dict[str, Any]:
  """Trains a member as a run of its own.

  Args:
    member: of a sweep.
    folder: of the run; resumed if it holds this run.

  Returns:
    What to write down: ``scores``, or the ``failure`` of a run whose loss or
    gradient was not finite.
  """
  try:
    experiment = domains.make_experiment(member.config)
    return {'scores': loop.train(experiment, folder, label=member.words())}
  except finite.NonFiniteError as error:
    return {'failure': str(error)}


def train_members(
    members: Sequence[tuple[grid.Member, pathlib.Path]],
    num_jobs: int,
    poll: Callable[[], None],
    show: Callable[[str], None],
) -> Iterator[tuple[grid.Member, dict[str, Any]]]:
  """Trains members, so many at a time.

  Where ``poll`` raises or a job fails, the other jobs save their runs and
  leave, and then that error is raised.

  Args:
    members: each with the folder of its run.
    num_jobs: how many are trained at a time; checked before.
    poll: called now and then; raises to leave.
    show: gets the lines of all jobs.

  Yields:
    Members in the order in which they end, with what came of each as
    :func:`train_member` says.
  """
  waiting = collections.deque(members)
  shares = _shares_of_cores(num_jobs)
  jobs: dict[connection.Connection, _Job] = {}
  problem = None
  try:
    while jobs or (waiting and problem is None):
      while waiting and shares and problem is None:
        job = _start(*waiting.popleft(), shares.pop())
        jobs[job.receiver] = job
      for receiver in connection.wait(list(jobs), _POLL_SECONDS):
        kind, value = _receive(jobs[receiver])
        if kind == 'line':
          show(value)
          continue
        job = jobs.pop(receiver)
        shares.append(job.cores)
        if kind == 'outcome':
          yield job.member, value
        else:
          problem = problem or value
          _ask_to_leave(jobs)
      if problem is None:
        try:
          poll()
        except loop.Interrupted as stop:
          problem = stop
          _ask_to_leave(jobs)
  finally:
    _ask_to_leave(jobs)
    for job in jobs.values():
      job.process.join()
  if isinstance(problem, loop.Interrupted):
    poll()  # Says how much of the whole is finished.
  if problem is not None:
    raise problem


class _Job(NamedTuple):
  """A process that trains a member, and the end where its words arrive."""

  member: grid.Member
  process: multiprocessing.Process
  receiver: connection.Connection
  cores: frozenset[int]


def _start(member, folder, cores) -> _Job:
  context = multiprocessing.get_context('spawn')  # JAX has threads.
  receiver, sender = context.Pipe(duplex=False)
  process = context.Process(target=_work, args=(sender, member, folder))
  with _pinned(cores):
    process.start()
  sender.close()  # Or the end of the job would not end the pipe.
  return _Job(member, process, receiver, cores)


def _receive(job: _Job) -> tuple[str, Any]:
  """``'line'``, ``'outcome'`` or ``'error'``, and what it is."""
  words = job.member.words()
  try:
    kind, value = job.receiver.recv()
  except EOFError:
    job.process.join()
    return 'error', JobFailed(
        f'the process of {words} ended with status {job.process.exitcode}. '
        'The same command continues.'
    )
  if kind == 'line':
    return kind, value if value.startswith(words) else f'{words}: {value}'
  job.process.join()
  return kind, value


def _ask_to_leave(jobs) -> None:
  for job in jobs.values():
    job.process.terminate()


@contextlib.contextmanager
def _pinned(cores: frozenset[int]) -> Iterator[None]:
  """This thread on some cores only, and a process that it starts.

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


def _work(sender, member, folder) -> None:
  """What a job does."""
  # A terminal sends Ctrl-C to all; the parent tells its jobs to leave.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  threading.Thread(target=_leave_with_parent, daemon=True).start()
  sys.stderr = _Lines(sender)
  try:
    message = 'outcome', train_member(member, folder)
  except Exception as error:
    message = 'error', _plain(error)
  _send(sender, message)


def _plain(error: Exception) -> Exception:
  """The error with nothing but its message, so that it can be sent."""
  for kind in _ERRORS:
    if isinstance(error, kind):
      return kind(str(error))
  return JobFailed('\n'.join(traceback.format_exception(error)))


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
  """The cores in so many parts; empty ones where cores cannot be chosen."""
  if not hasattr(os, 'sched_setaffinity'):
    return [frozenset()] * number
  cores = sorted(os.sched_getaffinity(0))
  return [frozenset(cores[i::number]) for i in range(number)]
