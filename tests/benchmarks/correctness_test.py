# SPDX-License-Identifier: Apache-2.0
"""The harness of correctness: it passes ours, and finds fault with others."""

import importlib.metadata
import math

from absl.testing import parameterized
import mpmath
import numpy as np

from benchmarks.correctness import cases
from benchmarks.correctness import compare
from benchmarks.correctness import jax_losses
from benchmarks.correctness import oracle
from benchmarks.correctness import processes
from benchmarks.correctness import report
from tests import reference
from tests.support import commands

_TOY = np.array([[1, 0], [0, 1], [0.8, 0.6], [-0.6, 0.8]])


def _own():
  return [x for x in jax_losses.own() if x.name == 'simclr_loss'][0]


def _softmax_loss(counts_itself=False, sign=1.0, overflows=False):
  """NT-Xent in numpy with its gradient, right or intentionally wrong."""

  def run(z1, z2, setting):
    rows = np.concatenate([z1, z2]).astype(np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(norms == 0, 1, norms)
    count = len(rows)
    logits = unit @ unit.T / setting.temperature
    if not counts_itself:
      np.fill_diagonal(logits, -np.inf)
    partner = (np.arange(count) + count // 2) % count
    peak = 0 if overflows else logits.max(axis=1, keepdims=True)
    with np.errstate(all='ignore'):
      weights = np.exp((logits - peak).astype(np.float32))
      total = weights.sum(axis=1, keepdims=True)
      value = np.mean(np.log(total) + peak) - np.mean(
          logits[np.arange(count), partner]
      )
      by_logit = (weights / total - np.eye(count)[partner]) / count
      by_unit = (by_logit + by_logit.T) @ unit / setting.temperature
      grad = by_unit - (by_unit * unit).sum(axis=1, keepdims=True) * unit
      grad = sign * grad / np.where(norms == 0, 1, norms)
    return sign * value, np.split(grad, 2)

  return run


def _implementation(**more):
  return compare.Implementation(
      'numpy', 'numpy', oracle.nt_xent, _softmax_loss(**more)
  )


class CorrectnessTest(parameterized.TestCase):

  @parameterized.parameters(
      (oracle.nt_xent, 0.0, 0.0, 0.430190),
      (oracle.hard, 1.0, 0.1, 0.424695),
      (oracle.hard, 2.0, 0.1, 0.481157),
      (oracle.hard, 0.0, 0.14, 0.288560),
  )
  def test_oracle_has_the_published_toy(self, definition, beta, tau, expected):
    exact = oracle.evaluate(definition, _TOY, oracle.Setting(0.5, beta, tau))
    self.assertAlmostEqual(exact.value, expected, places=6)

  def test_oracle_agrees_with_that_of_the_losses(self):
    case = cases.ordinary()[1]
    for t in (0.005, 0.5):
      setting = oracle.Setting(t, 1.0, 0.1)
      exact = oracle.evaluate(oracle.hard, case.rows, setting)
      m = mpmath.mp.clone()
      m.dps = 600
      losses, *grads = reference.simclr(
          case.z1, case.z2, temperature=m.mpf(t), beta=1, tau_plus=m.mpf(0.1),
          m=m,
      )  # fmt: skip
      self.assertAlmostEqual(float(sum(losses) / 4 / exact.value), 1, places=14)
      np.testing.assert_allclose(
          exact.gradient, np.array(grads, float).reshape(8, -1), rtol=1e-13
      )

  @parameterized.parameters(
      oracle.decoupled, oracle.weighted_decoupled, oracle.symmetric,
      oracle.joint, oracle.guided, oracle.sigmoid, oracle.supcon,
      oracle.labeled_nt_xent, oracle.other_view, oracle.global_contrast,
      oracle.hard_symmetric,
  )  # fmt: skip
  def test_gradients_are_those_of_the_values(self, definition):
    rows = cases.ordinary()[1].rows.astype(np.float64)
    step = 1e-6 * np.random.default_rng(0).standard_normal(rows.shape)
    options = {'setting': oracle.Setting(0.5, 0.7, 0.1)}
    if definition in (oracle.supcon, oracle.labeled_nt_xent):
      options['labels'] = (0, 0, 1, 1)
    up, down, here = (
        oracle.evaluate(definition, rows + s * step, **options)
        for s in (1, -1, 0)
    )
    slope = np.sum(here.gradient * step)
    if definition is oracle.weighted_decoupled:  # Its weights are detached.
      self.assertGreater(abs((up.value - down.value) / 2 / slope - 1), 1e-3)
      return
    self.assertAlmostEqual((up.value - down.value) / 2 / slope, 1, places=6)

  def test_ours_is_right_everywhere(self):
    rows = compare.measure(
        _own()._replace(settings=((1.0, 0.1),)), (0.01, 0.5)
    )
    self.assertEqual(report.verdict(rows), 'right')
    for row in rows:
      if row.dtype == 'float32':
        self.assertLess(row.worst, row.tolerance, row)

  @parameterized.parameters(
      ({}, 'right'),
      ({'counts_itself': True}, 'wrong'),
      ({'sign': -1.0}, 'wrong'),
      ({'overflows': True}, 'not finite at t = .01; right above'),
  )
  def test_finds_fault_with_a_wrong_formula(self, wrong, verdict):
    rows = compare.measure(_implementation(**wrong), (0.01, 0.5))
    self.assertEqual(report.verdict(rows), verdict)

  def test_an_error_is_an_outcome(self):
    def run(z1, z2, setting):
      raise IndexError('out of range')

    broken = _implementation()._replace(run=run)
    rows = compare.measure(broken, (0.5,))
    self.assertEqual(report.verdict(rows), 'raises IndexError')

  def test_tells_the_factor_of_a_gradient_over_processes(self):
    shared = processes.Shared('loss', oracle.nt_xent, len)
    exact = oracle.evaluate(
        oracle.nt_xent, processes.batch().rows, shared.setting
    )
    grads = exact.gradient.reshape(2, 8, -1)

    def verdict(value, grads):
      return report.shared_verdict(
          processes.outcome(shared, 'package', 2, value, grads)
      )

    self.assertEqual(verdict(exact.value, grads), 'right')
    self.assertEqual(
        verdict(2 * exact.value, grads), 'gradient right, value not'
    )
    self.assertEqual(
        verdict(exact.value, 2 * grads), 'gradient 2 times the right one'
    )
    self.assertIn('off by', verdict(exact.value, grads[:, ::-1]))

  def test_fills_a_page(self):
    page = 'before\n<!-- one -->\nold\n<!-- end -->\nafter\n'
    filled = report.fill(page, {'one': 'new'})
    self.assertEqual(
        filled, 'before\n<!-- one -->\nnew\n<!-- end -->\nafter\n'
    )
    with self.assertRaisesRegex(ValueError, "no place for 'two'"):
      report.fill(page, {'two': 'new'})

  def test_errors_of_losses_near_zero_are_absolute(self):
    exact = oracle.Exact(1e-30, np.zeros((2, 2)))
    value, gradient = compare.errors(
        exact, 0.0, np.zeros((2, 2)), rows=np.eye(2), temperature=0.1
    )
    self.assertLess(value, 1e-20)
    self.assertEqual(gradient, 0)
    value, gradient = compare.errors(
        exact, math.inf, np.full((2, 2), math.nan), rows=np.eye(2),
        temperature=0.1,
    )  # fmt: skip
    self.assertTrue(math.isnan(value) and math.isnan(gradient))

  def test_command(self):
    done = commands.run('benchmarks', 'correctness', '--packages=nothing')
    self.assertEqual(done.status, 2)
    self.assertLen(done.err.strip().splitlines(), 1, done.err)
    self.assertIn('--packages must be among hcl_jax, jax, torch,', done.err)

  def test_lists_what_is_not_installed(self):
    try:
      importlib.metadata.version('catalyst')
    except importlib.metadata.PackageNotFoundError:
      done = commands.run('benchmarks', 'correctness', '--packages=catalyst')
      self.assertEqual(done.status, 0, done.err)
      self.assertIn('not installed:\ncatalyst', done.out)
