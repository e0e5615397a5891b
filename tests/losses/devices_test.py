# SPDX-License-Identifier: Apache-2.0
"""Eight devices give the value and the gradient of one, in every mode.

Gradients are compared, never trained parameters: an n-fold gradient looks
right under Adam.
"""

import functools
from unittest import mock

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import program
from hcl_jax import losses
from hcl_jax.losses import _blockwise
from tests.support import testing

P = jax.sharding.PartitionSpec
_DEVICES = 8
_LABELS = np.array([0, 1, 2, 3, 4, 0] * 4)


def _mesh():
  return jax.sharding.Mesh(np.array(jax.devices()), ('batch',))


def _embed(weights, images):
  z = jnp.tanh(jnp.matmul(images, weights))
  return z[:, 0], z[:, 1]


def _simclr(weights, temperature, images, labels, **where):
  return losses.simclr_loss(
      *_embed(weights, images), temperature=temperature, **where
  ).mean()


def _simclr_with_labels(weights, temperature, images, labels, **where):
  return losses.simclr_loss(
      *_embed(weights, images), temperature=temperature, labels=labels, **where
  ).mean()


def _in_batch(weights, temperature, images, labels, **where):
  z1, z2 = _embed(weights, images)
  # Mined negatives, one per pair, are everybody's.
  mined = z1[:, ::-1] + 0.5
  return losses.in_batch_loss(
      z1, z2, negatives=mined, temperature=temperature, tau_plus=0.1, **where
  ).mean()


def _in_batch_own(weights, temperature, images, labels, **where):
  z1, z2 = _embed(weights, images)
  own = jnp.stack([z1[:, ::-1] + 0.5, z2[:, ::-1]], axis=1)
  return losses.in_batch_loss(
      z1, z2, negatives=own, temperature=temperature, labels=labels, **where
  ).mean()


def _filtered(weights, temperature, images, labels, **where):
  z1, z2 = _embed(weights, images)
  mined = z1[:, ::-1] + 0.5
  return losses.in_batch_loss(
      z1, z2, negatives=mined, temperature=temperature, tau_plus=0.1,
      where=labels != 2,
      beta=jnp.abs(images[:, 0, 0]),
      margin=losses.Margin(0.1, guide=(images[:, 0], images[:, 1])), **where,
  ).mean()  # fmt: skip


def _simclr_filtered(weights, temperature, images, labels, **where):
  return losses.simclr_loss(
      *_embed(weights, images), temperature=temperature, floor='soft',
      beta=jnp.abs(images[:, 0, 0]),
      margin=losses.Margin(0.1, guide=(images[:, 0], images[:, 1])), **where,
  ).mean()  # fmt: skip


def _simclr_by_share(weights, temperature, images, labels, **where):
  return losses.simclr_loss(
      *_embed(weights, images), temperature=temperature, labels=labels,
      effective_negatives=0.7,
      margin=losses.Margin(0.1, guide=(images[:, 0], images[:, 1])), **where,
  ).mean()  # fmt: skip


def _moco(weights, temperature, images, labels, **where):
  queries, keys = _embed(weights, images)
  # The queue is split as the batch is.
  queue = jnp.concatenate([keys[:, ::-1], queries - 0.5])
  guide_of_queue = jnp.concatenate([images[:, 1, ::-1], images[:, 0]])
  return losses.moco_loss(
      queries, keys, queue, temperature=temperature, tau_plus=0.1,
      extra=jnp.stack([keys[:, ::-1] + 0.5, queries[:, ::-1]], axis=1),
      where=jnp.concatenate([labels != 2, labels != 1]),
      beta=jnp.abs(images[:, 0, 0]),
      margin=losses.Margin(
          0.1, guide=(images[:, 0], images[:, 1], guide_of_queue)
      ),
      **where,
  ).mean()  # fmt: skip


def _supcon(weights, temperature, images, labels, **where):
  return losses.supcon_loss(
      *_embed(weights, images), labels, temperature=temperature, **where
  ).mean()


_GATHERED = {
    'simclr': _simclr,
    'simclr_with_labels': _simclr_with_labels,
    'in_batch': _in_batch,
    'in_batch_own': _in_batch_own,
    'filtered': _filtered,
    'moco': _moco,
    'supcon': _supcon,
}
_RING = {k: v for k, v in _GATHERED.items() if k != 'supcon'}


