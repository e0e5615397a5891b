# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of a run: a bar on a terminal, else a few lines."""

import collections
import sys
import time
from typing import Any
from typing import TextIO

import jax

_REDRAW_SECONDS = 0.2
_LINE_SECONDS = 30.0
_LINES = 10
_WINDOW = 50  # Of drawings: ten seconds of a bar.
_BAR = '{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}'


class Progress:
  """Shows loss, rows per second and the time left, on standard error.

  Only the first process shows it. The rate is that of the last seconds and
  leaves out the first step, which compiles.

  Args:
    total_steps: length of the run.
    first_step: steps done before, in a run that resumes.
    batch_size: rows of a step, over all devices.
    label: text before the bar.
    file: where to write.
    unit: what the rows are.
  """

  def __init__(
      self,
      total_steps: int,
      first_step: int = 0,
      batch_size: float = 1,
      label: str = 'train',
      file: TextIO | None = None,
      unit: str = 'rows',
  ):
    self._total = total_steps
    self._batch_size = batch_size
    self._unit = unit
    self._label = label
    self._file = sys.stderr if file is None else file
    self._shown = jax.process_index() == 0
    self._bar = None
    if self._shown and self._file.isatty():
      import tqdm

      self._bar = tqdm.tqdm(
          total=total_steps,
          initial=first_step,
          desc=label,
          file=self._file,
          dynamic_ncols=True,
          bar_format=_BAR,
      )
    self._interval = _REDRAW_SECONDS if self._bar is not None else _LINE_SECONDS
    self._drawn_at = time.monotonic()
    self._drawn_step = first_step
    self._last: tuple[int, dict[str, Any]] | None = None
    self._marks: collections.deque[tuple[float, int]] = collections.deque(
        maxlen=_WINDOW
    )

  def __enter__(self):
    return self

  def __exit__(self, kind, *unused):
    if kind is not None:
      self._last = None  # Its loss may wait for a process that died.
    self.close()

  def update(self, step: int, loss: Any = None, **postfix: Any) -> None:
    """Records that a step is done, and draws it if it is time.

    Loss and more numbers by name may be arrays on a device; they are fetched
    only to be drawn.
    """
    if not self._shown:
      return
    now = time.monotonic()
    if not self._marks:
      self._marks.append((now, step))
    self._last = (step, {'loss': loss} | postfix)
    is_time = now - self._drawn_at >= self._interval or step >= self._total
    tenth = (step - self._drawn_step) * _LINES >= self._total
    if is_time or (self._bar is None and tenth):
      self._draw(now)

  def write(self, text: str) -> None:
    """Prints a line, above the bar where there is one."""
    if not self._shown:
      return
    if self._bar is not None:
      self._bar.write(text, file=self._file)
    else:
      print(text, file=self._file, flush=True)

  def close(self) -> None:
    """Draws the last update and ends the line."""
    if self._last and self._last[0] != self._drawn_step:
      self._draw(time.monotonic())
    if self._bar is not None:
      self._bar.close()
      self._bar = None
    self._shown = False

  def _draw(self, now: float) -> None:
    if self._last is None:
      return
    step, numbers = self._last
    self._drawn_at, self._drawn_step = now, step
    self._marks.append((now, step))
    words = [
        f'{name} {float(value):.4g}'
        for name, value in numbers.items()
        if value is not None
    ]
    start, first = self._marks[0]
    if now > start and step > first:
      rate = (step - first) / (now - start)
      left = max(self._total - step, 0) / rate
      words.append(f'{rate * self._batch_size:.4g} {self._unit}/s')
      words.append(f'ETA {_duration(left)}')
    if self._bar is not None:
      self._bar.n = step
      self._bar.set_postfix_str(', '.join(words), refresh=False)
      self._bar.refresh()
      return
    percent = 100 * step / max(self._total, 1)
    line = f'{self._label}: step {step}/{self._total} ({percent:.0f} %)'
    print(', '.join([line, *words]), file=self._file, flush=True)


def _duration(seconds: float) -> str:
  """Formats seconds as 0:07, 12:34 or 1:02:03."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f'{hours}:{minutes:02}:{seconds:02}'
  return f'{minutes}:{seconds:02}'
