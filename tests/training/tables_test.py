# SPDX-License-Identifier: Apache-2.0
"""Tables that are trained by rows: what is read is trained as if whole."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from hcl_jax import domains
from hcl_jax.models import text_encoder
from hcl_jax.training import state as state_lib
from tests.support import toy_pairs

_NEGATIVES = [[f'other {i}', f'more {i}'][: i % 3] for i in range(300)]
_STEPS = 4


def _experiment(*, devices=8, **fields):
  given = {'data.num_negatives': 2, 'model.buckets': 700, **fields}
  data = {**toy_pairs.columns(), 'negatives': _NEGATIVES}
  experiment = domains.make_experiment(toy_pairs.config(**given), data=data)
  if devices == 8:
    return experiment
  return dataclasses.replace(experiment, device=jax.local_devices()[0])


def _batches(experiment):
  return list(experiment.batches(0, _STEPS))


def _states(experiment, batches=None):
  """The state before and after each of some steps, and the norms."""
  programs = experiment.programs()
  state = programs.init(experiment.hyperparameters)
  states, norms = [jax.device_get(state)], []
  for batch in batches or _batches(experiment):
    state, metrics = programs.step(experiment.hyperparameters, state, batch)
    states.append(jax.device_get(state))
    norms.append(metrics['grad_norm'])
  return states, np.array(norms)


def _assert_near(found, expected):
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
      found,
      expected,
  )


def _tables(tree, path=()):
  """Arrays of a state that belong to tables, by path."""
  found = {}
  for path, x in jax.tree_util.tree_leaves_with_path(tree):
    names = [str(key) for key in path]
    if any(text_encoder.TABLE in name for name in names):
      found['/'.join(names)] = x
  return found


class TablesTest(parameterized.TestCase):

  @parameterized.parameters(
      {},
      {'devices': 1},
      {'train.microbatch_size': 2},
      {'model.shared': True, 'devices': 1},
      {'model.shared': True, 'train.microbatch_size': 4},
      {'model.encoder': 'words'},
      {'model.encoder': 'gru'},
      {'model.encoder': 'transformer', 'model.document_encoder': 'ngrams'},
      {'optimizer.clip_norm': 0.1, 'optimizer.ema_decay': 0.5},
  )
  def test_is_the_same_without_memory(self, **given):
    # Of SGD without momentum, which leaves alone what has no gradient.
    given |= {
        'optimizer.name': 'sgd',
        'optimizer.momentum': 0.0,
        'optimizer.learning_rate': 0.5,
        'optimizer.weight_decay': 0.0,
    }
    lazy = _experiment(**given)
    whole = _experiment(**given, **{'optimizer.lazy': False})
    self.assertNotEmpty(lazy.task.tables)
    self.assertEmpty(whole.task.tables)
    found, norms = _states(lazy)
    expected, whole_norms = _states(whole)
    _assert_near(found, expected)
    np.testing.assert_allclose(norms, whole_norms, rtol=1e-4)
    moved = _tables(found[-1].params)
    for path, before in _tables(found[0].params).items():
      self.assertFalse(np.array_equal(before, moved[path]), path)

  @parameterized.parameters(
      {'name': 'adam'},
      {'name': 'adam', 'weight_decay': 0.1},
      {'name': 'adamw', 'weight_decay': 0.1},
      {'name': 'sgd', 'momentum': 0.9},
  )
  def test_what_is_not_read_stays(self, **optimizer):
    given = {f'optimizer.{name}': x for name, x in optimizer.items()}
    lazy = _experiment(**given)
    whole = _experiment(**given, **{'optimizer.lazy': False})
    batches = _batches(lazy)
    found, _ = _states(lazy, batches)
    program = whole.programs().step
    devices = state_lib.all_devices()
    some_stay = False
    for step, batch in enumerate(batches):
      state = state_lib.replicate(found[step], devices)
      expected, _ = program(whole.hyperparameters, state, batch)
      expected, before = jax.device_get(expected), _tables(found[step])
      after, wanted = _tables(found[step + 1]), _tables(expected)
      self.assertGreaterEqual(len(before), 4)
      for path, old in before.items():
        side = 'query' if 'query' in path else 'document'
        tokens = batch[f'{side}_tokens']
        read = np.zeros(len(old), bool)
        read[tokens[tokens < len(old)]] = True
        self.assertTrue(read.any() and not read.all())
        np.testing.assert_array_equal(after[path][~read], old[~read], path)
        np.testing.assert_allclose(
            after[path][read], wanted[path][read], rtol=1e-4, atol=1e-6
        )
        some_stay |= not np.array_equal(wanted[path][~read], old[~read])
    self.assertTrue(some_stay)  # so that the whole step does something else

  def test_the_average_is_of_whole_tables(self):
    states, _ = _states(_experiment(**{'optimizer.ema_decay': 0.5}))
    for before, after in zip(states, states[1:], strict=False):
      expected = jax.tree.map(
          lambda a, b: (a + b) / 2, before.ema_params, after.params
      )
      _assert_near(after.ema_params, expected)

  def test_the_number_of_devices_changes_nothing(self):
    given = {'optimizer.name': 'sgd', 'optimizer.learning_rate': 0.5}
    one, _ = _states(_experiment(devices=1, **given))
    eight, _ = _states(_experiment(**given))
    _assert_near(eight, one)


if __name__ == '__main__':
  absltest.main()
