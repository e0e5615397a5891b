# SPDX-License-Identifier: Apache-2.0
"""Runs commands on several hosts, with one process or more on each."""

from collections.abc import Callable
import faulthandler
import os
import sys
import traceback
from typing import Any
from typing import NoReturn

from absl import flags

from hcl_jax import command
from hcl_jax.runs import processes

_COORDINATOR = flags.DEFINE_string(
    'coordinator', None,
    'HOST:PORT of process 0, the same for all processes of a run on several '
    'hosts; with --num_processes and --process_id.',
)
_NUM_PROCESSES = flags.DEFINE_integer(
    'num_processes', None, 'Number of processes of the run.'
)
_PROCESS_ID = flags.DEFINE_integer(
    'process_id', None, 'Number of this process, from 0.'
)
_DISTRIBUTED = flags.DEFINE_bool(
    'distributed', False,
    'Take coordinator, number of processes and process from the cluster: Cloud '
    'TPU, SLURM, Open MPI or Kubernetes.',
)
_START_TIMEOUT = flags.DEFINE_integer(
    'start_timeout', 300, 'Seconds to wait for the other processes to start.'
)
_HEARTBEAT_TIMEOUT = flags.DEFINE_integer(
    'heartbeat_timeout', 100,
    'Seconds of silence after which a process counts as dead and all end.',
)


def run(
    name: str, main: Callable[[list[str]], int | None], **options: Any
) -> None:
  """Runs a command as ``command.run`` does, with the processes of the flags.

  Args:
    name: what an error message begins with.
    main: the command. A UsageError must be raised in all processes. Any other
      error ends this process at once, which the others notice, so that they do
      not wait.
    **options: further ones of ``command.run``.
  """

  def joined(arguments):
    try:
      several = _join()
    except ConnectionError as error:
      print(f'{name}: {error}', file=sys.stderr)
      return 1
    if not several:
      return main(arguments)
    # JAX aborts where another process died, and says so; absl would have the
    # stacks of all threads follow.
    faulthandler.disable()
    try:
      status = main(arguments)
    except command.UsageError as error:
      status = command.refuse(name, error)
    except command.Failure as error:
      command.fail(name, error)
      _leave_at_once(name)
    except BaseException:
      traceback.print_exc()
      _leave_at_once(name)
    processes.stop()
    return status

  command.run(name, joined, **options)


def _join() -> bool:
  """Joins the processes that the flags name; returns False if they do not."""
  given = _COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value
  explicit = any(x is not None for x in given)
  if _DISTRIBUTED.value and explicit:
    raise command.UsageError(
        '--distributed detects --coordinator, --num_processes and '
        '--process_id; give it or them.'
    )
  if not (_DISTRIBUTED.value or explicit):
    return False
  try:
    processes.start(
        *given,
        start_timeout=_START_TIMEOUT.value,
        heartbeat_timeout=_HEARTBEAT_TIMEOUT.value,
    )
  except ValueError as error:
    raise command.UsageError(error) from error
  return True


def _leave_at_once(name: str) -> NoReturn:
  """Ends without waiting for the others, which may wait for this process."""
  print(
      f'{name}: this process or another one failed; the same command in every '
      'process resumes from the last checkpoint.',
      file=sys.stderr,
      flush=True,
  )
  sys.stdout.flush()
  os._exit(1)
