# SPDX-License-Identifier: Apache-2.0
"""Arguments at random: a result, or one line that says what is wrong.

Of losses, any arrays and knobs; of configurations, any values that flags may
give their fields.
"""

import contextlib
import fractions
import os
from unittest import mock

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from hcl_jax import command
from hcl_jax import configurations
from hcl_jax import domains
from hcl_jax import losses
from hcl_jax.graphs import config as graph_config
from hcl_jax.graphs import data as graph_data
from hcl_jax.images import config as image_config
from hcl_jax.images import data as image_data
from hcl_jax.sentences import config as sentence_config
from hcl_jax.sentences import data as sentence_data
from hcl_jax.sweeps import grid
from hcl_jax.training import fields as fields_lib
from tests.support import corpus
from tests.support import testing
from tests.support import tu


def _sentence_config():
  config = sentence_config.quick_thoughts()
  config.data.batch_size = 24  # The toy has 72.
  return config


_CONFIGS = {
    'images': image_config.simclr,
    'graphs': graph_config.infograph,
    'sentences': _sentence_config,
}
_LISTED = {
    name: list(fields_lib.flatten(make())) for name, make in _CONFIGS.items()
}

# Values that are, or look like, something.
_WORDS = st.sampled_from([
    '', ' ', '0', '1', '2', '-1', '0.5', '1e400', '-1e400', 'nan', 'inf',
    'None', 'True', 'no', 'knn', 'moco', "'a'", '()', '(1,)', '(-1,)', '[1]',
    '{}', "('knn', 5)", "('x', ('y',))", '([],)', '({},)', '(nan,)', '1,2',
    '(0.5, None)', 'a=b', '[', '1_000', '٣', '9' * 30, '9' * 400, '0:3', '-',
    '\n', '=',
])  # fmt: skip
_VALUES = _WORDS | st.text(max_size=6)

# How many times as much to try as a test run has time for.
_PATIENCE = int(os.environ.get('FUZZ_PATIENCE', 1))


def _settings(examples):
  return hypothesis.settings(
      max_examples=_PATIENCE * examples,
      deadline=None,
      derandomize=True,
      database=None,
  )


def _images(*_, **__):
  rng = np.random.default_rng(0)
  pixels = rng.integers(256, size=(300, 4, 4, 3), dtype=np.uint8)
  return image_data.Images(pixels, np.arange(300) % 3)


@contextlib.contextmanager
def _toy_data():
  """Toys in the place of whatever data set a configuration names."""
  graphs, sentences = tu.random_graphs(40), corpus.sentences()
  with (
      mock.patch.object(image_data, 'load', _images),
      mock.patch.object(graph_data, 'load_graphs', lambda *_, **__: graphs),
      mock.patch.object(
          sentence_data, 'load_sentences', lambda *_, **__: sentences
      ),
      mock.patch.object(jax, 'device_count', lambda: 1),
  ):
    yield


def _parse(config, arguments):
  """Reads flags as a command does; None where it would refuse them."""
  try:
    configurations.set_fields(config, arguments)
  except ValueError as error:
    message = command.one_line(error)
    assert message and '\n' not in message, message
    return None
  return config


_Z = testing.normal(4, 3)
_IDS = np.array([0, 0, 1, 1])
# A sound call of each loss, by name of the argument, and all of its knobs.
_LOSSES = {
    'hard_nce_loss': (
        {'pos_logits': _Z[:, 0], 'neg_logits': _Z},
        ('beta', 'tau_plus', 'log_floor', 'soft_floor', 'where'),
    ),
    'debiased_nce_loss': (
        {'pos_logits': _Z[:, 0], 'neg_logits': _Z},
        ('tau_plus', 'log_floor', 'soft_floor', 'where'),
    ),
    'nce_loss': ({'pos_logits': _Z[:, 0], 'neg_logits': _Z}, ('where',)),
    'simclr_loss': (
        {'z1': _Z, 'z2': _Z + 1},
        ('temperature', 'beta', 'tau_plus', 'floor', 'labels', 'block_size'),
    ),
    'in_batch_loss': (
        {'anchors': _Z, 'positives': _Z + 1},
        ('negatives', 'temperature', 'beta', 'tau_plus', 'floor', 'labels',
         'ids', 'block_size'),
    ),
    'moco_loss': (
        {'queries': _Z, 'keys': _Z + 1, 'queue': _Z - 1},
        ('temperature', 'beta', 'tau_plus', 'floor', 'where', 'extra',
         'block_size'),
    ),
    'infograph_loss': (
        {'node_embeddings': _Z, 'graph_embeddings': _Z[:2], 'graph_ids': _IDS},
        ('beta', 'tau_plus', 'variant', 'node_mask', 'graph_mask', 'node_rows',
         'node_counts'),
    ),
    'quick_thoughts_loss': (
        {'left': _Z, 'right': _Z + 1},
        ('beta', 'tau_plus', 'window', 'self_pair', 'clip_scale', 'floor',
         'segments', 'where'),
    ),
    'sigmoid_loss': (
        {'z1': _Z, 'z2': _Z + 1},
        ('logit_scale', 'logit_bias', 'beta', 'labels', 'block_size'),
    ),
    'supcon_loss': (
        {'z1': _Z, 'z2': _Z + 1, 'labels': _IDS},
        ('temperature', 'beta', 'block_size'),
    ),
}  # fmt: skip

