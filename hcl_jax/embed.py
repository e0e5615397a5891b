# SPDX-License-Identifier: Apache-2.0
"""Embeds new data by the encoder of a run.

  hcl_jax embed --workdir=DIR --input=PATH --output=FILE.npz

PATH holds data of the kind that the run was trained on: a folder of images, an
image, or a .npy file of images; an archive or folder of graphs, as "hcl_jax
prepare" takes it; a text file with a sentence in each line. FILE.npz gets
'embeddings', float32 [rows, dim], and 'names', a str for each row. The data set
of the run need not be there.
"""

from absl import flags

from hcl_jax import command
from hcl_jax import domains
from hcl_jax.runs import checkpoint
from hcl_jax.training import encoder as encoder_lib

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
    encoder_lib.check_output(_OUTPUT.value)
    encoder = domains.load(
        _WORKDIR.value, _STEP.value, allow_code=_ALLOW_CODE.value
    )
    print(encoder.embed_file(_INPUT.value, _OUTPUT.value))
  except (ValueError, OSError, checkpoint.DamagedCheckpoint) as error:
    raise command.UsageError(error) from error
  return 0


if __name__ == '__main__':
  command.run('hcl_jax.embed', main)
