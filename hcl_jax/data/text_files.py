# SPDX-License-Identifier: Apache-2.0
"""Text files, plain or compressed, and what may be wrong with them."""

from collections.abc import Iterator
import contextlib
import gzip
import lzma
import pathlib
import zlib

_OPENERS = {'.gz': gzip.open, '.xz': lzma.open}


def read_lines(path: pathlib.Path) -> Iterator[str]:
  """The lines of a text in UTF-8, without their ends, one by one.

  Args:
    path: a file; compressed if it ends in ``.gz`` or ``.xz``.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is damaged, or not UTF-8; the message names the line.
  """
  with _open(path) as file:
    for number, line in enumerate(file, 1):
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
  """A whole text in UTF-8 or, where it is not that, in Latin-1."""
  with _open(path) as file:
    content = file.read()
  try:
    return content.decode('utf-8-sig')
  except UnicodeDecodeError:
    return content.decode('latin-1')


@contextlib.contextmanager
def _open(path):
  if not path.is_file():
    raise FileNotFoundError(f'there is no file {path}.')
  try:
    with _OPENERS.get(path.suffix, open)(path, 'rb') as file:
      yield file
  except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
    raise ValueError(
        f'{path} is damaged, or not a {path.suffix} file: {error}'
    ) from error
