# SPDX-License-Identifier: Apache-2.0
"""A ring computes while it sends, in programs of the TPU's own compiler.

It needs no TPU, only libtpu, which ``pip install 'jax[tpu]'`` brings.
"""

import functools
import importlib.util
import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import topologies
import jax.numpy as jnp
import numpy as np

from benchmarks import program
from hcl_jax import losses

P = jax.sharding.PartitionSpec
_ENVIRONMENT = {'TPU_SKIP_MDS_QUERY': '1', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1'}


@functools.cache
def _mesh():
  with mock.patch.dict(os.environ, _ENVIRONMENT):
    topology = topologies.get_topology_desc(
        platform='tpu', topology_name='v5e:2x4'
    )
  return jax.sharding.Mesh(np.array(topology.devices), ('batch',))


def _transfers(function):
  """Compiles for 8 devices and returns what they send."""
  mesh = _mesh()
  mapped = jax.shard_map(
      function, mesh=mesh, in_specs=P('batch'), out_specs=P('batch')
  )
  sharding = jax.sharding.NamedSharding(mesh, P('batch'))
  z = jax.ShapeDtypeStruct((8192, 128), jnp.float32, sharding=sharding)
  compiled = jax.jit(mapped).lower(z, z).compile()
  return program.transfers(compiled.as_text())


@absltest.skipUnless(
    importlib.util.find_spec('libtpu'), 'libtpu, a compiler, is not installed'
)
class OverlapTest(parameterized.TestCase):

  @parameterized.parameters(
      ('simclr', {}, 0, 1),
      ('in_batch', {}, 0, 1),
      ('in_batch', {'bidirectional': True}, 1, 3),
  )
  def test_a_ring_computes_while_it_sends(self, name, knobs, one, two):
    """All but ``one`` transfer, or ``two`` with the gradient, are hidden."""
    loss = functools.partial(
        getattr(losses, f'{name}_loss'), axis_name='batch', block_size=256,
        **knobs,
    )  # fmt: skip
    # What was summed for others comes home after the last tile: cotangents, and
    # the folds of both directions. The compiler also lets these small folds
    # wait for the last tiles, on which they do not depend.
    forward = _transfers(loss)
    self.assertGreater(len(forward), one)
    self.assertEqual([x.hidden for x in forward].count(False), one)
    both = _transfers(jax.grad(lambda *z: loss(*z).sum(), (0, 1)))
    self.assertGreater(len(both), len(forward))
    self.assertEqual([x.hidden for x in both].count(False), two)
