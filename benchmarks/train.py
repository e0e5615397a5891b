# SPDX-License-Identifier: Apache-2.0
"""Times the train step as ``hcl_jax.bench train`` does, beside torch's.

  python -m benchmarks train --networks=resnet18 --step_batch=64
"""

from collections.abc import Callable

from absl import flags
import joblib

from hcl_jax.bench import steps
from hcl_jax.bench import train as bench

_TORCH = flags.DEFINE_bool('torch', True, 'Run torch too, where installed.')


def torch_step(parts: bench.Parts) -> Callable[[], float] | None:
  """Makes the step on views in torch; None for a network of ours alone."""
  if parts.network == 'small':
    return None
  from benchmarks import torch_resnet

  return torch_resnet.make_step(
      parts.network,
      parts.views(),
      joblib.cpu_count(),
      stem_stride=2 if steps.STEM.value == 'strided' else 1,
  )


def command() -> None:
  """Times the train step, its parts, and the step in torch."""
  bench.command({'torch': torch_step} if _TORCH.value else {})
