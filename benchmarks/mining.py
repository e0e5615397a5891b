# SPDX-License-Identifier: Apache-2.0
"""Times :func:`hcl_jax.mine_hard_negatives` beside numpy on the host.

  python -m benchmarks mining --json=/tmp/mining.json

Numpy has the whole matrix: a product of unit vectors, ``argpartition``, and a
sort of the k that it finds. Both must find the same documents.
"""

from collections.abc import Callable
import os
import statistics
from typing import Any

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import usage
import hcl_jax
from hcl_jax.bench import harness
from hcl_jax.bench import options
from hcl_jax.bench import output
from hcl_jax.runs import reporting

_QUERIES = flags.DEFINE_integer('queries', 10_000, 'Queries to mine for.')
_DOCUMENTS = flags.DEFINE_integer('documents', 70_000, 'Documents to mine.')
_DIM = flags.DEFINE_integer('mining_dim', 128, 'Width of the embeddings.')
_K = flags.DEFINE_integer('mining_k', 10, 'Negatives per query.')
_NOTES = """\
x numpy: time over that of numpy, median over repetitions. Peak: what the
process held at most during the first call beyond what it held before; for
hcl_jax that has the compiler's memory too.\
"""


def vectors(rows: int, dim: int, seed: int) -> np.ndarray:
  """Returns random unit vectors."""
  rng = np.random.default_rng(seed)
  z = rng.standard_normal((rows, dim), dtype=np.float32)
  return z / np.linalg.norm(z, axis=1, keepdims=True)


def numpy_mine(
    queries: np.ndarray, documents: np.ndarray, k: int
) -> np.ndarray:
  """Returns the k most similar documents from the whole matrix."""
  scores = queries @ documents.T
  rest = len(documents) - k
  found = np.argpartition(scores, rest, axis=1)[:, rest:]
  order = np.argsort(-np.take_along_axis(scores, found, axis=1), axis=1)
  return np.take_along_axis(found, order, axis=1)


def first_call(
    name: str, call: Callable[[], Any]
) -> tuple[harness.Timed, int, np.ndarray]:
  """Returns a candidate with its peak of memory in bytes and what it found."""
  pid = os.getpid()
  found = []
  before = usage.read(pid).resident
  run = harness.timed(name, lambda: found.append(call()))
  peak = usage.read(pid).peak - before
  return harness.Timed(name, call, run.first_seconds), peak, found[0]


def measure(
    sizes: tuple[int, int, int], k: int, repetitions: int
) -> list[dict[str, Any]]:
  """Times both in turns.

  Args:
    sizes: queries, documents and width.
    k: negatives per query.
    repetitions: how often.

  Returns:
    One row for each.
  """
  n, m, dim = sizes
  host = vectors(n, dim, 0), vectors(m, dim, 1)
  device = tuple(map(jnp.asarray, host))
  # The one that needs less memory first: the peak never falls.
  measured = [
      first_call(
          'hcl_jax',
          lambda: jax.block_until_ready(
              hcl_jax.mine_hard_negatives(*device, k=k)
          )[0],
      ),
      first_call('numpy', lambda: numpy_mine(*host, k)),
  ]
  runs = [run for run, _, _ in measured]
  found = [np.asarray(indices) for _, _, indices in measured]
  harness.time_all(runs, repetitions, harness.choose_clock()[1])
  return [
      {
          'name': run.name,
          'seconds': statistics.median(run.seconds),
          'times_numpy': harness.paired_ratio(run.seconds, runs[1].seconds),
          'first_seconds': run.first_seconds,
          'repetition_seconds': run.seconds,
          'peak_bytes': peak,
          'agreement': float(np.mean(found[0] == found[1])),
      }
      for run, peak, _ in measured
  ]


def report(results: dict[str, Any]) -> str:
  """Returns the text: what ran where, the table, how to read it."""
  numpy_peak = results['rows'][1]['peak_bytes']
  lines = [
      [
          row['name'],
          f'{row["seconds"]:.3f}',
          f'{row["times_numpy"]:.2f}',
          f'{row["first_seconds"]:.2f}',
          f'{row["peak_bytes"] / 2**20:.0f}',
          f'{100 * row["peak_bytes"] / max(numpy_peak, 1):.1f} %',
      ]
      for row in results['rows']
  ]
  header = ['', 's', 'x numpy', 'first call s', 'peak MiB', 'of numpy']
  n, m, dim, k = (
      results[name] for name in ('queries', 'documents', 'dim', 'k')
  )
  where = results['environment']
  agreement = results['rows'][0]['agreement']
  return (
      f'{n:,} queries, {m:,} documents, width {dim}, k = {k}; '
      f'{where["cores"]} cores, {where["backend"]}, jax {where["jax"]}\n'
      f'{100 * agreement:.3f} % of the negatives are the same.\n\n'
      f'{reporting.table(header, lines)}\n\n{_NOTES}'
  )


def command() -> None:
  """Times mine_hard_negatives beside numpy, with the peaks of memory."""
  options.check()
  usage.check_system()
  for flag in (_QUERIES, _DOCUMENTS, _DIM, _K):
    options.at_least(flag, 1)
  options.at_least(_DOCUMENTS, _K.value)
  if options.ONE_CORE.value:
    harness.pin_to_one_core()
  sizes = _QUERIES.value, _DOCUMENTS.value, _DIM.value
  output.say('mining', detail=True)
  results = {
      'environment': harness.environment(),
      'queries': sizes[0],
      'documents': sizes[1],
      'dim': sizes[2],
      'k': _K.value,
      'rows': measure(sizes, _K.value, options.REPETITIONS.value),
  }
  print(report(results))
  if options.JSON.value:
    reporting.write_json(options.JSON.value, results)
