# SPDX-License-Identifier: Apache-2.0
"""Computes from the state, every so many steps, what batches take from it."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import pathlib

from hcl_jax.runs import arrays as arrays_lib
from hcl_jax.runs import processes
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import task as task_lib

_FOLDER = 'refreshed'


def batches(
    experiment: experiment_lib.Experiment,
    workdir: pathlib.Path,
    first_step: int,
    state: Callable[[], state_lib.TrainState],
    *,
    poll: experiment_lib.Poll,
    say: Callable[[str], None],
    saved_steps: Callable[[], Sequence[int]],
) -> Iterator[task_lib.Batch]:
  """Yields the batches that are left of a run, refreshed where it is time.

  What is computed after a step is written to ``refreshed/STEP.npz``, before a
  batch that takes from it. Files that no checkpoint needs are removed.

  Args:
    experiment: what is trained.
    workdir: directory of the run.
    first_step: steps that are done.
    state: gives the state after the batch that was taken last.
    poll: called often by what computes; raises to leave.
    say: shows a line.
    saved_steps: gives the steps of the checkpoints that there are.

  Raises:
    workdir.WorkdirError: a file that the run goes on with is gone or damaged.
  """
  total, refresh = experiment.total_steps, experiment.refresh
  if refresh is None:
    yield from experiment.batches(first_step, total - first_step)
    return
  step = first_step
  while step < total:
    known = step // refresh.every * refresh.every
    last = min(known + refresh.every, total)
    found = None
    if known > 0:
      found = _find(refresh, workdir, known, step, state, poll, say)
      needed = [*saved_steps(), step]  # which all processes ask together
      if processes.is_first():
        _remove_old(workdir, refresh.every, needed)
    yield from experiment.batches(step, last - step, found)
    step = last


def _find(refresh, workdir, known, step, state, poll, say):
  """Returns what was computed after a step, or computes it now."""
  path = workdir / _FOLDER / f'{known}.npz'
  if step == known:
    found = refresh.compute(state(), poll)
    # Other processes may round otherwise.
    found = {name: processes.of_first(x) for name, x in found.items()}
    with processes.together(f'write {path}'):
      if processes.is_first():
        path.parent.mkdir(exist_ok=True)
        arrays_lib.write(path, found)
    say(f'{refresh.doing} after step {known}')
    return found
  try:
    return arrays_lib.read(path)
  except (OSError, ValueError) as error:
    raise workdir_lib.WorkdirError(
        f'the run goes on with what it computed after step {known}, {path}, '
        f'which cannot be read ({error}); remove the checkpoints of later '
        'steps, so that it is computed again.'
    ) from error


def _remove_old(workdir: pathlib.Path, every: int, steps: Sequence[int]):
  """Removes files that a run from any of some steps would not read."""
  oldest = min(steps) // every * every
  for path in (workdir / _FOLDER).glob('*.npz'):
    if path.stem.isdecimal() and int(path.stem) < oldest:
      path.unlink()

