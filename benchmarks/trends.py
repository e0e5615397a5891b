# SPDX-License-Identifier: Apache-2.0
"""Summarizes samples of a long run: whether memory and speed stay the same."""

from collections.abc import Callable
from collections.abc import Sequence
import itertools
import statistics
from typing import Any
from typing import NamedTuple

from benchmarks import usage as usage_lib

_MIB = 2**20
_ENDS = 10  # samples that a number at an end is the median of


class Sample(NamedTuple):
  """A run at the end of a step.

  Attributes:
    step: which; every sample has a later one.
    seconds: on the wall, from any beginning.
    usage: of its process.
  """

  step: int
  seconds: float
  usage: usage_lib.Usage


def summarize(samples: Sequence[Sample], total_steps: int) -> dict[str, Any]:
  """Summarizes a run.

  Args:
    samples: from its first steps to its last.
    total_steps: length of the run.

  Returns:
    Milliseconds of a step in the second and the last quarter of the steps; the
    slope and drift of memory over the second half, and what was used at both
    ends of it; the peak of memory. None where there are too few samples.
  """
  second = part(samples, total_steps, 1 / 4, 1 / 2)
  last = part(samples, total_steps, 3 / 4, 1)
  half = part(samples, total_steps, 1 / 2, 1)
  slope = resident_slope(half)

  def ms(value):
    return _compare(1e3, seconds_per_step(second, value),
                    seconds_per_step(last, value))  # fmt: skip

  return {
      'samples': len(samples),
      'cpu_ms_per_step': ms(lambda x: x.usage.cpu_seconds),
      'wall_ms_per_step': ms(lambda x: x.seconds),
      'resident_mib': _compare(1 / _MIB, *ends(half, lambda u: u.resident)),
      'files': _compare(1, *ends(half, lambda u: u.files)),
      'threads': _compare(1, *ends(half, lambda u: u.threads)),
      'slope_mib_per_1000_steps': _scale(1000 / _MIB, slope),
      'drift_mib': _scale(total_steps / 2 / _MIB, slope),
      'peak_mib': _scale(
          1 / _MIB, max((x.usage.peak for x in samples), default=None)
      ),
  }


def part(
    samples: Sequence[Sample], total_steps: int, first: float, last: float
) -> list[Sample]:
  """Returns samples from one share of the steps to another, inclusive."""
  return [x for x in samples if first <= x.step / total_steps <= last]


def resident_slope(samples: Sequence[Sample]) -> float | None:
  """Fits bytes of memory per step by least squares."""
  if len(samples) < 2:
    return None
  return statistics.linear_regression(
      [x.step for x in samples], [x.usage.resident for x in samples]
  ).slope


def seconds_per_step(
    samples: Sequence[Sample], clock: Callable[[Sample], float]
) -> float | None:
  """Returns the median between samples, which ignores rare slow steps."""
  rates = [
      (clock(b) - clock(a)) / (b.step - a.step)
      for a, b in itertools.pairwise(samples)
  ]
  return statistics.median(rates) if rates else None


def ends(
    samples: Sequence[Sample], value: Callable[[usage_lib.Usage], int]
) -> tuple[float | None, float | None]:
  """Returns medians of the first and of the last few samples."""
  if not samples:
    return None, None
  values = [value(x.usage) for x in samples]
  count = max(min(_ENDS, len(values) // 2), 1)
  return statistics.median(values[:count]), statistics.median(values[-count:])


def _compare(unit, earlier, later):
  known = earlier and later is not None
  return {
      'earlier': _scale(unit, earlier),
      'later': _scale(unit, later),
      'ratio': later / earlier if known else None,
  }


def _scale(unit, value):
  return None if value is None else unit * value
