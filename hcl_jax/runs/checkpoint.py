# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run: saved in the background, verified when restored.

A step is a directory that orbax writes under a temporary name and renames when
it is complete: a run killed in the middle of a save has the previous step.
Opening and restoring change nothing on disk. The first save removes what
killed saves left behind and moves steps found damaged by ``restore`` aside, to
``<step>.damaged``; nothing else ever deletes those.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import math
import operator
import threading
from typing import Any

from absl import logging
from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from hcl_jax.runs import checksums
from hcl_jax.runs import processes
from hcl_jax.runs import saving as storage

# Orbax numbers the saves of a process, whose threads must not save at a time.
_ONE_SAVE = threading.Lock()

DamagedCheckpoint = checksums.DamagedCheckpoint
StateMismatch = checksums.StateMismatch


class SaveError(OSError):
  """Raised when a checkpoint cannot be written; earlier ones are intact."""


class Checkpoints:
  """Saves and restores the checkpoints of one run.

  The last ``keep`` steps and the best one are kept. Several processes call
  every method together, on a directory that all of them see.

  Args:
    directory: where the steps are; made by the first save.
    keep: number of newest steps to keep, at least 1.
    best_metric: name of the metric that makes a step the best. Steps saved
      without it, or with a value that is not finite, do not compete; of equal
      ones the first stays. None: no step is best.
    best_mode: ``'max'`` or ``'min'``.
  """

  def __init__(
      self,
      directory: epath.PathLike,
      *,
      keep: int = 3,
      best_metric: str | None = None,
      best_mode: str = 'max',
  ):
    if not isinstance(keep, int) or keep < 1:
      raise ValueError(f'keep must be an integer of at least 1, got {keep!r}.')
    if best_mode not in ('max', 'min'):
      raise ValueError(f"best_mode must be 'max' or 'min', got {best_mode!r}.")
    storage.quiet_orbax()
    self._directory = epath.Path(directory).absolute()
    self._keep = keep
    self._best_metric = best_metric
    self._sign = 1 if best_mode == 'max' else -1
    self._manager: ocp.CheckpointManager | None = None
    self._damaged: set[int] = set()
    self._metrics = {
        step: storage.read_metrics(self._directory / str(step))
        for step in self.steps()
    }

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()

  def save(
      self,
      step: int,
      state: Any,
      *,
      metrics: Mapping[str, float] | None = None,
      wait: bool = False,
  ) -> bool:
    """Saves a step in the background; a running save is waited for first.

    The state is copied to the host before this returns, so the caller may
    donate it. An error of a background save is raised by the next call of any
    method that waits.

    Args:
      step: number of the step.
      state: pytree of arrays and numbers; arrays are replicated, or sharded
        over devices of this process.
      metrics: stored with the state, by name.
      wait: return only when the step is complete on disk. Threads that save
        different runs must wait.

    Returns:
      False where the step exists already; it is left as it is.

    Raises:
      SaveError: this step or the previous one could not be written.
    """
    step = operator.index(step)
    self.wait()
    self._set_damaged_aside()
    if new := step not in self.steps():
      args = storage.save_args(state, metrics or {})
      self._metrics[step] = dict(metrics or {})
      with self._saving(), _ONE_SAVE:
        # Orbax meeting an unusable directory leaves threads that never end.
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._manager is None:
          policy = _LastAndBest(self._keep, self._best_of)
          self._manager = storage.open_manager(self._directory, policy)
        self._manager.save(step, args=args, force=True)
        if wait:
          self._manager.wait_until_finished()
    return new

  def restore(
      self, abstract_state: Any, step: int | None = None
  ) -> tuple[Any, int] | None:
    """Restores a step and verifies every leaf of it.

    Args:
      abstract_state: pytree of arrays or ``jax.ShapeDtypeStruct`` with the
        structure of the saved one. Each leaf is placed by its ``sharding``,
        whatever devices it was saved from.
      step: the step to restore; None for the newest one that is intact, with
        a warning for every damaged one that is newer.

    Returns:
      ``(state, step)``, or None where there is no checkpoint.

    Raises:
      StateMismatch: the step holds another model.
      DamagedCheckpoint: the step, or every step, is damaged.
      FileNotFoundError: there is no such step.
    """
    self.wait()
    if step is not None:
      if step not in self.steps():
        raise FileNotFoundError(
            f'there is no checkpoint of step {step} in {self._directory}; '
            f'there are {self.steps()}.'
        )
      return self._read(step, abstract_state), step
    problems = {}
    for step in reversed(self.steps()):
      try:
        state = self._read(step, abstract_state)
      except DamagedCheckpoint as error:
        problems[step] = str(error)
        continue
      for problem in problems.values():
        logging.warning('%s Using step %d instead.', problem, step)
      return state, step
    if problems:
      raise DamagedCheckpoint(
          f'none of the {len(problems)} checkpoints in {self._directory} is '
          f'readable; nothing was deleted. {" ".join(problems.values())}'
      )
    return None

  def steps(self) -> list[int]:
    """Lists complete steps in ascending order, without those found damaged."""
    names = []
    if self._directory.is_dir():
      names = [path.name for path in self._directory.iterdir()]
    listed = [int(name) for name in names if name.isdecimal()]
    # On a shared disk some processes may see new files late.
    return sorted(set(processes.list_of_first(listed)) - self._damaged)

  def metrics(self, step: int) -> dict[str, float | None]:
    """Returns the metrics of a step, with None for those not finite."""
    return dict(self._metrics.get(step, {}))

  def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
    """Adds metrics to a step that is complete."""
    self._metrics[step] = self.metrics(step) | dict(metrics)
    if processes.is_first():
      storage.add_metrics(self._directory / str(step), metrics)

  def best_step(self) -> int | None:
    """Returns the step with the best value of ``best_metric``, or None."""
    return self._best_of(self.steps())

  def wait(self) -> None:
    """Returns when no save is running; raises the error of a failed one."""
    if self._manager is None:
      return
    with self._saving():
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits, then releases the threads of the background saves."""
    try:
      self.wait()
    finally:
      manager, self._manager = self._manager, None
      if manager is not None:
        with self._saving():
          manager.close()

  @contextlib.contextmanager
  def _saving(self) -> Iterator[None]:
    """Raises a SaveError for any error of the block."""
    try:
      yield
    except Exception as error:
      raise SaveError(
          f'saving a checkpoint to {self._directory} failed: '
          f'{storage.reason(error)}'
      ) from error

  def _best_of(self, steps: Iterable[int]) -> int | None:
    if self._best_metric is None:
      return None
    values = {}
    for step in sorted(steps):
      value = self._metrics.get(step, {}).get(self._best_metric)
      if value is not None and math.isfinite(value):
        values[step] = self._sign * value
    return max(values, key=lambda step: values[step], default=None)

  def _read(self, step: int, abstract_state: Any) -> Any:
    """Reads and verifies a state; remembers the step if it is damaged."""
    abstract = checksums.named_leaves(abstract_state)
    leaves, problem = {}, None
    try:
      leaves = storage.read_leaves(self._directory / str(step), abstract_state)
    except DamagedCheckpoint as error:
      problem = f'checkpoint {step} in {self._directory} is damaged: {error}.'
    if processes.anywhere(problem is not None):
      self._damaged.add(step)
      raise DamagedCheckpoint(
          problem or f'another process cannot read checkpoint {step}.'
      )
    placed = [_place(leaves[name], leaf) for name, leaf in abstract.items()]
    return jax.tree.unflatten(jax.tree.structure(abstract_state), placed)

  def _set_damaged_aside(self) -> None:
    if not self._damaged:
      return
    if processes.is_first():
      for step in self._damaged:
        path = self._directory / str(step)
        path.rename(_free_name(self._directory / f'{step}.damaged'))
    processes.anywhere(False)
    for step in self._damaged:
      self._metrics.pop(step, None)
    self._damaged.clear()
    if self._manager is not None:
      self._manager.reload()


@dataclasses.dataclass
class _LastAndBest(ocp.checkpoint_managers.PreservationPolicy):
  """Keeps the newest steps and the best one."""

  keep: int
  best_of: Callable[[Iterable[int]], int | None]

  def should_preserve(self, checkpoints, *, context):
    steps = [checkpoint.step for checkpoint in checkpoints]
    kept = {*sorted(steps)[-self.keep :], self.best_of(steps)}
    return [step in kept for step in steps]


def _place(host: np.ndarray, leaf: Any) -> Any:
  """Puts a host array where the leaf of the abstract state is."""
  if isinstance(leaf, np.ndarray):
    return host
  if isinstance(leaf, np.generic):
    return host[()]
  if not hasattr(leaf, 'dtype'):
    return host.item()
  if getattr(leaf, 'sharding', None) is None:
    return jnp.asarray(host)
  return jax.make_array_from_callback(
      host.shape, leaf.sharding, lambda index: host[index]
  )


def _free_name(path: epath.Path) -> epath.Path:
  """Returns the path, or path-2, path-3 ... where it is taken."""
  name, count = path, 1
  while name.exists():
    count += 1
    name = path.with_name(f'{path.name}-{count}')
  return name
