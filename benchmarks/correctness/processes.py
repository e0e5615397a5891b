# SPDX-License-Identifier: Apache-2.0
"""Losses over several processes or devices, against the whole batch.

torch: two processes talk by gloo on loopback, each with half of the pairs, and
parameters get the mean over processes of their gradients, as
DistributedDataParallel gives them. That mean is the gradient of the whole batch
for every model exactly if, for each process, the gradient in its own embeddings
is ``processes`` times theirs in the whole batch; so embeddings are compared,
and no model is needed. JAX: eight simulated devices.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import functools
import io
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any
from typing import NamedTuple

import numpy as np

from benchmarks.correctness import cases
from benchmarks.correctness import loading
from benchmarks.correctness import oracle
from benchmarks.correctness import torch_losses

WORLD = 2
_TEMPERATURE = 0.1
_PAIRS = 8
_SECONDS = 300


class Shared(NamedTuple):
  """A loss that sees the embeddings of all processes.

  Attributes:
    name: as the table has it.
    definition: what it is of the whole batch.
    loss: of this process's embeddings, ``(z1, z2, temperature, rank)``.
    takes_unit_rows: whether it leaves normalization to the caller.
    why: what is to say of it where it is not right.
    has_value: whether its value is the loss rather than a surrogate of it.
  """

  name: str
  definition: oracle.Definition
  loss: Callable[..., Any]
  takes_unit_rows: bool = False
  why: str = ''
  has_value: bool = True
  setting: oracle.Setting = oracle.Setting(_TEMPERATURE)


class Outcome(NamedTuple):
  """What a loss over processes gave.

  Attributes:
    name: of the loss.
    package: its distribution.
    processes: how many.
    value_error: of the mean over processes, relative.
    factor: length of the gradient's part along the true one, over that one's.
    gradient_error: of the gradient, relative, by norm.
    rest: of the gradient over its factor; NaN where that is not positive.
    error: what it raised, if it did.
    why: see :class:`Shared`.
  """

  name: str
  package: str
  processes: int
  value_error: float
  factor: float
  gradient_error: float
  rest: float
  error: str = ''
  why: str = ''


def batch(takes_unit_rows: bool = False) -> cases.Case:
  """Returns the pairs of all processes together."""
  case = [c for c in cases.ordinary() if c.name == f'random, {_PAIRS} pairs'][0]
  return cases.unit(case) if takes_unit_rows else case


def outcome(
    shared: Shared, package: str, processes: int, value: float, grads: Any
) -> Outcome:
  """Compares with the oracle of the whole batch.

  Args:
    shared: the loss.
    package: its distribution.
    processes: how many there are.
    value: the mean of the loss over processes.
    grads: gradients in the pairs' embeddings, ``[2, pairs, dim]``, as the mean
      over processes has them.

  Returns:
    Errors.
  """
  case = batch(shared.takes_unit_rows)
  exact = oracle.evaluate(
      shared.definition,
      case.rows,
      shared.setting,
      normalize=not shared.takes_unit_rows,
  )
  found = np.concatenate(list(np.asarray(grads, np.float64)))
  true, size = exact.gradient, np.linalg.norm(exact.gradient)
  factor = float((found * true).sum() / size**2)
  rest = np.nan
  if factor > 0:
    rest = np.linalg.norm(found / factor - true) / size
  value_error = abs(value - exact.value) / abs(exact.value)
  return Outcome(
      shared.name,
      package,
      processes,
      float(value_error) if shared.has_value else 0.0,
      factor,
      float(np.linalg.norm(found - true) / size),
      float(rest),
      why=shared.why,
  )


def failed(shared: Shared, package: str, processes: int, error: str) -> Outcome:
  """Returns the outcome of a loss that raised."""
  nan = float('nan')
  return Outcome(
      shared.name, package, processes, nan, nan, nan, nan, error, shared.why
  )


# --- torch: what each library has, imported in the processes ----------------


def lightly() -> list[Shared]:
  """Returns lightly's losses with gather_distributed."""
  torch_losses.lightly()
  nt_xent = loading.module('lightly.loss.ntx_ent_loss').NTXentLoss
  dcl = loading.module('lightly.loss.dcl_loss')

  def of(name, definition, kind, why=''):
    def loss(a, b, t, rank):
      del rank
      return kind(temperature=t, gather_distributed=True)(a, b)

    return Shared(f'{name}, gather_distributed', definition, loss, why=why)

  return [
      of('NTXentLoss', oracle.nt_xent, nt_xent),
      of('DCLLoss', oracle.decoupled, dcl.DCLLoss),
      of('DCLWLoss', oracle.weighted_decoupled, dcl.DCLWLoss,
         'the softmax of the weights is over the pairs of one process'),
  ]  # fmt: skip


