# SPDX-License-Identifier: Apache-2.0
"""How long the losses take here, and what memory they need.

  python -m hcl_jax.bench loss --batch_sizes=256,1024 --json=/tmp/loss.json

``loss`` times the value and gradient of :func:`hcl_jax.simclr_loss` beside the
bare matrix products of its size and those of optax, torch and lightly that are
installed. Every round runs every contestant, in the opposite order every other
round; times are medians over rounds and ratios medians of per-round ratios, so
that a slow minute of the machine is shared by all.
"""

from collections.abc import Callable
import dataclasses
import functools
import json
import math
import os
import statistics
import sys
import time
from typing import Any

from absl import app
from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

import hcl_jax
from hcl_jax import _bench_peers

_BATCH_SIZES = flags.DEFINE_list(
    'batch_sizes', '256,1024,4096,16384', 'Pairs per batch, each >= 2.'
)
_MEMORY_ONLY_SIZES = flags.DEFINE_list(
    'memory_only_sizes', '', 'Pairs per batch to compile for but not to run.'
)
_DIM = flags.DEFINE_integer('dim', 128, 'Width of the embeddings.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Timed rounds per batch size.')
_PEERS = flags.DEFINE_list(
    'peers',
    ','.join(_bench_peers.PEERS),
    'Other libraries to run where installed; empty for none.',
)
_MAX_DENSE_GIB = flags.DEFINE_float(
    'max_dense_gib',
    4.0,
    'What holds the whole similarity matrix is not run where it would need '
    'more than this.',
)
_ONE_CORE = flags.DEFINE_bool(
    'one_core', False, 'Pin the process to one core and report its CPU time.'
)
_JSON = flags.DEFINE_string('json', '', 'Where to write the results, if set.')

_REFERENCES = ('three matmuls', 'torch hard', 'standard')
_LEAST_SECONDS = 0.05  # a contestant faster than this is repeated in a round
_NOTES = """\
B pairs are 2B rows. '/ x' is the median over rounds of a row's time over x's.
The three matmuls, z z' and W z + W' z, are what a dense form must compute, and
no lower bound: z z' is symmetric. beta is traced, so it costs no compilation.\
"""


class UsageError(Exception):
  """What the user asked for cannot be done; the message says why."""


# --- Contestants ------------------------------------------------------------


def simclr(
    name: str, *, beta: float, tau_plus: float, dense: bool = False
) -> _bench_peers.Contestant:
  """The library's loss, with the block size of its choice unless dense."""

  def inputs(z1, z2):
    return z1, z2, jnp.float32(beta), jnp.float32(tau_plus)

  return _bench_peers.Contestant(
      name,
      _dense_grad if dense else _simclr_grad,
      inputs,
      _bench_peers.matrices(12) if dense else None,
  )


def _dense_grad(z1, z2, beta, tau_plus):
  return _simclr_grad(z1, z2, beta, tau_plus, 2 * z1.shape[0])


def _simclr_grad(z1, z2, beta, tau_plus, block_size=None):
  def mean(z1, z2):
    return hcl_jax.simclr_loss(
        z1,
        z2,
        temperature=_bench_peers.TEMPERATURE,
        beta=beta,
        tau_plus=tau_plus,
        block_size=block_size,
    ).mean()

  return jax.value_and_grad(mean, argnums=(0, 1))(z1, z2)


def three_matmuls(name: str) -> _bench_peers.Contestant:
  """The similarities, and both products with a given cotangent of them."""
  product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

  def function(z, w):
    return product(z, z.T), product(w, z) + product(w.T, z)

  def inputs(z1, z2):
    n = 2 * z1.shape[0]
    return jnp.concatenate([z1, z2]), jnp.full((n, n), 1 / n, z1.dtype)

  return _bench_peers.Contestant(
      name, function, inputs, _bench_peers.matrices(12)
  )


def own_contestants() -> list[_bench_peers.Contestant]:
  beta, tau_plus = _bench_peers.BETA, _bench_peers.TAU_PLUS
  return [
      simclr('hard', beta=beta, tau_plus=tau_plus),
      simclr('hard beta=.7', beta=0.7, tau_plus=tau_plus),
      simclr('standard', beta=0.0, tau_plus=0.0),
      simclr('dense hard', beta=beta, tau_plus=tau_plus, dense=True),
      three_matmuls('three matmuls'),
  ]


