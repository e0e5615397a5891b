# SPDX-License-Identifier: Apache-2.0
"""Embeds new data by the encoder of a run.

  hcl_jax embed --workdir=DIR --input=PATH --output=FILE.npz
  hcl_jax embed --workdir=DIR --output=FILE.npz

PATH holds data of the kind that the run was trained on: a folder of images, an
image, or a .npy file of images; an archive or folder of graphs, as "hcl_jax
prepare" takes it; a text file with a sentence or document in each line. The
data set of the run need not be there. Without --input, a run of pairs embeds
all documents of its data set. FILE.npz gets 'embeddings', float32 [rows, dim],
and 'names', a str for each row; "hcl_jax nearest --index=FILE.npz" looks in it.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags
import ml_collections

from hcl_jax import command
from hcl_jax import domains
from hcl_jax.runs import checkpoint
from hcl_jax.training import encoder as encoder_lib

_WORKDIR = flags.DEFINE_string('workdir', None, 'Directory of the run.')
_INPUT = flags.DEFINE_string('input', None, 'File or folder to embed.')
_OUTPUT = flags.DEFINE_string('output', None, 'File to write, FILE.npz.')
_DATA_DIR = flags.DEFINE_string(
    'data_dir', None, 'Where the data set is, if not where it was in training.'
)
_STEP = flags.DEFINE_integer(
    'step', None, 'Which checkpoint; by default the last.'
)
_ALLOW_CODE = command.allow_code_flag()
flags.adopt_module_key_flags(command)
command.require('workdir', 'output')
command.local('workdir', 'input', 'output', 'data_dir')


def main(arguments: list[str]) -> int:
  if arguments:
    raise command.UsageError(f'unexpected argument {arguments[0]!r}.')
  command.check_devices()
  try:
    encoder_lib.check_output(_OUTPUT.value)
    encoder = domains.load(
        _WORKDIR.value, _STEP.value, allow_code=_ALLOW_CODE.value
    )
    if _INPUT.value is not None:
      line = encoder.embed_file(_INPUT.value, _OUTPUT.value)
    else:
      line = encoder.embed_rows(*own_rows(encoder), _OUTPUT.value)
    print(line)
  except (ValueError, OSError, checkpoint.DamagedCheckpoint) as error:
    raise command.UsageError(error) from error
  return 0


def own_rows(encoder: encoder_lib.Encoder) -> tuple[Any, Sequence[str]]:
  """Returns rows of the run's own data set and their names.

  Raises:
    ValueError: its room does not say which.
    FileNotFoundError: the data set is not there.
  """
  domain = domains.domain_of(encoder.config)
  room = domains.door(domain, 'encode')
  if not hasattr(room, 'own_rows'):
    raise ValueError(f'--input=PATH is needed for a run of {domain!r}.')
  config = ml_collections.ConfigDict(encoder.config.to_dict())
  if _DATA_DIR.value is not None:
    config.data.dir = _DATA_DIR.value
  return room.own_rows(config)


if __name__ == '__main__':
  command.run('hcl_jax.embed', main)
