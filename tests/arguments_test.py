# SPDX-License-Identifier: Apache-2.0
"""Bad arguments: a ValueError that names them, shows them and says why."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import losses
from tests.support import testing

_NAN, _INF = float('nan'), float('inf')
_Z = testing.normal(4, 3)
_IDS = np.array([0, 0, 1, 1])
_GRAPHS = testing.normal(2, 3)


def _simclr(z1=_Z, z2=_Z, **knobs):
  return losses.simclr_loss(z1, z2, **knobs)


def _in_batch(anchors=_Z, positives=_Z, **knobs):
  return losses.in_batch_loss(anchors, positives, **knobs)


def _moco(queries=_Z, keys=_Z, queue=_Z, **knobs):
  return losses.moco_loss(queries, keys, queue, **knobs)


def _nce(pos=_Z[:, 0], neg=_Z, **knobs):
  return losses.hard_nce_loss(pos, neg, **knobs)


def _infograph(nodes=_Z, graphs=_GRAPHS, ids=_IDS, **knobs):
  return losses.infograph_loss(nodes, graphs, ids, **knobs)


def _quick_thoughts(left=_Z, right=_Z, **knobs):
  return losses.quick_thoughts_loss(left, right, **knobs)


def _sigmoid(z1=_Z, z2=_Z, **knobs):
  return losses.sigmoid_loss(z1, z2, **knobs)


def _supcon(z1=_Z, z2=_Z, labels=_IDS, **knobs):
  return losses.supcon_loss(z1, z2, labels, **knobs)


_COSINE = _simclr, _in_batch, _moco
_WITH_BETA = *_COSINE, _nce, _infograph, _quick_thoughts


class KnobsTest(parameterized.TestCase):

  @parameterized.product(
      call=(*_COSINE, _supcon),
      bad=(
          (0.0, r'temperature must be > 0, got 0\.0'),
          (-1, 'temperature must be > 0, got -1'),
          (_NAN, 'temperature must be finite, got nan'),
          (_INF, 'temperature must be finite, got inf'),
          ('0.5', "temperature must be a real number, got '0.5'"),
          (np.float32(0), 'temperature must be > 0'),
          (2e-39, 'temperature must be at least 1.175e-38, got 2e-39'),
          (np.ones(2), r'temperature must be a scalar; got shape \(2,\)'),
          (10**400, 'temperature must be finite'),
          (None, 'temperature must be a real number, got None'),
          ([0.5], 'temperature must be a real number'),
          (np.array(True), 'temperature must be a real number'),
      ),
  )
  def test_temperature(self, call, bad):
    value, message = bad
    with self.assertRaisesRegex(ValueError, message):
      call(temperature=value)

  @parameterized.product(
      call=(*_WITH_BETA, _sigmoid, _supcon),
      bad=(
          (-0.5, r'beta must be >= 0, got -0\.5'),
          (_NAN, 'beta must be finite, got nan'),
          (_INF, 'beta must be finite, got inf'),
          (True, 'beta must be a real number, got True'),
          (jnp.ones(3), r'beta must be a scalar.*; got .*\(3,\)'),
      ),
  )
  def test_beta(self, call, bad):
    value, message = bad
    with self.assertRaisesRegex(ValueError, message):
      call(beta=value)

  @parameterized.product(call=_COSINE, temperature=(0.05, 0.5))
  def test_beta_is_twice_the_temperature_by_default(self, call, temperature):
    def slope(of):
      return jax.value_and_grad(lambda t: of(t).mean())(temperature)

    np.testing.assert_allclose(
        slope(lambda t: call(temperature=t)),
        slope(lambda t: call(temperature=t, beta=2 * t)),
        rtol=1e-5,
    )

  @parameterized.product(
      call=_WITH_BETA,
      bad=(
          (-0.1, r'tau_plus must be in \[0, 1\), got -0\.1'),
          (1.0, r'tau_plus must be in \[0, 1\), got 1\.0'),
          (_NAN, 'tau_plus must be finite, got nan'),
          (1j, 'tau_plus must be a real number'),
      ),
  )
  def test_tau_plus(self, call, bad):
    value, message = bad
    with self.assertRaisesRegex(ValueError, message):
      call(tau_plus=value)

  @parameterized.product(
      call=(*_COSINE, _sigmoid, _supcon), bad=(0, -3, 2.5, True, 'all')
  )
  def test_block_size(self, call, bad):
    with self.assertRaisesRegex(ValueError, f'block_size must be .*{bad}'):
      call(block_size=bad)

  @parameterized.product(
      call=(*_COSINE, _quick_thoughts), bad=('hard', None, np.array(['soft']))
  )
  def test_floor(self, call, bad):
    with self.assertRaisesRegex(
        ValueError, "floor must be one of 'sphere', 'soft', 'none'; got "
    ):
      call(floor=bad)

  @parameterized.parameters(0.0, 1.0, -1.0, _NAN)
  def test_soft_floor(self, value):
    with self.assertRaisesRegex(ValueError, 'soft_floor must be'):
      _nce(soft_floor=value)

  def test_floors_exclude_each_other(self):
    with self.assertRaisesRegex(ValueError, 'log_floor and soft_floor'):
      _nce(log_floor=-2.0, soft_floor=0.5)

  def test_variant_and_self_pair(self):
    with self.assertRaisesRegex(ValueError, "'paper', 'released', 'infograph'"):
      _infograph(variant='hard')
    with self.assertRaisesRegex(ValueError, "self_pair .*'zero', 'drop'"):
      _quick_thoughts(self_pair='keep')
    with self.assertRaisesRegex(ValueError, 'window must be >= 1, got 0'):
      _quick_thoughts(window=0)
    with self.assertRaisesRegex(ValueError, 'clip_scale must be > 0, got 0'):
      _quick_thoughts(clip_scale=0)
    with self.assertRaisesRegex(ValueError, 'clip_scale must be > 0'):
      losses.clipped_beta(1.0, _Z, clip_scale=-2.0)

  def test_traced_knobs_are_not_looked_at(self):
    jax.jit(lambda b: _simclr(beta=b, tau_plus=b, temperature=b))(-1.0)


class ArraysTest(parameterized.TestCase):

  @parameterized.parameters(
      _simclr, _in_batch, _moco, _quick_thoughts, _sigmoid, _supcon
  )
  def test_pairs(self, call):
    for first, second, message in (
        (_Z, _Z[:3], r'same shape.*\(4, 3\) and \(3, 3\)'),
        (_Z, _Z[:, :2], r'same shape.*\(4, 3\) and \(4, 2\)'),
        (_Z[0], _Z[0], r'rank 2.*got shape \(3,\)'),
        (_Z[None], _Z[None], r'rank 2.*got shape \(1, 4, 3\)'),
        (_Z[:0], _Z[:0], r'at least one row.*\(0, 3\)'),
        (_Z[:, :0], _Z[:, :0], r'at least one row and one column.*\(4, 0\)'),
        (_Z.astype(int), _Z.astype(int), 'floating-point.*got dtype int'),
        (_Z * 1j, _Z * 1j, 'floating-point.*got dtype complex'),
        ('words', 'words', 'floating-point array; got str'),
        (_Z, jnp.asarray(_Z, jnp.bfloat16), 'dtype.*float32 and bfloat16'),
    ):
      with self.subTest(message):
        with self.assertRaisesRegex(ValueError, f'(?s){message}'):
          call(first, second)

  @parameterized.parameters(_simclr, _in_batch)
  def test_one_pair_has_no_negatives(self, call):
    with self.assertRaisesRegex(ValueError, 'at least 2 pairs.*0 neg.*got 1'):
      call(_Z[:1], _Z[:1])

  @parameterized.product(
      call=(
          _simclr, _in_batch, _moco, _nce, _infograph, _quick_thoughts,
          _sigmoid, _supcon,
      ),
      value=(_NAN, _INF),
  )
  def test_embeddings_that_are_not_finite_give_no_finite_loss(
      self, call, value
  ):
    array = _Z.copy()
    # The loss of an infinite positive is 0, and rightly so.
    array[1, 1] = -value if call is _nce else value
    for arrays in ((array, _Z), (_Z, array)):
      if call is _nce:
        arrays = arrays[0][:, 1], abs(arrays[1])
      elif call is _infograph:
        arrays = arrays[0], arrays[1][:2]
      self.assertFalse(np.isfinite(call(*arrays)).all())

  def test_labels(self):
    for labels, message in (
        (['a'] * 4, 'labels must be an integer array; got list'),
        (_IDS[:3], r'labels must have shape \(4,\).*got \(3,\)'),
        (np.ones(4, np.float32), 'labels must be an integer array'),
    ):
      for call in (_simclr, _in_batch, _sigmoid, _supcon):
        with self.assertRaisesRegex(ValueError, message):
          call(labels=labels)
    for ids, message in (
        (_IDS[:3], r'ids must have shape \(4,\).*got \(3,\)'),
        (np.ones(4, np.float32), 'ids must be an integer array'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        _in_batch(ids=ids)
    with self.assertRaisesRegex(
        ValueError, 'ids and labels exclude each other.*positives of each other'
    ):
      _in_batch(ids=_IDS, labels=_IDS)

  def test_queue(self):
    for queue, message in (
        (_Z[:0], r'queue must have at least one row.*\(0, 3\)'),
        (_Z[:, :2], r'queries and queue.*\(4, 3\) and \(4, 2\)'),
        (jnp.asarray(_Z, jnp.bfloat16), 'queries and queue.*dtype'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        _moco(queue=queue)

  def test_masks(self):
    with self.assertRaisesRegex(ValueError, 'where must be a boolean array'):
      _moco(where=np.ones(4, np.float32))
    with self.assertRaisesRegex(ValueError, r'broadcast to shape \(4, 4\)'):
      _moco(where=np.ones(3, bool))
    with self.assertRaisesRegex(ValueError, r'broadcast to shape \(4, 3\)'):
      _nce(where=np.ones((2, 4, 3), bool))
    with self.assertRaisesRegex(ValueError, 'where must be a boolean array'):
      _quick_thoughts(where=_IDS)

  def test_segments(self):
    with self.assertRaisesRegex(ValueError, r'segments must have shape \(4,\)'):
      _quick_thoughts(segments=_IDS[:3])
    with self.assertRaisesRegex(ValueError, 'segments must be an integer'):
      _quick_thoughts(segments=_Z[:, 0])

  def test_explicit_negatives(self):
    for negatives, message in (
        (_Z[:, :2], r'\[n, 3\] or \[4, n, 3\].*got \(4, 2\)'),
        (_Z[:0], 'must not be empty'),
        (_Z[None], 'one row per anchor'),
        (_Z.astype(int), 'floating-point'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        _in_batch(negatives=negatives)

  def test_logits(self):
    for pos, neg, message in (
        (_Z[:3, 0], _Z, r'pos_logits must have shape.*\(3,\) and \(4, 3\)'),
        (_Z[:, :0], _Z, 'pos_logits must have shape'),
        (_Z[:, 0], _Z[:, :0], r'N >= 1 negatives; got \(4, 0\)'),
        (np.float32(1), np.float32(1), 'neg_logits must have shape'),
        (_IDS, _Z, 'pos_logits must be a floating-point array'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        _nce(pos, neg)

  def test_graphs(self):
    for kwargs, message in (
        ({'graphs': _GRAPHS[:1], 'ids': 0 * _IDS}, 'at least 2 graphs'),
        ({'graphs': _GRAPHS[:, :2]}, 'same last dimension'),
        ({'ids': _IDS[:3]}, r'graph_ids must have shape \(4,\)'),
        ({'ids': _IDS.astype(np.float32)}, 'graph_ids must be an integer'),
        ({'ids': _IDS + 1}, r'graph_ids must be in \[0, 2\).*got 2'),
        ({'ids': _IDS - 1}, 'graph_ids must be in.*got -1'),
        ({'ids': 0 * _IDS}, 'gives graph 1 no node'),
        ({'node_mask': np.ones(3, bool)}, 'node_mask must broadcast'),
        ({'graph_mask': np.ones(2, int)}, 'graph_mask must be a boolean'),
        ({'node_rows': np.ones(3, int)}, r'node_rows must have shape \(4,\)'),
        ({'node_rows': _IDS + 3}, r'node_rows must be in \[0, 4\).*got 4'),
        ({'node_counts': np.ones(4)}, 'node_counts must be an integer'),
    ):
      with self.subTest(message):
        with self.assertRaisesRegex(ValueError, message):
          _infograph(**kwargs)

  def test_sentences(self):
    with self.assertRaisesRegex(ValueError, '2 . window . 1 = 3.*got shape'):
      _quick_thoughts(_Z[:2], _Z[:2])
    with self.assertRaisesRegex(ValueError, '2 . window . 1 = 5'):
      _quick_thoughts(window=2)
    with self.assertWarnsRegex(UserWarning, "Use floor='soft'"):
      _quick_thoughts(floor='sphere')

  def test_numpy_float64_is_read_as_jax_reads_it(self):
    values = losses.simclr_loss(_Z.astype(np.float64), jnp.asarray(_Z))
    self.assertEqual(values.dtype, jnp.float32)
