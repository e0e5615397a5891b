# SPDX-License-Identifier: Apache-2.0
"""clip_loss is CLIP's cross entropy, and in_batch_loss in both directions."""

import functools

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import losses
from tests.support import testing

P = jax.sharding.PartitionSpec


def _cross_entropy(images, texts, logit_scale):
  """Returns the loss of each pair, by numpy."""
  units = [
      np.float64(z) / np.linalg.norm(np.float64(z), axis=1, keepdims=True)
      for z in (images, texts)
  ]
  logits = logit_scale * units[0] @ units[1].T
  right = np.diagonal(logits)
  by_image = np.log(np.exp(logits).sum(axis=1)) - right
  by_text = np.log(np.exp(logits).sum(axis=0)) - right
  return (by_image + by_text) / 2


@functools.cache
def _slopes(block_size):
  def mean(images, texts, logit_scale):
    values = losses.clip_loss(
        images, texts, logit_scale=logit_scale, block_size=block_size
    )
    return values.mean(), values

  return jax.jit(jax.grad(mean, (0, 1, 2), has_aux=True))


class ClipLossTest(testing.LossTest):

  @parameterized.product(
      logit_scale=(1.0, 1 / 0.07, 100.0), block_size=(None, 4)
  )
  def test_is_the_cross_entropy(self, logit_scale, block_size):
    arrays = testing.views(9, 4)
    logit_scale = float(np.float32(logit_scale))
    grads, values = _slopes(block_size)(*arrays, jnp.float32(logit_scale))
    np.testing.assert_allclose(
        values, _cross_entropy(*arrays, logit_scale), rtol=2e-5, atol=1e-6
    )
    step = 1e-4 * logit_scale
    ends = [
        _cross_entropy(*arrays, logit_scale + x).mean() for x in (step, -step)
    ]
    np.testing.assert_allclose(
        grads[2], (ends[0] - ends[1]) / (2 * step), rtol=1e-4
    )
    for k in range(2):
      step = np.zeros((9, 4))
      step[3, 1] = 1e-5
      ends = [
          _cross_entropy(
              *(z + (i == k) * x for i, z in enumerate(arrays)), logit_scale
          ).mean()
          for x in (step, -step)
      ]
      np.testing.assert_allclose(
          grads[k][3, 1], (ends[0] - ends[1]) / 2e-5, rtol=1e-4, atol=1e-6
      )

  def test_passes_arguments_on(self):
    z1, z2 = testing.views(9, 4)
    guide = testing.views(9, 6, seed=3)
    both = functools.partial(losses.in_batch_loss, z1, z2, bidirectional=True)
    clip = functools.partial(losses.clip_loss, z1, z2, logit_scale=5.0)
    for given in (
        {'beta': 1.0, 'tau_plus': 0.3, 'floor': 'soft'},
        {'beta': np.linspace(0, 3, 18, dtype=np.float32)},
        {'effective_negatives': 0.6, 'positive_weight': 0.5},
        {'beta': 1.0, 'labels': np.arange(9) % 4, 'block_size': 3,
         'stop_gradient_weights': True},
        {'beta': 1.0, 'margin': losses.Margin(0.1, True, guide)},
    ):  # fmt: skip
      np.testing.assert_allclose(
          clip(**given), both(temperature=0.2, **given), rtol=1e-6
      )

  @parameterized.parameters(None, 2)
  def test_devices_change_nothing(self, block_size):
    images, texts = testing.views(24, 5)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ('batch',))

    def mean(z, log_scale, **where):
      return losses.clip_loss(
          *z, logit_scale=jnp.exp(log_scale), **where
      ).mean()

    whole = jax.shard_map(
        lambda *a: jax.lax.pmean(
            mean(*a, axis_name='batch', block_size=block_size), 'batch'
        ),
        mesh=mesh, in_specs=(P('batch'), P()), out_specs=P(),
    )  # fmt: skip
    args = (images, texts), jnp.float32(2.5)
    value, grads = jax.jit(jax.value_and_grad(whole, (0, 1)))(*args)
    expected, expected_grads = jax.jit(jax.value_and_grad(mean, (0, 1)))(*args)
    self.assert_close(value, expected)
    self.assert_same_gradient(grads, expected_grads, 1e-5)

  def test_half_precision_is_upcast(self):
    z1, z2 = (jnp.asarray(z, jnp.bfloat16) for z in testing.views(7, 5))
    values = losses.clip_loss(z1, z2, logit_scale=jnp.bfloat16(14.0))
    self.assertEqual(values.dtype, jnp.float32)
    self.assert_close(values, _cross_entropy(z1, z2, 14.0))

  def test_bad_arguments_are_named(self):
    z1, z2 = testing.views(7, 4)
    clip = functools.partial(losses.clip_loss, logit_scale=5.0)
    with self.assertRaisesRegex(ValueError, 'image_embeddings and text_embed'):
      clip(z1, z2[:3])
    with self.assertRaisesRegex(ValueError, 'logit_scale must be > 0, got -1'):
      clip(z1, z2, logit_scale=-1)
    with self.assertRaisesRegex(ValueError, 'exclude each other; got beta=1.0'):
      clip(z1, z2, beta=1.0, effective_negatives=0.5)
    with self.assertRaisesRegex(ValueError, 'place of .image_embeddings, text'):
      clip(z1, z2, margin=losses.Margin(0.1, guide=(z1,)))