def _shards(array):
  return array.reshape(_DEVICES, -1, *array.shape[1:])


def _pmean(tree):
  return jax.tree.map(lambda x: jax.lax.pmean(x, 'batch'), tree)


def _pmap_step(local):
  step = jax.pmap(
      lambda *a: _pmean(jax.value_and_grad(local, (0, 1))(*a)),
      axis_name='batch',
      in_axes=(None, None, 0, 0),
  )
  return lambda w, t, x, y: jax.tree.map(
      lambda a: a[0], step(w, t, _shards(x), _shards(y))
  )


def _vmap_step(local):
  step = jax.jit(
      jax.vmap(
          lambda *a: _pmean(jax.value_and_grad(local, (0, 1))(*a)),
          axis_name='batch',
          in_axes=(None, None, 0, 0),
      )
  )
  return lambda w, t, x, y: jax.tree.map(
      lambda a: a[0], step(w, t, _shards(x), _shards(y))
  )


def _shard_map(function, check_vma):
  return jax.shard_map(
      function,
      mesh=_mesh(),
      in_specs=(P(), P(), P('batch'), P('batch')),
      out_specs=P(),
      check_vma=check_vma,
  )


def _unchecked_step(local):
  def step(*args):
    return _pmean(jax.value_and_grad(local, (0, 1))(*args))

  return jax.jit(_shard_map(step, check_vma=False))


def _checked_step(local):
  step = jax.value_and_grad(lambda *a: _pmean(local(*a)), (0, 1))
  return jax.jit(_shard_map(step, check_vma=True))


def _outside_step(local, *, check_vma):
  loss = _shard_map(lambda *a: _pmean(local(*a)), check_vma)
  return jax.jit(jax.value_and_grad(loss, (0, 1)))


_MODES = {
    'pmap': _pmap_step,
    'vmap': _vmap_step,
    'shard_map_unchecked': _unchecked_step,
    'shard_map_checked': _checked_step,
    'outside_shard_map_checked': functools.partial(
        _outside_step, check_vma=True
    ),
    'outside_shard_map_unchecked': functools.partial(
        _outside_step, check_vma=False
    ),
}


@functools.cache  # every mode is compared with it
def _on_one_device(loss):
  return jax.jit(jax.value_and_grad(loss, (0, 1)))


