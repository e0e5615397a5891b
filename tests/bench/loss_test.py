# SPDX-License-Identifier: Apache-2.0
"""The bench as a user meets it: exit code, tables, JSON."""

import itertools
import json
import math
import os
import pathlib
import tempfile

from absl.testing import parameterized

from hcl_jax.bench import harness
from hcl_jax.bench import loss
from tests.support import commands
from tests.support import forks

_OWN = (
    'hard', 'hard beta=.7', 'standard', 'dense hard', 'sigmoid',
    'three matmuls',
)  # fmt: skip

# A candidate that fits no device, beside one that does.
_TOO_LARGE = """
from hcl_jax.bench import __main__
from hcl_jax.bench import cli
from hcl_jax.bench import harness
from hcl_jax.bench import loss

def fail(*_):
  raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.')

loss.own_candidates = lambda: [
    harness.Candidate('too large', fail, lambda z1, z2: (z1, z2)),
    loss.three_matmuls('three matmuls'),
]
cli.run("hcl_jax.bench", __main__.BENCHES)
"""
# Peers of another package: one runs on the host, one is not installed.
_WITH_PEERS = """
import numpy as np
from hcl_jax.bench import cli
from hcl_jax.bench import harness
from hcl_jax.bench import loss

def numpy_peer():
  return harness.Candidate(
      'numpy sum', lambda z1, z2: (z1.sum(), z2),
      lambda z1, z2: (np.asarray(z1), np.asarray(z2)),
      is_jax=False, is_reference=True,
  )

def command():
  'Times peers.'
  loss.command({'numpy': numpy_peer, 'no_such_package': numpy_peer})

cli.run('peers', {'loss': cli.Bench(command, ())})
"""


def run(*arguments: str, start: tuple[str, ...] = ('-m', 'hcl_jax.bench')):
  process = forks.start(
      *start, *arguments, environment=commands.environment()
  )
  out, err = process.communicate(timeout=300)
  return commands.Done(process.wait(), out, err)


class BenchLossTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    directory = tempfile.TemporaryDirectory()
    self.addCleanup(directory.cleanup)
    self.directory = pathlib.Path(directory.name)
    self.json = self.directory / 'loss.json'

  def test_tables_and_json(self):
    done = run(
        'loss',
        '--batch_sizes=8',
        '--memory_only_sizes=16',
        '--repetitions=2',
        '--peers=optax',
        f'--json={self.json}',
    )
    self.assertEqual(done.status, 0, done.err)
    self.assertNotIn('which run', done.out)
    self.assertEqual(os.listdir(self.directory), [self.json.name])
    results = json.loads(self.json.read_text())
    rows = {(r['name'], r['batch']): r for r in results['rows']}
    for name in _OWN:
      self.assertEqual(done.out.count(f'\n{name}  '), 2)  # both tables
      self.assertEqual(rows[name, 16]['status'], 'not run')
      for batch in (8, 16):
        self.assertGreaterEqual(rows[name, batch]['temp_bytes'], 0)
    timed = {name: row for (name, batch), row in rows.items() if batch == 8}
    for name, row in timed.items():
      self.check_timed(name, row)
    self.check_losses({name: row['loss'] for name, row in timed.items()})

  def check_timed(self, name, row):
    self.assertEqual(row['status'], 'ok')
    times = row['repetition_ms']
    self.assertLen(times, 2)
    self.assertTrue(all(math.isfinite(x) and x > 0 for x in times))
    self.assertTrue(math.isfinite(row['ratios']['three matmuls']))
    if name in row['ratios']:
      self.assertEqual(row['ratios'][name], 1)

  def check_losses(self, losses):
    """Whoever computes the same loss must get the same number."""
    same = {'dense hard': 'hard', 'optax ntxent': 'standard'}
    self.assertIsNone(losses['three matmuls'])
    for name in same:
      self.assertAlmostEqual(losses[name], losses[same[name]], places=4)

  def test_one_core_is_timed_by_its_cpu_time(self):
    if not hasattr(os, 'sched_setaffinity'):
      self.skipTest('Cannot pin a process here.')
    done = run(
        'loss',
        '--batch_sizes=8',
        '--repetitions=1',
        '--peers=',
        '--one_core',
        '--max_dense_gib=0',
        f'--json={self.json}',
    )
    self.assertEqual(done.status, 0, done.err)
    self.assertIn('process CPU time', done.out)
    results = json.loads(self.json.read_text())
    self.assertEqual(results['cores'], 1)
    self.assertEqual([r['name'] for r in results['rows']], list(_OWN))
    by_name = {r['name']: r for r in results['rows']}
    for name in ('dense hard', 'three matmuls'):
      self.assertStartsWith(by_name[name]['status'], 'would need')
      self.assertIsNone(by_name[name]['ms'])
    self.assertEqual(by_name['hard']['status'], 'ok')

  def test_compilation_has_the_clock_of_the_calls(self):
    ticks = itertools.count(0.0, 1000.0)
    rows = harness.measure(
        loss.own_candidates()[:1], 8, dim=4, repetitions=1, limit=2**30,
        clock=lambda: next(ticks),
    )  # fmt: skip
    self.assertEqual(rows[0]['compile_seconds'], 1000)

  def test_out_of_memory_ends_one_row_only(self):
    done = run(
        'loss',
        '--batch_sizes=8',
        '--repetitions=1',
        '--peers=',
        f'--json={self.json}',
        start=('-c', _TOO_LARGE),
    )
    self.assertEqual(done.status, 0, done.err)
    self.assertRegex(done.out, r'too large +8 +out of memory')
    statuses = [r['status'] for r in json.loads(self.json.read_text())['rows']]
    self.assertEqual(statuses, ['out of memory', 'ok'])

  def test_other_packages_bring_peers(self):
    done = run(
        'loss',
        '--batch_sizes=8',
        '--repetitions=1',
        f'--json={self.json}',
        start=('-c', _WITH_PEERS),
    )
    self.assertEqual(done.status, 0, done.err)
    self.assertIn('not installed: no_such_package\n', done.err)
    self.assertRegex(done.out, 'host core.s., which run numpy sum.\n')
    self.assertIn('  / numpy sum  ', done.out)
    rows = json.loads(self.json.read_text())['rows']
    self.assertEqual([r['name'] for r in rows], [*_OWN, 'numpy sum'])
    on_host = len(_OWN) * [False] + [True]
    self.assertEqual([r['on_host'] for r in rows], on_host)
    for row in rows:
      self.assertGreater(row['ratios']['numpy sum'], 0)
    self.assertIsNone(rows[-1]['temp_bytes'])

  @parameterized.parameters(
      ([], 'sub-command'),
      (['lose'], 'lose'),
      (['loss', '--batch_sizes=8,1'], '--batch_sizes'),
      (['loss', '--repetitions=0'], '--repetitions'),
      (['loss', '--peers=torch'], "--peers must be among optax; got 'torch'"),
  )
  def test_rejects_in_one_line(self, arguments, message):
    done = run(*arguments, f'--json={self.json}')
    self.assertEqual(done.status, 2)
    self.assertLen(done.err.splitlines(), 1, done.err)
    self.assertIn(message, done.err)
    self.assertEmpty(done.out)
    self.assertEmpty(os.listdir(self.directory))
