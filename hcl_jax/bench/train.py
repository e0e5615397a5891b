# SPDX-License-Identifier: Apache-2.0
"""Times the train step beside its parts.

  python -m hcl_jax.bench train --networks=resnet18 --step_batch=64
  python -m hcl_jax.bench train --networks=resnet10 --stem=strided \\
      --plain_convolutions

Parts are timed alone: reading a batch, augmenting its two views, and the loss
with its gradient over all devices. With --plain_convolutions the step is also
timed without convolutions as products, which they are on a CPU where that is
faster; the options of the compiler stay.
"""

from collections.abc import Callable
from collections.abc import Mapping
import importlib.util
import statistics
from typing import Any

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax.bench import harness
from hcl_jax.bench import options
from hcl_jax.bench import output
from hcl_jax.bench import steps
from hcl_jax.models import convolution
from hcl_jax.runs import reporting
from hcl_jax.training import step as step_lib

_LOSS_BATCH = flags.DEFINE_integer(
    'loss_batch', 256, 'Images per step at which the loss is timed.'
)
_PLAIN = flags.DEFINE_bool(
    'plain_convolutions', False,
    'Also time the step with no convolution turned into a matrix product.',
)  # fmt: skip
_NOTES = """\
'share' is a part's time over the step's; the loss is timed at its own batch, so
its share is of as many steps as make up that batch (a convolutional step costs
the same per image). 'step on views' leaves the augmentation out.\
"""
_PEER_NOTES = """\
So do the steps of other libraries, which run on the host: '/ x' is the time of
'step on views' over x's, median over repetitions.\
"""