def pytorch_metric_learning() -> list[Shared]:
  """Returns losses in DistributedLossWrapper."""
  import torch

  losses = loading.module('pytorch_metric_learning.losses')
  wrapper = loading.module(
      'pytorch_metric_learning.utils.distributed'
  ).DistributedLossWrapper

  def of(kind, efficient, why=''):
    def loss(a, b, t, rank):
      ids = torch.arange(len(a)) + rank * len(a)
      function = wrapper(kind(temperature=t), efficient=efficient)
      return function(torch.cat([a, b]), ids.repeat(2))

    name = f'{kind.__name__}, efficient={efficient}'
    return Shared(name, oracle.nt_xent, loss, why=why)

  scaled = 'the value is that of the batch times the number of processes'
  cut = (
      scaled + '; no gradient as a positive or negative of other processes, '
      'and that as an anchor is times their number; documented, as '
      '"gradients will not be equal"'
  )
  return [
      of(losses.NTXentLoss, False, scaled),
      of(losses.NTXentLoss, True, cut),
      of(losses.SupConLoss, False, scaled),
      of(losses.SupConLoss, True, cut),
  ]


def open_clip() -> list[Shared]:
  """Returns ClipLoss in its four modes, SigLipLoss in its four."""
  torch_losses.open_clip()
  module = loading.module('open_clip.loss')

  def clip(local_loss, gather_with_grad, why=''):
    def loss(a, b, t, rank):
      return module.ClipLoss(
          local_loss=local_loss,
          gather_with_grad=gather_with_grad,
          rank=rank,
          world_size=WORLD,
      )(a, b, 1 / t)

    flags = f'local_loss={local_loss}, gather_with_grad={gather_with_grad}'
    return Shared(f'ClipLoss, {flags}', oracle.symmetric, loss, True, why)

  def sigmoid(way):
    def loss(a, b, t, rank):
      return module.SigLipLoss(rank=rank, world_size=WORLD, dist_impl=way)(
          a, b, 1 / t, -10.0
      )

    return Shared(f'SigLipLoss, {way}', oracle.sigmoid, loss, True)

  return [
      clip(False, False,
           'every process has the loss of the whole batch and the gradient of '
           'its own rows in it, and the mean divides that by their number; '
           'the default of the package'),
      clip(False, True),
      clip(True, False,
           'no gradient reaches an embedding as a candidate of other '
           'processes; open_clip#616 says not to use it'),
      clip(True, True),
      *(sigmoid(way) for way in ('bidir', 'shift', 'reduce', 'gather')),
  ]  # fmt: skip


def sentence_transformers() -> list[Shared]:
  """Returns losses with gather_across_devices."""
  losses = loading.module('sentence_transformers.sentence_transformer.losses')
  both = ('query_to_doc', 'doc_to_query')
  per_direction = {'directions': both, 'partition_mode': 'per_direction'}
  every = {'directions': (*both, 'query_to_query', 'doc_to_doc')}

  def of(name, definition, make, why=''):
    def loss(a, b, t, rank):
      first = rank * len(a)
      pair = [
          torch_losses.features(a, False, first),
          torch_losses.features(b, True, first),
      ]
      return make(t)(pair, None)

    return Shared(
        f'{name}, gather_across_devices', definition, loss, why=why
    )

  def ranking(t, kind=losses.MultipleNegativesRankingLoss, **more):
    return kind(
        torch_losses.fake_encoder(), scale=1 / t, gather_across_devices=True,
        **more,
    )  # fmt: skip

  def gist(t, kind=losses.GISTEmbedLoss, **more):
    return kind(
        torch_losses.fake_encoder(), torch_losses.guide_encoder(),
        temperature=t, gather_across_devices=True, contrast_anchors=False,
        contrast_positives=False, **more,
    )  # fmt: skip

  cached = functools.partial(
      ranking, kind=losses.CachedMultipleNegativesRankingLoss,
      mini_batch_size=2,
  )  # fmt: skip
  return [
      of('MultipleNegativesRankingLoss', oracle.in_batch, ranking),
      of('..., symmetric', oracle.symmetric,
         functools.partial(ranking, **per_direction)),
      of('..., four directions', oracle.joint,
         functools.partial(ranking, **every)),
      of('CachedMultipleNegativesRankingLoss', oracle.in_batch, cached),
      of('Cached..., four directions', oracle.joint,
         functools.partial(cached, **every)),
      of('GISTEmbedLoss', oracle.in_batch, gist),
      of('CachedGISTEmbedLoss', oracle.in_batch, functools.partial(
          gist, kind=losses.CachedGISTEmbedLoss, mini_batch_size=2)),
  ]  # fmt: skip


