# SPDX-License-Identifier: Apache-2.0
"""Traces some steps of a run, for TensorBoard's profiler or Perfetto."""

from collections.abc import Callable
import contextlib
import pathlib
from typing import Any

import jax

FOLDER = 'profile'  # in the workdir


class Profile:
  """Writes what host and devices do during some steps.

  A process has one trace at a time: of runs side by side, the first that asks.

  Args:
    workdir: directory of the run, which gets the folder ``profile``.
    steps: those to trace, ``(first, end)``, counted from 0; () for none.
    say: shows a line.
  """

  def __init__(
      self,
      workdir: pathlib.Path,
      steps: tuple[int, ...],
      say: Callable[[str], None],
  ):
    self._folder = workdir / FOLDER
    self._first, self._end = steps or (-1, -1)
    self._say = say
    self._tracing = False

  def before(self, step: int) -> None:
    """Begins with the first of the steps, or one that a run resumes at."""
    if self._tracing or not self._first <= step < self._end:
      return
    self._first = self._end  # not again, if it is refused
    try:
      jax.profiler.start_trace(self._folder)
    except RuntimeError as error:
      self._say(f'profile: not traced ({error})')
      return
    self._tracing = True

  def after(self, step: int, results: Any) -> None:
    """Ends with the last of the steps, once its results are there."""
    if self._tracing and step + 1 >= self._end:
      jax.block_until_ready(results)
      self.close()

  def close(self) -> None:
    """Writes what was traced, also where a run stops early."""
    if not self._tracing:
      return
    self._tracing = False
    with contextlib.suppress(RuntimeError):
      jax.profiler.stop_trace()
    self._say(
        f'profile: written to {self._folder}; tensorboard --logdir='
        f'{self._folder} shows it, with tensorboard-plugin-profile.'
    )
