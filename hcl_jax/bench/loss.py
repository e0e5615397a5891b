# SPDX-License-Identifier: Apache-2.0
"""Times the value and gradient of :func:`hcl_jax.simclr_loss`, and others.

  python -m hcl_jax.bench loss --batch_sizes=256,1024 --json=/tmp/loss.json

Beside it run the bare matrix products of its size and optax's standard loss.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
from typing import Any

from absl import flags
import jax
import jax.numpy as jnp

import hcl_jax
from hcl_jax import command as command_lib
from hcl_jax.bench import harness
from hcl_jax.bench import options
from hcl_jax.bench import output
from hcl_jax.bench import peers
from hcl_jax.runs import reporting

_BATCH_SIZES = flags.DEFINE_list(
    'batch_sizes', '256,1024,4096,16384', 'Pairs per batch, each >= 2.'
)
_MEMORY_ONLY_SIZES = flags.DEFINE_list(
    'memory_only_sizes', '', 'Pairs per batch to compile for but not to run.'
)
_DIM = flags.DEFINE_integer('dim', 128, 'Width of the embeddings.')
_PEERS = flags.DEFINE_list(
    'peers',
    None,
    'Other libraries to run where installed, such as optax; by default all, '
    'and none if empty.',
)
_MAX_DENSE_GIB = flags.DEFINE_float(
    'max_dense_gib',
    4.0,
    'Skip candidates that hold the whole similarity matrix where they need '
    'more than this.',
)

_NOTES = """\
B pairs are 2B rows. '/ x' is a row's time over x's, median over repetitions.
The three matmuls, z z' and W z + W' z, are what a dense form must compute, and
no lower bound: z z' is symmetric. beta is traced, so it costs no compilation.\
"""


def simclr(
    name: str,
    *,
    beta: float,
    tau_plus: float,
    dense: bool = False,
    is_reference: bool = False,
) -> harness.Candidate:
  """Returns hcl_jax's loss, with the block size that it chooses, or dense."""

  def inputs(z1, z2):
    return z1, z2, jnp.float32(beta), jnp.float32(tau_plus)

  return harness.Candidate(
      name,
      _dense_grad if dense else _simclr_grad,
      inputs,
      harness.matrices(12) if dense else None,
      is_reference=is_reference,
  )


def _dense_grad(z1, z2, beta, tau_plus):
  return _simclr_grad(z1, z2, beta, tau_plus, 2 * z1.shape[0])


def _simclr_grad(z1, z2, beta, tau_plus, block_size=None):
  def mean(z1, z2):
    return hcl_jax.simclr_loss(
        z1,
        z2,
        temperature=peers.TEMPERATURE,
        beta=beta,
        tau_plus=tau_plus,
        block_size=block_size,
    ).mean()

  return jax.value_and_grad(mean, argnums=(0, 1))(z1, z2)


def sigmoid(name: str) -> harness.Candidate:
  """Returns SigLIP's loss of the two views; B rows against B columns."""

  def function(z1, z2):
    def mean(z1, z2):
      return hcl_jax.sigmoid_loss(z1, z2).mean()

    return jax.value_and_grad(mean, argnums=(0, 1))(z1, z2)

  return harness.Candidate(name, function, lambda z1, z2: (z1, z2))


def three_matmuls(name: str) -> harness.Candidate:
  """Returns the similarities and their two products with a cotangent."""
  product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

  def function(z, w):
    return product(z, z.T), product(w, z) + product(w.T, z)

  def inputs(z1, z2):
    n = 2 * z1.shape[0]
    return jnp.concatenate([z1, z2]), jnp.full((n, n), 1 / n, z1.dtype)

  return harness.Candidate(
      name, function, inputs, harness.matrices(12), is_reference=True
  )


def own_candidates() -> list[harness.Candidate]:
  beta, tau_plus = peers.BETA, peers.TAU_PLUS
  return [
      simclr('hard', beta=beta, tau_plus=tau_plus),
      simclr('hard beta=.7', beta=0.7, tau_plus=tau_plus),
      simclr('standard', beta=0.0, tau_plus=0.0, is_reference=True),
      simclr('dense hard', beta=beta, tau_plus=tau_plus, dense=True),
      sigmoid('sigmoid'),
      three_matmuls('three matmuls'),
  ]