def simclr() -> list[Shared]:
  """Returns NT_Xent with world_size 2."""
  torch_losses.simclr()
  kind = loading.module('simclr.modules.nt_xent').NT_Xent

  def loss(a, b, t, rank):
    del rank
    return kind(len(a), t, WORLD)(a, b)

  return [
      Shared(
          'NT_Xent, world_size=2', oracle.nt_xent, loss,
          why='gathers [z_i, z_j] of each process but reads the positive of a '
          'row half a batch further on, which is another pair; Spijkervet/'
          'SimCLR#30, #37, mended in its PR 46, which this release lacks',
      )
  ]  # fmt: skip


def libauc() -> list[Shared]:
  """Returns GCLoss_v1 with distributed=True."""
  import torch

  kind = loading.module('libauc.losses.contrastive').GCLoss_v1

  def loss(a, b, t, rank):
    function = kind(N=WORLD * len(a), tau=t, device='cpu', distributed=True)
    function.adjust_gamma(0)
    return function(a, b, torch.arange(len(a)) + rank * len(a))

  return [
      Shared('GCLoss_v1 (SogCLR), distributed, first step',
             oracle.global_contrast, loss, has_value=False)
  ]  # fmt: skip


def stable_pretraining() -> list[Shared]:
  """Returns losses that gather by themselves."""
  torch_losses.stable_pretraining()
  name = 'stable_pretraining.losses'
  nt_xent = loading.module(f'{name}.joint_embedding').NTXEntLoss
  clip = loading.module(f'{name}.multimodal').CLIPLoss
  return [
      Shared('NTXEntLoss', oracle.nt_xent, lambda a, b, t, r: nt_xent(t)(a, b)),
      Shared('CLIPLoss', oracle.symmetric, lambda a, b, t, r: clip(t)(a, b)),
  ]


def torchmultimodal() -> list[Shared]:
  """Returns its loss in the three ways of back-propagation."""
  import torch

  torch_losses.torchmultimodal()
  module = loading.module(
      'torchmultimodal.modules.losses.contrastive_loss_with_temperature'
  )
  ways = loading.module('torchmultimodal.utils.distributed')
  ways.get_rank = torch.distributed.get_rank

  def of(way, why=''):
    def loss(a, b, t, rank):
      del rank
      kind = module.ContrastiveLossWithTemperature
      return kind(float(np.log(1 / t)))(
          a, b, backprop_type=ways.BackpropType[way]
      )

    name = f'ContrastiveLossWithTemperature, {way}'
    return Shared(name, oracle.symmetric, loss, True, why)

  return [
      of('GLOBAL'),
      of('LOCAL', 'no gradient as a candidate of others, as documented'),
      of('NONE', 'no gradient as a candidate, as documented'),
  ]


def gradcache() -> list[Shared]:
  """Returns DistributedContrastiveLoss."""
  module = loading.module('gradcache.loss')

  def loss(a, b, t, rank):
    del rank
    return module.DistributedContrastiveLoss()(a / t, b)

  return [
      Shared('DistributedContrastiveLoss', oracle.in_batch, loss, True,
             'every process has the loss of the whole batch and the gradient '
             'of its own rows in it, and the mean divides that by their number')
  ]  # fmt: skip


def tevatron() -> list[Shared]:
  """Returns DistributedContrastiveLoss."""
  module = loading.module('tevatron.loss')

  def loss(a, b, t, rank):
    del rank
    return module.DistributedContrastiveLoss(n_target=1)(a / t, b)

  return [
      Shared('DistributedContrastiveLoss', oracle.in_batch, loss, True,
             'the value is that of the batch times the number of processes')
  ]  # fmt: skip


