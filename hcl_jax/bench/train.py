# SPDX-License-Identifier: Apache-2.0
"""Times the train step beside its parts, and beside torch's.

  python -m hcl_jax.bench train --networks=resnet18 --step_batch=64
  python -m hcl_jax.bench train --networks=resnet10 --stem=strided \\
      --plain_convolutions

Parts are timed alone: reading a batch, augmenting its two views, and the loss
with its gradient over all devices. With --plain_convolutions the step is also
timed without convolutions as products, which they are on a CPU where that is
faster; the options of the compiler stay.
"""

import importlib.util
import statistics
from typing import Any

from absl import flags
import jax
import jax.numpy as jnp
import joblib
import numpy as np

from hcl_jax import reporting
from hcl_jax.bench import harness
from hcl_jax.bench import options
from hcl_jax.bench import output
from hcl_jax.bench import steps
from hcl_jax.models import convolution
from hcl_jax.training import step as step_lib

_LOSS_BATCH = flags.DEFINE_integer(
    'loss_batch', 256, 'Images per step at which the loss is timed.'
)
_PLAIN = flags.DEFINE_bool(
    'plain_convolutions', False,
    'Time the step with no convolution turned into a product, too.',
)  # fmt: skip
_TORCH = flags.DEFINE_bool('torch', True, 'Run torch too, where installed.')
_NOTES = """\
'share' is a part's time over the step's; the loss is timed at its own batch, so
its share is of as many steps as make up that batch (a convolutional step costs
the same per image). 'step on views' leaves the augmentation out, as torch's
does. '/ torch' is the median over rounds of its time over torch's.\
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
    """All contestants, the step first."""
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
    """Two views of a batch, for torch."""
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
    loss = step_lib.make_loss(self._task)
    return lambda: jax.block_until_ready(loss([chunk], {}, batch, np.int32(0)))


def torch_run(parts: Parts) -> harness.Timed:
  """The step on views in torch."""
  from hcl_jax.bench import torch_resnet

  step = torch_resnet.make_step(
      parts.network,
      parts.views(),
      joblib.cpu_count(),
      stem_stride=2 if steps.STEM.value == 'strided' else 1,
  )
  return harness.timed(f'{parts.network} torch', step)


def measure(network: str, with_torch: bool) -> list[dict[str, Any]]:
  """One row for each contestant of a network."""
  batch, loss_batch = steps.BATCH.value, _LOSS_BATCH.value
  parts = Parts(network, batch, loss_batch)
  with_torch = with_torch and network != 'small'  # which is ours alone
  runs = parts.runs() + ([torch_run(parts)] if with_torch else [])
  _, clock = harness.choose_clock()
  harness.time_rounds(runs, options.ROUNDS.value, clock)
  step, on_views = runs[0].seconds, runs[1].seconds
  torch_seconds = runs[-1].seconds if with_torch else []
  rows = []
  for run in runs:
    scale = batch / loss_batch if run.name == 'loss' else 1.0
    share = harness.paired_ratio(run.seconds, step)
    rows.append({
        'network': network,
        'name': run.name,
        'ms': 1e3 * statistics.median(run.seconds),
        'share': scale * share,
        'to_torch': harness.paired_ratio(run.seconds, torch_seconds)
        if run.seconds is on_views
        else None,
        'first_seconds': run.first_seconds,
        'round_ms': [1e3 * x for x in run.seconds],
    })
  return rows


def report(results: dict[str, Any]) -> str:
  """The whole text: what ran where, the table, how to read it."""
  lines = [
      [
          r['name'],
          reporting.number(r['ms'], 2),
          f'{r["share"]:.2%}',
          reporting.number(r['to_torch'], 2),
          reporting.number(r['first_seconds'], 1),
      ]
      for r in results['rows']
  ]
  return '\n'.join([
      f'Train step, two views of {results["batch"]} images of 32x32, float32; '
      f'loss at {results["loss_batch"]}.',
      f'jax {results["jax"]}, backend {results["backend"]} '
      f'({results["device_kind"]}), {results["devices"]} device(s), '
      f'{results["cores"]} host core(s); torch runs on the host.',
      f'Medians of {results["rounds"]} rounds, {results["clock"]}:',
      '',
      reporting.table(
          ['part', 'ms', 'share', '/ torch', 'first call s'], lines
      ),
      '',
      _NOTES,
  ])


def command() -> None:
  """Times the train step and its parts."""
  if options.ONE_CORE.value:
    harness.pin_to_one_core()
  options.check()
  networks = steps.read_networks(default=['resnet18', 'resnet50'])
  for flag in (steps.BATCH, _LOSS_BATCH):
    steps.check_batch(flag)
  with_torch = _TORCH.value and importlib.util.find_spec('torch') is not None
  if _TORCH.value and not with_torch:
    output.say('not installed: torch')
  results = {
      'command': 'train',
      **harness.environment(),
      'batch': steps.BATCH.value,
      'loss_batch': _LOSS_BATCH.value,
      'rounds': options.ROUNDS.value,
      'rows': [],
  }
  for network in networks:
    results['rows'] += measure(network, with_torch)
    if options.JSON.value:
      reporting.write_json(options.JSON.value, results)
  print(report(results))
