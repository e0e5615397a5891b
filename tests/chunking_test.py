# SPDX-License-Identifier: Apache-2.0
"""Chunks give value and gradient of the whole batch, in less memory."""

import functools

from absl.testing import parameterized
from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

import hcl_jax
from tests.support import compiler
from tests.support import testing

P = jax.sharding.PartitionSpec
_ROWS = 16
_FORMS = ({'scan': True}, {'scan': False})


def _embed(params, batch):
  """Two towers, and the row's number, which is not differentiated."""
  hidden = jnp.tanh(jnp.matmul(batch['x'], params['in']))
  z1 = jnp.matmul(hidden, params['out'])
  z2 = jnp.matmul(jnp.tanh(batch['y']), params['other'])
  return {'z': (z1, z2), 'row': batch['row']}


def _in_batch(params, embeddings, batch, **where):
  """Two towers, with a learned temperature and rows in their order."""
  t = jnp.exp(params['log_t'])
  values = hcl_jax.in_batch_loss(*embeddings['z'], temperature=t, **where)
  in_order = batch['row'] == embeddings['row']
  return jnp.where(in_order, values, jnp.nan).mean()


def _spread(params, embeddings, batch):
  """A loss in which rows meet and which compiles quickly."""
  z = jnp.concatenate(jax.tree.leaves(embeddings['z']), axis=1)
  return jnp.log(jnp.square(z - 0.5 * z.mean(0)[None]).mean())


@functools.cache  # every form is compared with it
def _whole(embed, loss):
  return jax.jit(
      jax.value_and_grad(
          lambda params, batch: loss(params, embed(params, batch), batch)
      )
  )


def _params():
  return {
      'in': testing.normal(5, 7),
      'out': testing.normal(7, 3, seed=1),
      'other': testing.normal(6, 3, seed=2),
      'log_t': np.float32(-0.7),
  }


def _batch(rows=_ROWS):
  return {
      'x': testing.normal(rows, 5, seed=3),
      'y': testing.normal(rows, 6, seed=4),
      'row': np.arange(rows, dtype=np.int32),
  }


class GradientTest(testing.LossTest):

  def assert_same(self, actual, expected, tolerance=1e-5):
    self.assert_close(actual[0], expected[0], tolerance)
    self.assert_same_gradient(actual[1], expected[1], tolerance)

  @parameterized.parameters((True, False), (False, False), (False, True))
  def test_it_is_that_of_the_whole_batch(self, scan, jit):
    args = _params(), _batch()
    expected = _whole(_embed, _in_batch)(*args)
    for name in expected[1]:  # the temperature is learned too
      self.assertGreater(np.abs(expected[1][name]).max(), 1e-3, name)
    for size in (6,) if jit else (6, 99):  # 6 leaves 4 rows
      step = hcl_jax.chunked_value_and_grad(_embed, _in_batch, size, scan=scan)
      self.assert_same((jax.jit(step) if jit else step)(*args), expected)

  @parameterized.parameters(*_FORMS)
  def test_rows_and_what_is_given_beside_them(self, scan):
    def embed(params, batch, beta, gain):
      keep = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (5,)))
      x = jnp.where(keep(batch['key']), batch['x'], 0.0)
      return {'z': jnp.matmul(gain * x, params)}

    def loss(params, embeddings, batch, beta, gain):
      return beta * _spread(params, embeddings, batch)

    keys = jax.random.split(jax.random.key(0), _ROWS)
    batch = {'x': testing.normal(_ROWS, 5), 'key': keys}
    params = testing.normal(5, 3, seed=1)
    step = hcl_jax.chunked_value_and_grad(embed, loss, 4, scan=scan)
    for beta in (1.0, 2.0):
      rest = jnp.float32(beta), jnp.float32(0.5)
      expected = jax.jit(
          jax.value_and_grad(
              lambda p, rest=rest: loss(
                  p, embed(p, batch, *rest), batch, *rest
              )
          )
      )(params)
      self.assert_same(step(params, batch, *rest), expected)

  def test_half_precision_keeps_dtypes(self):
    params, batch = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16) if x.dtype == np.float32 else x,
        (_params(), _batch()),
    )
    _, grads = hcl_jax.chunked_value_and_grad(_embed, _spread, 4)(
        params, batch
    )
    self.assertEqual(grads['in'].dtype, jnp.bfloat16)

  def test_linen_and_nnx(self):
    pairs = dict(zip(('a', 'b'), testing.views(8, 6), strict=True))
    linen = nn.Dense(4)
    variables = linen.init(jax.random.key(0), pairs['a'])
    graph, state = nnx.split(nnx.Linear(6, 4, rngs=nnx.Rngs(0)))
    for params, apply in (
        (variables, linen.apply),
        (state, lambda state, x: nnx.merge(graph, state)(x)),
    ):

      def embed(params, pairs, apply=apply):
        return {'z': (apply(params, pairs['a']), apply(params, pairs['b']))}

      expected = _whole(embed, _spread)(params, pairs)
      step = hcl_jax.chunked_value_and_grad(embed, _spread, 2)
      self.assert_same(step(params, pairs), expected)


