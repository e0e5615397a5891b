# SPDX-License-Identifier: Apache-2.0
"""Trains: steps, metrics, evaluation and checkpoints."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import pathlib
import statistics
from typing import Any
from typing import Protocol

import numpy as np

from hcl_jax.runs import checkpoint
from hcl_jax.runs import interruption as interruption_lib
from hcl_jax.runs import metrics as metrics_lib
from hcl_jax.runs import processes
from hcl_jax.runs import profiling
from hcl_jax.runs import progress as progress_lib
from hcl_jax.runs import reporting
from hcl_jax.runs import scores as scores_lib
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.training import config as config_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import finite
from hcl_jax.training import header as header_lib
from hcl_jax.training import refreshing
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib

# Before a step's number: its loss, in the metrics of a checkpoint.
_LOSS = 'loss/'
# Row of scores.json.
_LAST = 'last step'


class Interrupted(Exception):
  """Raised where a run was asked to stop; it is saved and can be resumed."""


class Progress(Protocol):
  """Shows how far a run is, as ``runs.progress.Progress`` does."""

  def update(self, step: int, loss: Any = None) -> None:
    """Says that a step is done."""

  def write(self, text: str) -> None:
    """Prints a line."""


def train(
    experiment: experiment_lib.Experiment,
    workdir: str | os.PathLike,
    *,
    label: str = 'train',
    header: Sequence[str] | None = None,
    programs: experiment_lib.Programs | None = None,
    interruption: interruption_lib.Interruption | None = None,
    progress: Progress | None = None,
    wait_for_saves: bool = False,
) -> scores_lib.Scores:
  """Trains to the end of the run, from wherever its workdir stands.

  A finished run whose scores are known is neither trained nor evaluated.
  Several processes call this together, with a workdir that all of them see; the
  first one writes.

  Args:
    experiment: what to train.
    workdir: directory of the run; everything is written there.
    label: word before the progress bar.
    header: lines to print at the start; None: those of ``training.header``.
    programs: those of a run that shares them; None: the experiment's own.
    interruption: entered already, where runs share one.
    progress: shows the run; None: a bar of its own.
    wait_for_saves: whether a checkpoint is waited for, as must be where other
      threads of the process save other runs.

  Returns:
    The scores of the final state by the protocols of the configuration.

  Raises:
    workdir.ConfigMismatch: the workdir holds another run.
    workdir.WorkdirError: it cannot be used, or another process is using it.
    Interrupted: SIGTERM or Ctrl-C came; the state is saved.
    finite.NonFiniteError: a loss or gradient was NaN or infinite.
    processes.PeerError: another process could not begin.
  """
  known = _known_scores(experiment, workdir)
  if known is not None:
    write = progress_lib.say if progress is None else progress.write
    write(f'{label}: this run is finished already; scores.json has its scores')
    if progress is not None:
      progress.update(experiment.total_steps)
    return known
  programs = programs or experiment.programs()
  with open_run(
      experiment,
      workdir,
      programs.init,
      label=label,
      header=header_lib.lines(experiment) if header is None else header,
      interruption=interruption,
      progress=progress,
      wait_for_saves=wait_for_saves,
  ) as run:
    state = run.begin()
    left = run.batches(lambda: state)
    for batch in left:
      with run.taking_step():
        state, metrics = programs.step(experiment.hyperparameters, state, batch)
      run.after_step(batch, metrics, lambda state=state: state)
    return run.finish(state)


@contextlib.contextmanager
def open_run(
    experiment: experiment_lib.Experiment,
    workdir: str | os.PathLike,
    init: Callable[[step_lib.Hyperparameters], state_lib.TrainState],
    *,
    label: str = 'train',
    header: Sequence[str] = (),
    interruption: interruption_lib.Interruption | None = None,
    progress: Progress | None = None,
    wait_for_saves: bool = False,
) -> Iterator['Run']:
  """Opens the directory of a run; arguments are those of :func:`train`."""
  with processes.together(f'begin {workdir}'):
    check_begin(experiment, workdir)
  with contextlib.ExitStack() as stack:
    workdir = stack.enter_context(_locked(workdir, experiment))
    checkpoints = stack.enter_context(
        open_checkpoints(workdir, experiment.config, experiment.score)
    )
    if header:
      progress_lib.say(*header)
    if interruption is None:
      interruption = stack.enter_context(interruption_lib.Interruption())
    write = progress_lib.say if progress is None else progress.write
    with progress_lib.if_slow(write, 'making the state', 'made the state'):
      state = restore(experiment, checkpoints, init=init)
    begun = ''
    if not checkpoints.steps() and experiment.begin is not None:
      state, begun = experiment.begin(state)
    first_step = int(state.step)
    writer = stack.enter_context(
        metrics_lib.MetricsWriter(workdir, resume_step=first_step)
    )
    parts = None
    if progress is None:
      parts = progress_lib.Parts()
      progress = stack.enter_context(
          progress_lib.Progress(
              experiment.total_steps,
              first_step,
              experiment.rows_per_step,
              label,
              unit=experiment.unit,
          )
      )
    if first_step:
      progress.write(f'{label}: resumes after step {first_step}')
    if begun:
      progress.write(f'{label}: {begun}')
    profile = profiling.Profile(
        workdir, experiment.config.train.profile_steps, progress.write
    )
    stack.callback(profile.close)
    yield Run(
        experiment,
        workdir,
        state,
        checkpoints=checkpoints,
        interruption=interruption,
        writer=writer,
        progress=progress,
        parts=parts,
        profile=profile,
        wait_for_saves=wait_for_saves,
    )


@contextlib.contextmanager
def _locked(
    workdir: str | os.PathLike, experiment: experiment_lib.Experiment
) -> Iterator[pathlib.Path]:
  """Opens a directory that no other process trains in meanwhile."""
  with contextlib.ExitStack() as stack:
    with processes.together(f'lock {workdir}'):
      if processes.is_first():  # for all processes
        stack.enter_context(workdir_lib.lock(workdir))
    yield open_workdir(workdir, experiment.config, experiment.inputs)


def _known_scores(experiment, workdir) -> scores_lib.Scores | None:
  """Returns the scores of a finished run, if it would be evaluated alike."""
  rows = scores_lib.read(pathlib.Path(workdir), experiment.evaluation)
  if processes.anywhere(_LAST not in rows):
    return None
  with (
      _locked(workdir, experiment) as found,
      open_checkpoints(
          found, experiment.config, experiment.score
      ) as checkpoints,
  ):
    if experiment.total_steps not in checkpoints.steps():
      return None
  return rows[_LAST]


def check_begin(
    experiment: experiment_lib.Experiment, workdir: str | os.PathLike
) -> None:
  """Raises a WorkdirError if a run cannot begin with what another learned.

  A run that has a checkpoint needs the other one no more.
  """
  config = experiment.config
  if experiment.begin is None:
    return
  with open_checkpoints(
      pathlib.Path(workdir), config, experiment.score
  ) as checkpoints:
    if checkpoints.steps():
      return
  try:
    experiment.check_begin()
  except (ValueError, OSError, checkpoint.DamagedCheckpoint) as error:
    raise workdir_lib.WorkdirError(
        f'config.train.init_from={config.train.init_from!r}: {error}'
    ) from error


def open_workdir(
    workdir: str | os.PathLike,
    config,
    inputs: Mapping[str, Any] | None = None,
) -> pathlib.Path:
  """Begins or continues a run in a directory, in all processes.

  ``inputs`` is that of the experiment, if there is one run in the directory.
  """
  with processes.together(f'open {workdir}'):
    if processes.is_first():
      workdir_lib.open_run(
          workdir,
          config,
          may_change=config_lib.MAY_CHANGE,
          may_appear=config_lib.MAY_APPEAR,
          inputs=inputs,
      )
  with processes.together(f'see {workdir}'):
    return workdir_lib.find_run(workdir)


def open_checkpoints(
    workdir: pathlib.Path, config: fields_lib.Config, score: str | None
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
    *,
    init: Callable[..., state_lib.TrainState] | None = None,
) -> state_lib.TrainState:
  """Restores the newest state that can be read, or creates a fresh one.

  ``step`` is another step than the newest one, and ``init`` what creates the
  fresh state in place of the experiment's own program.
  """
  init = init or experiment.programs().init
  state = init(experiment.hyperparameters)
  restored = checkpoints.restore(state, step)
  return state if restored is None else restored[0]


class Run:
  """Does everything in a run but take its steps.

  It watches for NaN, logs, evaluates, saves and leaves, as the configuration
  asks. Made by :func:`open_run`.

  Attributes:
    workdir: directory of the run.
    first_step: steps that were done before.
    done: steps that are done.
  """

  def __init__(
      self,
      experiment: experiment_lib.Experiment,
      workdir: pathlib.Path,
      state: state_lib.TrainState,
      *,
      checkpoints: checkpoint.Checkpoints,
      interruption: interruption_lib.Interruption,
      writer: metrics_lib.MetricsWriter,
      progress: Progress,
      parts: progress_lib.Parts | None,
      profile: profiling.Profile,
      wait_for_saves: bool,
  ):
    self._experiment = experiment
    self._config = experiment.config
    self.workdir = workdir
    self._state = state
    self._checkpoints = checkpoints
    self._interruption = interruption
    self._writer = writer
    self._progress = progress
    self._parts = parts
    self._wait_for_saves = wait_for_saves
    self._best = experiment.score
    self._protocol = self._best.partition('/')[0]
    self._watch = finite.Watch(workdir, self._last_checkpoint)
    self._profile = profile
    self._losses: dict[int, float] = {}  # by step, since the last line
    self.first_step = self.done = int(state.step)

  def begin(self) -> state_lib.TrainState:
    """Returns the state to begin with, after what was left to do with it."""
    state, self._state = self._state, None  # Steps use it up.
    assert state is not None, 'a run begins once'
    if self.first_step:
      self._take_up(self.first_step, state)
    return state

  def taking_step(self) -> contextlib.AbstractContextManager[None]:
    """Says how long the first step compiles; a block for every step."""
    self._profile.before(self.done)
    if self.done > self.first_step:
      return contextlib.nullcontext()
    return progress_lib.if_slow(self._progress.write, 'compiling', 'compiled')

  def batches(
      self, state: Callable[[], state_lib.TrainState]
  ) -> Iterator[task_lib.Batch]:
    """Yields the batches of all steps that are left.

    ``state`` gives the state after the last one that was taken.
    """

    def poll(*done):
      try:
        self._poll_evaluation(*done)
      except Interrupted:
        self.save(state())
        raise

    def say(text):
      if self._parts is not None:
        self._parts.close()
      self._progress.write(text)

    return refreshing.batches(
        self._experiment,
        self.workdir,
        self.first_step,
        state,
        poll=poll,
        say=say,
        saved_steps=self._checkpoints.steps,
    )

  def after_step(
      self,
      batch: task_lib.Batch,
      metrics: dict[str, Any],
      state: Callable[[], state_lib.TrainState],
  ) -> None:
    """Logs, evaluates, saves or leaves, where it is time to.

    Metrics of the step are still on a device; ``state`` gives the state after
    it.

    Raises:
      finite.NonFiniteError: a loss or gradient was NaN or infinite.
      Interrupted: a signal came; the state is saved.
    """
    self._profile.after(self.done, metrics)
    self.done += 1
    self._progress.update(self.done, loss=metrics['loss'])
    self._log(self._watch.add(self.done, batch, metrics))
    stop = self._interruption.poll()
    last = self.done == self._experiment.total_steps
    evaluate = self._evaluates(self.done)
    save = self._due(self.done, self._config.train.checkpoint_every_epochs)
    if not (stop or last or evaluate or save):
      return
    self._log(self._watch.finish())
    scores = None
    if evaluate and not stop:
      scores = self._evaluate(self.done, state())
    stop = stop or self._interruption.requested
    self._save(state(), scores or {}, wait=stop or last)
    if stop:
      raise Interrupted(f'stopped after step {self.done}, which is saved')

  def save(self, state: state_lib.TrainState) -> None:
    """Saves the state after the last step and waits for it."""
    self._log(self._watch.finish())
    self._save(state, {}, wait=True)

  def finish(self, state: state_lib.TrainState) -> scores_lib.Scores:
    """Evaluates by the protocols of the end, and writes the scores."""
    protocols, scores = self._experiment.protocols, {}
    if protocols:
      self._progress.write(f'evaluating: {", ".join(protocols)}')
      scores = self._score(state, protocols)
      numbers = scores_lib.of_numbers(scores)
      self._writer.write(self._experiment.total_steps, numbers)
    if processes.is_first():
      scores_lib.write(
          self.workdir, {_LAST: scores}, self._experiment.evaluation
      )
    return scores

  def _take_up(self, done: int, state: state_lib.TrainState) -> None:
    """Does what the run that saved this step had left to do."""
    saved = self._checkpoints.metrics(done)
    self._losses = {
        int(name.removeprefix(_LOSS)): loss
        for name, loss in saved.items()
        if name.startswith(_LOSS) and loss is not None
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
        values |= {
            'loss': statistics.fmean(self._losses.values()),
            'learning_rate': np.asarray(
                self._experiment.learning_rate(step - 1)
            ).item(),
        }
        self._writer.write(step, values)
        self._losses.clear()

  def _save(self, state, scores, *, wait):
    losses = {f'{_LOSS}{step}': x for step, x in self._losses.items()}
    self._checkpoints.save(
        self.done,
        state,
        metrics=losses | scores,
        wait=wait or self._wait_for_saves,
    )

  def _evaluate(self, done, state) -> dict[str, float] | None:
    """Scores during training; returns None if a signal came meanwhile."""
    try:
      scores = self._score(state, [self._protocol])
    except Interrupted:
      return None
    numbers = scores_lib.of_numbers(scores)
    # Those of the first process decide what all keep.
    values = processes.of_first(np.array(list(numbers.values()), np.float64))
    agreed = dict(zip(numbers, values.tolist(), strict=True))
    self._writer.write(done, agreed)
    best = self._best
    self._progress.write(f'step {done}: {best} {reporting.score(scores[best])}')
    return agreed

  def _score(self, state, protocols) -> scores_lib.Scores:
    with self._parts or contextlib.nullcontext():
      return self._experiment.evaluate(state, protocols, self._poll_evaluation)

  def _evaluates(self, done: int) -> bool:
    every = self._config.evaluate[f'{self._protocol}_every_epochs']
    return self._due(done, every)

  def _due(self, done: int, epochs: float) -> bool:
    steps = max(round(epochs * self._experiment.steps_per_epoch), 1)
    return epochs > 0 and done % steps == 0

  def _last_checkpoint(self) -> int | None:
    self._checkpoints.wait()
    return max(self._checkpoints.steps(), default=None)

  def _poll_evaluation(self, *done: Any) -> None:
    if self._interruption.poll():
      raise Interrupted('stopped in an evaluation; the last step is saved')
    if self._parts is not None:
      self._parts(*done)
