# SPDX-License-Identifier: Apache-2.0
"""Linear readout against updates written by hand and scikit-learn."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
from sklearn import datasets
from sklearn import linear_model

from hcl_jax import evaluation
from hcl_jax.evaluation import linear
from tests.support import testing


def _task(rows=23, dim=6, classes=3, seed=0):
  """Features that a linear classifier separates, and their classes."""
  labels = np.random.default_rng(seed).integers(0, classes, rows)
  centres = 8 * np.eye(classes, dim, dtype=np.float32)
  return centres[labels] + testing.normal(rows, dim, seed=seed), labels


def _gradient(weights, bias, features, labels, decay):
  """Mean cross entropy with L2, row by row: gradients and the sum of losses."""
  grad_weights, grad_bias = decay * weights, decay * bias
  total = 0.0
  for row, label in zip(features, labels, strict=True):
    logits = row @ weights + bias
    probabilities = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    total -= np.log(probabilities[label])
    error = (probabilities - np.eye(len(bias))[label]) / len(labels)
    grad_weights = grad_weights + np.outer(row, error)
    grad_bias = grad_bias + error
  return (grad_weights, grad_bias), total


def _train_by_hand(params, batches, rule, rates):
  """Adam (b1 .9, b2 .999, eps 1e-8) or SGD with momentum, in float64."""
  params = [np.float64(params[name]) for name in ('weights', 'bias')]
  first, second = ([np.zeros_like(p) for p in params] for _ in range(2))
  totals = []
  for count, ((features, labels), rate) in enumerate(
      zip(batches, rates, strict=True), 1
  ):
    grads, total = _gradient(
        *params, np.float64(features), labels, rule.weight_decay
    )
    totals.append(total)
    for i, grad in enumerate(grads):
      if rule.optimizer == 'sgd':
        first[i] = rule.momentum * first[i] + grad
        params[i] = params[i] - rate * first[i]
      else:
        first[i] = 0.9 * first[i] + 0.1 * grad
        second[i] = 0.999 * second[i] + 0.001 * grad**2
        ratio = (first[i] / (1 - 0.9**count)) / (
            np.sqrt(second[i] / (1 - 0.999**count)) + 1e-8
        )
        params[i] = params[i] - rate * ratio
  return params, totals


class LinearTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # optax mixes dtypes on purpose.
    self.enter_context(jax.numpy_dtype_promotion('standard'))

  @parameterized.parameters(('adam', 0.9), ('sgd', 0.7))
  def test_updates_by_hand_with_a_ragged_batch(self, optimizer, momentum):
    rule = linear._Rule(optimizer, momentum, weight_decay=0.1)
    features, labels = _task()
    order = [linear._order(5, epoch, 23, 8) for epoch in range(3)]
    rates = np.float32([0.05, 0.05, 0.005])
    state = linear._init(rule, 5, 6, 3)
    start = jax.device_get(state[0])
    losses = []
    for rows, rate in zip(order, rates, strict=True):
      state, total = linear._run_epoch(
          rule, state, jnp.asarray(features), jnp.asarray(labels, jnp.int32),
          order=rows, learning_rate=rate,
      )  # fmt: skip
      losses.append(total)
    batches = [
        (features[rows[rows >= 0]], labels[rows[rows >= 0]])
        for epoch in order
        for rows in epoch
    ]
    self.assertEqual([len(b[1]) for b in batches], [8, 8, 7] * 3)
    expected, totals = _train_by_hand(start, batches, rule, rates.repeat(3))
    np.testing.assert_allclose(state[0]['weights'], expected[0], atol=1e-5)
    np.testing.assert_allclose(state[0]['bias'], expected[1], atol=1e-5)
    np.testing.assert_allclose(
        losses, np.reshape(totals, (3, 3)).sum(axis=1), rtol=1e-4
    )

  def test_batches_give_what_cached_features_give(self):
    features, labels = _task()
    test = _task(seed=1)
    knobs = {'num_classes': 3, 'epochs': 4, 'learning_rate': 0.01}

    def epoch_batches(epoch):
      for rows in linear._order(2, epoch, 23, 8):
        rows = rows[rows >= 0]
        yield jnp.asarray(features[rows]), labels[rows]

    for standardize in (False, True):
      cached, streamed = [], []
      result = evaluation.linear_accuracy(
          features, labels, *test, batch_size=8, seeds=[2],
          standardize=standardize,
          progress=lambda *pair, log=cached: log.append(pair), **knobs,
      )  # fmt: skip
      other = evaluation.linear_accuracy_from_batches(
          epoch_batches, *test, seeds=[2],
          standardize_as=features if standardize else None,
          progress=lambda *pair, log=streamed: log.append(pair), **knobs,
      )  # fmt: skip
      np.testing.assert_allclose(cached, streamed, rtol=1e-5)
      self.assertEqual([epoch for epoch, _ in cached], [0, 1, 2, 3])
      self.assertEqual(result['top1'], other['top1'])
      self.assertAlmostEqual(
          cached[-1][1], result['per_seed'][0]['train_loss']
      )

  def test_separable_features_reach_everything(self):
    result = evaluation.linear_accuracy(
        *_task(200), *_task(100, seed=1), num_classes=3, epochs=30,
        learning_rate=0.01, batch_size=64, seeds=(0, 1),
    )  # fmt: skip
    self.assertEqual(result['top1'], 1.0)
    self.assertNotIn('top5', result)
    self.assertLess(result['per_seed'][1]['train_loss'], 0.5)

  def test_seeds_are_reproducible_and_differ(self):
    train = _task(50)
    noise = testing.normal(40, 6, seed=3), _task(40, seed=4)[1]

    def run(seeds):
      return evaluation.linear_accuracy(
          *train, *noise, num_classes=3, epochs=2, batch_size=16, seeds=seeds
      )

    both = run((3, 4))
    self.assertEqual(both, run((3, 4)))
    self.assertEqual(both['per_seed'][1], run([4])['per_seed'][0])
    losses = [seed['train_loss'] for seed in both['per_seed']]
    self.assertNotEqual(*losses)
    accuracies = [seed['top1'] for seed in both['per_seed']]
    self.assertAlmostEqual(both['top1'], np.mean(accuracies))

  def test_orders_cover_every_row_once(self):
    orders = [linear._order(s, e, 23, 8) for s, e in ((0, 0), (0, 1), (1, 0))]
    for order in orders:
      self.assertEqual(order.shape, (3, 8))
      self.assertEqual(sorted(order.ravel()), [-1, *range(23)])
    self.assertFalse(np.array_equal(orders[0], orders[1]))
    self.assertFalse(np.array_equal(orders[0], orders[2]))
    self.assertEqual(linear._order(0, 0, 23, 512).shape, (1, 23))

  def test_learning_rate_falls_at_the_decay_epochs(self):
    _, rates = linear._read_rule(
        epochs=5,
        learning_rate=30.0,
        weight_decay=0.0,
        optimizer='sgd',
        momentum=0.9,
        decay_epochs=(2, 4),
    )
    np.testing.assert_allclose(rates, [30, 30, 3, 3, 0.3], rtol=1e-6)

  def test_standardised_results_do_not_depend_on_scale(self):
    features, labels = _task(60)
    dead = np.full((60, 1), 0.1, np.float32)
    features = np.concatenate([features, dead], axis=1)
    losses = [
        evaluation.linear_accuracy(
            features * scale, labels, features * scale, labels,
            num_classes=3, epochs=3, batch_size=20,
        )['per_seed'][0]['train_loss']
        for scale in np.float32([1e-3, 1, 1e3])
    ]  # fmt: skip
    np.testing.assert_allclose(losses, losses[0], rtol=1e-4)

  def test_agrees_with_scikit_learn_on_digits(self):
    pixels, labels = datasets.load_digits(return_X_y=True)
    pixels = np.float32(pixels / 16)
    train, test = (pixels[:1200], labels[:1200]), (pixels[1200:], labels[1200:])
    result = evaluation.linear_accuracy(
        *train, *test, num_classes=10, learning_rate=1e-2, batch_size=256
    )
    mean, deviation = train[0].mean(0), np.maximum(train[0].std(0), 1e-2)
    peer = linear_model.LogisticRegression(max_iter=1000)
    peer.fit((train[0] - mean) / deviation, train[1])
    expected = peer.score((test[0] - mean) / deviation, test[1])
    self.assertGreater(expected, 0.9)
    self.assertAlmostEqual(result['top1'], expected, delta=0.01)
    self.assertGreater(result['top5'], 0.98)

  def test_nan_in_a_batch_is_an_error(self):
    features, labels = _task()
    nan = np.where(np.arange(6) == 2, np.nan, features)
    with self.assertRaisesRegex(ValueError, 'loss of epoch 0 is nan.*NaN in'):
      evaluation.linear_accuracy_from_batches(
          lambda epoch: [(nan, labels)], features, labels, num_classes=3
      )

  def test_bad_batches(self):
    features, labels = _task()
    for batches, message in (
        ([], r'epoch_batches\(0\) must yield one batch or more'),
        ([(features[:, :4], labels)], r'rows of 6 features.*\(23, 4\)'),
        ([(features[:0], labels[:0])], r'one or more rows.*\(0, 6\)'),
        ([(features, labels - 1)], 'labels of epoch_batches.*-1'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        evaluation.linear_accuracy_from_batches(
            lambda epoch, batches=batches: batches, features, labels,
            num_classes=3,
        )  # fmt: skip

  def test_bad_arguments(self):
    features, labels = _task()
    infinite = np.where(np.arange(6) == 2, np.inf, features)
    for position, value, message in (
        (0, infinite, 'train_features must be finite.*row 0'),
        (2, infinite, 'test_features must be finite'),
        (2, features[:, :2], 'test_features must have 6 features'),
        (1, labels - 1, 'train_labels must lie between.*-1 in row'),
        (3, labels + 1, 'test_labels must lie between.*3 in row'),
    ):
      arrays = [features, labels, features, labels]
      arrays[position] = value
      with self.assertRaisesRegex(ValueError, message):
        evaluation.linear_accuracy(*arrays, num_classes=3)
    for knobs, message in (
        ({'optimizer': 'lars'}, "optimizer must be one of 'adam', 'sgd'"),
        ({'epochs': 0}, 'epochs must be >= 1'),
        ({'batch_size': 0}, 'batch_size must be >= 1'),
        ({'learning_rate': 0.0}, 'learning_rate must be > 0'),
        ({'weight_decay': -1.0}, r'weight_decay must be in \[0, inf\)'),
        ({'momentum': 1.0}, r'momentum must be in \[0, 1\)'),
        ({'seeds': ()}, 'seeds must be one or more'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        evaluation.linear_accuracy(
            features, labels, features, labels, num_classes=3, **knobs
        )