class DevicesTest(testing.LossTest):

  def setUp(self):
    super().setUp()
    self.weights = testing.normal(7, 6)
    self.images = testing.normal(24, 2, 7, seed=1)

  def _check(self, step, loss):
    one = _on_one_device(loss)
    # The two temperatures take the two ways of folding a tile.
    for temperature in (0.5, 0.02):
      args = self.weights, jnp.float32(temperature), self.images, _LABELS
      (value, grads), (expected, expected_grads) = step(*args), one(*args)
      self.assert_close(value, expected, 1e-5)
      self.assert_same_gradient(grads, expected_grads, 1e-5)

  @parameterized.product(mode=tuple(_MODES), name=tuple(_GATHERED))
  def test_gathered(self, mode, name):
    local = functools.partial(_GATHERED[name], axis_name='batch')
    self._check(_MODES[mode](local), _GATHERED[name])

  @parameterized.product(mode=tuple(_MODES), name=tuple(_RING))
  def test_ring(self, mode, name):
    local = functools.partial(_RING[name], axis_name='batch', block_size=4)
    self._check(_MODES[mode](local), _RING[name])

  @parameterized.product(
      mode=tuple(_MODES),
      loss=(
          _simclr, _simclr_with_labels, _simclr_filtered, _simclr_by_share
      ),  # fmt: skip
      # More blocks than devices, and fewer.
      given=((4, 40), (14, 48)),
  )
  def test_gathered_in_tiles(self, mode, loss, given):
    block, batch = given
    images, labels = testing.normal(batch, 2, 7, seed=1), np.arange(batch) // 3
    args = self.weights, jnp.float32(0.1), images, labels
    expected, expected_grads = _on_one_device(loss)(*args)
    with mock.patch.object(_blockwise, 'choose_block', lambda *_: block):
      local = functools.partial(loss, axis_name='batch')
      value, grads = _MODES[mode](local)(*args)
    self.assert_close(value, expected, 1e-5)
    self.assert_same_gradient(grads, expected_grads, 1e-5)

  @parameterized.product(name=tuple(_RING), block_size=(None, 8))
  def test_named_sharding(self, name, block_size):
    loss = functools.partial(_RING[name], block_size=block_size)
    sharding = jax.sharding.NamedSharding(_mesh(), P('batch'))
    step = jax.jit(jax.value_and_grad(loss, (0, 1)))

    def sharded(w, t, x, y):
      return step(w, t, *jax.device_put((x, y), sharding))

    self._check(sharded, _RING[name])

  def test_ring_gives_each_device_its_rows_gradient(self):
    """The transpose across devices: rows collect the pulls of all devices."""
    z1, z2 = testing.views(24, 5)

    def local(z1, z2, **where):
      return losses.simclr_loss(z1, z2, **where).sum()

    expected = jax.grad(local)(z1, z2)
    for block_size in (None, 4):
      grad = jax.pmap(
          jax.grad(functools.partial(
              local, axis_name='batch', block_size=block_size)),
          axis_name='batch',
      )(_shards(z1), _shards(z2))
      self.assert_same_gradient(grad.reshape(24, 5), expected, 1e-5)

  def test_one_pair_per_device(self):
    z1, z2 = testing.views(8, 5)
    for block_size in (None, 1):
      values = jax.pmap(
          functools.partial(
              losses.simclr_loss, axis_name='batch', block_size=block_size),
          axis_name='batch',
      )(_shards(z1), _shards(z2))
      self.assert_close(values.reshape(8), losses.simclr_loss(z1, z2))

  def test_ring_memory_does_not_grow_with_devices(self):
    def temporaries(devices, block_size):
      mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ('batch',))
      loss = jax.shard_map(
          lambda z1, z2: jax.lax.pmean(
              losses.simclr_loss(
                  z1, z2, axis_name='batch', block_size=block_size).mean(),
              'batch'),
          mesh=mesh, in_specs=P('batch'), out_specs=P(),
      )  # fmt: skip
      shape = jax.ShapeDtypeStruct((devices * 256, 32), jnp.float32)
      compiled = jax.jit(jax.grad(loss, (0, 1))).lower(shape, shape).compile()
      return compiled.memory_analysis().temp_size_in_bytes

    # Of more than two, one block comes in while another is computed with.
    self.assertLessEqual(temporaries(8, 64), 1.1 * temporaries(4, 64))
    self.assertGreater(temporaries(8, None), 2 * temporaries(8, 64))


def _products(loss, arrays, **options):
  """Counts the operations of a device, in matrix products."""
  step = jax.jit(
      jax.value_and_grad(lambda *z: loss(*z, **options).mean(), (0, 1))
  )
  return program.count(step.lower(*arrays).compile().as_text()).flops


