# SPDX-License-Identifier: Apache-2.0
"""What a run says at its start, and how sure its scores are."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized

from hcl_jax import domains
from hcl_jax.images import config as image_config
from hcl_jax.training import header
from tests.support.toy import config as toy_config


def _experiment(**fields):
  config = toy_config.get_config()
  config.update_from_flattened_dict(fields)
  return domains.make_experiment(config)


class HeaderTest(parameterized.TestCase):

  def test_three_lines_say_data_device_model_and_loss(self):
    experiment = dataclasses.replace(_experiment(), num_scored=100)
    data, model, loss = header.lines(experiment)
    self.assertEqual(data, experiment.summary)
    self.assertRegex(model, r'^\d+ devices? \(.+\); .+; [\d,]+ parameters$')
    self.assertStartsWith(loss, 'loss: ')

  @parameterized.parameters(('', 'small'), ('my:net', 'my:net'))
  def test_your_encoder_stands_for_the_model(self, encoder, shown):
    experiment = _experiment()
    config = experiment.config.copy_and_resolve_references()
    with config.unlocked():
      config.model.name, config.model.encoder = 'small', encoder
    experiment = dataclasses.replace(experiment, config=config)
    self.assertIn(f' of {shown}, ', header.lines(experiment)[1])

  def test_the_loss_has_beta_over_temperature(self):
    experiment = _experiment(**{'loss.beta': 1.0, 'loss.temperature': 0.2})
    self.assertRegex(
        header.loss(experiment.config),
        r'beta 1, .*temperature 0.2, beta/temperature 5$',
    )

  def test_the_loss_has_the_share_in_place_of_beta(self):
    config = image_config.simclr()
    config.loss.effective_negatives = 0.8
    self.assertEqual(
        header.loss(config),
        'effective_negatives 0.8, tau_plus 0.1, temperature 0.5',
    )

  @parameterized.parameters((None, 0), (100, 0), (99, 1))
  def test_few_rows_get_one_warning(self, rows, number):
    experiment = dataclasses.replace(_experiment(), num_scored=rows)
    lines = header.warnings(experiment)
    self.assertLen(lines, number)
    for line in lines:
      self.assertIn(f'only 99 {experiment.unit} are scored', line)
      self.assertIn('up to 5 %', line)


if __name__ == '__main__':
  absltest.main()
