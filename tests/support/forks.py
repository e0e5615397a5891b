# SPDX-License-Identifier: Apache-2.0
"""Starts commands as processes without paying for their imports.

A command is a fork of fork_server.py: a process of its own that can be sent
signals, killed and waited for, with flags, environment, folder and pipes of its
own.
"""

import atexit
import functools
import io
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).parents[2]
_SERVER = pathlib.Path(__file__).with_name('fork_server.py')

_MESSAGE = 2**20  # bytes, at the most

class Server:
  """A process that has imported what commands need, and forks them."""

  def __init__(self):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
      self._process = subprocess.Popen(
          [sys.executable, _SERVER, str(theirs.fileno())],
          env=dict(os.environ, PYTHONPATH=str(ROOT)),
          pass_fds=[theirs.fileno()],
      )
    self._socket = ours
    self._starting, self._changed = threading.Lock(), threading.Condition()
    self._started, self._statuses, self._is_gone = [], {}, False
    if not ours.recv(_MESSAGE):
      raise RuntimeError('The server of commands did not start.')
    threading.Thread(target=self._listen, daemon=True).start()

  def start(
      self, *command, folder=None, environment=None, stdin=None
  ) -> 'Process':
    """Starts a command.

    Args:
      *command: ``-m`` and a module, ``-c`` and a text, or the path of a file;
        then arguments.
      folder: where it runs; by default the root of the repository.
      environment: its variables; by default those of this process.
      stdin: a file to read from, if any.

    Returns:
      The process.
    """
    if command[0] not in ('-m', '-c'):
      command = 'file', *command
    request = {
        'command': list(map(str, command)),
        'folder': str(folder or ROOT),
        'environment': dict(os.environ if environment is None else environment),
    }
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    message = json.dumps(request).encode()
    read = os.open(os.devnull, os.O_RDONLY)
    if stdin is not None:
      os.dup2(stdin.fileno(), read)
    with self._starting, self._changed:
      socket.send_fds(self._socket, [message], [read, out_end, err_end])
      self._wait_for(lambda: self._started)
      pid = self._started.pop()
    for end in (read, out_end, err_end):
      os.close(end)
    return Process(self, command, pid, open(out), open(err))

  def close(self) -> None:
    """Ends the server, and what it started."""
    self._socket.shutdown(socket.SHUT_RDWR)
    self._process.wait()
    self._socket.close()

  def status(self, pid: int, timeout: float | None) -> int | None:
    """Waits for a child; None if it does not end in time."""
    with self._changed:
      self._wait_for(lambda: pid in self._statuses, timeout)
      return self._statuses.get(pid)

  def _wait_for(self, condition, timeout=None):
    """Waits while holding the lock; raises if the server is gone."""
    self._changed.wait_for(lambda: condition() or self._is_gone, timeout)
    if self._is_gone and not condition():
      raise RuntimeError('The server of commands has ended.')

  def _listen(self):
    while message := self._socket.recv(_MESSAGE):
      reply = json.loads(message)
      with self._changed:
        if 'started' in reply:
          self._statuses.pop(reply['started'], None)  # of an earlier process
          self._started.append(reply['started'])
        else:
          self._statuses[reply['pid']] = reply['status']
        self._changed.notify_all()
    with self._changed:
      self._is_gone = True
      self._changed.notify_all()


class Process:
  """A command that runs, with the methods of a subprocess.Popen."""

  stdin = None

  def __init__(self, server, args, pid: int, stdout: io.IOBase, stderr):
    self._server = server
    self.args, self.pid = args, pid
    self.stdout, self.stderr = stdout, stderr

  @property
  def returncode(self) -> int | None:
    return self.poll()

  def poll(self) -> int | None:
    return self._server.status(self.pid, 0)

  def wait(self, timeout: float | None = None) -> int:
    status = self._server.status(self.pid, timeout)
    if status is None:
      raise subprocess.TimeoutExpired(self.args, timeout)
    return status

  def send_signal(self, number: int) -> None:
    if self.poll() is None:
      os.kill(self.pid, number)

  def kill(self) -> None:
    self.send_signal(9)

  def terminate(self) -> None:
    self.send_signal(15)

  def communicate(self, timeout: float | None = None) -> tuple[str, str]:
    """Reads to the end of both pipes, and waits."""
    texts = {}

    def read(name):
      with getattr(self, name) as file:
        texts[name] = file.read()

    reader = threading.Thread(target=read, args=['stderr'], daemon=True)
    reader.start()
    # With the processes that it started, which have the pipes too.
    timer = threading.Timer(timeout or 3600, os.killpg, [self.pid, 9])
    timer.start()
    read('stdout')
    reader.join()
    status = self.wait(timeout)
    timed_out = not timer.is_alive()
    timer.cancel()
    if timed_out and status == -9:
      raise subprocess.TimeoutExpired(self.args, timeout)
    return texts['stdout'], texts['stderr']


@functools.cache
def server() -> Server:
  """Starts the server of this process when it is needed first."""
  made = Server()
  atexit.register(made.close)
  return made


def start(*command, **options) -> Process:
  """Starts a command, as :meth:`Server.start` does."""
  return server().start(*command, **options)