@functools.lru_cache(maxsize=1)
def views(batch: int, dim: int) -> tuple[jax.Array, jax.Array]:
  """Unit vectors, the second view near the first."""
  rng = np.random.default_rng(0)
  z1, noise = rng.standard_normal((2, batch, dim), dtype=np.float32)
  return tuple(
      jnp.asarray(z / np.linalg.norm(z, axis=1, keepdims=True))
      for z in (z1, z1 + noise)
  )


# --- Measuring --------------------------------------------------------------


@dataclasses.dataclass
class Run:
  """A contestant at one batch size, and what is known of it so far."""

  contestant: _bench_peers.Contestant
  batch: int
  status: str = 'ok'
  function: Callable[..., Any] | None = None
  call: Callable[[], Any] | None = None
  repeats: int = 1
  seconds: list[float] = dataclasses.field(default_factory=list)
  compile_seconds: float | None = None
  temp_bytes: int | None = None
  loss: float | None = None

  def stop(self, status: str) -> None:
    self.status, self.seconds = status, []
    self.function = self.call = None


def guarded(step: Callable[..., None], run: Run, *args: Any) -> None:
  """Calls ``step(run, ...)``; running out of memory ends only this run."""
  if run.status != 'ok':
    return
  try:
    step(run, *args)
  except (RuntimeError, MemoryError) as error:
    signs = 'RESOURCE_EXHAUSTED', "can't allocate memory"
    known = any(sign in str(error) for sign in signs)
    if not known and not isinstance(error, MemoryError):
      raise
    run.stop('out of memory')


def compile_run(run: Run, dim: int) -> None:
  """Compiles without allocating arrays, and reads the memory planned."""
  run.function = run.contestant.function
  if not run.contestant.is_jax:
    return
  view = jax.ShapeDtypeStruct((run.batch, dim), jnp.float32)
  shapes = jax.eval_shape(run.contestant.inputs, view, view)
  start = time.perf_counter()
  run.function = jax.jit(run.contestant.function).lower(*shapes).compile()
  run.compile_seconds = time.perf_counter() - start
  memory = run.function.memory_analysis()
  run.temp_bytes = getattr(memory, 'temp_size_in_bytes', None)


def warm_up(run: Run, dim: int, limit: float) -> None:
  """Makes the arrays and calls once, unless it would need too much."""
  need = run.contestant.need
  if need is not None and need(run.batch, dim) > limit:
    run.stop(f'would need {need(run.batch, dim) / 2**30:.1f} GiB')
    return
  function, args = run.function, run.contestant.inputs(*views(run.batch, dim))
  run.call = lambda: jax.block_until_ready(function(*args))
  start = time.perf_counter()
  first = run.call()[0]
  seconds = time.perf_counter() - start
  run.loss = float(first) if first.ndim == 0 else None
  if seconds < _LEAST_SECONDS:
    run.repeats = math.ceil(_LEAST_SECONDS / time_call(run, time.perf_counter))


def time_call(run: Run, clock: Callable[[], float]) -> float:
  start = clock()
  for _ in range(run.repeats):
    run.call()
  return (clock() - start) / run.repeats


def time_run(run: Run, clock: Callable[[], float]) -> None:
  run.seconds.append(time_call(run, clock))


def measure(
    contestants: list[_bench_peers.Contestant],
    batch: int,
    *,
    dim: int,
    rounds: int,
    limit: float,
    clock: Callable[[], float],
) -> list[dict[str, Any]]:
  """Runs all contestants at one batch size; 0 rounds only compile them."""
  runs = [Run(contestant, batch) for contestant in contestants]
  for run in runs:
    guarded(compile_run, run, dim)
    if rounds:
      guarded(warm_up, run, dim, limit)
    elif run.status == 'ok':
      run.stop('not run')
    say(f'B={batch}: {run.contestant.name}: {run.status}', detail=True)
  for i in range(rounds):
    for run in runs[::-1] if i % 2 else runs:
      guarded(time_run, run, clock)
    say(f'B={batch}: round {i + 1} of {rounds} done')
  seconds = {run.contestant.name: run.seconds for run in runs}
  return [row(run, seconds) for run in runs]


