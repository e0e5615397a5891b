# SPDX-License-Identifier: Apache-2.0
"""Uses the encoder of a run: embeds new rows, or begins another run with it."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import os
import pathlib
from typing import Any
from typing import NamedTuple

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax.runs import arrays as arrays_lib
from hcl_jax.runs import progress as progress_lib
from hcl_jax.storage import sources
from hcl_jax.training import fields as fields_lib
from hcl_jax.training import loop
from hcl_jax.training import optimizer as optimizer_lib
from hcl_jax.training import state as state_lib
from hcl_jax.training import step as step_lib
from hcl_jax.training import task as task_lib

# Called with the number of rows that are embedded so far.
ShowProgress = Callable[[int], None]

_ENCODER = 'encoder'  # of an index


class Parts(NamedTuple):
  """Holds what a room knows of its encoders.

  Attributes:
    task: the task of the configuration.
    module: its Flax module, or what the room has instead.
    example: some rows, for their shapes.
    inputs: what it had to know of the data trained on.
    embed: ``(state, rows, progress) -> [n, dim]``; checks the rows.
    read: ``path -> (rows, names)``; reads new rows from a file or folder.
    unit: what a row is, in the plural.
  """

  task: task_lib.Task
  module: Any
  example: task_lib.Batch
  inputs: Mapping[str, Any]
  embed: Callable[[state_lib.TrainState, Any, ShowProgress], np.ndarray]
  read: Callable[[pathlib.Path], tuple[Any, Sequence[str]]]
  unit: str


@dataclasses.dataclass(frozen=True)
class Encoder:
  """Embeds rows by what a run has learned, in evaluation mode.

  Attributes:
    config: configuration of the run.
    step: step of the checkpoint.
    parts: what the room knows of its encoders.
    state: restored state, on all local devices.
  """

  config: fields_lib.Config
  step: int
  parts: Parts
  state: state_lib.TrainState

  def __call__(
      self, rows: Any, *, progress: ShowProgress = lambda done: None
  ) -> np.ndarray:
    """Returns embeddings ``[n, dim]``, float32: what ``evaluate`` scores.

    Args:
      rows: images, graphs or sentences, as the room of the run takes them.
      progress: called with the number of rows that are embedded so far.

    Raises:
      ValueError: the rows are not such as the run was trained on.
    """
    return self.parts.embed(self.state, rows, progress)

  def read(self, path: str | os.PathLike) -> tuple[Any, Sequence[str]]:
    """Reads rows from a file or folder, and a name for each.

    Raises:
      ValueError: the file is not such as the room of the run reads.
      OSError: it cannot be found or read.
    """
    return self.parts.read(pathlib.Path(path))

  def embed_file(
      self, source: str | os.PathLike, output: str | os.PathLike
  ) -> str:
    """Embeds what is in a file or folder; see :meth:`embed_rows`.

    Args:
      source: file or folder, as :meth:`read` takes it.
      output: file to write.

    Raises:
      ValueError: the rows or an argument are unsuitable.
      OSError: something cannot be found, read or written.
    """
    check_output(output)
    return self.embed_rows(*self.read(source), output)

  def embed_rows(
      self, rows: Any, names: Sequence[str], output: str | os.PathLike
  ) -> str:
    """Embeds rows into a file, an index to look in, and shows progress.

    Args:
      rows: as a call takes them.
      names: of the rows.
      output: file to write, ``'FILE.npz'``: ``embeddings``, float32 ``[rows,
        dim]``, ``names``, and ``encoder``, what tells this encoder from others.
        It is written whole or not at all.

    Returns:
      A line on what was written.

    Raises:
      ValueError: the rows or an argument are unsuitable.
      OSError: something cannot be found, read or written.
    """
    output = check_output(output)
    unit = self.parts.unit
    with progress_lib.Progress(len(names), label='embed', unit=unit) as shown:
      embeddings = self(rows, progress=shown.update)
    arrays_lib.write(
        output,
        {
            'embeddings': embeddings,
            'names': np.array(names, dtype=str),
            _ENCODER: np.array(self.digest),
        },
    )
    count, dim = embeddings.shape
    return (
        f'written to {output}: embeddings of {count} {unit}, {dim} numbers '
        f'each, by step {self.step}'
    )

  @functools.cached_property
  def digest(self) -> str:
    """Returns what tells the parameters from those of other encoders."""
    return sources.digest(map(np.asarray, jax.tree.leaves(self.params)))

  @property
  def inputs(self) -> Mapping[str, Any]:
    """Returns what had to be known of the data trained on."""
    return self.parts.inputs

  @property
  def module(self) -> Any:
    """Returns the Flax module; ``module.apply`` takes :attr:`variables`."""
    return self.parts.module

  @property
  def params(self) -> Any:
    """Returns the parameters, averaged ones where the run has them."""
    return state_lib.evaluated_params(self.state)

  @property
  def variables(self) -> dict[str, Any]:
    """Returns ``'params'`` and the other collections of the module."""
    return task_lib.variables(
        self.parts.task, self.params, self.state.task_state
    )


def read_index(
    path: str | os.PathLike, encoder: Encoder
) -> dict[str, np.ndarray]:
  """Reads what ``embed_rows`` has written: embeddings and names.

  Raises:
    ValueError: the file is none such, or another encoder has made it.
    FileNotFoundError: there is no such file.
  """
  index = arrays_lib.read(path)
  if not {'embeddings', 'names', _ENCODER} <= set(index):
    raise ValueError(
        f'{path} is no index; write one with: hcl_jax embed --workdir=DIR '
        '--output=FILE.npz'
    )
  if str(index[_ENCODER]) != encoder.digest:
    raise ValueError(
        f'{path} was made by another encoder than that of step {encoder.step} '
        'of this run, so its embeddings cannot be compared; write it anew with '
        'hcl_jax embed.'
    )
  return index


def check_output(path: str | os.PathLike) -> pathlib.Path:
  """Raises a ValueError or OSError now, not when all is computed."""
  path = pathlib.Path(path)
  if path.suffix != '.npz':
    raise ValueError(f'--output must end in .npz, got {path}.')
  if path.is_dir():
    raise IsADirectoryError(f'--output must be a file; {path} is a folder.')
  if not os.access(path.absolute().parent, os.W_OK):
    raise PermissionError(
        f'--output={path}: {path.absolute().parent} is no folder that can be '
        'written.'
    )
  return path


def restore(
    config: fields_lib.Config,
    parts: Parts,
    workdir: str | os.PathLike,
    step: int | None = None,
    *,
    make: Callable[..., Encoder] = Encoder,
) -> Encoder:
  """Restores an encoder from the checkpoints of a run.

  Args:
    config: configuration of the run.
    parts: what its room knows of its encoders.
    workdir: directory of the run.
    step: number of a step that was kept; None for the last.
    make: the class of the encoder.

  Raises:
    FileNotFoundError: there is no such checkpoint.
    checkpoint.DamagedCheckpoint: the step, or every step, is damaged.
  """
  rules = step_lib.Rules(
      parts.task,
      optimizer_lib.create(config.optimizer, lambda step: 0.0),
      seed=0,
      ema_decay=config.optimizer.ema_decay,
  )
  sharding = state_lib.replicated()
  abstract = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
      jax.eval_shape(rules.create_state, parts.example),
  )
  path = pathlib.Path(workdir)
  with loop.open_checkpoints(path, config, score=None) as checkpoints:
    restored = checkpoints.restore(abstract, step)
  if restored is None:
    raise FileNotFoundError(f'{workdir} has no checkpoint yet.')
  return make(config, restored[1], parts, restored[0])


@dataclasses.dataclass(frozen=True)
class Begin:
  """Begins a run with the parts of another run's encoder that fit.

  A part is a submodule, such as the backbone or the head: it is taken if all of
  its arrays have the shapes that are needed, or else it stays fresh.

  Attributes:
    load: loads the encoder of the other run.
    task: that of the run that begins.
  """

  load: Callable[[], Encoder]
  task: task_lib.Task

  def check(self, state: state_lib.TrainState) -> None:
    """Raises what a call would, for a state that may have shapes only."""
    self._choose(self.load(), state)

  def __call__(
      self, state: state_lib.TrainState
  ) -> tuple[state_lib.TrainState, str]:
    """Returns a fresh state with what fits, and a line that says so.

    Raises:
      ValueError: no part fits, or there is no such run.
      OSError: the other run cannot be read.
      checkpoint.DamagedCheckpoint: its checkpoint is damaged.
    """
    encoder = self.load()
    ours, theirs = self._choose(encoder, state)
    variables = traverse_util.unflatten_dict({
        path: _placed_as(theirs.get(part, arrays)[path], x)
        for part, arrays in ours.items()
        for path, x in arrays.items()
    })
    params, task_state = task_lib.with_variables(
        self.task, state.task_state, variables
    )
    # Copies, because a donated buffer must not be given twice.
    ema = None if state.ema_params is None else jax.tree.map(jnp.copy, params)
    new = state.replace(params=params, task_state=task_state, ema_params=ema)
    line = f'begins with {", ".join(theirs)} of {encoder.config.data.name}'
    fresh = ', '.join(x for x in ours if x not in theirs)
    return new, line + f'; fresh: {fresh}' * bool(fresh)

  def _choose(self, encoder, state):
    """Returns arrays by part: all of the state's, and those that are taken."""
    ours = _arrays_by_part(
        task_lib.variables(self.task, state.params, state.task_state)
    )
    theirs = _arrays_by_part(encoder.variables)
    fits = {
        part: theirs[part]
        for part, arrays in ours.items()
        if _shapes(arrays) == _shapes(theirs.get(part, {}))
    }
    if not fits:
      raise ValueError(
          'no part of its encoder fits this run: '
          f'{_difference(ours, theirs)}. Choose the same model.'
      )
    return ours, fits


