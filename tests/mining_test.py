# SPDX-License-Identifier: Apache-2.0
"""mine_hard_negatives against a sort of all documents."""

import functools

from absl.testing import parameterized
import jax
from jax import export
import jax.numpy as jnp
import numpy as np

import hcl_jax
from hcl_jax import mining
from tests import reference
from tests.support import compiler
from tests.support import testing

P = jax.sharding.PartitionSpec
_DEVICES = 8
_QUERIES, _DOCUMENTS = testing.normal(21, 6), testing.normal(203, 6, seed=1)
_OWN = np.arange(21) * 9
# With -1 for none, once in every row but the last, and twice in the first.
_SEVERAL = np.stack([_OWN, (_OWN + 50) % 203, np.full(21, -1)], axis=1)
_SEVERAL[0, 1], _SEVERAL[-1, 2] = -1, 7


def _signs(rows, seed):
  """Vectors of -1 and 1 whose cosines are multiples of 1/2: many are equal."""
  rng = np.random.default_rng(seed)
  return rng.choice(np.float32([-1, 1]), (rows, 4))


def _mine(*arrays, **options):
  found = hcl_jax.mine_hard_negatives(*arrays, **options)
  return jax.tree.map(np.asarray, found)


def _mesh():
  return jax.sharding.Mesh(np.array(jax.devices()), ('batch',))


