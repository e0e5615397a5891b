# SPDX-License-Identifier: Apache-2.0
"""Draws and tabulates the results of sweeps.

  python -m hcl_jax.analyze --workdir=DIR
  python -m hcl_jax.analyze --workdir=DIR,DIR2 --output=FOLDER

DIR/analysis, or the folder, gets the score against beta, or against the first
other number that was swept, as PNG and SVG with a panel for each data set, and
table.md: mean and deviation over seeds of every setting. Several sweeps are
joined.
"""

import pathlib

from absl import flags
import numpy as np

from hcl_jax import analysis
from hcl_jax import command
from hcl_jax import reporting
from hcl_jax.training import results as results_lib

_WORKDIR = flags.DEFINE_list(
    'workdir', None, 'Directory of a sweep, or several between commas.'
)
_OUTPUT = flags.DEFINE_string(
    'output', None,
    'Folder to write to; by default analysis/ in the directory of the sweep.',
)  # fmt: skip
_SCORE = flags.DEFINE_string(
    'score', None,
    'A column of results.csv; by default the first accuracy.',
)  # fmt: skip
flags.mark_flag_as_required('workdir')

_ACCURACIES = ('/accuracy', '/top1')


def main(arguments: list[str]) -> int:
  if arguments:
    raise command.UsageError(f'unexpected argument {arguments[0]!r}.')
  try:
    output = choose_output()
    results = results_lib.read(_WORKDIR.value)
    score = choose_score(results)
    repeats = analysis.group_repeats(results.fields, results.scores[score])
    table = analysis.repeats_table(repeats, score)
    output.mkdir(parents=True, exist_ok=True)
    reporting.write_text(output / 'table.md', table + '\n')
    draw(repeats, score, output / score.replace('/', '_'))
  except (ValueError, OSError) as error:
    raise command.UsageError(error) from error
  print(table)
  print(f'\nwritten to {output}')
  return 0


def choose_output() -> pathlib.Path:
  """The folder to write to."""
  if _OUTPUT.value:
    return pathlib.Path(_OUTPUT.value)
  if len(_WORKDIR.value) != 1:
    raise ValueError(
        f'--output=FOLDER is needed where there are {len(_WORKDIR.value)} '
        'workdirs.'
    )
  return pathlib.Path(_WORKDIR.value[0]) / 'analysis'


def choose_score(results: results_lib.Results) -> str:
  """The score asked for, or the first accuracy; some member must have it."""
  known = [
      name for name, x in results.scores.items() if np.isfinite(x).any()
  ]
  if not known:
    raise ValueError('no member of the sweep has a score; all of them failed.')
  accuracies = [name for name in known if name.endswith(_ACCURACIES)]
  score = _SCORE.value or next(iter(accuracies), None)
  if score not in known:
    raise ValueError(
        f'--score must be one of {", ".join(known)}; got {score}.'
    )
  return score


def draw(repeats: analysis.Repeats, score: str, path: pathlib.Path) -> None:
  """Writes the figure as ``path.png`` and ``path.svg``."""
  from hcl_jax.analysis import plots

  figure = plots.repeats_figure(repeats, score)
  for kind in ('png', 'svg'):
    plots.save(figure, f'{path}.{kind}')


if __name__ == '__main__':
  command.run('hcl_jax.analyze', main)
