# SPDX-License-Identifier: Apache-2.0
"""Losses in torch: the paper's equation, and libraries that are installed.

Each function imports one library and returns its losses. Nothing is copied
from them: their own code runs, with what ``loading`` says.
"""

from collections.abc import Callable
import contextlib
import functools
import io
import math
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.correctness import compare
from benchmarks.correctness import jax_losses
from benchmarks.correctness import loading
from benchmarks.correctness import oracle

_HARD = jax_losses.HARD
_classes = jax_losses.classes


def runner(loss: Callable[..., Any]) -> compare.Run:
  """Returns what runs a loss of ``(z1, z2, setting)`` on torch's tensors."""
  import torch

  def run(z1, z2, setting):
    dtype = {'float32': torch.float32, 'bfloat16': torch.bfloat16}
    inputs = [
        torch.tensor(z.astype(np.float32)).to(dtype[str(z.dtype)])
        for z in (z1, z2)
    ]
    for z in inputs:
      z.requires_grad_()
    with contextlib.redirect_stdout(io.StringIO()):
      value = loss(*inputs, setting)
      value.backward()
    grads = [
        np.zeros(z.shape, np.float32)
        if z.grad is None
        else z.grad.to(torch.float32).numpy()
        for z in inputs
    ]
    return value.item(), grads

  return run


def exp_space() -> list[compare.Implementation]:
  """Returns the paper's equation as printed, in exp space."""
  import torch

  def loss(z1, z2, setting):
    t, beta, tau_plus = setting
    batch = len(z1)
    count = 2 * batch - 2
    rows = torch.cat([z1, z2])
    pair = torch.arange(2 * batch) % batch
    negative = pair[:, None] != pair[None, :]
    sims = torch.exp(rows @ rows.T / t)
    sims = sims.masked_select(negative).view(2 * batch, count)
    pos = torch.exp((z1 * z2).sum(-1) / t).repeat(2)
    weights = (beta * sims.log()).exp()
    mass = (weights * sims).sum(-1) / weights.mean(-1)
    mass = (mass - tau_plus * count * pos) / (1 - tau_plus)
    mass = mass.clamp(min=count * math.exp(-1 / t))
    return -(pos / (pos + mass)).log().mean()

  return [
      compare.Implementation(
          'equation in exp space',
          'torch',
          oracle.hard,
          runner(loss),
          settings=_HARD,
          takes_unit_rows=True,
          why='overflows or underflows float32 where (1 + beta) / t > 88',
      )
  ]


def lightly() -> list[compare.Implementation]:
  """Returns NTXentLoss, DCLLoss and DCLWLoss."""
  loading.bare(
      'lightly', 'lightly.loss', 'lightly.models', 'lightly.models.modules',
      'lightly.utils',
  )  # fmt: skip
  loading.stub('lightly.models.utils')
  loading.module('lightly.models').utils = loading.module(
      'lightly.models.utils'
  )
  nt_xent = loading.module('lightly.loss.ntx_ent_loss').NTXentLoss
  dcl = loading.module('lightly.loss.dcl_loss')

  def of(name, definition, make):
    return compare.Implementation(
        name, 'lightly', definition,
        runner(lambda a, b, s: make(temperature=s.temperature)(a, b)),
    )  # fmt: skip

  return [
      of('NTXentLoss', oracle.nt_xent, nt_xent),
      of('DCLLoss', oracle.decoupled, dcl.DCLLoss),
      of('DCLWLoss', oracle.weighted_decoupled, dcl.DCLWLoss),
  ]


def pytorch_metric_learning() -> list[compare.Implementation]:
  """Returns NTXentLoss and SupConLoss, on pairs and on classes."""
  import torch

  losses = loading.module('pytorch_metric_learning.losses')

  def pairs(make):
    return runner(
        lambda a, b, s: losses.SelfSupervisedLoss(
            make(temperature=s.temperature)
        )(a, b)
    )

  def on_classes(make):
    def loss(a, b, s):
      labels = torch.tensor(_classes(len(a)) * 2)
      return make(temperature=s.temperature)(torch.cat([a, b]), labels)

    return runner(loss)

  of = functools.partial(
      compare.Implementation, package='pytorch-metric-learning'
  )
  small = (
      'adds the smallest normal number inside of the logarithm, so that a loss '
      'above 87 is cut to 87 and its gradient to 0'
  )
  average = (
      'averages over anchors whose loss is not 0 in float32, so a batch in '
      'which some losses round to 0 has too large a mean'
  )
  return [
      of('NTXentLoss', definition=oracle.nt_xent,
         run=pairs(losses.NTXentLoss), why=small),
      of('NTXentLoss, classes of 2 pairs', definition=oracle.labeled_nt_xent,
         run=on_classes(losses.NTXentLoss), labels=_classes, why=small),
      of('SupConLoss', definition=oracle.nt_xent,
         run=pairs(losses.SupConLoss), why=average),
      of('SupConLoss, classes of 2 pairs', definition=oracle.supcon,
         run=on_classes(losses.SupConLoss), labels=_classes, why=average),
  ]  # fmt: skip