class MiningTest(parameterized.TestCase):

  def _check(self, found, expected, tolerance=1e-6):
    indices, scores = found
    expected_indices, expected_scores = expected
    self.assertEqual(indices.dtype, jnp.int32)
    self.assertEqual(scores.dtype, jnp.float32)
    np.testing.assert_array_equal(indices, expected_indices)
    np.testing.assert_allclose(scores, expected_scores, atol=tolerance)

  @parameterized.product(
      block_size=(None, 7, 64),
      options=(
          {'k': 1},
          {'k': 5, 'skip': 2, 'positives': _OWN},
          {'k': 3, 'margin': 0.2, 'positives': _OWN},
          {'k': 3, 'skip': 1, 'margin': 0.1, 'positives': _SEVERAL},
      ),
  )
  def test_matches_the_oracle(self, block_size, options):
    self._check(
        _mine(_QUERIES, _DOCUMENTS, block_size=block_size, **options),
        reference.mine(_QUERIES, _DOCUMENTS, **options),
    )

  @parameterized.product(
      block_size=(3, 100),
      options=(
          {'k': 60, 'skip': 5, 'positives': _OWN},
          {'k': 2, 'skip': 1, 'margin': 0.5, 'positives': _SEVERAL},
      ),
  )
  def test_of_equal_documents_the_lower_index_comes_first(
      self, block_size, options
  ):
    queries, documents = _signs(21, 0), _signs(203, 1)
    documents[5] = documents[150] = 0  # cosine 0 with all
    self._check(
        _mine(queries, documents, block_size=block_size, **options),
        reference.mine(queries, documents, **options),
        0,
    )

  def test_groups_of_documents_are_used(self):
    # Otherwise the tests above would not see them.
    self.assertEqual(mining._choose_tile(21, 203, 3, 64).group, 4)
    self.assertEqual(mining._choose_tile(21, 203, 3, None).group, 8)
    self.assertEqual(mining._choose_tile(21, 203, 60, None).group, 1)
    self.assertEqual(mining._choose_tile(10**4, 70_000, 10, None).group, 16)

  def test_signs_of_zeros_do_not_matter(self):
    documents = np.float32([[0, -1], [-0.0, -1], [0, 1], [-0.0, 1]])
    for query in ([1, 0], [-1, 0], [1, -0.0], [-1, -0.0]):
      for block_size in (None, 1):
        indices, _ = _mine(
            np.float32([query]), documents, k=4, block_size=block_size
        )
        np.testing.assert_array_equal(indices, [[0, 1, 2, 3]])

  def test_pads_where_too_few_remain(self):
    queries, documents = _QUERIES[:3], _DOCUMENTS[:9]
    own = np.array([0, 8, -1])
    for options in (
        {'k': 20},
        {'k': 2, 'skip': 9},
        {'k': 9, 'positives': own},
        {'k': 9, 'positives': own, 'margin': 0.5},
        {'k': 9, 'positives': own, 'margin': 3},
    ):
      with self.subTest(**options):
        found = _mine(queries, documents, block_size=7, **options)
        self._check(found, reference.mine(queries, documents, **options))
        self.assertIn(-1, found[0])

  def test_one_query_and_one_document(self):
    self._check(_mine(_QUERIES[:1], _QUERIES[:1], k=1), ([[0]], [[1.0]]))
    self._check(
        _mine(_QUERIES[:1], _QUERIES[:1], k=1, positives=[0]),
        ([[-1]], [[-np.inf]]),
    )

  def test_scale_does_not_matter(self):
    options = {'k': 3, 'margin': 0.1, 'positives': _OWN}
    indices, scores = _mine(_QUERIES, _DOCUMENTS, **options)
    scales = np.float32([1e-30, 1e30, 1])[np.arange(203) % 3, None]
    self._check(
        _mine(_QUERIES * scales[:21], _DOCUMENTS * scales, **options),
        (indices, scores),
    )

  @parameterized.parameters(jnp.bfloat16, jnp.float16)
  def test_half_precision_is_computed_in_single(self, dtype):
    queries, documents = (jnp.asarray(x, dtype) for x in (_QUERIES, _DOCUMENTS))
    options = {'k': 4, 'skip': 1, 'margin': 0.1, 'positives': _OWN}
    self._check(
        _mine(queries, documents, block_size=64, **options),
        reference.mine(
            np.float32(queries), np.float32(documents), **options
        ),
    )

  def test_float64(self):
    with jax.enable_x64(True):
      indices, scores = hcl_jax.mine_hard_negatives(
          np.float64(_QUERIES), np.float64(_DOCUMENTS), k=3, positives=_OWN,
          margin=0.1,
      )  # fmt: skip
    self.assertEqual((indices.dtype, scores.dtype), (np.int32, np.float64))
    expected = reference.mine(_QUERIES, _DOCUMENTS, 3, 0, 0.1, _OWN)
    np.testing.assert_array_equal(indices, expected[0])
    np.testing.assert_allclose(scores, expected[1], rtol=1e-13)

  @parameterized.parameters(None, 7)
  def test_rows_with_nan_are_not_found(self, block_size):
    queries, documents = _QUERIES.copy(), _DOCUMENTS.copy()
    queries[2, 1] = documents[5, 0] = np.nan
    found = _mine(queries, documents, k=3, block_size=block_size)
    indices, scores = reference.mine(_QUERIES, np.delete(documents, 5, 0), 3)
    indices += indices >= 5
    indices[2], scores[2] = -1, -np.inf
    self._check(found, (indices, scores))

  def test_jit_and_traced_margin(self):
    traces = []

    @jax.jit
    def mine(queries, documents, margin, positives):
      traces.append(None)
      return hcl_jax.mine_hard_negatives(
          queries, documents, k=3, margin=margin, positives=positives
      )

    for margin in (0.0, 0.3):
      options = {'margin': margin, 'positives': _OWN}
      self._check(
          mine(_QUERIES, _DOCUMENTS, **options),
          reference.mine(_QUERIES, _DOCUMENTS, 3, **options),
      )
    self.assertLen(traces, 1)

  def test_the_program_of_users_finds_the_same(self):
    queries, documents = testing.normal(300, 16), testing.normal(9000, 16)
    found = compiler.optimized(
        functools.partial(hcl_jax.mine_hard_negatives, k=10, skip=3)
    )(queries, documents)
    a, b = (
        np.float64(x) / np.linalg.norm(np.float64(x), axis=1, keepdims=True)
        for x in (queries, documents)
    )
    cosines = a @ b.T
    order = np.argsort(-cosines, axis=1, kind='stable')[:, 3:13]
    self._check(found, (order, np.take_along_axis(cosines, order, axis=1)))


