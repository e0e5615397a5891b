# SPDX-License-Identifier: Apache-2.0
"""The training loop: steps, metrics, evaluation and checkpoints."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import statistics

import ml_collections
import numpy as np

from hcl_jax.runs import checkpoint
from hcl_jax.runs import interruption as interruption_lib
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import processes
from hcl_jax.runs import progress as progress_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.training import config as config_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import finite
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib

# Before a step's number: its loss, in the metrics of a checkpoint.
_LOSS = 'loss/'


class Interrupted(Exception):
  """The run was asked to stop, has saved its state and can be resumed."""


def train(
    experiment: experiment_lib.Experiment,
    workdir: str | os.PathLike,
    *,
    label: str = 'train',
) -> experiment_lib.Scores:
  """Trains to the end of the run, from wherever its workdir stands.

  Several processes call this together, with a workdir that all of them see; the
  first one writes.

  Args:
    experiment: what to train.
    workdir: directory of the run; everything is written there.
    label: word before the progress bar.

  Returns:
    The scores of the final state by the protocols of the configuration.

  Raises:
    workdir.ConfigMismatch: the workdir holds another run.
    workdir.WorkdirError: it cannot be used, or another process is using it.
    Interrupted: SIGTERM or Ctrl-C came; the state is saved.
    finite.NonFiniteError: a loss or gradient was NaN or infinite.
    processes.PeerError: another process could not begin.
  """
  with claim_workdir(workdir):
    return _train(
        experiment, open_workdir(workdir, experiment.config), label
    )


def _train(experiment, workdir, label):
  with (
      open_checkpoints(
          workdir, experiment.config, experiment.score
      ) as checkpoints,
      interruption_lib.Interruption() as interruption,
  ):
    state = restore(experiment, checkpoints)
    first_step = int(state.step)
    with (
        metrics_lib.MetricsWriter(workdir, resume_step=first_step) as writer,
        progress_lib.Progress(
            experiment.total_steps,
            first_step,
            experiment.rows_per_step,
            label,
            unit=experiment.unit,
        ) as progress,
    ):
      if first_step:
        progress.write(f'{label}: resumes after step {first_step}')
      run = _Run(
          experiment, workdir, checkpoints, interruption, writer, progress
      )
      state = run.steps(state, first_step)
      return run.final_scores(state)


@contextlib.contextmanager
def claim_workdir(workdir: str | os.PathLike) -> Iterator[None]:
  """Locks a directory in the first process, for all of them."""
  with contextlib.ExitStack() as stack:
    with processes.together(f'lock {workdir}'):
      if processes.is_first():
        stack.enter_context(workdir_lib.lock(workdir))
    yield


def open_workdir(workdir: str | os.PathLike, config) -> pathlib.Path:
  """Begins or continues a run in a directory, in all processes."""
  with processes.together(f'open {workdir}'):
    if processes.is_first():
      workdir_lib.open_run(
          workdir,
          config,
          may_change=config_lib.MAY_CHANGE,
          may_appear=config_lib.MAY_APPEAR,
      )
  with processes.together(f'see {workdir}'):
    return workdir_lib.find_run(workdir)


def open_checkpoints(
    workdir: pathlib.Path, config: ml_collections.ConfigDict, score: str
) -> checkpoint.Checkpoints:
  """Returns the checkpoints of a run: the last few, and the best by a score."""
  return checkpoint.Checkpoints(
      workdir / 'checkpoints',
      keep=config.train.keep_checkpoints,
      best_metric=score,
  )


def restore(
    experiment: experiment_lib.Experiment,
    checkpoints: checkpoint.Checkpoints,
    step: int | None = None,
) -> state_lib.TrainState:
  """The newest state that can be read, or a fresh one where none is."""
  state = experiment.create_state()
  restored = checkpoints.restore(state, step)
  return state if restored is None else restored[0]


class _Run:
  """The parts of a run that is going on."""

  def __init__(
      self, experiment, workdir, checkpoints, interruption, writer, progress
  ):
    self._experiment = experiment
    self._config = experiment.config
    self._checkpoints = checkpoints
    self._interruption = interruption
    self._writer = writer
    self._progress = progress
    self._reader = experiment.reader(self._poll_evaluation)
    self._best = experiment.score
    self._protocol = self._best.partition('/')[0]
    self._watch = finite.Watch(workdir, self._last_checkpoint)
    self._losses = {}  # by step, since the last line

  def steps(
      self, state: state_lib.TrainState, first_step: int
  ) -> state_lib.TrainState:
    """Takes all steps that are left."""
    if first_step:
      self._take_up(first_step, state)
    total = self._experiment.total_steps
    take = self._experiment.make_step()
    batches = self._experiment.batches(first_step, total - first_step)
    for done, batch in enumerate(batches, first_step + 1):
      rows = step_lib.split_rows(batch, len(self._experiment.devices))
      state, metrics = take(state, rows)
      self._progress.update(done, loss=metrics['loss'])
      self._log(self._watch.add(done, batch, metrics))
      self._pause(done, state)
    return state

  def final_scores(self, state: state_lib.TrainState) -> experiment_lib.Scores:
    """Evaluates by all protocols of the configuration."""
    protocols = self._experiment.protocols
    if not protocols:
      return {}
    self._progress.write(f'evaluating: {", ".join(protocols)}')
    scores = self._reader.evaluate(state, protocols)
    numbers = experiment_lib.numbers(scores)
    self._writer.write(self._experiment.total_steps, numbers)
    return scores

  def _take_up(self, done: int, state: state_lib.TrainState) -> None:
    """Does what the run that saved this step had left to do."""
    saved = self._checkpoints.metrics(done)
    self._losses = {
        int(name.removeprefix(_LOSS)): loss
        for name, loss in saved.items()
        if name.startswith(_LOSS)
    }
    if processes.anywhere(self._evaluates(done) and self._best not in saved):
      scores = self._evaluate(done, state)
      if scores is None:
        raise Interrupted(f'stopped after step {done}, which is saved')
      self._checkpoints.add_metrics(done, scores)

  def _log(self, known: list[tuple[int, dict[str, float]]]) -> None:
    """Writes every so many steps, with the mean loss since the last line."""
    for step, values in known:
      self._losses[step] = values['loss']
      if step % self._config.train.log_every_steps == 0:
        rate = float(self._experiment.learning_rate(step - 1))
        values |= {'loss': statistics.fmean(self._losses.values())}
        self._writer.write(step, values | {'learning_rate': rate})
        self._losses.clear()

  def _pause(self, done: int, state: state_lib.TrainState) -> None:
    """Evaluates, saves or leaves, where it is time to."""
    stop = self._interruption.poll()
    last = done == self._experiment.total_steps
    evaluate = self._evaluates(done)
    save = self._due(done, self._config.train.checkpoint_every_epochs)
    if not (stop or last or evaluate or save):
      return
    self._log(self._watch.finish())
    scores = self._evaluate(done, state) if evaluate and not stop else None
    stop = stop or self._interruption.requested
    losses = {f'{_LOSS}{step}': x for step, x in self._losses.items()}
    self._checkpoints.save(
        done, state, metrics=losses | (scores or {}), wait=stop or last
    )
    if stop:
      raise Interrupted(f'stopped after step {done}, which is saved')

  def _evaluate(self, done, state) -> dict[str, float] | None:
    """Scores on the way; None if a signal came meanwhile."""
    try:
      scores = self._reader.evaluate(state, (self._protocol,))
    except Interrupted:
      return None
    scores = _agreed(experiment_lib.numbers(scores))
    self._writer.write(done, scores)
    best = self._best
    self._progress.write(f'step {done}: {best} {scores[best]:.2%}')
    return scores

  def _evaluates(self, done: int) -> bool:
    every = self._config.evaluate[f'{self._protocol}_every_epochs']
    return self._due(done, every)

  def _due(self, done: int, epochs: float) -> bool:
    steps = max(round(epochs * self._experiment.steps_per_epoch), 1)
    return epochs > 0 and done % steps == 0

  def _last_checkpoint(self) -> int | None:
    self._checkpoints.wait()
    return max(self._checkpoints.steps(), default=None)

  def _poll_evaluation(self) -> None:
    if self._interruption.poll():
      raise Interrupted('stopped in an evaluation; the last step is saved')


def _agreed(scores: dict[str, float]) -> dict[str, float]:
  """The scores of the first process, which decide what all keep as best."""
  values = processes.of_first(np.array(list(scores.values()), np.float64))
  return dict(zip(scores, values.tolist(), strict=True))
