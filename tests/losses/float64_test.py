# SPDX-License-Identifier: Apache-2.0
"""With x64 enabled, float64 embeddings are computed in float64."""

import jax
import numpy as np

from hcl_jax import losses
from tests import reference
from tests.support import testing

_KNOBS = {'temperature': 0.3, 'beta': 1.0, 'tau_plus': 0.1}


class Float64Test(testing.LossTest):

  def setUp(self):
    super().setUp()
    self.enter_context(jax.enable_x64(True))
    self.z1, self.z2, self.queue = (
        np.float64(x) for x in (*testing.views(7, 3), testing.normal(9, 3))
    )
    self.labels = np.arange(7) % 3

  def _check(self, actual, expected):
    self.assertEqual(actual.dtype, np.float64)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)

  def test_cosine_losses(self):
    for block_size in (None, 4):
      knobs = {'block_size': block_size, **_KNOBS}
      self._check(
          losses.simclr_loss(self.z1, self.z2, labels=self.labels, **knobs),
          reference.simclr(self.z1, self.z2, labels=self.labels, **_KNOBS)[0],
      )
      self._check(
          jax.grad(lambda z, k=knobs: losses.simclr_loss(
              z, self.z2, **k).mean())(self.z1),
          reference.simclr(self.z1, self.z2, **_KNOBS)[1],
      )  # fmt: skip
      arrays = self.z1, self.z2
      self._check(
          testing.jitted(
              losses.in_batch_loss, *arrays, negatives=self.queue, **knobs
          ),
          reference.in_batch(*arrays, negatives=self.queue, **_KNOBS)[0],
      )
      given = {'logit_scale': 3.0, 'logit_bias': -2.0, 'beta': 1.0}
      self._check(
          testing.jitted(
              losses.sigmoid_loss, *arrays, block_size=block_size, **given
          ),
          reference.sigmoid(*arrays, **given)[0],
      )
      self._check(
          testing.jitted(losses.moco_loss, *arrays, self.queue, **knobs),
          reference.moco(*arrays, self.queue, **_KNOBS)[0],
      )

  def test_other_losses(self):
    labels = self.labels
    self._check(
        losses.supcon_loss(self.z1, self.z2, labels, temperature=0.3),
        reference.supcon(self.z1, self.z2, labels, temperature=0.3),
    )
    knobs = {'beta': 1.0, 'tau_plus': 0.1, 'floor': 'soft'}
    self._check(
        testing.jitted(losses.quick_thoughts_loss, self.z1, self.z2, **knobs),
        reference.quick_thoughts(self.z1 @ self.z2.T, **knobs),
    )
    graphs = self.queue[:3]
    for variant in ('paper', 'released'):
      self._check(
          testing.jitted(
              losses.infograph_loss, self.z1, graphs, labels,
              tau_plus=0.1, variant=variant,
          ),  # fmt: skip
          reference.infograph(self.z1 @ graphs.T, labels, 1.0, 0.1, variant),
      )