class MeshTest(testing.LossTest):
  """Under jit with sharded arrays each device does its part."""

  def _mesh(self, kind=jax.sharding.AxisType.Auto):
    return jax.make_mesh((4, 2), ('data', 'model'), axis_types=(kind,) * 2)

  def _rows(self, kind=jax.sharding.AxisType.Auto):
    sharding = jax.sharding.NamedSharding(self._mesh(kind), P('data'))
    z = testing.normal(2, 1024, 8)
    return jax.device_put((z[0], z[1]), sharding)

  @parameterized.product(
      loss=(losses.in_batch_loss, losses.simclr_loss, losses.sigmoid_loss),
      kind=(jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit),
  )
  def test_each_device_does_its_part(self, loss, kind):
    alone = _products(loss, testing.normal(2, 1024, 8))
    part = _products(loss, self._rows(kind))
    self.assertLessEqual(part, 1.2 * alone / _DEVICES)

  def test_a_mesh_in_scope_or_given(self):
    rows = testing.normal(2, 1024, 8)
    loss = losses.in_batch_loss
    alone = _products(loss, rows)
    part = _products(loss, rows, mesh=self._mesh())
    self.assertLessEqual(part, 1.2 * alone / _DEVICES)
    with jax.set_mesh(self._mesh()):
      part = _products(loss, rows, block_size=128)
    self.assertLessEqual(part, 1.2 * alone / _DEVICES)

  @parameterized.parameters(jax.sharding.AxisType)
  def test_value_and_gradient_with_all_options(self, kind):
    if kind == jax.sharding.AxisType.Manual:
      return  # of pmap and shard_map
    z = testing.normal(2, 24, 7)
    beta = np.abs(testing.normal(48, seed=1))
    negatives, where = testing.normal(5, 7, seed=2), np.arange(5) != 2
    guide = tuple(testing.normal(2, 24, 3, seed=3))
    margin = losses.Margin(0.1, guide=guide)

    def simclr(z1, z2, t, **options):
      return losses.simclr_loss(
          z1, z2, temperature=t, beta=beta, labels=_LABELS, **options
      ).mean()

    def in_batch(z1, z2, t, **options):
      return losses.in_batch_loss(
          z1, z2, temperature=t, negatives=negatives, where=where,
          margin=margin, tau_plus=0.1, **options,
      ).mean()  # fmt: skip

    def separate(z1, z2, t, **options):
      own = jnp.stack([z1[:, ::-1], z2[:, ::-1]], axis=1)
      return losses.in_batch_loss(
          z1, z2, temperature=t, negatives=own, effective_negatives=0.6,
          **options,
      ).mean()  # fmt: skip

    mesh = self._mesh(kind)
    rows = jax.device_put(
        tuple(z), jax.sharding.NamedSharding(mesh, P(('data', 'model')))
    )
    def sigmoid(z1, z2, t, **options):
      return losses.sigmoid_loss(
          z1, z2, logit_scale=1 / t, beta=0.5, labels=_LABELS, **options
      ).mean()

    def moco(z1, z2, t, **options):
      queue_guide = testing.normal(5, 3, seed=4)
      return losses.moco_loss(
          z1, z2, negatives, temperature=t, where=where, tau_plus=0.1,
          margin=losses.Margin(0.1, guide=(*guide, queue_guide)), **options,
      ).mean()  # fmt: skip

    for loss in (simclr, in_batch, separate, sigmoid, moco):
      expected, expected_grads = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(
          *z, 0.3
      )
      for options in ({'mesh': mesh}, {'block_size': 2}):
        with self.subTest(loss=loss.__name__, **options):
          value, grads = jax.jit(
              jax.value_and_grad(
                  functools.partial(loss, **options), (0, 1, 2)
              )
          )(*rows, 0.3)
          self.assert_close(value, expected, 1e-5)
          self.assert_same_gradient(grads, expected_grads, 2e-5)

  def test_arrays_that_a_function_closes_over(self):
    rows = self._rows()
    expected = losses.in_batch_loss(*map(np.asarray, rows), beta=1.0)
    direct = jax.jit(
        lambda beta: losses.in_batch_loss(*rows, beta=beta, block_size=128)
    )
    self.assert_close(direct(1.0), expected)
    given = jax.jit(
        lambda w: losses.in_batch_loss(
            *(x * w for x in rows), beta=1.0, block_size=128, mesh=self._mesh()
        )
    )
    self.assert_close(given(jnp.float32(2.0)), expected)

  def test_refusals(self):
    z1, z2 = testing.views(12, 3)
    with self.assertRaisesRegex(ValueError, '8 devices, .* got 12 rows'):
      losses.simclr_loss(z1, z2, mesh=self._mesh())
    with self.assertRaisesRegex(ValueError, 'mesh and axis_name exclude'):
      losses.simclr_loss(z1, z2, mesh=self._mesh(), axis_name='data')
    with self.assertRaisesRegex(ValueError, 'inside pmap or shard_map'):
      jax.pmap(functools.partial(losses.simclr_loss, mesh=self._mesh()))(
          *testing.normal(2, 8, 4, 3)
      )
    # A mesh that does not split the rows evenly is used as far as it does.
    with jax.set_mesh(self._mesh()):
      values = losses.simclr_loss(z1, z2, block_size=4)
    self.assert_close(values, losses.simclr_loss(z1, z2))


class MemoryTest(testing.LossTest):

  def test_blockwise_memory_is_linear_in_the_batch(self):
    def temporaries(batch):
      shape = jax.ShapeDtypeStruct((batch, 128), jnp.float32)
      grad = jax.jit(
          jax.value_and_grad(
              lambda a, b: losses.simclr_loss(a, b).mean(), (0, 1)
          )
      )
      compiled = grad.lower(shape, shape).compile()
      return compiled.memory_analysis().temp_size_in_bytes

    at_4096, at_16384 = temporaries(4096), temporaries(16384)
    self.assertLessEqual(at_4096, 45e6)
    self.assertLessEqual(at_16384, 250e6)
    self.assertLessEqual(at_16384, 4.4 * at_4096)