def row(run: Run, seconds: dict[str, list[float]]) -> dict[str, Any]:
  """What the tables and the JSON say of a run."""
  return {
      'batch': run.batch,
      'name': run.contestant.name,
      'status': run.status,
      'ms': 1e3 * statistics.median(run.seconds) if run.seconds else None,
      'round_ms': [1e3 * x for x in run.seconds],
      'ratios': {
          name: paired_ratio(run.seconds, seconds.get(name, []))
          for name in _REFERENCES
      },
      'compile_seconds': run.compile_seconds,
      'temp_bytes': run.temp_bytes,
      'loss': run.loss,
  }


def paired_ratio(times: list[float], others: list[float]) -> float | None:
  if not times or not others:
    return None
  return statistics.median(a / b for a, b in zip(times, others, strict=True))


# --- Machine ----------------------------------------------------------------


def pin_to_one_core() -> None:
  """To be called before XLA or torch start their threads."""
  if not hasattr(os, 'sched_setaffinity'):
    raise UsageError('--one_core: this system cannot pin a process to a core.')
  os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def choose_clock() -> tuple[str, Callable[[], float]]:
  """CPU time where it means something: neighbours disturb it less."""
  if jax.default_backend() == 'cpu' and _bench_peers.usable_cores() == 1:
    return 'process CPU time', time.process_time
  return 'wall time', time.perf_counter


def device_memory() -> dict[str, int]:
  stats = jax.devices()[0].memory_stats() or {}
  names = 'bytes_limit', 'peak_bytes_in_use'
  return {name: stats[name] for name in names if name in stats}


# --- Output -----------------------------------------------------------------


def say(text: str, *, detail: bool = False) -> None:
  """Progress; details only for somebody who is watching."""
  if not detail or sys.stderr.isatty():
    print(text, file=sys.stderr, flush=True)


def table(header: list[str], lines: list[list[str]]) -> str:
  """Aligns columns, the first to the left and the others to the right."""
  columns = zip(header, *lines, strict=True)
  widths = [max(map(len, column)) for column in columns]
  lines = [header, ['-' * width for width in widths], *lines]
  return '\n'.join(
      '  '.join(
          [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]
      )
      for line in lines
  )


def number(value: float | None, digits: int) -> str:
  return '-' if value is None else f'{value:.{digits}f}'


def time_table(rows: list[dict[str, Any]]) -> str:
  """Milliseconds and ratios, a line for each contestant and batch size."""
  names = [x for x in _REFERENCES if any(r['ratios'][x] for r in rows)]
  header = ['contestant', 'B', 'ms', *(f'/ {x}' for x in names)]
  return table(
      [*header, 'compile s', 'loss'],
      [
          [
              r['name'],
              str(r['batch']),
              number(r['ms'], 2) if r['status'] == 'ok' else r['status'],
              *(number(r['ratios'][x], 3) for x in names),
              number(r['compile_seconds'], 1),
              number(r['loss'], 4),
          ]
          for r in rows
      ],
  )


def memory_table(rows: list[dict[str, Any]]) -> str:
  """MiB, a line for each contestant and a column for each batch size."""
  by_name = {}
  for r in rows:
    used = None if r['temp_bytes'] is None else r['temp_bytes'] / 2**20
    by_name.setdefault(r['name'], []).append(number(used, 1))
  batches = dict.fromkeys(r['batch'] for r in rows)
  return table(
      ['contestant', *(f'B={batch}' for batch in batches)],
      [[name, *cells] for name, cells in by_name.items()],
  )


def report(results: dict[str, Any]) -> str:
  """The whole text: what ran where, both tables, how to read them."""
  timed = [r for r in results['rows'] if r['status'] != 'not run']
  knobs = ', '.join(f'{k} {v:g}' for k, v in results['knobs'].items())
  device = ', '.join(
      f'{name} {value / 2**30:.2f} GiB'
      for name, value in results['device_memory'].items()
  )
  return '\n'.join([
      f'Loss forward and backward, float32, dim {results["dim"]}, {knobs}.',
      f'jax {results["jax"]}, backend {results["backend"]} '
      f'({results["device_kind"]}), {results["cores"]} host core(s); torch '
      'runs on the host.',
      f'Medians of {results["rounds"]} rounds, {results["clock"]}:',
      '',
      time_table(timed),
      '',
      "Temporary memory in XLA's plan, beside inputs and outputs, in MiB:",
      '',
      memory_table(results['rows']),
      *([f'Device: {device}'] if device else []),
      '',
      _NOTES,
  ])