def fake_encoder():
  """Returns a module that sentence-transformers takes for a model.

  It returns the embeddings that it is given, so that nothing is downloaded.
  """
  import tokenizers
  import torch
  import transformers

  class Encoder(torch.nn.Module):
    max_seq_length = 8

    def __init__(self):
      super().__init__()
      self.tokenizer = transformers.PreTrainedTokenizerFast(
          tokenizer_object=tokenizers.Tokenizer(
              tokenizers.models.WordLevel({'a': 0}, unk_token='a')
          )
      )

    def forward(self, features):
      return {'sentence_embedding': features['x']}

    def __getitem__(self, index):
      return self

  return Encoder()


def guide_encoder(positive: float = 0.9):
  """Returns a guide that finds every positive similar and nothing else.

  Args:
    positive: cosine that it gives to pairs.
  """
  import torch

  encoder = fake_encoder()

  def forward(features):
    index, is_second = features['index'], features['is_second']
    batch = 1024
    z = torch.zeros(len(index), 2 * batch)
    z[torch.arange(len(index)), index] = torch.where(is_second, positive, 1.0)
    rest = math.sqrt(1 - positive**2)
    z[torch.arange(len(index)), batch + index] = torch.where(
        is_second, rest, 0.0
    )
    return {'sentence_embedding': z}

  encoder.forward = forward
  return encoder


def features(z, is_second: bool, first: int = 0):
  """Returns what sentence-transformers calls features, for the fakes."""
  import torch

  count = len(z)
  return {
      'x': z,
      'index': torch.arange(first, first + count),
      'is_second': torch.full((count,), is_second),
  }


def sentence_transformers() -> list[compare.Implementation]:
  """Returns ranking losses with their hardness and directions, and GIST."""
  losses = loading.module('sentence_transformers.sentence_transformer.losses')
  both = ('query_to_doc', 'doc_to_query')
  every = (*both, 'query_to_query', 'doc_to_doc')

  def of(name, definition, make, settings=((0.0, 0.0),), why=''):
    def loss(a, b, s):
      pair = [features(a, False), features(b, True)]
      return make(s)(pair, None)

    return compare.Implementation(
        name, 'sentence-transformers', definition, runner(loss),
        settings=settings, why=why,
    )  # fmt: skip

  def ranking(s, **more):
    return losses.MultipleNegativesRankingLoss(
        fake_encoder(), scale=1 / s.temperature, **more
    )

  def cached(s, **more):
    return losses.CachedMultipleNegativesRankingLoss(
        fake_encoder(), scale=1 / s.temperature, mini_batch_size=2, **more
    )

  def gist(s, positive=0.9, make=losses.GISTEmbedLoss, **more):
    return make(
        fake_encoder(), guide_encoder(positive), temperature=s.temperature,
        **more,
    )  # fmt: skip

  def hard(make):
    return lambda s: make(
        s, hardness_mode='in_batch_negatives', hardness_strength=s.beta
    )

  per_direction = {'directions': both, 'partition_mode': 'per_direction'}
  strengths = ((9.0, 0.0),)
  own = (
      'an anchor counts itself as a negative where the guide gives a pair a '
      'cosine of 1'
  )
  return [
      of('MultipleNegativesRankingLoss', oracle.in_batch, ranking),
      of('..., symmetric', oracle.symmetric,
         functools.partial(ranking, **per_direction)),
      of('..., four directions', oracle.joint,
         functools.partial(ranking, directions=every)),
      of('..., hardness 9', oracle.added_hardness, hard(ranking), strengths),
      of('CachedMultipleNegativesRankingLoss', oracle.in_batch, cached),
      of('Cached..., four directions', oracle.joint,
         functools.partial(cached, directions=every)),
      of('Cached..., hardness 9', oracle.added_hardness, hard(cached),
         strengths),
      of('GISTEmbedLoss', oracle.guided, gist),
      of('GISTEmbedLoss, positives equal for the guide', oracle.guided,
         functools.partial(gist, positive=1.0), why=own),
      of('CachedGISTEmbedLoss', oracle.guided, functools.partial(
          gist, make=losses.CachedGISTEmbedLoss, mini_batch_size=2)),
  ]  # fmt: skip