_NAN = float('nan')
_KNOBS = [
    0, 0.0, 1, 0.5, 0.99, 2, -1, -0.5, _NAN, float('inf'), -float('inf'), 1e38,
    10**400, 10**30, True, None, '', '0.5', 'soft', b'1', 1j, [], [0.5], (),
    {}, np.float32(0.3), np.float16(_NAN), np.int64(1), np.bool_(True),
    fractions.Fraction(1, 2), object(),
]  # fmt: skip
_ARRAYS = [
    _Z, -_Z, _Z[0], _Z[:, 0], _Z[:, :1], _Z[:1], _Z[:2], _Z[:3], _Z[:0],
    _Z[:, :0], _Z[None], _Z[:, None], np.full_like(_Z, _NAN), 0 * _Z, 1e30 * _Z,
    np.where(_Z == _Z[0, 0], np.float32('inf'), _Z), _Z.astype(np.float16),
    jnp.asarray(_Z, jnp.bfloat16), _Z.astype(int), _Z > 0, _Z[:, 0] > 0,
    _Z[:2, 0] > 0, _Z * 1j, _IDS, _IDS + 9, -_IDS, _IDS[:3], _IDS.astype('u1'),
    _IDS > 9, np.array(['a'] * 4), np.array([None] * 4), np.array({}),
    np.float32(1), np.ones(()), jnp.float32(_NAN), _Z.tolist(), [[1.0], []],
]  # fmt: skip


class LossesTest(parameterized.TestCase):

  @parameterized.parameters(*_LOSSES)
  def test_any_arguments(self, name):
    sound, knobs = _LOSSES[name]
    values = st.sampled_from(_KNOBS) | st.sampled_from(_ARRAYS)

    @_settings(60)
    @hypothesis.given(
        st.dictionaries(
            st.sampled_from([*sound, *knobs]), values, min_size=1, max_size=3
        )
    )
    def check(changed):
      self._check(name, sound | changed, changed)

    self._check(name, sound, {})
    check()

  def _check(self, name, arguments, changed):
    arrays = list(arguments.items())[: len(_LOSSES[name][0])]
    knobs = {k: x for k, x in arguments.items() if k not in dict(arrays)}
    loss = getattr(losses, name)
    try:
      with jax.numpy_dtype_promotion('standard'):
        value = np.asarray(loss(*dict(arrays).values(), **knobs))
    except (ValueError, TypeError) as error:
      # The message names an argument.
      self.assertRegex(str(error), '|'.join([*_LOSSES[name][0], *changed]))
      return
    rows = () if name == 'infograph_loss' else (4,)
    if not changed:
      self.assertEqual(value.shape, rows)
      self.assertTrue(np.isfinite(value).all())
    elif set(changed) <= dict(arrays).keys() and any(
        np.isnan(np.asarray(x, np.float32)).any() for _, x in arrays
    ):
      self.assertFalse(np.isfinite(value).all(), 'NaN is passed over')


class ConfigTest(parameterized.TestCase):

  @parameterized.parameters(*_CONFIGS)
  def test_values_of_fields(self, kind):
    accepted = []

    @_settings(100)
    @hypothesis.given(
        st.lists(
            st.tuples(st.sampled_from(_LISTED[kind]), _VALUES),
            min_size=1, max_size=2,
        )
    )  # fmt: skip
    def check(fields):
      config = _parse(
          _CONFIGS[kind](), [f'--config.{name}={x}' for name, x in fields]
      )
      if config is not None:
        with _toy_data():
          accepted.append(self._prepare(config))

    check()
    self.assertIn(True, accepted)

  def _prepare(self, config):
    try:
      domains.make_experiment(config)
      return True
    except (ValueError, FileNotFoundError) as error:
      self.assertNotEmpty(command.one_line(error))
      return False
    except Exception as error:
      raise AssertionError('another error') from error

  @parameterized.parameters(*_CONFIGS)
  def test_values_to_sweep(self, kind):
    config, accepted = _CONFIGS[kind](), []

    @_settings(100)
    @hypothesis.given(
        st.sampled_from([*_LISTED[kind], 'loss', 'loss.', '', 'sweep', 'x']),
        st.lists(_VALUES, max_size=3),
    )
    @hypothesis.example('loss.beta', ['0', '1'])
    def check(field, words):
      try:
        fields = grid.read_fields(
            config, [f'--sweep.{field}={",".join(words)}']
        )
        runs = grid.expand(config, fields)
      except ValueError as error:
        self.assertNotEmpty(command.one_line(error))
      else:
        self.assertLen(runs, len(fields[field]))
        accepted.append(field)

    check()
    self.assertNotEmpty(accepted)
