# SPDX-License-Identifier: Apache-2.0
"""Definitions of contrastive losses, with gradients, in 60 digits.

A definition is the equation as it is printed, in exp space, in Python's
numbers of mpmath: exponents have no range there, so nothing is shifted,
clipped or rearranged. It is a function of the similarities of ``2 * batch``
rows. Their derivatives come from a tape (reverse mode, one node an operation),
those of the rows from the product rule. It shares no code with hcl_jax, jax or
the tests' oracle.
"""

from collections.abc import Callable
import math
from typing import Any
from typing import NamedTuple

import mpmath
import numpy as np

DIGITS = 60


class Setting(NamedTuple):
  """Hyperparameters of a definition; each reads those that it has.

  Attributes:
    temperature: what similarities are divided by.
    beta: concentration of the hard loss, or strength of an added hardness.
    tau_plus: class prior of the debiased loss.
  """

  temperature: float
  beta: float = 0.0
  tau_plus: float = 0.0


class Number:
  """Number that remembers what it was computed from."""

  def __init__(self, value: Any, parents: tuple[Any, ...], tape: 'Tape'):
    self.value, self.parents, self.tape = value, parents, tape
    tape.nodes.append(self)

  def _lift(self, other):
    return other.value if isinstance(other, Number) else other

  def _binary(self, other, value, own, its):
    parents = ((self, own),)
    if isinstance(other, Number):
      parents += ((other, its),)
    return Number(value, parents, self.tape)

  def __add__(self, other):
    return self._binary(other, self.value + self._lift(other), 1, 1)

  def __sub__(self, other):
    return self._binary(other, self.value - self._lift(other), 1, -1)

  def __mul__(self, other):
    value = self._lift(other)
    return self._binary(other, self.value * value, value, self.value)

  def __truediv__(self, other):
    value = self._lift(other)
    result = self.value / value
    return self._binary(other, result, 1 / value, -result / value)

  def __radd__(self, other):
    return self + other

  def __rmul__(self, other):
    return self * other

  def __neg__(self):
    return self * -1

  def __rsub__(self, other):
    return -self + other

  def exp(self) -> 'Number':
    value = self.tape.m.exp(self.value)
    return Number(value, ((self, value),), self.tape)

  def log(self) -> 'Number':
    value = self.tape.m.log(self.value)
    return Number(value, ((self, 1 / self.value),), self.tape)


class Tape:
  """Operations in their order, and the arithmetic that they are in."""

  def __init__(self, m: Any):
    self.m = m
    self.nodes: list[Number] = []

  def gradient(self, result: Number) -> dict[int, Any]:
    """Returns d result / d node, by the node's id."""
    grads = {id(result): self.m.mpf(1)}
    for node in reversed(self.nodes):
      grad = grads.get(id(node))
      if grad is None:
        continue
      for parent, partial in node.parents:
        grads[id(parent)] = grads.get(id(parent), 0) + grad * partial
    return grads


class Rows(NamedTuple):
  """What a definition reads.

  Attributes:
    sim: similarity of two rows by their indices, a :class:`Number`.
    batch: number of pairs; rows ``i`` and ``batch + i`` are a pair.
    labels: class of each pair.
    t: temperature, exactly.
    beta: see :class:`Setting`.
    tau_plus: see :class:`Setting`.
    m: arithmetic.
  """

  sim: Callable[[int, int], Number]
  batch: int
  labels: tuple[int, ...]
  t: Any
  beta: Any
  tau_plus: Any
  m: Any

  def logit(self, i: int, j: int) -> Number:
    return self.sim(i, j) / self.t

  def partner(self, i: int) -> int:
    return (i + self.batch) % (2 * self.batch)

  def others(self, i: int) -> list[int]:
    """Returns both views of all other pairs."""
    own = (i, self.partner(i))
    return [j for j in range(2 * self.batch) if j not in own]


def _mean(terms):
  return sum(terms[1:], terms[0]) / len(terms)


def _total(terms):
  return sum(terms[1:], terms[0])


def _over(x: Rows, i: int, positive: int, negatives: list[int]) -> Number:
  """log(1 + sum_j e^{s_ij} / e^{s_ip})."""
  p = x.logit(i, positive)
  return (_total([(x.logit(i, j) - p).exp() for j in negatives]) + 1).log()


def nt_xent(x: Rows) -> Number:
  """SimCLR: both views of all other pairs are negatives."""
  return _mean([
      _over(x, i, x.partner(i), x.others(i)) for i in range(2 * x.batch)
  ])


