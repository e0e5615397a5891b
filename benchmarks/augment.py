# SPDX-License-Identifier: Apache-2.0
"""Times :class:`hcl_jax.augment.Augmentation` beside Pillow.

  python -m benchmarks augment --one_core --json=/tmp/augment.json

Both turn a batch of bytes into normalized 32x32 floats with the parameters of
the paper's released code, with the blur and without it.
"""

from collections.abc import Callable
import dataclasses
import importlib.util
import random
import statistics
from typing import Any

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import augment
from hcl_jax import command as command_lib
from hcl_jax import models
from hcl_jax.bench import harness
from hcl_jax.bench import options
from hcl_jax.bench import output
from hcl_jax.runs import reporting

_IMAGES = flags.DEFINE_integer(
    'augment_batch', 256, 'Images per batch to augment.'
)
_SIDES = flags.DEFINE_list(
    'sides', '32,96', 'Sides of the images before augmentation, in pixels.'
)
_NOTES = """\
x Pillow: images per second over those of Pillow with the same blur and side,
median over repetitions. Pillow runs on one core and rounds to bytes between
operations. MiB: temporary memory in XLA's plan, beside inputs and outputs.\
"""


@dataclasses.dataclass
class Run:
  """A candidate at one side with or without blur, with its times so far."""

  name: str
  side: int
  blur: bool
  call: Callable[[], Any]
  compile_seconds: float | None = None
  temp_bytes: int | None = None
  seconds: list[float] = dataclasses.field(default_factory=list)


def pictures(count: int, side: int) -> np.ndarray:
  """Returns crops of scikit-learn's photographs, or smooth noise without it."""
  rng = np.random.default_rng(0)
  if importlib.util.find_spec('sklearn') is None:
    coarse = rng.random((count, 4, 4, 3), dtype=np.float32)
    smooth = jax.image.resize(coarse, (count, side, side, 3), 'linear')
    return np.asarray(255 * smooth).astype(np.uint8)
  from sklearn import datasets

  photographs = datasets.load_sample_images().images
  crops = []
  for i in range(count):
    photograph = photographs[i % len(photographs)]
    top, left = (rng.integers(x - side + 1) for x in photograph.shape[:2])
    crops.append(photograph[top : top + side, left : left + side])
  return np.stack(crops)


def own_run(images: np.ndarray, augmentation: augment.Augmentation) -> Run:
  """Returns hcl_jax, compiled as it is within a train step."""
  keys = jax.random.split(jax.random.key(0), len(images))
  arrays = keys, jnp.asarray(images)
  _, clock = harness.choose_clock()
  start = clock()
  lowered = jax.jit(augmentation.__call__).lower(*arrays)
  compiled = lowered.compile(models.compiler_options())
  seconds = clock() - start
  memory = compiled.memory_analysis()
  return Run(
      'hcl_jax',
      images.shape[1],
      bool(augmentation.blur),
      lambda: jax.block_until_ready(compiled(*arrays)),
      seconds,
      getattr(memory, 'temp_size_in_bytes', None),
  )


def pillow_run(images: np.ndarray, augmentation: augment.Augmentation) -> Run:
  """Returns the same with Pillow."""
  from benchmarks import pillow_augment

  rng = random.Random(0)
  return Run(
      'Pillow',
      images.shape[1],
      bool(augmentation.blur),
      lambda: pillow_augment.augment_batch(images, augmentation, rng),
  )


def prepare(count: int, sides: list[int], with_pillow: bool) -> list[Run]:
  """Compiles all candidates and calls each once."""
  runs = []
  for side in sides:
    images = pictures(count, side)
    for blur in (0.5, 0.0):
      augmentation = augment.Augmentation(blur=blur)
      runs.append(own_run(images, augmentation))
      if with_pillow:
        runs.append(pillow_run(images, augmentation))
  for run in runs:
    run.call()
  return runs


def row(run: Run, runs: list[Run], count: int) -> dict[str, Any]:
  """Returns the measurements of a run for the table and the JSON."""
  peers = [
      x for x in runs
      if (x.name, x.side, x.blur) == ('Pillow', run.side, run.blur)
  ]  # fmt: skip
  peer_seconds = peers[0].seconds if peers else []
  return {
      'name': run.name,
      'side': run.side,
      'blur': run.blur,
      'images_per_second': count / statistics.median(run.seconds),
      'times_pillow': harness.paired_ratio(peer_seconds, run.seconds),
      'repetition_ms': [1e3 * x for x in run.seconds],
      'compile_seconds': run.compile_seconds,
      'temp_bytes': run.temp_bytes,
  }


def report(results: dict[str, Any]) -> str:
  """Returns the text: what ran where, the table, how to read it."""
  lines = [
      [
          r['name'],
          f'{r["side"]} px',
          'yes' if r['blur'] else 'no',
          f'{r["images_per_second"]:.0f}',
          reporting.number(r['times_pillow'], 1),
          reporting.number(r['compile_seconds'], 1),
          _mib(r['temp_bytes']),
      ]
      for r in results['rows']
  ]
  header = ['candidate', 'from', 'blur', 'images/s', 'x Pillow', 'compile s']
  return '\n'.join([
      f'Augmentation of {results["images"]} images to 32x32 floats.',
      f'jax {results["jax"]}, backend {results["backend"]} '
      f'({results["device_kind"]}), {results["cores"]} host core(s).',
      f'Medians of {results["repetitions"]} repetitions, {results["clock"]}:',
      '',
      reporting.table([*header, 'MiB'], lines),
      '',
      _NOTES,
  ])


def _mib(count: int | None) -> str:
  return reporting.number(None if count is None else count / 2**20, 1)


def command() -> None:
  """Times the augmentation beside Pillow."""
  options.check()
  options.at_least(_IMAGES, 1)
  sides = options.read_sizes(_SIDES, least=8)
  if not sides:
    raise command_lib.UsageError('--sides is empty.')
  if options.ONE_CORE.value:
    harness.pin_to_one_core()
  _, clock = harness.choose_clock()
  with_pillow = importlib.util.find_spec('PIL') is not None
  if not with_pillow:
    output.say('not installed: Pillow (pip install pillow)')
  runs = prepare(_IMAGES.value, sides, with_pillow)
  harness.time_all(runs, options.REPETITIONS.value, clock)
  results = {
      'command': 'augment',
      **harness.environment(),
      'images': _IMAGES.value,
      'repetitions': options.REPETITIONS.value,
      'rows': [row(run, runs, _IMAGES.value) for run in runs],
  }
  if options.JSON.value:
    reporting.write_json(options.JSON.value, results)
  print(report(results))
