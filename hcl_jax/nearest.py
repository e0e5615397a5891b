# SPDX-License-Identifier: Apache-2.0
"""Finds what is nearest to a text, by the encoders of a run.

  hcl_jax nearest --workdir=DIR --query='2,3-dihydroxybenzoic acid'
  hcl_jax nearest --workdir=DIR --index=FILE.npz --query='...'
  hcl_jax nearest --workdir=DIR --text=FILE < questions.txt

Looks among the documents of the run's data set (of sentences, those trained
on), among the lines of a file, or in an index that "hcl_jax embed" has written,
for which the data set need not be there. Without --query, looks for each line
of standard input. The run must be of pairs, of sentences, or of a domain of
your own that has a module ``nearest``.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import pathlib
import sys
from typing import Any

from absl import flags

from hcl_jax import command
from hcl_jax import domains
from hcl_jax import evaluation
from hcl_jax.runs import checkpoint
from hcl_jax.runs import progress as progress_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.storage import text_files
from hcl_jax.training import encoder as encoder_lib
from hcl_jax.training import loop

_WORKDIR = flags.DEFINE_string('workdir', None, 'Directory of the run.')
_QUERY = flags.DEFINE_string('query', None, 'What to look for.')
flags.DEFINE_alias('sentence', 'query')
_K = flags.DEFINE_integer('k', 10, 'How many to find.', lower_bound=1)
_INDEX = flags.DEFINE_string(
    'index', None, 'An index to look in, as "hcl_jax embed" writes it.'
)
_TEXT = flags.DEFINE_string(
    'text', None,
    'A file to look in, a text a line; by default the data set of the run.',
)  # fmt: skip
_MAX = flags.DEFINE_integer(
    'max_sentences', 0,
    'How many texts to look at, from the first; by default 50,000 sentences, '
    'and all documents.',
    lower_bound=0,
)  # fmt: skip
_DATA_DIR = flags.DEFINE_string(
    'data_dir', None, 'Where the data set is, if not where it was in training.'
)
_ALLOW_CODE = command.allow_code_flag()
flags.adopt_module_key_flags(command)
command.require('workdir')
command.local('workdir', 'text', 'index', 'data_dir')

# ``(text, k) -> [(cosine, text), ...]``, the nearest first.
Find = Callable[[str, int], Iterable[tuple[float, str]]]


def main(arguments: list[str]) -> int:
  if arguments:
    raise command.UsageError(f'unexpected argument {arguments[0]!r}.')
  command.check_devices()
  workdir = pathlib.Path(_WORKDIR.value)
  try:
    if _INDEX.value is None:
      find = open_finder(workdir).find
    else:
      find = open_index(workdir, pathlib.Path(_INDEX.value))
  except (ValueError, OSError, checkpoint.DamagedCheckpoint) as error:
    raise command.UsageError(error) from error
  for query in questions():
    print(report(query, find(query, _K.value)), flush=True)
  return 0


def open_index(workdir: pathlib.Path, path: pathlib.Path) -> Find:
  """Returns what looks in an index, which the encoder of the run has made.

  Raises:
    ValueError: the run or the index is unsuitable.
    OSError: something cannot be found or read.
  """
  if _TEXT.value is not None:
    raise ValueError('give one of --text and --index.')
  encoder = domains.load(workdir, allow_code=_ALLOW_CODE.value)
  index = encoder_lib.read_index(path, encoder)
  # Of two towers, that of queries.
  embed = getattr(encoder, 'query', encoder)

  def find(text, k):
    cosines, rows = evaluation.nearest_neighbors(
        index['embeddings'], embed([text]), k=min(k, len(index['names']))
    )
    names = index['names'][rows[0]].tolist()
    return zip(cosines[0].tolist(), names, strict=True)

  return find


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
  domains.check_single(config, workdir)
  nearest.configure(config)
  if _DATA_DIR.value is not None:
    config.data.dir = _DATA_DIR.value
  texts = None
  if _TEXT.value is not None:
    lines = text_files.read_lines(pathlib.Path(_TEXT.value))
    texts = [line for line in map(str.strip, lines) if line]
    if not texts:
      raise ValueError(f'--text={_TEXT.value} has no text.')
  experiment = domains.make_experiment(config, to_train=False)
  workdir_lib.check_inputs(workdir, experiment.inputs)
  with loop.open_checkpoints(workdir, config, experiment.score) as checkpoints:
    if not checkpoints.steps():
      raise FileNotFoundError(f'{workdir} has no checkpoint yet.')
    state = loop.restore(experiment, checkpoints)
  most = {'max_sentences': _MAX.value} if _MAX.value else {}
  total = nearest.count(experiment, texts, **most)
  with progress_lib.Progress(
      total, label='embed', unit=nearest.UNIT
  ) as shown:
    return nearest.Finder(
        experiment, state, texts=texts, progress=shown.update, **most
    )


def questions() -> Iterator[str]:
  """Yields the text of the flag, or the lines of standard input."""
  if _QUERY.value is not None:
    yield _QUERY.value
    return
  for line in sys.stdin:
    if line.strip():
      yield line.strip()


def report(query: str, found: Iterable[tuple[float, str]]) -> str:
  """Returns a line for each text, under the one that was looked for."""
  lines = [f'{cosine:7.4f}  {text}' for cosine, text in found]
  return '\n'.join([query, *lines])


if __name__ == '__main__':
  command.run('hcl_jax.nearest', main)