def hard(x: Rows) -> Number:
  """Robinson et al., equation 4: Q = N = 2 B - 2, M = 1, Ng >= N e^{-1/t}."""
  return _mean(
      [_hard(x, i, x.partner(i), x.others(i)) for i in range(2 * x.batch)]
  )


def hard_in_batch(x: Rows) -> Number:
  """Has the hard loss of two towers: the other second rows are negatives."""
  b = x.batch
  return _mean([
      _hard(x, i, b + i, [b + j for j in range(b) if j != i])
      for i in range(b)
  ])


def hard_symmetric(x: Rows) -> Number:
  """Has the mean of the hard loss of two towers over both directions."""
  b = x.batch
  back = [
      _hard(x, b + i, i, [j for j in range(b) if j != i]) for i in range(b)
  ]
  return (hard_in_batch(x) + _mean(back)) / 2


def _hard(x, i, positive, negatives):
  p = x.logit(i, positive)
  logits = [x.logit(i, j) for j in negatives]
  count = len(negatives)
  weights = [(s * x.beta).exp() for s in logits]
  tops = [(s * (x.beta + 1)).exp() for s in logits]
  mass = _total(tops) / _total(weights) * count
  mass = (mass - p.exp() * (x.tau_plus * count)) / (1 - x.tau_plus)
  floor = count * x.m.exp(-1 / x.t)
  if x.tau_plus and mass.value < floor:
    return ((-p).exp() * floor + 1).log()
  return (mass / p.exp() + 1).log()


def decoupled(x: Rows) -> Number:
  """Yeh et al., equation 6: NT-Xent without the positive below."""
  return _mean([
      _total([x.logit(i, j).exp() for j in x.others(i)]).log()
      - x.logit(i, x.partner(i))
      for i in range(2 * x.batch)
  ])


def weighted_decoupled(x: Rows) -> Number:
  """DCLW with sigma .5: p times 2 - B softmax_i(cos_i / sigma), detached."""
  weights = [
      x.m.exp(x.sim(i, x.partner(i)).value / x.m.mpf('0.5'))
      for i in range(x.batch)
  ]
  weights = [2 - x.batch * w / sum(weights) for w in weights]
  return _mean([
      _total([x.logit(i, j).exp() for j in x.others(i)]).log()
      - x.logit(i, x.partner(i)) * weights[i % x.batch]
      for i in range(2 * x.batch)
  ])


def in_batch(x: Rows) -> Number:
  """InfoNCE of two towers, one direction."""
  b = x.batch
  return _mean([
      _over(x, i, b + i, [b + j for j in range(b) if j != i])
      for i in range(b)
  ])


def symmetric(x: Rows) -> Number:
  """CLIP: the mean of InfoNCE in both directions."""
  b = x.batch
  back = [
      _over(x, b + i, i, [j for j in range(b) if j != i]) for i in range(b)
  ]
  return (in_batch(x) + _mean(back)) / 2


def joint(x: Rows) -> Number:
  """Li et al. (GTE): one sum over q-d, q-q, d-q and d-d."""
  b = x.batch
  terms = []
  for i in range(b):
    pairs = [(i, b + j) for j in range(b)] + [(b + i, j) for j in range(b)]
    pairs += [(i, j) for j in range(b) if j != i]
    pairs += [(b + i, b + j) for j in range(b) if j != i]
    total = _total([x.logit(*pair).exp() for pair in pairs])
    terms.append(total.log() - x.logit(i, b + i))
  return _mean(terms)


def added_hardness(x: Rows) -> Number:
  """Lan et al., equation 5: s_ij + alpha cos_ij, detached, for negatives."""
  b = x.batch
  terms = []
  for i in range(b):
    p = x.logit(i, b + i)
    total = _total([
        (x.logit(i, b + j) - p).exp()
        * x.m.exp(x.beta * x.sim(i, b + j).value)
        for j in range(b)
        if j != i
    ])
    terms.append((total + 1).log())
  return _mean(terms)


def guided(x: Rows) -> Number:
  """Solatorio (GIST), nothing filtered: a_i with d, a_j, and d_i with d_j."""
  b = x.batch
  terms = []
  for i in range(b):
    pairs = [(i, b + j) for j in range(b)]
    pairs += [(i, j) for j in range(b) if j != i]
    pairs += [(b + i, b + j) for j in range(b) if j != i]
    total = _total([x.logit(*pair).exp() for pair in pairs])
    terms.append(total.log() - x.logit(i, b + i))
  return _mean(terms)


