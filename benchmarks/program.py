# SPDX-License-Identifier: Apache-2.0
"""Counts what a compiled program computes and sends, loops included."""

import collections
import math
import re
from typing import NamedTuple

_COMPUTATION = re.compile(r'^(ENTRY )?%?([\w.\-]+) .*\{$')
_INSTRUCTION = re.compile(
    r'^(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$'
)
_ARRAY = re.compile(r'(\w+)\[([\d,]*)\]')
_NAME = re.compile(r'%([\w.\-]+)')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONTRACTING = re.compile(r'lhs_contracting_dims=\{([\d,]*)\}')
_CALLED = re.compile(r'(?:calls|to_apply)=%?([\w.\-]+)')
_BODY = re.compile(r'body=%?([\w.\-]+)')
_BRANCHES = re.compile(
    r'(?:branch_computations=\{([^}]*)\}|'
    r'true_computation=(%?[\w.\-]+), false_computation=(%?[\w.\-]+))'
)
_BYTES = {
    'pred': 1, 's8': 1, 'u8': 1, 's16': 2, 'u16': 2, 'f16': 2, 'bf16': 2,
    's32': 4, 'u32': 4, 'f32': 4, 's64': 8, 'u64': 8, 'f64': 8,
}  # fmt: skip
COLLECTIVES = (
    'all-gather', 'all-reduce', 'reduce-scatter', 'collective-permute',
    'all-to-all',
)  # fmt: skip


class Work(NamedTuple):
  """Holds what one device does.

  Attributes:
    flops: of matrix products, two for each multiplication.
    sent: bytes of what collectives give, by their kind.
    calls: how often each is called.
  """

  flops: float
  sent: dict[str, float]
  calls: dict[str, float]


def count(text: str) -> Work:
  """Counts the products and collectives of an optimized HLO module.

  XLA's own cost analysis counts the body of a loop once; here it counts as
  often as it is run. Of a conditional, the branch with more to compute counts.

  Args:
    text: ``compiled.as_text()``.

  Returns:
    The work of one device.

  Raises:
    ValueError: a loop with something to count has no known trip count.
  """
  computations, entry = _parse(text)
  return _Counter(computations).total(entry)


class Transfer(NamedTuple):
  """Holds a permutation of arrays among devices.

  Attributes:
    computation: where it stands, such as the body of a loop.
    hidden: whether a loop with products runs between its start and its end.
  """

  computation: str
  hidden: bool


def transfers(text: str) -> list[Transfer]:
  """Finds the permutations of a scheduled program, and what they overlap.

  Args:
    text: ``compiled.as_text()`` of a backend with asynchronous collectives,
      such as that of a TPU, in the order in which a device begins operations.

  Returns:
    One transfer for each permutation in the text.
  """
  computations, _ = _parse(text)
  counter = _Counter(computations)
  found = []
  for name, instructions in computations.items():
    ends = {
        _NAME.search(x.rest)[1]: i
        for i, x in enumerate(instructions)
        if x.op == 'collective-permute-done'
    }
    for i, x in enumerate(instructions):
      if x.op == 'collective-permute':
        found.append(Transfer(name, False))
      elif x.op == 'collective-permute-start':
        meanwhile = instructions[i + 1 : ends[x.name]]
        loops = (y for y in meanwhile if y.op == 'while')
        hidden = any(counter.has_products(y) for y in loops)
        found.append(Transfer(name, hidden))
  return found


class _Instruction(NamedTuple):
  name: str
  kind: str  # type of the result
  op: str
  rest: str  # operands and attributes


class _Counter:
  """Sums over the calls of computations, each counted once."""

  def __init__(self, computations):
    self._computations = computations
    self._known = {}

  def total(self, name) -> Work:
    if name not in self._known:
      types = {x.name: x.kind for x in self._computations[name]}
      parts = [self._of(x, types) for x in self._computations[name]]
      self._known[name] = _sum([(1, part) for part in parts])
    return self._known[name]

  def has_products(self, x: _Instruction) -> bool:
    """Returns whether an instruction computes products, somewhere."""
    if x.op in ('dot', 'convolution'):  # a TPU's dot is a convolution
      return True
    names = _CALLED.findall(x.rest) + _BODY.findall(x.rest)
    called = [y for name in names for y in self._computations[name]]
    return any(map(self.has_products, called))

  def _of(self, x: _Instruction, types) -> Work:
    if x.op == 'dot':
      return Work(_dot_flops(x, types), {}, {})
    kind = x.op.removesuffix('-start')
    if kind in COLLECTIVES:
      return Work(0.0, {kind: _result_bytes(x)}, {kind: 1.0})
    if x.op == 'while':
      return self._loop(x)
    if x.op == 'conditional':
      one, *two = _BRANCHES.search(x.rest).groups()
      names = one.split(',') if one else two
      branches = [self.total(name.strip().lstrip('%')) for name in names]
      return max(branches, key=lambda work: work.flops)
    called = _CALLED.search(x.rest)
    if x.op in ('fusion', 'call', 'async-start') and called:
      return self.total(called[1])
    return Work(0.0, {}, {})

  def _loop(self, x):
    body = self.total(_BODY.search(x.rest)[1])
    trips = _TRIPS.search(x.rest)
    if trips is None:
      if body.flops or body.sent:
        raise ValueError(
            f'the loop {x.name} has no known trip count, so its operations '
            'cannot be counted.'
        )
      return body
    return _sum([(int(trips[1]), body)])


def _parse(text):
  """Returns instructions by computation, and the name of the first one."""
  computations, entry, current = {}, None, None
  for line in text.splitlines():
    line = line.strip()
    begins = _COMPUTATION.match(line)
    if begins and ' = ' not in line.split('{')[0]:
      current = computations.setdefault(begins[2], [])
      entry = begins[2] if begins[1] else entry
    elif current is not None:
      found = _INSTRUCTION.match(re.sub(r'/\*.*?\*/', '', line))
      if found:
        current.append(_Instruction(*found.groups()))
  if entry is None:
    raise ValueError('text must be an HLO module with an ENTRY computation.')
  return computations, entry


def _arrays(kind):
  return [
      (name, [int(x) for x in dims.split(',') if x])
      for name, dims in _ARRAY.findall(kind)
  ]


def _result_bytes(x):
  """Returns bytes of the result, or of the one that an operation starts."""
  arrays = _arrays(x.kind)
  if x.op.endswith('-start') and len(arrays) > 1:
    arrays = arrays[-1:]
  return float(
      sum(_BYTES.get(name, 0) * math.prod(dims) for name, dims in arrays)
  )


def _dot_flops(x, types):
  (_, result), = _arrays(x.kind)
  left = types[_NAME.search(x.rest)[1]]
  (_, dims), = _arrays(left)
  contracted = [
      dims[int(i)] for i in _CONTRACTING.search(x.rest)[1].split(',') if i
  ]
  return 2.0 * math.prod(result) * math.prod(contracted)


def _sum(parts):
  flops, sent, calls = 0.0, collections.Counter(), collections.Counter()
  for times, work in parts:
    flops += times * work.flops
    for total, values in ((sent, work.sent), (calls, work.calls)):
      total.update({kind: times * x for kind, x in values.items()})
  return Work(flops, dict(sent), dict(calls))