class Parts:
  """The step of one network and its parts, compiled.

  Args:
    network: name of the encoder.
    batch: images per step.
    loss_batch: images per step at which the loss is timed.
  """

  def __init__(self, network: str, batch: int, loss_batch: int):
    self.network = network
    self._setting = steps.prepare(network, batch)
    self._task = self._setting.task
    self._devices = jax.local_device_count()
    self._batch = next(self._setting.batches)
    self._loss_batch = loss_batch

  def runs(self) -> list[harness.Timed]:
    """Returns all candidates, the step first."""
    runs = [
        harness.timed(f'{self.network} step', self._step(self._task)),
        harness.timed(f'{self.network} step on views', self._step_on_views()),
        harness.timed('data', lambda: next(self._setting.batches)),
        harness.timed('augmentation', self._augmentation()),
        harness.timed('loss', self._loss()),
    ]
    if _PLAIN.value:
      with convolution.plain():  # The first call compiles.
        runs.append(
            harness.timed('plain convolutions', self._step(self._task))
        )
    return runs

  def views(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns two views of a batch, for a peer."""
    keys = jax.random.split(jax.random.key(0), len(self._batch['image']))
    view = np.asarray(self._task.encoder.augment(keys, self._batch['image']))
    return view, view[::-1].copy()

  def _step(self, task) -> steps.Step:
    return steps.Step(task, self._setting.optimizer, self._batch)

  def _step_on_views(self):
    """The step with views that cost nothing to make."""
    encoder = self._task.encoder

    def views(keys, images):
      # Two equal views would be embedded only once, by XLA's own doing.
      bits = jax.random.key_data(keys)[:, 0].astype(jnp.float32)
      gains = (0.5 + bits / 2.0**32)[:, None, None, None]
      return gains * encoder.normalize(images)

    plain = type(encoder)(encoder.module, views, encoder.normalize)
    return self._step(type(self._task)(plain, self._task.beta))

  def _augmentation(self):
    augment = jax.jit(
        lambda keys, images: (
            self._task.encoder.augment(keys[:, 0], images),
            self._task.encoder.augment(keys[:, 1], images),
        )
    )
    images = jnp.asarray(self._batch['image'])
    keys = jax.random.split(jax.random.key(0), (len(images), 2))
    return lambda: jax.block_until_ready(augment(keys, images))

  def _loss(self):
    """Value and gradient by embeddings, with the collectives of devices."""
    rows = self._loss_batch // self._devices
    shape = self._devices, rows, self._setting.config.model.embedding_dim
    rng = np.random.default_rng(0)
    z1, noise = rng.standard_normal((2, *shape), np.float32)
    chunk = jax.device_put((z1, z1 + noise))
    batch = dict.fromkeys(('label', 'index'), np.zeros(shape[:2], np.int32))
    loss = step_lib.make_loss(self._task, jax.local_devices())
    return lambda: jax.block_until_ready(loss([chunk], {}, batch, np.int32(0)))


# Makes the step on views in another library; None if it lacks the network.
Peer = Callable[[Parts], Callable[[], Any] | None]


def measure(network: str, peers: Mapping[str, Peer]) -> list[dict[str, Any]]:
  """Returns one row for each candidate of a network."""
  batch, loss_batch = steps.BATCH.value, _LOSS_BATCH.value
  parts = Parts(network, batch, loss_batch)
  runs, others = parts.runs(), {}
  for name, make_step in peers.items():
    if (step := make_step(parts)) is not None:
      others[name] = harness.timed(f'{network} {name}', step)
  _, clock = harness.choose_clock()
  harness.time_all([*runs, *others.values()], options.REPETITIONS.value, clock)
  step, on_views = runs[0].seconds, runs[1].seconds
  rows = []
  for run in [*runs, *others.values()]:
    scale = batch / loss_batch if run.name == 'loss' else 1.0
    share = harness.paired_ratio(run.seconds, step)
    rows.append({
        'network': network,
        'name': run.name,
        'ms': 1e3 * statistics.median(run.seconds),
        'share': scale * share,
        'ratios': {
            name: harness.paired_ratio(on_views, other.seconds)
            for name, other in others.items()
            if run.seconds is on_views
        },
        'first_seconds': run.first_seconds,
        'repetition_ms': [1e3 * x for x in run.seconds],
    })
  return rows


def report(results: dict[str, Any]) -> str:
  """The whole text: what ran where, the table, how to read it."""
  names = dict.fromkeys(name for r in results['rows'] for name in r['ratios'])
  lines = [
      [
          r['name'],
          reporting.number(r['ms'], 2),
          f'{r["share"]:.2%}',
          *(reporting.number(r['ratios'].get(x), 2) for x in names),
          reporting.number(r['first_seconds'], 1),
      ]
      for r in results['rows']
  ]
  return '\n'.join([
      f'Train step, two views of {results["batch"]} images of 32x32, float32; '
      f'loss at {results["loss_batch"]}.',
      f'jax {results["jax"]}, backend {results["backend"]} '
      f'({results["device_kind"]}), {results["devices"]} device(s), '
      f'{results["cores"]} host core(s).',
      f'Medians of {results["repetitions"]} repetitions, {results["clock"]}:',
      '',
      reporting.table(
          ['part', 'ms', 'share', *(f'/ {x}' for x in names), 'first call s'],
          lines,
      ),
      '',
      _NOTES,
      *([_PEER_NOTES] if names else []),
  ])


def command(peers: Mapping[str, Peer] | None = None) -> None:
  """Times the train step and its parts.

  Args:
    peers: other libraries to run where installed, by the names of packages.
  """
  if options.ONE_CORE.value:
    harness.pin_to_one_core()
  options.check()
  networks = steps.read_networks(default=['resnet18', 'resnet50'])
  for flag in (steps.BATCH, _LOSS_BATCH):
    steps.check_batch(flag)
  found = {}
  for name, make_step in (peers or {}).items():
    if importlib.util.find_spec(name) is None:
      output.say(f'not installed: {name}')
    else:
      found[name] = make_step
  results = {
      'command': 'train',
      **harness.environment(),
      'batch': steps.BATCH.value,
      'loss_batch': _LOSS_BATCH.value,
      'repetitions': options.REPETITIONS.value,
      'rows': [],
  }
  for network in networks:
    results['rows'] += measure(network, found)
    if options.JSON.value:
      reporting.write_json(options.JSON.value, results)
  print(report(results))
