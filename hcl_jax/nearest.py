# SPDX-License-Identifier: Apache-2.0
"""Finds the sentences nearest to a given one, by the encoders of a run.

  hcl_jax nearest --workdir=DIR --sentence='He closed the door.'
  hcl_jax nearest --workdir=DIR --text=FILE < questions.txt

Looks among the sentences that were trained on, or among the lines of a file.
Without --sentence, looks for each line of standard input. The run must be of
sentences, or of a domain of your own that has a module ``nearest``.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import pathlib
import sys
from typing import Any

from absl import flags

from hcl_jax import command
from hcl_jax import domains
from hcl_jax.runs import checkpoint
from hcl_jax.runs import progress as progress_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.storage import text_files
from hcl_jax.training import loop

_WORKDIR = flags.DEFINE_string('workdir', None, 'Directory of the run.')
_SENTENCE = flags.DEFINE_string('sentence', None, 'What to look for.')
_K = flags.DEFINE_integer('k', 10, 'How many to find.', lower_bound=1)
_TEXT = flags.DEFINE_string(
    'text', None, 'A file to look in, a sentence a line; by default the corpus.'
)
_MAX = flags.DEFINE_integer(
    'max_sentences', 50_000, 'How many to look at, from the first.',
    lower_bound=1,
)  # fmt: skip
_DATA_DIR = flags.DEFINE_string(
    'data_dir', None, 'Where the corpus is, if not where it was in training.'
)
_ALLOW_CODE = command.allow_code_flag()
flags.adopt_module_key_flags(command)
command.require('workdir')
command.local('workdir', 'text', 'data_dir')


def main(arguments: list[str]) -> int:
  if arguments:
    raise command.UsageError(f'unexpected argument {arguments[0]!r}.')
  command.check_devices()
  try:
    finder = open_finder(pathlib.Path(_WORKDIR.value))
  except (ValueError, OSError, checkpoint.DamagedCheckpoint) as error:
    raise command.UsageError(error) from error
  for sentence in questions():
    print(report(sentence, finder.find(sentence, _K.value)), flush=True)
  return 0


def open_finder(workdir: pathlib.Path) -> Any:
  """Returns the restored ``Finder`` of a run, which has embedded the texts.

  Raises:
    ValueError: the run, its room or a flag is unsuitable.
    OSError: something cannot be found or read.
  """
  config = domains.load_config(workdir, allow_code=_ALLOW_CODE.value)
  domain = domains.domain_of(config)
  try:
    nearest = domains.door(domain, 'nearest')
  except ValueError:
    raise ValueError(
        "--workdir must be a run of a domain that has a module 'nearest'; got "
        f'one of {domain!r}, which has none. hcl_jax embed writes embeddings '
        'of every domain.'
    ) from None
  nearest.configure(config)
  if _DATA_DIR.value is not None:
    config.data.dir = _DATA_DIR.value
  texts = None
  if _TEXT.value is not None:
    lines = text_files.read_lines(pathlib.Path(_TEXT.value))
    texts = [line for line in map(str.strip, lines) if line]
    if not texts:
      raise ValueError(f'--text={_TEXT.value} has no sentence.')
  experiment = domains.make_experiment(config, to_train=False)
  workdir_lib.check_inputs(workdir, experiment.inputs)
  with loop.open_checkpoints(workdir, config, experiment.score) as checkpoints:
    if not checkpoints.steps():
      raise FileNotFoundError(f'{workdir} has no checkpoint yet.')
    state = loop.restore(experiment, checkpoints)
  searched = experiment.data.train if texts is None else texts
  total = min(len(searched), _MAX.value)
  with progress_lib.Progress(
      total, label='embed', unit=experiment.unit
  ) as shown:
    return nearest.Finder(
        experiment,
        state,
        texts=texts,
        max_sentences=_MAX.value,
        progress=shown.update,
    )


def questions() -> Iterator[str]:
  """Yields the sentence of the flag, or the lines of standard input."""
  if _SENTENCE.value is not None:
    yield _SENTENCE.value
    return
  for line in sys.stdin:
    if line.strip():
      yield line.strip()


def report(sentence: str, found: Iterable[tuple[float, str]]) -> str:
  """Returns a line for each text, under the one that was looked for."""
  lines = [f'{cosine:7.4f}  {text}' for cosine, text in found]
  return '\n'.join([sentence, *lines])


if __name__ == '__main__':
  command.run('hcl_jax.nearest', main)
