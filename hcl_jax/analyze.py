# SPDX-License-Identifier: Apache-2.0
"""Writes a report on runs or on sweeps.

  hcl_jax analyze --workdir=DIR
  hcl_jax analyze --workdir=DIR,DIR2 --output=FOLDER

Figures (PNG and SVG) and a self-contained page, report.html, are written to
DIR/analysis or to the output folder.

The report on runs compares their scores and curves, similarities of pairs and
hardest negatives, and has a panel with a slider for beta. A run that compares
variants counts as one run per variant.

The report on sweeps draws the score against beta, against the first other
numeric field that was swept, or against --axis=FIELD, with a panel for each
data set. It tabulates mean and deviation over seeds (table.md). If scores were
measured during training, it draws their curves and tabulates when they reach
the last score of the baseline (epochs.md). Several sweeps are joined.
"""

from collections.abc import Sequence
import pathlib

from absl import flags
import numpy as np

from hcl_jax import command
from hcl_jax.runs import checkpoint
from hcl_jax.runs import progress as progress_lib
from hcl_jax.runs import reporting
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import results as results_lib

_WORKDIR = flags.DEFINE_list(
    'workdir', None, 'Directory of a run or sweep; commas separate several.'
)
_OUTPUT = flags.DEFINE_string(
    'output', None,
    'Folder to write to; by default analysis/ in the workdir.',
)  # fmt: skip
_SCORE = flags.DEFINE_string(
    'score', None,
    'For sweeps: column of results.csv; by default the first share.',
)  # fmt: skip
_AXIS = flags.DEFINE_string(
    'axis', None,
    'For sweeps: numeric field to draw and tabulate the score against, such as '
    'data.batch_size; by default loss.beta, or else the first that was swept.',
)  # fmt: skip
_DATA_DIR = flags.DEFINE_string(
    'data_dir', None,
    'For runs: directory of the data set, if it has moved since training.',
)  # fmt: skip
_ALLOW_CODE = command.allow_code_flag()
flags.adopt_module_key_flags(command)
command.require('workdir')
command.local('workdir', 'output', 'data_dir')


def main(arguments: list[str]) -> int:
  if arguments:
    raise command.UsageError(f'unexpected argument {arguments[0]!r}.')
  try:
    output = choose_output()
    workdirs = list(map(pathlib.Path, _WORKDIR.value))
    is_sweep = ['sweep' in workdir_lib.load_config(x) for x in workdirs]
    if all(is_sweep):
      analyze_sweeps(workdirs, output)
    elif any(is_sweep):
      sweep, run = is_sweep.index(True), is_sweep.index(False)
      raise ValueError(
          f'--workdir: {workdirs[sweep]} is a sweep and {workdirs[run]} a run; '
          'give only runs or only sweeps.'
      )
    else:
      analyze_runs(workdirs, output)
  except (ValueError, OSError, checkpoint.DamagedCheckpoint) as error:
    raise command.UsageError(error) from error
  print(f'\nwritten to {output}: open {output / "report.html"}')
  return 0


def choose_output() -> pathlib.Path:
  """Returns the folder to write to."""
  if _OUTPUT.value:
    return pathlib.Path(_OUTPUT.value)
  if len(_WORKDIR.value) != 1:
    raise ValueError(
        f'--output=FOLDER is needed with {len(_WORKDIR.value)} workdirs.'
    )
  return pathlib.Path(_WORKDIR.value[0]) / 'analysis'


def analyze_sweeps(
    workdirs: Sequence[pathlib.Path], output: pathlib.Path
) -> None:
  """Writes the report on sweeps."""
  from hcl_jax.report import page
  from hcl_jax.report import sweep_report

  results = results_lib.read(workdirs)
  score = choose_score(results)
  written = sweep_report.SweepReport(results, score, output, _AXIS.value)
  output.mkdir(parents=True, exist_ok=True)
  document = page.page(
      f'Sweep: {score}', ', '.join(map(str, workdirs)), written.sections()
  )
  reporting.write_text(output / 'report.html', document)
  print(written.table())


def choose_score(results: results_lib.Results) -> str:
  """Returns --score, or the first share; raises unless a run has it."""
  known = [name for name, x in results.scores.items() if np.isfinite(x).any()]
  if not known:
    raise ValueError('no run of the sweep has a score; all of them failed.')
  shares = [name for name in known if results.kinds[name] == 'share']
  score = _SCORE.value or next(iter(shares), None)
  if score not in known:
    raise ValueError(f'--score must be one of {", ".join(known)}; got {score}.')
  return score


def analyze_runs(
    workdirs: Sequence[pathlib.Path], output: pathlib.Path
) -> None:
  """Writes the report on runs."""
  from hcl_jax.report import inspection
  from hcl_jax.report import page
  from hcl_jax.report import run_report

  command.check_devices()
  runs = inspection.single_runs(workdirs, allow_code=_ALLOW_CODE.value)
  inspections = []
  for number, (name, workdir) in enumerate(runs.items(), 1):
    print(f'{name}: {workdir}', flush=True)
    sample = f'a sample of run {number}/{len(runs)}'
    with progress_lib.if_slow(
        progress_lib.say, f'embedding {sample}', f'embedded {sample}'
    ):
      inspections.append(
          inspection.inspect(
              workdir,
              name=name,
              data_dir=_DATA_DIR.value,
              allow_code=_ALLOW_CODE.value,
          )
      )
  output.mkdir(parents=True, exist_ok=True)
  sections = run_report.RunReport(inspections, output).sections()
  document = page.page(
      ' and '.join(runs) if len(runs) < 4 else f'{len(runs)} runs',
      f'hcl_jax: {inspections[0].config.data.name}',
      sections,
  )
  reporting.write_text(output / 'report.html', document)
  print(reporting.score_table({x.name: x.scores() for x in inspections}))


if __name__ == '__main__':
  command.run('hcl_jax.analyze', main)
