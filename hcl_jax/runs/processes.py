# SPDX-License-Identifier: Apache-2.0
"""Lets several processes that train one model join, agree and leave.

Everything here is collective: all processes call it, in the same order. With
one process nothing is sent. ``multihost_utils`` does the sending; what is here
keeps all 64 bits, which JAX would round, and raises errors in every process.
"""

from collections.abc import Iterator
import contextlib
import os
import socket
import threading
import time
import zlib

import jax
from jax.experimental import multihost_utils
import numpy as np

_PROBE_SECONDS = 0.5


class PeerError(RuntimeError):
  """Raised when another process failed, which says why."""


def start(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    start_timeout: int = 300,
    heartbeat_timeout: int = 100,
) -> None:
  """Joins the other processes, before anything is computed.

  Args:
    coordinator: ``HOST:PORT`` of the process with number 0, which listens
      there. None for all three: detected from the cluster (Cloud TPU, SLURM,
      Open MPI, Kubernetes).
    num_processes: number of processes.
    process_id: number of this process, from 0.
    start_timeout: seconds to wait for the others. Then this process prints a
      line and ends with status 1, since JAX itself would abort.
    heartbeat_timeout: seconds after which a silent process counts as dead, and
      the others end too.

  Raises:
    ValueError: the arguments cannot work.
    ConnectionError: the coordinator cannot be reached, or its port is taken.
  """
  for name, value in (
      ('start_timeout', start_timeout), ('heartbeat_timeout', heartbeat_timeout)
  ):  # fmt: skip
    if value < 1:
      raise ValueError(f'{name} must be at least 1 second, got {value}.')
  given = coordinator, num_processes, process_id
  detected = given == (None, None, None)
  if not detected:
    _check_address(*given, start_timeout)
  with _deadline(start_timeout, coordinator, num_processes):
    try:
      jax.distributed.initialize(
          *given,
          cluster_detection_method=None if detected else 'deactivate',
          # JAX aborts at its own timeout, with a stack trace of C++.
          initialization_timeout=start_timeout + 60,
          heartbeat_timeout_seconds=heartbeat_timeout,
          shutdown_timeout_seconds=heartbeat_timeout,
      )
    except ValueError as error:
      if not detected:
        raise
      raise ValueError(
          'this is no cluster that JAX knows (Cloud TPU, SLURM, Open MPI, '
          'Kubernetes); give coordinator, num_processes and process_id.'
      ) from error
    numbers = range(jax.process_count())
    counts = [len(jax.local_devices(process_index=i)) for i in numbers]
  if len(set(counts)) > 1:
    raise ValueError(
        f'all processes need equally many devices, but they have {counts}.'
    )


def stop() -> None:
  """Waits for the other processes to stop, and disconnects."""
  jax.distributed.shutdown()


def is_first() -> bool:
  """Returns whether this is the process that writes."""
  return jax.process_index() == 0


def anywhere(flag: bool) -> bool:
  """Returns whether the flag is set in any process."""
  return bool(multihost_utils.process_allgather(np.array(flag)).any())


def of_first(values: np.ndarray) -> np.ndarray:
  """Returns the array of the first process; all have its shape and dtype."""
  # As bytes, because JAX would round 64 bits to 32.
  sent = np.frombuffer(values.tobytes(), np.uint8)
  got = multihost_utils.broadcast_one_to_all(sent)
  return np.frombuffer(got.tobytes(), values.dtype).reshape(values.shape)


def list_of_first(numbers: list[int]) -> list[int]:
  """Returns the list of the first process."""
  length = int(of_first(np.array(len(numbers))))
  padded = np.zeros(length, np.int64)
  if is_first():
    padded[:] = numbers
  return of_first(padded).tolist() if length else []


@contextlib.contextmanager
def together(what: str) -> Iterator[None]:
  """Fails in all processes if its block, not collective, fails in one.

  That process raises its own error, and the others a PeerError, which says by
  ``what`` what the block does.
  """
  try:
    yield
  except Exception:
    anywhere(True)
    raise
  if anywhere(False):
    raise PeerError(f'another process could not {what}; it says why.')


def check_same(text: str, what: str) -> None:
  """Raises a ValueError in all processes unless they have the same text.

  ``what`` says what the text is, in the plural.
  """
  mine = np.array(zlib.crc32(text.encode()), np.uint32)
  sums = multihost_utils.process_allgather(mine)
  if len(set(sums.tolist())) > 1:
    others = [i for i, x in enumerate(sums) if x != sums[0]]
    raise ValueError(
        f'all processes need the same {what}, but those of {others} are not '
        'those of process 0.'
    )


def _check_address(
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    seconds: float,
) -> None:
  """Checks the arguments, and that the coordinator can be reached."""
  if coordinator is None or num_processes is None or process_id is None:
    given = {
        'coordinator': coordinator,
        'num_processes': num_processes,
        'process_id': process_id,
    }
    missing = [name for name, value in given.items() if value is None]
    raise ValueError(
        f'{", ".join(given)} are given together; {" and ".join(missing)} '
        f'{"is" if len(missing) == 1 else "are"} missing.'
    )
  if num_processes < 1:
    raise ValueError(f'num_processes must be at least 1, got {num_processes}.')
  if not 0 <= process_id < num_processes:
    raise ValueError(
        f'process_id must be from 0 to {num_processes - 1}, as num_processes '
        f'is {num_processes}, got {process_id}.'
    )
  host, _, port = coordinator.rpartition(':')
  if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
    raise ValueError(f'coordinator must be HOST:PORT, got {coordinator!r}.')
  if process_id == 0:
    _check_port(int(port))
  else:
    _await_coordinator(host.strip('[]'), int(port), seconds)


def _check_port(port: int) -> None:
  """Raises ConnectionError if a port is taken, which gRPC would share."""
  with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      probe.bind(('', port))
    except OSError as error:
      raise ConnectionError(
          f'coordinator: port {port} cannot be opened: {error.strerror}.'
      ) from error


def _await_coordinator(host: str, port: int, seconds: float) -> None:
  end = time.monotonic() + seconds
  while True:
    try:
      socket.create_connection((host, port), timeout=5).close()
      return
    except OSError as error:
      if time.monotonic() > end:
        raise ConnectionError(
            f'coordinator: nobody answers at {host}:{port} within {seconds} s '
            f'({error.strerror or error}).'
        ) from error
    time.sleep(_PROBE_SECONDS)


@contextlib.contextmanager
def _deadline(
    seconds: float, coordinator: str | None, num_processes: int | None
) -> Iterator[None]:
  """Ends the process if the block, which cannot be interrupted, takes long."""

  def give_up():
    who = 'all' if num_processes is None else f'all {num_processes}'
    where = f' at {coordinator}' if coordinator else ''
    message = f'not {who} processes met{where} within {seconds} s.'
    os.write(2, f'hcl_jax: {message}\n'.encode())
    os._exit(1)

  timer = threading.Timer(seconds, give_up)
  timer.daemon = True
  timer.start()
  try:
    yield
  finally:
    timer.cancel()