class ExtrasTest(testing.LossTest):

  @parameterized.parameters(*_FORMS)
  def test_aux(self, scan):
    def loss(params, embeddings, batch):
      return _spread(params, embeddings, batch), embeddings['row']

    (value, aux), grads = hcl_jax.chunked_value_and_grad(
        _embed, loss, 6, scan=scan, has_aux=True
    )(_params(), _batch())
    expected = _whole(_embed, _spread)(_params(), _batch())
    self.assert_close(value, expected[0])
    self.assert_same_gradient(grads, expected[1])
    np.testing.assert_array_equal(aux, np.arange(_ROWS))

  @parameterized.parameters(*_FORMS)
  def test_state_goes_from_chunk_to_chunk(self, scan):
    def embed(params, state, batch):
      mean = batch['x'].mean(0)
      new = {'mean': 0.5 * state['mean'] + mean, 'count': state['count'] + 1}
      return _embed(params, batch), new

    state = {'mean': jnp.zeros(5), 'count': jnp.int32(0)}
    value, grads, new = hcl_jax.chunked_value_and_grad(
        embed, _spread, 4, scan=scan, has_state=True
    )(_params(), state, _batch())
    expected = _whole(_embed, _spread)(_params(), _batch())
    self.assert_close(value, expected[0])
    self.assert_same_gradient(grads, expected[1])
    self.assertEqual(new['count'], 4)
    mean = 0.0
    for i in range(4):
      mean = 0.5 * mean + _batch()['x'][i::4].mean(0)
    self.assert_same_gradient(new['mean'], mean)


def _pmap(step):
  mapped = jax.pmap(step, axis_name='batch', in_axes=(None, 0))
  return _of_first(mapped)


def _vmap(step):
  mapped = jax.vmap(step, axis_name='batch', in_axes=(None, 0))
  return _of_first(jax.jit(mapped))


def _of_first(mapped):
  def call(params, batch):
    shards = jax.tree.map(lambda x: x.reshape(8, -1, *x.shape[1:]), batch)
    return jax.tree.map(lambda x: x[0], mapped(params, shards))

  return call


def _mesh():
  return jax.sharding.Mesh(np.array(jax.devices()), ('batch',))


def _shard_map(step, check_vma):
  return jax.jit(
      jax.shard_map(
          step,
          mesh=_mesh(),
          in_specs=(P(), P('batch')),
          out_specs=P(),
          check_vma=check_vma,
      )
  )


_MODES = {
    'pmap': _pmap,
    'vmap': _vmap,
    'checked': functools.partial(_shard_map, check_vma=True),
    'unchecked': functools.partial(_shard_map, check_vma=False),
}