def open_clip() -> list[compare.Implementation]:
  """Returns ClipLoss and SigLipLoss."""
  loading.bare('open_clip')
  module = loading.module('open_clip.loss')

  def clip(a, b, s):
    return module.ClipLoss()(a, b, 1 / s.temperature)

  def sigmoid(a, b, s):
    return module.SigLipLoss()(a, b, 1 / s.temperature, -10.0)

  of = functools.partial(
      compare.Implementation, package='open_clip_torch', takes_unit_rows=True
  )
  return [
      of('ClipLoss', definition=oracle.symmetric, run=runner(clip)),
      of('SigLipLoss', definition=oracle.sigmoid, run=runner(sigmoid)),
  ]


def pygcl() -> list[compare.Implementation]:
  """Returns InfoNCE, DebiasedInfoNCE and HardnessInfoNCE.

  The last two raise; they also run with the sum that raises replaced by what
  users replace it with (PyGCL issue 56).
  """
  import torch

  loading.bare('GCL')
  loading.stub('torch_scatter', scatter=None)
  losses = loading.module('GCL.losses')
  contrast = loading.module('GCL.models').DualBranchContrast

  whole_sum = torch.Tensor.sum

  def column_sum(self, *args, **kwargs):
    if self.ndim == 1 and kwargs.get('dim') == 1:
      return self.unsqueeze(1)
    return whole_sum(self, *args, **kwargs)

  def mended(kind):
    """Takes the sum of a vector over axis 1 to be the vector as a column."""

    def compute(self, *args, **kwargs):
      with mock.patch.object(torch.Tensor, 'sum', column_sum):
        return kind.compute(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {'compute': compute})

  def of(name, definition, make, intraview=False, **more):
    def loss(a, b, s):
      return contrast(make(s), mode='L2L', intraview_negs=intraview)(a, b)

    return compare.Implementation(
        name, 'PyGCL', definition, runner(loss), **more
    )

  def hardness(kind):
    return lambda s: kind(s.temperature, s.tau_plus, s.beta)

  def debiased(kind):
    return lambda s: kind(s.temperature, s.tau_plus)

  raises = 'IndexError on any input: sums a vector over axis 1 (PyGCL#56)'
  wrong = (
      'no minus sign, so minimizing it repels positives; N is the count over '
      'the whole matrix, not that of an anchor'
  )
  masked = '; the mean of the weights counts the masked positive'
  exp = 'exp without a shift overflows'
  itself = (
      'the anchor is its own negative: DualBranchContrast replaces the '
      "sampler's mask by all that is not positive; " + exp
  )
  prior = ((0.0, 0.1),)
  return [
      of('InfoNCE', oracle.symmetric, lambda s: losses.InfoNCE(s.temperature),
         why=exp),
      of('InfoNCE, intraview_negs', oracle.nt_xent,
         lambda s: losses.InfoNCE(s.temperature), intraview=True, why=itself),
      of('DebiasedInfoNCE', oracle.hard_symmetric,
         debiased(losses.DebiasedInfoNCE), settings=prior, why=raises),
      of('HardnessInfoNCE', oracle.hard_symmetric,
         hardness(losses.HardnessInfoNCE), settings=_HARD, why=raises),
      of('DebiasedInfoNCE, mended to run', oracle.hard_symmetric,
         debiased(mended(losses.DebiasedInfoNCE)), settings=prior, why=wrong),
      of('HardnessInfoNCE, mended to run', oracle.hard_symmetric,
         hardness(mended(losses.HardnessInfoNCE)), settings=_HARD,
         why=wrong + masked),
  ]  # fmt: skip


def solo_learn() -> list[compare.Implementation]:
  """Returns simclr_loss_func."""
  loading.bare('solo', 'solo.losses')
  loss = loading.module('solo.losses.simclr').simclr_loss_func
  return [
      compare.Implementation(
          'simclr_loss_func', 'solo-learn', oracle.nt_xent,
          runner(lambda a, b, s: loss(a, b, s.temperature)),
          why='the row maximum that it subtracts is that of the anchor with '
          'itself, and what remains underflows to log(0)',
      )
  ]  # fmt: skip