def sigmoid(x: Rows) -> Number:
  """Zhai et al.: a logistic loss for every entry, over B; bias -10."""
  b = x.batch
  terms = []
  for i in range(b):
    for j in range(b):
      s = x.logit(i, b + j) - 10
      terms.append(((-s if i == j else s).exp() + 1).log())
  return _total(terms) / b


def supcon(x: Rows) -> Number:
  """Khosla et al., the sum over positives outside of the logarithm."""
  rows = range(2 * x.batch)
  terms = []
  for i in rows:
    total = _total([x.logit(i, a).exp() for a in rows if a != i]).log()
    own = _positives(x, i)
    terms.append(total - _mean([x.logit(i, p) for p in own]))
  return _mean(terms)


def labeled_nt_xent(x: Rows) -> Number:
  """NT-Xent of each pair of a class; below, it and the other classes only."""
  terms = []
  for i in range(2 * x.batch):
    own = _positives(x, i)
    others = [j for j in range(2 * x.batch) if j != i and j not in own]
    terms += [_over(x, i, p, others) for p in own]
  return _mean(terms)


def other_view(x: Rows) -> Number:
  """You et al. (GraphCL): the other view only, without the positive below."""
  b = x.batch
  return _mean([
      _total([x.logit(i, b + j).exp() for j in range(b) if j != i]).log()
      - x.logit(i, b + i)
      for i in range(b)
  ])


def global_contrast(x: Rows) -> Number:
  """Yuan et al. (SogCLR): t log E e^{(c_ij - c_ip) / t}, of both views."""
  terms = []
  for i in range(2 * x.batch):
    p = x.logit(i, x.partner(i))
    terms.append(_mean([(x.logit(i, j) - p).exp() for j in x.others(i)]).log())
  return _mean(terms) * (2 * x.t)


def _positives(x, i):
  b = x.batch
  return [
      j
      for j in range(2 * b)
      if j != i and x.labels[j % b] == x.labels[i % b]
  ]


Definition = Callable[[Rows], Number]


class Exact(NamedTuple):
  """Value and gradients, rounded to float64; NaN where there is none.

  The gradient of a row of zeros is not defined where rows are normalized.
  """

  value: float
  gradient: np.ndarray


def evaluate(
    definition: Definition,
    rows: np.ndarray,
    setting: Setting,
    *,
    normalize: bool = True,
    labels: tuple[int, ...] | None = None,
) -> Exact:
  """Evaluates a definition and its gradient in the rows.

  Args:
    definition: one of this module.
    rows: both views, ``[2 * batch, dim]``; every number is taken exactly.
    setting: hyperparameters.
    normalize: whether similarities are cosines rather than inner products.
    labels: class of each pair, by default its own.

  Returns:
    Value and gradient.
  """
  m = mpmath.mp.clone()
  # 1 + e^{-x} has all its digits only if it has as many more as e^x.
  most = 1 if normalize else float(np.abs(rows @ rows.T).max())
  reach = 2 * most * (1 + setting.beta) / setting.temperature
  m.dps = DIGITS + math.ceil(reach / math.log(10))
  raw = [[m.mpf(float(v)) for v in row] for row in rows]
  norms = [m.sqrt(sum(v * v for v in row)) for row in raw]
  unit = raw
  if normalize:
    unit = [
        [v / norm if norm else v for v in row]
        for row, norm in zip(raw, norms, strict=True)
    ]
  tape = Tape(m)
  sims: dict[tuple[int, int], Number] = {}

  def sim(i: int, j: int) -> Number:
    if (i, j) not in sims:
      value = sum(a * b for a, b in zip(unit[i], unit[j], strict=True))
      sims[i, j] = Number(value, (), tape)
    return sims[i, j]

  batch = len(rows) // 2
  loss = definition(
      Rows(
          sim,
          batch,
          tuple(range(batch)) if labels is None else labels,
          m.mpf(setting.temperature),
          m.mpf(setting.beta),
          m.mpf(setting.tau_plus),
          m,
      )
  )
  grads = tape.gradient(loss)
  result = [[m.mpf(0)] * len(row) for row in raw]
  for (i, j), node in sims.items():
    pull = grads.get(id(node), 0)
    for k in range(len(raw[0])):
      result[i][k] += pull * unit[j][k]
      result[j][k] += pull * unit[i][k]
  if normalize:
    for i, norm in enumerate(norms):
      if not norm:
        result[i] = [m.nan] * len(raw[0])
        continue
      along = sum(g * u for g, u in zip(result[i], unit[i], strict=True))
      result[i] = [
          (g - along * u) / norm
          for g, u in zip(result[i], unit[i], strict=True)
      ]
  return Exact(
      float(loss.value), np.array([[float(g) for g in row] for row in result])
  )
