# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of a run: a bar on a terminal, else a few lines."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import sys
import threading
import time
from typing import Any
from typing import TextIO

import jax

_REDRAW_SECONDS = 0.2
_LINE_SECONDS = 30.0
_LINES = 10
_WINDOW = 50  # Of drawings: ten seconds of a bar.
_SLOW_SECONDS = 1.0
_PATIENCE_SECONDS = 3.0
_BAR = '{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}'


def say(*lines: str) -> None:
  """Prints lines on standard error, in the first process only."""
  if jax.process_index() == 0:
    print(*lines, sep='\n', file=sys.stderr, flush=True)


@contextlib.contextmanager
def if_slow(
    write: Callable[[str], None], begun: str, done: str
) -> Iterator[None]:
  """Says what a block does and how long it took, if it takes a second.

  Args:
    write: prints a line, perhaps from another thread.
    begun: what the block does, such as ``'compiling'``.
    done: what it then has done, such as ``'compiled'``.
  """
  timer = threading.Timer(_SLOW_SECONDS, write, [f'{begun} ...'])
  timer.daemon = True
  start = time.monotonic()
  timer.start()
  try:
    yield
  finally:
    timer.cancel()
    timer.join()
  seconds = time.monotonic() - start
  if seconds >= _SLOW_SECONDS:
    write(f'{done} in {seconds:.1f} s')


def stages(titles: Iterable[str], label: str) -> Iterator[str]:
  """Yields titles, and says each with its number and the time since the first.

  Args:
    titles: what the stages do.
    label: what they are stages of.
  """
  titles, start = list(titles), time.monotonic()
  for number, title in enumerate(titles, 1):
    elapsed = _duration(time.monotonic() - start)
    say(f'{label} {number}/{len(titles)}: {title}, elapsed {elapsed}')
    yield title


class Progress:
  """Shows loss, rows per second and the time left, on standard error.

  Only the first process shows it. The rate is that of the last seconds and
  leaves out the first step, which compiles.

  Args:
    total_steps: length of the run.
    first_step: steps done before, in a run that resumes.
    batch_size: rows of a step, over all devices; 1 where rows are counted.
    label: text before the bar.
    file: where to write.
    unit: what the rows are.
    began: when a part of something longer began, whose rows are counted; the
      time since then is shown, and a bar does not stay.
  """

  def __init__(
      self,
      total_steps: int,
      first_step: int = 0,
      batch_size: float = 1,
      label: str = 'train',
      file: TextIO | None = None,
      unit: str = 'rows',
      began: float | None = None,
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
          leave=began is None,
          dynamic_ncols=True,
          bar_format=_BAR,
      )
    self._interval = _REDRAW_SECONDS if self._bar is not None else _LINE_SECONDS
    self._began = began
    self._drawn_at = time.monotonic() if began is None else began
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
    is_part = self._began is not None
    if self._last and self._last[0] != self._drawn_step and not is_part:
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
    if self._began is not None:
      words.append(f'elapsed {_duration(now - self._began)}')
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
    done = f'step {step}/{self._total}'
    if self._batch_size == 1:
      done = f'{step}/{self._total} {self._unit}'
    line = f'{self._label}: {done} ({percent:.0f} %)'
    print(', '.join([line, *words]), file=self._file, flush=True)


class Parts:
  """Shows the parts of an evaluation, each as soon as it has taken a while.

  Called with what is done of a part; a part is over when another one begins.
  """

  def __init__(self, file: TextIO | None = None):
    self._file = sys.stderr if file is None else file
    self._patience = _LINE_SECONDS
    if self._file.isatty():
      self._patience = _PATIENCE_SECONDS
    self._part: tuple[int, str] | None = None
    self._began = 0.0
    self._shown: Progress | None = None

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()

  def __call__(self, done: int = 0, total: int = 0, unit: str = '', /) -> None:
    """Says that so many units of all are done, if they are counted."""
    if not total:
      return
    now = time.monotonic()
    if (total, unit) != self._part:
      self.close()
      self._part, self._began = (total, unit), now
    late = now - self._began >= self._patience
    if self._shown is None and late and done < total:
      self._shown = Progress(
          total,
          done,
          label='evaluate',
          file=self._file,
          unit=unit,
          began=self._began,
      )
    if self._shown is not None:
      self._shown.update(done)

  def close(self) -> None:
    """Ends the part that is shown."""
    if self._shown is not None:
      self._shown.close()
    self._part = self._shown = None


def _duration(seconds: float) -> str:
  """Formats seconds as 0:07, 12:34 or 1:02:03."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f'{hours}:{minutes:02}:{seconds:02}'
  return f'{minutes}:{seconds:02}'