class DevicesTest(testing.LossTest):

  @parameterized.parameters(
      ('pmap', True), ('pmap', False), ('checked', True), ('checked', False),
      ('vmap', True), ('unchecked', False),
  )  # fmt: skip
  def test_devices_give_the_gradient_of_one(self, mode, scan):
    args = _params(), _batch(40)
    expected = _whole(_embed, _in_batch)(*args)
    loss = functools.partial(_in_batch, axis_name='batch')
    step = hcl_jax.chunked_value_and_grad(
        _embed, loss, 2, axis_name='batch', scan=scan
    )  # five rows of a device leave one
    value, grads = _MODES[mode](step)(*args)
    self.assert_close(value, expected[0])
    self.assert_same_gradient(grads, expected[1])

  def test_state_of_a_mapped_axis(self):
    def embed(params, state, batch):
      mean = jax.lax.pmean(batch['x'].mean(0), 'batch')
      return _embed(params, batch), state + mean

    step = hcl_jax.chunked_value_and_grad(
        embed, _spread, 2,
        axis_name='batch', has_state=True,
    )  # fmt: skip

    def call(params, batch):
      *_, state = step(params, jnp.zeros(5), batch)
      return jax.lax.pmean(state, 'batch')

    state = _shard_map(call, check_vma=True)(_params(), _batch(32))
    self.assert_same_gradient(state, 2 * _batch(32)['x'].mean(0))

  @parameterized.parameters(*_FORMS)
  def test_sharded_rows_stay_where_they_are(self, scan):
    rows, wide = 64, 48
    params = testing.normal(wide, 4)
    batch = testing.normal(rows, 2, wide, seed=1)
    batch = jax.device_put(batch, jax.NamedSharding(_mesh(), P('batch')))

    def embed(params, batch):
      return jnp.matmul(batch, params)

    def loss(params, z, batch):
      return hcl_jax.simclr_loss(z[:, 0], z[:, 1]).mean()

    step = hcl_jax.chunked_value_and_grad(embed, loss, 16, scan=scan)
    compiled = jax.jit(step).lower(params, batch).compile()
    value, grads = compiled(params, batch)
    expected = _whole(embed, loss)(params, jax.device_get(batch))
    self.assert_close(value, expected[0])
    self.assert_same_gradient(grads, expected[1])
    # Embeddings may travel, inputs may not.
    moves = [
        line
        for line in compiled.as_text().splitlines()
        if any(x in line for x in ('all-gather', 'all-to-all', 'permute('))
    ]
    self.assertFalse([x for x in moves if f',{wide}]' in x], moves)


def _embed_deep(params, batch):
  for _ in range(4):
    batch = jnp.tanh(jnp.matmul(batch, params))
  return {'z': batch[:, :4]}


def _compile(step):
  shapes = (
      jax.ShapeDtypeStruct((128, 128), jnp.float32),
      jax.ShapeDtypeStruct((1024, 128), jnp.float32),
  )
  return compiler.optimized(step).lower(*shapes).compile()


class MemoryTest(testing.LossTest):

  def test_it_falls_with_the_chunk(self):
    whole, *chunked = (
        _compile(step).memory_analysis().temp_size_in_bytes
        for step in (
            _whole(_embed_deep, _spread),
            *(
                hcl_jax.chunked_value_and_grad(_embed_deep, _spread, size)
                for size in (256, 64)
            ),
        )
    )
    self.assertLess(chunked[0], 0.4 * whole)
    self.assertLess(chunked[1], 0.7 * chunked[0])

  def test_unrolled_chunks_wait_for_each_other(self):
    # CPUs drop the barriers, so their memory shows nothing.
    step = hcl_jax.chunked_value_and_grad(
        _embed_deep, _spread, 4, scan=False
    )
    args = testing.normal(8, 8), testing.normal(16, 8)
    text = jax.jit(step).lower(*args).as_text()
    self.assertIn('optimization_barrier', text)

  def test_a_python_loop_compiles_chunks_once(self):
    seen = []

    def embed(params, batch):
      seen.append(batch.shape[0])
      return _embed_deep(params, batch)

    step = hcl_jax.chunked_value_and_grad(embed, _spread, 4, scan=False)
    for seed in (0, 1):
      batch = testing.normal(32, 8, seed=seed)
      step(testing.normal(8, 8), batch)
    self.assertEqual(seen, [4, 4])  # embed and backpropagate


