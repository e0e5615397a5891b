# SPDX-License-Identifier: Apache-2.0
"""Embeds new data by the encoder of a run.

  hcl_jax embed --workdir=DIR --input=PATH --output=FILE.npz

PATH holds data of the kind that the run was trained on: a folder of images, an
image, or a .npy file of images; an archive or folder of graphs, as "hcl_jax
prepare" takes it; a text file with a sentence in each line. FILE.npz gets
'embeddings', float32 [rows, dim], and 'names', a str for each row. The data set
of the run need not be there.
"""

from collections.abc import Sequence
import os
import pathlib
import tempfile

from absl import flags
import numpy as np

from hcl_jax import command
from hcl_jax import domains
from hcl_jax.runs import checkpoint
from hcl_jax.runs import progress as progress_lib

_WORKDIR = flags.DEFINE_string('workdir', None, 'Directory of the run.')
_INPUT = flags.DEFINE_string('input', None, 'File or folder to embed.')
_OUTPUT = flags.DEFINE_string('output', None, 'File to write, FILE.npz.')
_STEP = flags.DEFINE_integer(
    'step', None, 'Which checkpoint; by default the last.'
)
_ALLOW_CODE = command.allow_code_flag()
flags.adopt_module_key_flags(command)
command.require('workdir', 'input', 'output')
command.local('workdir', 'input', 'output')


def main(arguments: list[str]) -> int:
  if arguments:
    raise command.UsageError(f'unexpected argument {arguments[0]!r}.')
  command.check_devices()
  try:
    line = embed(
        _WORKDIR.value,
        _INPUT.value,
        _OUTPUT.value,
        step=_STEP.value,
        allow_code=_ALLOW_CODE.value,
    )
  except (ValueError, OSError, checkpoint.DamagedCheckpoint) as error:
    raise command.UsageError(error) from error
  print(line)
  return 0


def embed(
    workdir: str | os.PathLike,
    source: str | os.PathLike,
    output: str | os.PathLike,
    *,
    step: int | None = None,
    allow_code: bool = False,
) -> str:
  """Embeds what is in a file or folder; returns a line on what was written.

  Arguments are those of the flags; ``source`` is ``--input``.

  Raises:
    ValueError: the run, the rows or an argument is unsuitable.
    OSError: something cannot be found, read or written.
    checkpoint.DamagedCheckpoint: the checkpoint is damaged.
  """
  output = pathlib.Path(output)
  check_output(output)
  encoder = domains.load(workdir, step, allow_code=allow_code)
  rows, names = encoder.read(source)
  unit = encoder.parts.unit
  with progress_lib.Progress(len(names), label='embed', unit=unit) as shown:
    embeddings = encoder(rows, progress=shown.update)
  write(output, embeddings, names)
  count, dim = embeddings.shape
  return (
      f'written to {output}: embeddings of {count} {unit}, {dim} numbers each, '
      f'by step {encoder.step}'
  )


def check_output(path: pathlib.Path) -> None:
  """Raises a ValueError or OSError now, not at the end."""
  if path.suffix != '.npz':
    raise ValueError(f'--output must end in .npz, got {path}.')
  if path.is_dir():
    raise IsADirectoryError(f'--output must be a file; {path} is a folder.')
  if not os.access(path.absolute().parent, os.W_OK):
    raise PermissionError(
        f'--output={path}: {path.absolute().parent} is no folder that can be '
        'written.'
    )


def write(
    path: pathlib.Path, embeddings: np.ndarray, names: Sequence[str]
) -> None:
  """Writes the file whole or not at all."""
  with tempfile.NamedTemporaryFile(
      dir=path.absolute().parent, suffix='.npz', delete=False
  ) as file:
    try:
      np.savez(file, embeddings=embeddings, names=np.array(names, dtype=str))
      file.close()
      os.replace(file.name, path)
    except BaseException:
      os.unlink(file.name)
      raise


if __name__ == '__main__':
  command.run('hcl_jax.embed', main)
