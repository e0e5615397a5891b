# SPDX-License-Identifier: Apache-2.0
"""Colors of nodes against nested tuples, which tell all that is different."""

from absl.testing import parameterized
import numpy as np

from hcl_jax.graphs import refinement


def _histories(nodes, senders, receivers, rounds):
  """What a node knows of itself and its neighbors after some rounds."""
  known = [tuple(row) for row in nodes.tolist()]
  for _ in range(rounds):
    neighbors = [[] for _ in known]
    for u, v in zip(senders, receivers, strict=True):
      neighbors[v].append(known[u])
    known = [
        (own, tuple(sorted(others)))
        for own, others in zip(known, neighbors, strict=True)
    ]
  return known


class RefinementTest(parameterized.TestCase):

  @parameterized.product(seed=(0, 1, 2, 3), rounds=(0, 1, 3))
  def test_colors_are_equal_where_histories_are(self, seed, rounds):
    rng = np.random.default_rng(seed)
    # Few edges, so that there are lone nodes, many equal ones and all degrees.
    nodes = rng.choice([0.0, 1.0, -2.5], (60, 2), p=[0.8, 0.1, 0.1])
    edges = np.unique(rng.integers(0, 60, (45, 2)), axis=0)
    senders, receivers = np.concatenate([edges, edges[:, ::-1]]).T
    colors = refinement.colors_of_features(nodes)
    for _ in range(rounds):
      colors = refinement.refine(colors, senders, receivers)
    known = _histories(nodes, senders, receivers, rounds)
    numbers = {history: number for number, history in enumerate(known)}
    expected = np.array([numbers[history] for history in known])
    np.testing.assert_array_equal(
        colors[:, None] == colors[None, :],
        expected[:, None] == expected[None, :],
    )
    self.assertBetween(len(set(known)), 2, 59)
    self.assertEqual(colors.max(), len(set(known)) - 1)

  def test_nothing_to_tell_nodes_apart_by(self):
    colors = refinement.colors_of_features(np.zeros((3, 2)))
    np.testing.assert_array_equal(colors, 0)
    none = np.zeros(0, np.int64)
    np.testing.assert_array_equal(refinement.refine(colors, none, none), 0)
