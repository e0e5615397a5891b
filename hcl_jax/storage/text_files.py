# SPDX-License-Identifier: Apache-2.0
"""Reads text files, plain or compressed, and refuses bad ones."""

from collections.abc import Iterator
import contextlib
import gzip
import lzma
import os
import pathlib
from typing import BinaryIO
import zlib

# Limits of a file's size when decompressed, so that a small file that expands
# without end is refused. $HCL_JAX_MAX_FILE_GIB replaces the first two.
_MAX_GIB_AT_ONCE = 1.0
_MAX_GIB_BY_LINE = 16.0
_MAX_LINE_BYTES = 2**26
_CHUNK = 2**20
_VARIABLE = 'HCL_JAX_MAX_FILE_GIB'
_OPENERS = {'.gz': gzip.open, '.xz': lzma.open}


def read_lines(path: pathlib.Path) -> Iterator[str]:
  """Yields the lines of a text in UTF-8, without their ends.

  The file is compressed if its name ends in ``.gz`` or ``.xz``.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is damaged, too large or not UTF-8; the message names the
      line.
  """
  most = _limit(_MAX_GIB_BY_LINE)
  with _open(path) as file:
    # One byte more than allowed, to tell a longer line from a whole one.
    read = lambda: file.readline(_MAX_LINE_BYTES + 1)  # noqa: E731
    for number, line in enumerate(iter(read, b''), 1):
      most -= len(line)
      if most < 0:
        raise _too_large(path, _limit(_MAX_GIB_BY_LINE))
      if len(line) > _MAX_LINE_BYTES:
        raise ValueError(
            f'line {number} of {path} is longer than {_MAX_LINE_BYTES} bytes.'
        )
      try:
        text = line.decode('utf-8')
      except UnicodeDecodeError as error:
        raise ValueError(
            f'{path} must be text in UTF-8, but line {number} is not: {error}; '
            'convert it, for example with iconv.'
        ) from error
      if number == 1:
        text = text.removeprefix('\ufeff')
      yield text.rstrip('\r\n')


def read_old_text(path: pathlib.Path) -> str:
  """Reads a whole text in UTF-8 or, where it is not that, in Latin-1."""
  with _open(path) as file:
    content = read_all(file, path)
  try:
    return content.decode('utf-8-sig')
  except UnicodeDecodeError:
    return content.decode('latin-1')


def read_all(
    file: BinaryIO, name: str | os.PathLike, *, declared: int = 0
) -> bytes:
  """Reads the content of an open file; ``name`` is for errors.

  Raises:
    ValueError: it is too large, or declared to be by its archive.
  """
  most = _limit(_MAX_GIB_AT_ONCE)
  content = bytearray()
  while max(declared, len(content)) <= most:
    chunk = file.read(_CHUNK)
    if not chunk:
      return bytes(content)
    content += chunk
  raise _too_large(name, most)


def _limit(default_gib: float) -> int:
  text = os.environ.get(_VARIABLE)
  try:
    return int(float(text or default_gib) * 2**30)
  except (ValueError, OverflowError):
    raise ValueError(f'{_VARIABLE} must be a number, got {text!r}.') from None


def _too_large(name: str | os.PathLike, most: int) -> ValueError:
  return ValueError(
      f'{name} has more than {most / 2**30:.3g} GiB, decompressed; '
      f'{_VARIABLE}=NUMBER raises the limit.'
  )


@contextlib.contextmanager
def _open(path: pathlib.Path) -> Iterator[BinaryIO]:
  if not path.is_file():
    raise FileNotFoundError(f'there is no file {path}.')
  try:
    with _OPENERS.get(path.suffix, open)(path, 'rb') as file:
      yield file
  except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
    raise ValueError(
        f'{path} is damaged, or not a {path.suffix} file: {error}'
    ) from error
