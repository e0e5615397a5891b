# SPDX-License-Identifier: Apache-2.0
"""Every loss and its gradient lowers for TPU and GPU as well as CPU."""

import functools

from absl.testing import parameterized
import jax
from jax import export
import jax.numpy as jnp
import numpy as np

from hcl_jax import losses

P = jax.sharding.PartitionSpec
_Z = jax.ShapeDtypeStruct((16, 8), jnp.float32)
_IDS = jax.ShapeDtypeStruct((16,), jnp.int32)
_LOGITS = (
    jax.ShapeDtypeStruct((16,), jnp.float32),
    jax.ShapeDtypeStruct((16, 9), jnp.float32),
)

_CASES = {
    'hard_nce_loss': (losses.hard_nce_loss, _LOGITS),
    'hard_nce_loss_soft': (
        functools.partial(losses.hard_nce_loss, soft_floor=0.5), _LOGITS
    ),
    'debiased_nce_loss': (losses.debiased_nce_loss, _LOGITS),
    'nce_loss': (losses.nce_loss, _LOGITS),
    'infograph_loss': (
        functools.partial(losses.infograph_loss, variant='released'),
        (_Z, jax.ShapeDtypeStruct((4, 8), jnp.float32), _IDS),
    ),
    'quick_thoughts_loss': (
        functools.partial(
            losses.quick_thoughts_loss, tau_plus=0.1, floor='soft',
            clip_scale=2.0,
        ),
        (_Z, _Z),
    ),
}  # fmt: skip
_REQUIRED = {'clip_loss': {'logit_scale': 10.0}}
for _block_size in (None, 4):
  for _name, _arrays in {
      'simclr_loss': (_Z, _Z),
      'in_batch_loss': (_Z, _Z),
      'sigmoid_loss': (_Z, _Z),
      'clip_loss': (_Z, _Z),
      'moco_loss': (_Z, _Z, jax.ShapeDtypeStruct((32, 8), jnp.float32)),
  }.items():
    _CASES[f'{_name}_{_block_size}'] = (
        functools.partial(
            getattr(losses, _name), block_size=_block_size,
            **_REQUIRED.get(_name, {}),
        ),
        _arrays,
    )
  _CASES[f'supcon_loss_{_block_size}'] = (
      functools.partial(losses.supcon_loss, block_size=_block_size),
      (_Z, _Z, _IDS),
  )
_CASES['in_batch_loss_ids'] = (
    lambda *a, **k: losses.in_batch_loss(*a[:2], ids=a[2], block_size=4, **k),
    (_Z, _Z, _IDS),
)


class LoweringTest(parameterized.TestCase):

  def test_every_public_loss_is_here(self):
    for name in losses.__all__:
      if name.endswith('_loss'):
        self.assertTrue(any(case.startswith(name) for case in _CASES), name)

  @parameterized.parameters(*_CASES)
  def test_lowers(self, name):
    loss, arrays = _CASES[name]

    def step(beta, *arrays):
      kwargs = {} if 'nce' in name else {'beta': beta}
      if name.startswith('hard'):
        kwargs = {'beta': beta}
      return jnp.mean(loss(*arrays, **kwargs))

    floats = [
        i for i, x in enumerate(arrays, 1)
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]  # fmt: skip
    exported = export.export(
        jax.jit(jax.value_and_grad(step, tuple(floats))),
        platforms=('cpu', 'cuda', 'tpu'),
    )(jax.ShapeDtypeStruct((), jnp.float32), *arrays)
    self.assertEqual(exported.platforms, ('cpu', 'cuda', 'tpu'))

  @parameterized.product(
      name=('simclr_loss', 'moco_loss'), block_size=(None, 2)
  )
  def test_devices_lower(self, name, block_size):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ('batch',))
    queue = [lambda b: b[::-1]] if name == 'moco_loss' else []
    loss = jax.shard_map(
        lambda a, b: jax.lax.pmean(
            getattr(losses, name)(
                a, b, *(f(b) for f in queue), axis_name='batch',
                block_size=block_size,
            ).mean(),
            'batch',
        ),
        mesh=mesh, in_specs=P('batch'), out_specs=P(),
    )  # fmt: skip
    exported = export.export(
        jax.jit(jax.grad(loss, (0, 1))), platforms=('tpu', 'cuda')
    )(_Z, _Z)
    moved = 'all_gather' if block_size is None else 'collective_permute'
    self.assertIn(moved, exported.mlir_module())