def pylate() -> list[Shared]:
  """Returns Contrastive with gather_across_devices, of one token each."""
  import torch

  kind = loading.module('pylate.losses.contrastive').Contrastive

  class Encoder(torch.nn.Module):
    skiplist: Sequence[int] = ()
    do_query_expansion = True

    def forward(self, features):
      return {'token_embeddings': features['x'][:, None]}

  def token(z):
    ones = torch.ones(len(z), 1, dtype=torch.long)
    return {'x': z, 'input_ids': ones, 'attention_mask': ones.bool()}

  def loss(a, b, t, rank):
    del rank
    function = kind(Encoder(), gather_across_devices=True, temperature=t)
    return function([token(a), token(b)])

  return [
      Shared('Contrastive, gather_across_devices', oracle.in_batch, loss,
             why='gathers with gradients, and multiplies the loss by the '
             'number of processes as well (pylate PR 111)')
  ]  # fmt: skip


TORCH = {
    'lightly': lightly,
    'pytorch-metric-learning': pytorch_metric_learning,
    'open_clip_torch': open_clip,
    'sentence-transformers': sentence_transformers,
    'simclr': simclr,
    'libauc': libauc,
    'stable-pretraining': stable_pretraining,
    'torchmultimodal-nightly': torchmultimodal,
    'gradcache': gradcache,
    'tevatron': tevatron,
    'pylate': pylate,
}


def run(package: str) -> list[Outcome]:
  """Runs a library's losses in two processes.

  Args:
    package: a key of ``TORCH``.

  Returns:
    Outcomes, in the library's order.

  Raises:
    RuntimeError: if a process fails otherwise than in a loss.
  """
  with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, '-m', __name__, package, folder]
    started = [
        subprocess.Popen(
            [*command, str(rank)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(WORLD)
    ]
    try:
      said = [p.communicate(timeout=_SECONDS)[1] for p in started]
    finally:
      for process in started:
        process.kill()
    for process, text in zip(started, said, strict=True):
      if process.returncode:
        lines = text.decode(errors='replace').strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f'{process.returncode}')
    parts = [
        json.loads((pathlib.Path(folder) / f'{rank}.json').read_text())
        for rank in range(WORLD)
    ]
  results = []
  for of_ranks in zip(*parts, strict=True):
    # Definitions have names, but no way into a file.
    first = of_ranks[0]
    shared = Shared(
        first['name'], getattr(oracle, first['definition']), len,
        first['takes_unit_rows'], first['why'], first['has_value'],
    )  # fmt: skip
    error = ''.join(part['error'] for part in of_ranks[:1])
    if error:
      results.append(failed(shared, package, WORLD, error))
      continue
    value = np.mean([part['value'] for part in of_ranks])
    grads = np.concatenate([part['grads'] for part in of_ranks], axis=1)
    results.append(outcome(shared, package, WORLD, value, grads / WORLD))
  return results


def _work(package: str, folder: str, rank: int) -> None:
  """Is one of the processes."""
  import torch

  torch.distributed.init_process_group(
      'gloo', init_method=f'file://{folder}/meet', rank=rank, world_size=WORLD
  )
  results = []
  with contextlib.redirect_stdout(io.StringIO()):
    for shared in TORCH[package]():
      case = batch(shared.takes_unit_rows)
      own = slice(rank * _PAIRS // WORLD, (rank + 1) * _PAIRS // WORLD)
      a, b = (
          torch.tensor(z[own]).requires_grad_() for z in (case.z1, case.z2)
      )
      value, error = float('nan'), ''
      try:
        loss = shared.loss(a, b, _TEMPERATURE, rank)
        loss.backward()
        value = loss.item()
      except Exception as raised:  # Whatever a library raises is its outcome.
        error = f'{type(raised).__name__}: {raised}'.splitlines()[0][:100]
      grads = [
          np.zeros(z.shape) if z.grad is None else z.grad.numpy()
          for z in (a, b)
      ]
      results.append({
          'name': shared.name,
          'definition': shared.definition.__name__,
          'takes_unit_rows': shared.takes_unit_rows,
          'why': shared.why,
          'has_value': shared.has_value,
          'value': value,
          'error': error,
          'grads': np.asarray(grads, np.float64).tolist(),
      })
  text = json.dumps(results)
  (pathlib.Path(folder) / f'{rank}.json').write_text(text)
  torch.distributed.destroy_process_group()


if __name__ == '__main__':
  _work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
