# SPDX-License-Identifier: Apache-2.0
"""Turns SIGTERM and Ctrl-C into a flag, so that a run saves and leaves."""

import itertools
import os
import signal
import threading

import jax
from jax.experimental import multihost_utils

_MESSAGES = {
    signal.SIGTERM: 'SIGTERM: leaving after this step.',
    signal.SIGINT: 'Ctrl-C: leaving after this step; once more stops at once.',
}


# JAX agrees on a number that must not fall, as steps do from run to run.
_polls = itertools.count(1)


class Interruption:
  """Catches SIGTERM and the first SIGINT while it is entered.

  A second SIGINT kills the process; more SIGTERMs change nothing. A signal that
  is ignored, as in a job under nohup, stays so. On exit the handlers from
  before are back. Signals reach the main thread only: in another thread nothing
  is caught.

  With several processes all of them must stop at the same step. Then JAX's
  preemption service, which ``jax.distributed.initialize`` starts, watches for
  SIGTERM and agrees on the step; its handler is left in place, and Ctrl-C
  keeps its meaning. This needs :meth:`poll` equally often in every process.

  Example:
    with Interruption() as interruption:
      for step in range(first_step, total_steps):
        state = update(state, batch)
        if interruption.poll():
          break
  """

  def __init__(self):
    self.requested = False
    self._previous = {}

  def __enter__(self):
    self._several = jax.process_count() > 1
    main = threading.current_thread() is threading.main_thread()
    if main and not self._several:
      for number in _MESSAGES:
        if signal.getsignal(number) != signal.SIG_IGN:
          self._previous[number] = signal.signal(number, self._handle)
    return self

  def __exit__(self, *unused):
    for number, handler in self._previous.items():
      # None stands for a handler that was not set from Python.
      signal.signal(number, signal.SIG_DFL if handler is None else handler)
    self._previous.clear()

  def poll(self) -> bool:
    """Returns ``requested``; with several processes, once all of them agree."""
    if self._several and not self.requested:
      self.requested = multihost_utils.reached_preemption_sync_point(
          next(_polls)
      )
    return self.requested

  def _handle(self, number, frame):
    if number == signal.SIGINT:
      signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not self.requested:
      # print() may be in the middle of a line of the progress bar.
      os.write(2, f'\n{_MESSAGES[number]}\n'.encode())
    self.requested = True
