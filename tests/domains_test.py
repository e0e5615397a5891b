# SPDX-License-Identifier: Apache-2.0
"""Rooms by name, and runs that were begun before there were names."""

import json
import pathlib
import tempfile

from absl.testing import parameterized
import ml_collections

from hcl_jax import domains
from hcl_jax.graphs import config as graph_config
from hcl_jax.images import config as image_config
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sentences import config as sentence_config
from hcl_jax.sweeps import results
from hcl_jax.training import loop

_CONFIGS = {
    'images': image_config.moco,
    'graphs': graph_config.infograph,
    'sentences': sentence_config.quick_thoughts,
}


def _older(config):
  """The configuration as it was before there was a domain."""
  fields = config.to_dict()
  del fields['domain']
  return ml_collections.ConfigDict(fields)


class DomainsTest(parameterized.TestCase):

  @parameterized.parameters(*_CONFIGS)
  def test_an_older_configuration_has_the_room_of_its_task(self, domain):
    config = _CONFIGS[domain]()
    older = _older(config)
    self.assertEqual(domains.domain_of(older), domain)
    domains.check(older)
    self.assertEqual(domains.main_score(older), domains.main_score(config))
    domains.fill_defaults(older)
    self.assertEqual(older.to_dict(), config.to_dict())

  @parameterized.parameters(
      ('', "config.domain must be one of 'images'.*; got ''"),
      ('nowhere', "package that has a module 'config'; got 'nowhere'"),
      ('hcl_jax.nowhere', "module 'config'; got 'hcl_jax.nowhere'"),
      ('.', "module 'config'; got '.'"),
      ('hcl_jax.training', "'hcl_jax.training': its module config has no FI"),
      (('a',), r"config.domain must be a str, got \('a',\)"),
  )
  def test_no_such_room(self, domain, message):
    config = ml_collections.ConfigDict({'domain': domain, 'task': 'simclr'})
    for function in (domains.check, domains.fill_defaults, domains.main_score):
      with self.assertRaisesRegex(ValueError, message):
        function(config)

  @parameterized.parameters(*_CONFIGS)
  def test_an_older_run_is_continued(self, domain):
    root = self.enter_context(tempfile.TemporaryDirectory())
    config = _CONFIGS[domain]()
    workdir_lib.open_run(root, _older(config))
    loop.open_workdir(root, config)
    saved = json.loads((pathlib.Path(root) / 'config.json').read_text())
    self.assertEqual(saved['domain'], domain)
    config.seed = 1
    with self.assertRaisesRegex(workdir_lib.ConfigMismatch, 'seed was 0'):
      loop.open_workdir(root, config)

  def test_an_older_sweep_is_read(self):
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    config = _older(graph_config.infograph())
    config.sweep = {'seed': (0, 1)}
    workdir_lib.open_run(root, config)
    (root / 'members').mkdir()
    for seed, score in enumerate((0.5, 0.75)):
      (root / 'members' / f'000{seed}.json').write_text(json.dumps({
          'values': {'seed': seed},
          'scores': {'svm/accuracy': score, 'svm/deviation': 0.1},
      }))
    found = results.read([root])
    self.assertEqual(found.scores['svm/accuracy'].tolist(), [0.5, 0.75])
    self.assertEqual(
        found.kinds, {'svm/accuracy': 'share', 'svm/deviation': 'number'}
    )
    self.assertEqual(found.curve_score, 'svm/accuracy')
