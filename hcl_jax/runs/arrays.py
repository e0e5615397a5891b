# SPDX-License-Identifier: Apache-2.0
"""Writes and reads files of named arrays, each whole or not at all."""

from collections.abc import Mapping
import os
import pathlib
import tempfile
import zipfile

import numpy as np


def write(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes ``FILE.npz``; a reader never sees a part of it."""
  path = pathlib.Path(path)
  with tempfile.NamedTemporaryFile(
      dir=path.absolute().parent, suffix='.npz', delete=False
  ) as file:
    try:
      np.savez(file, allow_pickle=False, **arrays)
      file.close()
      os.replace(file.name, path)
    except BaseException:
      os.unlink(file.name)
      raise


def read(path: str | os.PathLike) -> dict[str, np.ndarray]:
  """Reads all arrays of a file.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is damaged, or no such file; the message says so.
  """
  try:
    # numpy leaves a damaged file open.
    with open(path, 'rb') as raw, np.load(raw, allow_pickle=False) as file:
      return {name: file[name] for name in file.files}
  except FileNotFoundError:
    raise
  except (
      OSError, ValueError, TypeError, KeyError, EOFError, AttributeError,
      zipfile.BadZipFile,
  ) as error:  # fmt: skip
    raise ValueError(
        f'{path} is damaged, or no .npz file of arrays: {error}'
    ) from error