def info_nce() -> list[compare.Implementation]:
  """Returns info_nce-pytorch's loss."""
  loss = loading.module('info_nce').info_nce
  return [
      compare.Implementation(
          'info_nce', 'info-nce-pytorch', oracle.in_batch,
          runner(lambda a, b, s: loss(a, b, temperature=s.temperature)),
      )
  ]  # fmt: skip


def libauc() -> list[compare.Implementation]:
  """Returns GCLoss_v1 in its first epoch, where it has no history."""
  import torch

  kind = loading.module('libauc.losses.contrastive').GCLoss_v1

  def loss(a, b, s):
    function = kind(N=len(a), tau=s.temperature, device='cpu')
    function.adjust_gamma(0)
    return function(a, b, torch.arange(len(a)))

  return [
      compare.Implementation(
          'GCLoss_v1 (SogCLR), first step', 'libauc', oracle.global_contrast,
          runner(loss), has_value=False,
          why='exp without a shift; weights are divided by at least 1e-8',
      )
  ]  # fmt: skip


def simclr() -> list[compare.Implementation]:
  """Returns NT_Xent of the package simclr (Spijkervet)."""
  loading.bare('simclr', 'simclr.modules')
  kind = loading.module('simclr.modules.nt_xent').NT_Xent
  return [
      compare.Implementation(
          'NT_Xent', 'simclr', oracle.nt_xent,
          runner(lambda a, b, s: kind(len(a), s.temperature, 1)(a, b)),
      )
  ]  # fmt: skip


def catalyst() -> list[compare.Implementation]:
  """Returns NTXentLoss and SupervisedContrastiveLoss."""
  import torch

  root = 'catalyst.contrib.losses'
  loading.bare('catalyst', 'catalyst.contrib', root)
  nt_xent = loading.module(f'{root}.ntxent').NTXentLoss
  supcon = loading.module(f'{root}.supervised_contrastive')

  def on_classes(a, b, s):
    labels = torch.tensor(_classes(len(a)) * 2)
    kind = supcon.SupervisedContrastiveLoss
    return kind(s.temperature, pos_aggregation='out')(
        torch.cat([a, b]), labels
    )

  why = (
      'subtracts e^{1/t} from the sum that contains it: what is left of small '
      'terms is rounding, and infinity less that is infinity'
  )
  of = functools.partial(compare.Implementation, package='catalyst', why=why)
  return [
      of('NTXentLoss', definition=oracle.nt_xent,
         run=runner(lambda a, b, s: nt_xent(s.temperature)(a, b))),
      of('SupervisedContrastiveLoss, out', definition=oracle.supcon,
         run=runner(on_classes), labels=_classes),
  ]  # fmt: skip


def lightning_bolts() -> list[compare.Implementation]:
  """Returns nt_xent_loss."""
  loading.bare('pl_bolts', 'pl_bolts.losses')
  loading.stub('pl_bolts.models.vision.pixel_cnn', PixelCNN=object)
  loading.stub('pl_bolts.utils.stability', under_review=lambda: lambda x: x)
  for name in ('models', 'models.vision', 'utils'):
    loading.bare(f'pl_bolts.{name}')
  loss = loading.module(
      'pl_bolts.losses.self_supervised_learning'
  ).nt_xent_loss
  return [
      compare.Implementation(
          'nt_xent_loss', 'lightning-bolts', oracle.nt_xent,
          runner(lambda a, b, s: loss(a, b, s.temperature)),
          takes_unit_rows=True, why='exp without a shift',
      )
  ]  # fmt: skip


def dig() -> list[compare.Implementation]:
  """Returns NCE_loss of DIG, of graphs (GraphCL) and of nodes (GRACE)."""
  root = 'dig.sslgraph.method.contrastive.objectives'
  parts = root.split('.')
  loading.bare(*('.'.join(parts[: i + 1]) for i in range(len(parts))))
  loss = loading.module(f'{root}.infonce').NCE_loss
  of = functools.partial(
      compare.Implementation, package='dive-into-graphs',
      why='exp without a shift, and subtracts e^{1/t} from a sum that '
      'contains it',
  )  # fmt: skip
  return [
      of('NCE_loss, graphs', definition=oracle.other_view,
         run=runner(lambda a, b, s: loss(zs=[a, b], tau=s.temperature)),
         why='exp without a shift, and subtracts the positive from a sum that '
         'contains it; no guard at a row of zeros'),
      of('NCE_loss, nodes', definition=oracle.nt_xent,
         run=runner(lambda a, b, s: loss(zs_n=[a, b], tau=s.temperature))),
  ]  # fmt: skip