def _arrays_by_part(variables) -> dict[str, dict[tuple[str, ...], Any]]:
  """Returns arrays by path, in groups of one submodule."""
  parts = {}
  for path, x in traverse_util.flatten_dict(variables).items():
    # The first name is that of the collection.
    parts.setdefault(path[1], {})[path] = x
  return parts


def _shapes(arrays):
  return {path: (x.shape, x.dtype) for path, x in arrays.items()}


def _difference(ours, theirs) -> str:
  """Names an array that does not fit."""
  for part, arrays in ours.items():
    if part not in theirs:
      continue
    for path in {**arrays, **theirs[part]}:
      shapes = [
          list(x[path].shape) if path in x else 'absent'
          for x in (arrays, theirs[part])
      ]
      if shapes[0] != shapes[1]:
        name = '/'.join(path[1:])
        return f'{name} must be {shapes[0]} here and is {shapes[1]} there'
  return f'it has {", ".join(theirs)}, this one {", ".join(ours)}'


def _placed_as(x, like):
  """Puts an array on the devices of another, which may be a shape only."""
  sharding = getattr(like, 'sharding', None)
  if sharding is None or x is like:
    return x
  if sharding.is_fully_addressable:
    return jax.device_put(np.asarray(x), sharding)
  host = np.asarray(x)
  return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)