class MemoryTest(parameterized.TestCase):

  def test_no_buffer_has_an_entry_per_query_and_document(self):
    # More queries and documents than fit in a tile.
    n, m, dim = 3000, 50_000, 8
    own = jax.ShapeDtypeStruct((n,), jnp.int32)
    jaxpr = jax.make_jaxpr(
        lambda q, d, p: hcl_jax.mine_hard_negatives(
            q, d, k=10, margin=0.1, positives=p
        )
    )(_shape(n, dim), _shape(m, dim), own)
    sizes = [x.aval.size for x in _variables(jaxpr.jaxpr)]
    self.assertGreater(len(sizes), 100)
    self.assertLess(max(sizes), n * m / 100)

  def test_memory_does_not_grow_with_documents(self):
    def temporaries(n, m):
      mine = jax.jit(functools.partial(hcl_jax.mine_hard_negatives, k=10))
      compiled = mine.lower(_shape(n, 32), _shape(m, 32)).compile()
      return compiled.memory_analysis().temp_size_in_bytes

    small = temporaries(2048, 2**15)
    self.assertLess(small, 30e6)
    self.assertLessEqual(temporaries(2048, 2**20), 1.05 * small)
    self.assertLessEqual(temporaries(2048 * 8, 2**15), 8 * small)