def time_table(rows: list[dict[str, Any]]) -> str:
  """Returns milliseconds and ratios, a line for each candidate and size."""
  names = dict.fromkeys(
      name for r in rows for name, ratio in r['ratios'].items() if ratio
  )
  header = ['candidate', 'B', 'ms', *(f'/ {x}' for x in names)]
  return reporting.table(
      [*header, 'compile s', 'loss'],
      [
          [
              r['name'],
              str(r['batch']),
              reporting.number(r['ms'], 2)
              if r['status'] == 'ok'
              else r['status'],
              *(reporting.number(r['ratios'][x], 3) for x in names),
              reporting.number(r['compile_seconds'], 1),
              reporting.number(r['loss'], 4),
          ]
          for r in rows
      ],
  )


def memory_table(rows: list[dict[str, Any]]) -> str:
  """Returns MiB, a line for each candidate and a column for each size."""
  by_name = {}
  for r in rows:
    used = None if r['temp_bytes'] is None else r['temp_bytes'] / 2**20
    by_name.setdefault(r['name'], []).append(reporting.number(used, 1))
  batches = dict.fromkeys(r['batch'] for r in rows)
  return reporting.table(
      ['candidate', *(f'B={batch}' for batch in batches)],
      [[name, *cells] for name, cells in by_name.items()],
  )


def report(results: dict[str, Any]) -> str:
  """Returns the text: what ran where, both tables, how to read them."""
  timed = [r for r in results['rows'] if r['status'] != 'not run']
  values = ', '.join(
      f'{k} {v:g}' for k, v in results['hyperparameters'].items()
  )
  device = ', '.join(
      f'{name} {value / 2**30:.2f} GiB'
      for name, value in results['device_memory'].items()
  )
  hosted = dict.fromkeys(r['name'] for r in results['rows'] if r['on_host'])
  return '\n'.join([
      f'Loss forward and backward, float32, dim {results["dim"]}, {values}.',
      f'jax {results["jax"]}, backend {results["backend"]} '
      f'({results["device_kind"]}), {results["cores"]} host core(s)'
      + (f', which run {" and ".join(hosted)}.' if hosted else '.'),
      f'Medians of {results["repetitions"]} repetitions, {results["clock"]}:',
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


def read_work(known_peers: Mapping[str, Any]) -> list[tuple[int, int]]:
  """Checks all flags; returns batch sizes with numbers of repetitions."""
  timed = options.read_sizes(_BATCH_SIZES)
  compiled = options.read_sizes(_MEMORY_ONLY_SIZES)
  if not timed and not compiled:
    raise command_lib.UsageError(
        '--batch_sizes and --memory_only_sizes are both empty.'
    )
  options.check()
  options.at_least(_DIM, 1)
  options.at_least(_MAX_DENSE_GIB, 0)
  for name in _PEERS.value or ():
    if name not in known_peers:
      known = ', '.join(known_peers)
      raise command_lib.UsageError(
          f'--peers must be among {known}; got {name!r}.'
      )
  work = [(batch, options.REPETITIONS.value) for batch in timed]
  return work + [(batch, 0) for batch in compiled if batch not in timed]


def command(
    known_peers: Mapping[str, peers.Peer] = peers.PEERS,
    candidates: Callable[[], list[harness.Candidate]] | None = None,
) -> None:
  """Times the loss beside matrix products and other libraries.

  Args:
    known_peers: what --peers may name, and its default.
    candidates: makes those of hcl_jax; None: ``own_candidates``.
  """
  work = read_work(known_peers)
  if options.ONE_CORE.value:
    harness.pin_to_one_core()
  _, clock = harness.choose_clock()
  names = list(known_peers) if _PEERS.value is None else _PEERS.value
  others, missing = peers.find(names, known_peers)
  if missing:
    output.say(f'not installed: {", ".join(missing)}')
  results = {
      'command': 'loss',
      **harness.environment(),
      'dim': _DIM.value,
      'repetitions': options.REPETITIONS.value,
      'hyperparameters': {
          'temperature': peers.TEMPERATURE,
          'beta': peers.BETA,
          'tau_plus': peers.TAU_PLUS,
      },
      'rows': [],
  }
  for batch, repetitions in work:
    results['rows'] += harness.measure(
        [*(candidates or own_candidates)(), *others],
        batch,
        dim=_DIM.value,
        repetitions=repetitions,
        limit=_MAX_DENSE_GIB.value * 2**30,
        clock=clock,
    )
    results['device_memory'] = harness.device_memory()
    if options.JSON.value:
      reporting.write_json(options.JSON.value, results)
  print(report(results))