def stable_pretraining() -> list[compare.Implementation]:
  """Returns NTXEntLoss and CLIPLoss."""
  name = 'stable_pretraining'
  loading.bare(name, f'{name}.losses', f'{name}.utils')
  distributed = loading.module(f'{name}.utils.distributed')
  vars(loading.module(f'{name}.utils')).update(
      {k: v for k, v in vars(distributed).items() if not k.startswith('__')}
  )
  nt_xent = loading.module(f'{name}.losses.joint_embedding').NTXEntLoss
  clip = loading.module(f'{name}.losses.multimodal').CLIPLoss
  of = functools.partial(compare.Implementation, package='stable-pretraining')
  return [
      of('NTXEntLoss', definition=oracle.nt_xent,
         run=runner(lambda a, b, s: nt_xent(s.temperature)(a, b))),
      of('CLIPLoss', definition=oracle.symmetric,
         run=runner(lambda a, b, s: clip(s.temperature)(a, b))),
      of('CLIPLoss, logit_scale=1/t', definition=oracle.symmetric,
         run=runner(lambda a, b, s: clip()(a, b, 1 / s.temperature)),
         why='divides by the logit scale that it is given'),
  ]  # fmt: skip


def torchmultimodal() -> list[compare.Implementation]:
  """Returns ContrastiveLossWithTemperature."""
  name = 'torchmultimodal'
  loading.bare(name, f'{name}.modules', f'{name}.modules.losses',
               f'{name}.utils')  # fmt: skip
  kind = loading.module(
      f'{name}.modules.losses.contrastive_loss_with_temperature'
  ).ContrastiveLossWithTemperature

  def loss(a, b, s):
    scale = math.log(1 / s.temperature)
    return kind(scale, logit_scale_max=math.log(1e3))(a, b)

  return [
      compare.Implementation(
          'ContrastiveLossWithTemperature', 'torchmultimodal-nightly',
          oracle.symmetric, runner(loss), takes_unit_rows=True,
      )
  ]  # fmt: skip


def colpali() -> list[compare.Implementation]:
  """Returns the in-batch losses of colpali-engine's bi-encoders."""
  loading.bare('colpali_engine', 'colpali_engine.loss')
  module = loading.module('colpali_engine.loss.bi_encoder_losses')

  def of(name, definition, kind):
    return compare.Implementation(
        name, 'colpali_engine', definition,
        runner(lambda a, b, s: kind(temperature=s.temperature)(a, b)),
        takes_unit_rows=True,
    )  # fmt: skip

  return [
      of('BiEncoderLoss', oracle.in_batch, module.BiEncoderLoss),
      of('BiPairedEncoderLoss', oracle.symmetric, module.BiPairedEncoderLoss),
  ]


def transformers() -> list[compare.Implementation]:
  """Returns the loss of CLIP."""
  loss = loading.module(
      'transformers.models.clip.modeling_clip'
  ).image_text_contrastive_loss
  return [
      compare.Implementation(
          'image_text_contrastive_loss (CLIP)', 'transformers',
          oracle.symmetric,
          runner(lambda a, b, s: loss(a @ b.T / s.temperature)),
          takes_unit_rows=True,
      )
  ]  # fmt: skip


# By distribution: what imports it and returns its losses.
PEERS = {
    'lightly': lightly,
    'pytorch-metric-learning': pytorch_metric_learning,
    'sentence-transformers': sentence_transformers,
    'open_clip_torch': open_clip,
    'PyGCL': pygcl,
    'solo-learn': solo_learn,
    'info-nce-pytorch': info_nce,
    'libauc': libauc,
    'simclr': simclr,
    'catalyst': catalyst,
    'lightning-bolts': lightning_bolts,
    'dive-into-graphs': dig,
    'stable-pretraining': stable_pretraining,
    'torchmultimodal-nightly': torchmultimodal,
    'colpali_engine': colpali,
    'transformers': transformers,
}