def write_json(path: str, results: dict[str, Any]) -> None:
  """All or nothing: a reader never meets half a file."""
  temporary = f'{path}.{os.getpid()}.tmp'
  try:
    with open(temporary, 'w', encoding='utf-8') as file:
      json.dump(results, file, indent=2)
      file.write('\n')
    os.replace(temporary, path)
  finally:
    if os.path.exists(temporary):
      os.remove(temporary)


# --- Commands ---------------------------------------------------------------


def read_sizes(flag: flags.FlagHolder) -> list[int]:
  for text in flag.value:
    if not text.isdecimal() or int(text) < 2:
      raise UsageError(
          f'--{flag.name} must be whole numbers >= 2, got {text!r}.'
      )
  return list(dict.fromkeys(map(int, flag.value)))


def read_work() -> list[tuple[int, int]]:
  """Checks all flags; returns each batch size with its number of rounds."""
  timed, compiled = read_sizes(_BATCH_SIZES), read_sizes(_MEMORY_ONLY_SIZES)
  if not timed and not compiled:
    raise UsageError('--batch_sizes and --memory_only_sizes are both empty.')
  for flag, least in ((_DIM, 1), (_ROUNDS, 1), (_MAX_DENSE_GIB, 0)):
    if not flag.value >= least:
      raise UsageError(f'--{flag.name} must be >= {least}, got {flag.value}.')
  for name in _PEERS.value:
    if name not in _bench_peers.PEERS:
      known = ', '.join(_bench_peers.PEERS)
      raise UsageError(f'--peers must be among {known}; got {name!r}.')
  path = _JSON.value
  directory = os.path.dirname(os.path.abspath(path))
  if path and (os.path.isdir(path) or not os.access(directory, os.W_OK)):
    raise UsageError(f'--json cannot be written: {path!r}.')
  work = [(batch, _ROUNDS.value) for batch in timed]
  return work + [(batch, 0) for batch in compiled if batch not in timed]


def loss_command() -> None:
  """Times the loss beside bare products and peers."""
  work = read_work()
  if _ONE_CORE.value:
    pin_to_one_core()
  clock_name, clock = choose_clock()
  peers, missing = _bench_peers.find(_PEERS.value)
  if missing:
    say(f'not installed: {", ".join(missing)}')
  results = {
      'command': 'loss',
      'jax': jax.__version__,
      'backend': jax.default_backend(),
      'device_kind': jax.devices()[0].device_kind,
      'cores': _bench_peers.usable_cores(),
      'clock': clock_name,
      'dim': _DIM.value,
      'rounds': _ROUNDS.value,
      'knobs': {
          'temperature': _bench_peers.TEMPERATURE,
          'beta': _bench_peers.BETA,
          'tau_plus': _bench_peers.TAU_PLUS,
      },
      'rows': [],
  }
  for batch, rounds in work:
    results['rows'] += measure(
        [*own_contestants(), *peers],
        batch,
        dim=_DIM.value,
        rounds=rounds,
        limit=_MAX_DENSE_GIB.value * 2**30,
        clock=clock,
    )
    results['device_memory'] = device_memory()
    if _JSON.value:
      write_json(_JSON.value, results)
  print(report(results))


_COMMANDS = {'loss': loss_command}


def main(argv: list[str]) -> int:
  try:
    if len(argv) != 2 or argv[1] not in _COMMANDS:
      raise UsageError(
          f'expected one sub-command of: {", ".join(_COMMANDS)}; got '
          f'{" ".join(argv[1:]) or "none"}.'
      )
    _COMMANDS[argv[1]]()
  except UsageError as error:
    return _refuse(error)
  return 0


def _parse(argv: list[str]) -> list[str]:
  try:
    # Or JAX tells of every backend that is absent.
    return flags.FLAGS([argv[0], '--verbosity=-1', *argv[1:]])
  except flags.Error as error:
    sys.exit(_refuse(error))


def _refuse(error: Exception) -> int:
  print(f'hcl_jax.bench: {error}', file=sys.stderr)
  return 2


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
