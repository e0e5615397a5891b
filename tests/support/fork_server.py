# SPDX-License-Identifier: Apache-2.0
"""Imports what all commands share, and forks a process for each of them.

  python fork_server.py SOCKET

Neither imports a command, so that each defines its flags anew, nor starts a
backend. forks.py is the other end of the socket.
"""

import atexit
import contextlib
import json
import os
import runpy
import select
import signal
import socket
import sys

_status = None


# Registered before all others, so it is called after them.
@atexit.register
def _leave():
  """Ends a child; to take its modules down would cost more than it did."""
  if _status is not None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_status)


import chex  # noqa: E402, F401
import flax.linen  # noqa: E402, F401
import jax  # noqa: E402
import matplotlib.figure  # noqa: E402, F401
import ml_collections.config_flags  # noqa: E402, F401
import optax  # noqa: E402, F401
import orbax.checkpoint  # noqa: E402, F401
import PIL.Image  # noqa: E402, F401
import sklearn.svm  # noqa: E402, F401
import tensorboardX  # noqa: E402, F401
import tensorflow_datasets  # noqa: E402, F401

import hcl_jax.hosts  # noqa: E402, F401
import hcl_jax.images.experiment  # noqa: E402, F401
import hcl_jax.report.inspection  # noqa: E402, F401
import hcl_jax.storage.catalogue  # noqa: E402, F401
import hcl_jax.sweeps.sweeping  # noqa: E402, F401
import hcl_jax.training.loop  # noqa: E402, F401


def serve(parent: socket.socket) -> None:
  """Forks on request, and tells of children that end; a child returns."""
  wake, woken = socket.socketpair()
  for end in (wake, woken):
    end.setblocking(False)
  signal.signal(signal.SIGCHLD, lambda *_: None)
  signal.set_wakeup_fd(woken.fileno())
  parent.send(b'{}')  # it is ready
  children = set()
  while True:
    ready, _, _ = select.select([parent, wake], [], [])
    if wake in ready:
      wake.recv(1000)
      for pid, status in _ended():
        children.discard(pid)
        parent.send(json.dumps({'pid': pid, 'status': status}).encode())
    if parent in ready:
      message, files, _, _ = socket.recv_fds(parent, 2**20, 3)
      if not message:
        for child in children:
          with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os._exit(0)
      child = os.fork()
      if not child:
        parent.close()
        _run(json.loads(message), files)
        return
      children.add(child)
      for file in files:
        os.close(file)
      parent.send(json.dumps({'started': child}).encode())


def _ended():
  """Yields children that ended, and how."""
  while True:
    try:
      pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
      return
    if not pid:
      return
    yield pid, os.waitstatus_to_exitcode(status)


def _run(request, files):
  """Becomes the command that was asked for."""
  global _status
  os.setsid()  # so that what it starts can be ended with it
  signal.set_wakeup_fd(-1)
  signal.signal(signal.SIGCHLD, signal.SIG_DFL)
  signal.signal(signal.SIGINT, signal.default_int_handler)
  for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
  sys.stdin = open(0, closefd=False)
  sys.stdout = open(1, 'w', closefd=False)
  sys.stderr = open(2, 'w', 1, errors='backslashreplace', closefd=False)
  _configure(os.environ, request['environment'])
  os.environ.clear()
  os.environ.update(request['environment'])
  os.chdir(request['folder'])
  kind, name, *arguments = request['command']
  sys.argv = [name, *arguments]
  sys.path[0] = os.path.dirname(name) if kind == 'file' else os.getcwd()
  try:
    if kind == '-m':
      runpy.run_module(name, run_name='__main__', alter_sys=True)
    elif kind == '-c':
      sys.argv[0] = kind
      exec(name, {'__name__': '__main__'})  # noqa: S102
    else:
      runpy.run_path(name, run_name='__main__')
    _status = 0
  except SystemExit as end:
    is_text = end.code is not None and not isinstance(end.code, int)
    _status = 1 if is_text else int(end.code or 0)
    raise
  except Exception:
    _status = 1
    raise


def _configure(before, now):
  """Tells JAX, which read its variables when it was imported."""
  readers = {bool: lambda x: x in ('1', 'true'), type(None): str}
  for name, value in now.items():
    is_setting = name.startswith('JAX_') and hasattr(jax.config, name.lower())
    if is_setting and value != before.get(name):
      kind = type(getattr(jax.config, name.lower()))
      jax.config.update(name.lower(), readers.get(kind, kind)(value))


if __name__ == '__main__':
  serve(socket.socket(fileno=int(sys.argv[1])))
