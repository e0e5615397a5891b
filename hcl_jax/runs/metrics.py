# SPDX-License-Identifier: Apache-2.0
"""Metrics of a run: lines of metrics.jsonl, and TensorBoard beside it.

One JSON object per line: ``{"step": 100, "loss": 4.25}``. JSON has no numbers
that are not finite, so these are the strings "NaN", "Infinity" and
"-Infinity"; :func:`read_metrics` turns them back into floats. A crash loses at
most the line that was being written.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import json
import math
import os
import pathlib
import platform
import time
from typing import Any
from typing import TextIO

from absl import logging
import jax

from hcl_jax.runs import reporting

_FILE = 'metrics.jsonl'
_FLUSH_SECONDS = 10
_TAIL_BYTES = 2**14  # several lines


class MetricsWriter:
  """Appends metrics to the files of a run; only the first process writes.

  Args:
    workdir: directory of the run, made if it does not exist.
    resume_step: the step the run continues from, 0 for a fresh start. Lines of
      later steps, left by a run that went on after its last checkpoint, are
      dropped, and hidden in TensorBoard. None keeps all.
    tensorboard: write event files to ``tensorboard/`` too.
  """

  def __init__(
      self,
      workdir: str | os.PathLike,
      *,
      resume_step: int | None = None,
      tensorboard: bool = True,
  ):
    self._workdir = pathlib.Path(workdir)
    self._resume_step = resume_step
    self._tensorboard = tensorboard
    self._events: _Events | None = None
    self._file: TextIO | None = None
    if jax.process_index() == 0:
      self._workdir.mkdir(parents=True, exist_ok=True)
      _repair(self._workdir / _FILE, resume_step)
      self._file = open(self._workdir / _FILE, 'a', encoding='utf-8')

  def __enter__(self):
    return self

  def __exit__(self, kind, *unused):
    try:
      self.close()
    except OSError:
      if kind is None:  # or it would hide the error that led here
        raise

  def write(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes one line: numbers, or arrays of one element, by name.

    Raises:
      OSError: the line cannot be written; the error names the file.
    """
    if self._file is None:
      return
    record: dict[str, float] = {'step': int(step)}
    for name, value in values.items():
      if name == 'step':
        raise ValueError(
            'values must not hold "step"; it is the first argument.'
        )
      try:
        record[name] = float(value)
      except (TypeError, ValueError):
        raise ValueError(
            f'the metric {name!r} must be a number, got {value!r}.'
        ) from None
    with _naming(self._workdir / _FILE):
      self._file.write(_encode(record) + '\n')
      self._file.flush()
    if self._tensorboard:
      if self._events is None:
        self._events = _Events(self._workdir / 'tensorboard', self._resume_step)
      self._events.write(record)

  def close(self) -> None:
    """Closes the files; nothing is written afterwards."""
    file, self._file = self._file, None
    events, self._events = self._events, None
    with contextlib.ExitStack() as stack:
      if events is not None:
        stack.callback(events.close)
      if file is not None:
        stack.enter_context(_naming(self._workdir / _FILE))
        stack.callback(file.close)


class _Events:
  """Writes an event file for TensorBoard, in the thread of the caller.

  SummaryWriter of tensorboardX has a thread of its own; where a full disk ends
  that thread, later events wait for it forever.
  """

  def __init__(self, directory: pathlib.Path, resume_step: int | None):
    import tensorboardX
    from tensorboardX.proto import event_pb2

    protos: Any = event_pb2  # its classes are made on import
    self._event = protos.Event
    self._directory = directory
    self._flushed = time.monotonic()
    with _naming(directory):
      directory.mkdir(exist_ok=True)
      # Nanoseconds, because a quick restart must not share a file.
      name = f'events.out.tfevents.{time.time_ns()}.{platform.node()}'
      self._writer = tensorboardX.RecordWriter(str(directory / name))
    self._add(file_version='brain.Event:2')
    if resume_step is not None:
      start = protos.SessionLog(status=protos.SessionLog.START)
      self._add(step=resume_step + 1, session_log=start)

  def write(self, record: Mapping[str, float]) -> None:
    """Adds the numbers of a step."""
    values = [
        {'tag': name, 'simple_value': value}
        for name, value in record.items()
        if name != 'step'
    ]
    self._add(step=record['step'], summary={'value': values})

  def close(self) -> None:
    """Closes the file."""
    with _naming(self._directory):
      self._writer.close()

  def _add(self, **fields: Any) -> None:
    event = self._event(wall_time=time.time(), **fields)
    with _naming(self._directory):
      self._writer.write(event.SerializeToString())
      if time.monotonic() - self._flushed > _FLUSH_SECONDS:
        self._writer.flush()
        self._flushed = time.monotonic()


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, float]]:
  """Reads one dict per line, ``step`` an int and the rest floats.

  The torn last line of a crash is left out; a run without lines has none.
  """
  records, bad = _parse(pathlib.Path(workdir) / _FILE)
  if bad:
    logging.warning('%s: skipped %d lines that are not records.', workdir, bad)
  return records


def last_step(workdir: str | os.PathLike) -> int:
  """Returns the step of the last record, or 0 without records."""
  try:
    with open(pathlib.Path(workdir) / _FILE, 'rb') as file:
      size = file.seek(0, os.SEEK_END)
      file.seek(max(size - _TAIL_BYTES, 0))
      *lines, _ = file.read().split(b'\n')
  except FileNotFoundError:
    return 0
  return json.loads(lines[-1])['step'] if lines else 0


@contextlib.contextmanager
def _naming(path: pathlib.Path) -> Iterator[None]:
  """Adds the file name to an OSError that has none."""
  try:
    yield
  except OSError as error:
    error.filename = error.filename or str(path)
    raise


def _encode(record: dict[str, float]) -> str:
  names = {math.inf: 'Infinity', -math.inf: '-Infinity'}
  plain = {
      name: value if math.isfinite(value) else names.get(value, 'NaN')
      for name, value in record.items()
  }
  return json.dumps(plain, allow_nan=False)


def _parse(path: pathlib.Path) -> tuple[list[dict[str, float]], int]:
  """Reads records, and counts other lines, without a torn last one."""
  if not path.exists():
    return [], 0
  *lines, _ = path.read_text(encoding='utf-8', errors='replace').split('\n')
  records = []
  for line in lines:
    try:
      record = json.loads(line)
      values = {name: float(value) for name, value in record.items()}
      records.append(values | {'step': int(record['step'])})
    except (ValueError, TypeError, KeyError, AttributeError):
      pass
  return records, len(lines) - len(records)


def _repair(path: pathlib.Path, resume_step: int | None) -> None:
  """Drops a torn last line, and records after the step, in one rename."""
  if not path.exists():
    return
  limit = math.inf if resume_step is None else resume_step
  kept = [record for record in _parse(path)[0] if record['step'] <= limit]
  text = ''.join(_encode(record) + '\n' for record in kept)
  if text.encode() != path.read_bytes():
    reporting.write_text(path, text)