class FullyShardedTest(parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_parameters_in_shares_of_devices(self, chunked):
    """FSDP: weights, rows and gradients are split, and all is as if whole."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ('data',))
    split = jax.sharding.NamedSharding(mesh, P('data'))
    params = {
        'hidden': testing.normal(16, 32),
        'out': testing.normal(32, 8, seed=1) / 4,
    }
    batch = testing.normal(64, 2, 16, seed=2)

    def embed(params, rows):
      hidden = jnp.tanh(jnp.matmul(rows, params['hidden']))
      return jnp.matmul(hidden, params['out'])

    def loss(params, z, rows):
      return hcl_jax.in_batch_loss(
          z[:, 0], z[:, 1], beta=1.0, block_size=16, bidirectional=True,
          mesh=mesh,
      ).mean()  # fmt: skip

    def plain(params, rows):
      z = embed(params, rows)
      return hcl_jax.in_batch_loss(
          z[:, 0], z[:, 1], beta=1.0, bidirectional=True
      ).mean()

    step = jax.value_and_grad(lambda p, x: loss(p, embed(p, x), x))
    if chunked:
      step = hcl_jax.chunked_value_and_grad(embed, loss, 16)
    update = jax.jit(
        lambda params, rows: (
            lambda value, grads: (
                value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
            )
        )(*step(params, rows)),
        out_shardings=(None, split),
    )  # fmt: skip
    value, updated = update(
        jax.device_put(params, split), jax.device_put(batch, split)
    )
    expected, grads = jax.jit(jax.value_and_grad(plain))(params, batch)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for name, x in updated.items():
      self.assertEqual(x.sharding, split)
      shard = x.addressable_shards[0].data
      self.assertEqual(shard.shape[0], params[name].shape[0] // 8)
      np.testing.assert_allclose(
          x, params[name] - 0.1 * grads[name], rtol=1e-4, atol=1e-6
      )


class ErrorsTest(parameterized.TestCase):

  @parameterized.parameters(0, -1, 2.0, True, None)
  def test_chunk_size(self, size):
    with self.assertRaisesRegex(ValueError, f'chunk_size must be .*{size}'):
      hcl_jax.chunked_value_and_grad(_embed, _spread, size)

  def _check(self, message, *, embed=_embed, loss=_spread, batch=None, **more):
    for form in _FORMS:
      step = hcl_jax.chunked_value_and_grad(embed, loss, 4, **form, **more)
      args = (None,) if more.get('has_state') else ()
      with self.assertRaisesRegex(ValueError, message):
        step(_params(), *args, _batch() if batch is None else batch)

  def test_rows(self):
    batch = {**_batch(), 'scale': np.float32(1)}
    self._check(r"batch\['scale'\] has shape \(\).*after", batch=batch)
    batch = {**_batch(), 'y': testing.normal(3, 6)}
    self._check(
        r"batch\['row'\] has .*\(16,\) and batch\['y'\] has .*\(3, 6\).*after",
        batch=batch,
    )
    self._check(r'one or more rows; .*\(0,\)', batch={'row': np.zeros(0)})
    self._check('at least one array', batch={})

  def test_embeddings(self):
    self._check(
        r"4 rows of its chunk; embeddings\['z'\] has shape \(3, 5\)",
        embed=lambda params, batch: {'z': batch['x'][:3]},
    )
    self._check(
        'at least one floating-point', embed=lambda _, batch: batch['row']
    )
    self._check(
        r'\(embeddings, state\) with has_state=True; got dict',
        embed=lambda params, state, batch: _embed(params, batch),
        has_state=True,
    )

  def test_loss(self):
    self._check(
        r'scalar; got shape \(16,\)\. Take the mean',
        loss=lambda _, z, batch: hcl_jax.simclr_loss(*z['z']),
    )
    self._check(
        'scalar; got tuple.*has_aux=True',
        loss=lambda *args: (_spread(*args), {}),
    )
    self._check(
        r'\(loss, aux\) with has_aux=True; got shape \(\)', has_aux=True
    )