class DevicesTest(parameterized.TestCase):

  def _check(self, function, own, data=_signs, tolerance=0):
    queries, documents = data(_DEVICES * 3, 0), data(_DEVICES * 25, 1)
    own = own % 200
    options = {'k': 4, 'skip': 1, 'margin': 0.25}
    expected = _mine(queries, documents, positives=own, **options)
    found = function(
        lambda q, d, p: hcl_jax.mine_hard_negatives(
            q, d, positives=p, axis_name='batch', block_size=16, **options
        )
    )(queries, documents, own)
    indices, scores = (np.reshape(x, (24, 4)) for x in found)
    np.testing.assert_array_equal(indices, expected[0])
    np.testing.assert_allclose(scores, expected[1], atol=tolerance)
    self.assertGreater(np.unique(expected[0] // 25).size, 3)

  @parameterized.parameters(True, False)
  def test_shard_map(self, check_vma):
    split = functools.partial(
        jax.shard_map,
        mesh=_mesh(),
        in_specs=P('batch'),
        out_specs=P('batch'),
        check_vma=check_vma,
    )
    own = np.arange(24) * 17
    several = np.stack([own, own + 101], axis=1)
    self._check(lambda f: jax.jit(split(f)), several if check_vma else own)

  def test_cosines_that_differ(self):
    def data(rows, seed):
      return testing.normal(rows, 4, seed=seed)

    split = functools.partial(
        jax.shard_map, mesh=_mesh(), in_specs=P('batch'), out_specs=P('batch')
    )
    self._check(
        lambda f: jax.jit(split(f)), np.arange(24) * 17, data, tolerance=1e-6
    )

  @parameterized.parameters(jax.pmap, jax.vmap)
  def test_mapped(self, transform):
    def function(local):
      mapped = transform(local, axis_name='batch')
      return lambda *arrays: mapped(
          *(x.reshape(_DEVICES, -1, *x.shape[1:]) for x in arrays)
      )

    self._check(function, np.arange(24) * 17)

  def test_split_queries_and_all_documents(self):
    expected = _mine(_QUERIES[:16], _DOCUMENTS, k=3, positives=_OWN[:16])
    split = jax.shard_map(
        lambda q, d, p: hcl_jax.mine_hard_negatives(
            q, d, k=3, positives=p, block_size=64
        ),
        mesh=_mesh(),
        in_specs=(P('batch'), P(), P('batch')),
        out_specs=P('batch'),
    )
    found = jax.jit(split)(_QUERIES[:16], _DOCUMENTS, _OWN[:16])
    np.testing.assert_array_equal(found[0], expected[0])

  def test_fewer_documents_on_a_device_than_are_mined(self):
    queries, documents = _QUERIES[:16], _DOCUMENTS[:16]
    split = jax.shard_map(
        functools.partial(
            hcl_jax.mine_hard_negatives, k=20, axis_name='batch'
        ),
        mesh=_mesh(), in_specs=P('batch'), out_specs=P('batch'),
    )  # fmt: skip
    found = jax.jit(split)(queries, documents)
    expected = reference.mine(queries, documents, 20)
    np.testing.assert_array_equal(found[0], expected[0])

  def test_lowers(self):
    mine = functools.partial(
        hcl_jax.mine_hard_negatives, k=1, margin=0.1, block_size=16
    )
    arrays = _shape(16, 8), _shape(64, 8), jax.ShapeDtypeStruct((16,), 'int32')
    exported = export.export(
        jax.jit(lambda q, d, p: mine(q, d, positives=p)),
        platforms=('cpu', 'cuda', 'tpu'),
    )(*arrays)
    self.assertEqual(exported.platforms, ('cpu', 'cuda', 'tpu'))
    split = jax.shard_map(
        lambda q, d, p: mine(q, d, positives=p, axis_name='batch'),
        mesh=_mesh(), in_specs=P('batch'), out_specs=P('batch'),
    )  # fmt: skip
    exported = export.export(jax.jit(split), platforms=('cuda', 'tpu'))(*arrays)
    self.assertIn('collective_permute', exported.mlir_module())
    self.assertNotIn('all_gather', exported.mlir_module())


class ArgumentsTest(parameterized.TestCase):

  @parameterized.parameters(
      ({'k': 0}, 'k must be >= 1, got 0'),
      ({'k': 2.0}, r'k must be an int, got 2\.0'),
      ({'skip': -1}, 'skip must be >= 0, got -1'),
      ({'block_size': 0}, 'block_size must be >= 1, got 0'),
      ({'queries': _QUERIES[0]}, r'queries must have rank 2.*got shape \(6,\)'),
      ({'queries': _QUERIES[:0]}, r'queries must have at least one row'),
      ({'documents': _DOCUMENTS[:0]}, r'documents must have at least one row'),
      (
          {'documents': _DOCUMENTS[:, :5]},
          r'same last dimension; got shapes \(21, 6\) and \(203, 5\)',
      ),
      (
          {'documents': np.float16(_DOCUMENTS)},
          'queries and documents must have the same dtype',
      ),
      ({'queries': np.ones((2, 6), int)}, 'queries must be a floating-point'),
      ({'margin': 0.1}, r'needs positives; got margin=0\.1 without. Pass'),
      ({'margin': np.nan, 'positives': _OWN}, 'margin must be finite, got nan'),
      ({'margin': 'a', 'positives': _OWN}, "margin must be a real number.*'a'"),
      ({'positives': _OWN[:3]}, r'shape \[21\] or \[21, p\].*got \(3,\)'),
      ({'positives': _OWN[None]}, r'shape \[21\] or.*got \(1, 21\)'),
      ({'positives': np.float32(_OWN)}, 'positives must be an integer array'),
      ({'positives': [[0], [1, 2]]}, 'positives must be an integer array'),
      (
          {'positives': _OWN + 100},
          r'0 to 202, or -1 for none; got 208 in row 12, and 9 such entries',
      ),
      ({'positives': _SEVERAL - 1}, 'got -2 in row 0'),
  )  # fmt: skip
  def test_errors_name_the_argument(self, options, message):
    arguments = {'queries': _QUERIES, 'documents': _DOCUMENTS, 'k': 2} | options
    with self.assertRaisesRegex(ValueError, message):
      hcl_jax.mine_hard_negatives(**arguments)


def _shape(*sizes):
  return jax.ShapeDtypeStruct(sizes, jnp.float32)


def _variables(jaxpr):
  """Yields what the equations of a jaxpr and of those within compute."""
  for eqn in jaxpr.eqns:
    yield from eqn.outvars
    for param in jax.tree.leaves(
        list(eqn.params.values()), is_leaf=lambda x: hasattr(x, 'jaxpr')
    ):
      inner = getattr(param, 'jaxpr', param)
      if hasattr(inner, 'eqns'):
        yield from _variables(inner)
