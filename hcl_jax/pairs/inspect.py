# SPDX-License-Identifier: Apache-2.0
"""Shows a run on pairs: embeddings, negatives, and what queries find."""

import numpy as np

from hcl_jax import evaluation
from hcl_jax.pairs import items as items_lib
from hcl_jax.training import experiment as experiment_lib
from hcl_jax.training import sample as sample_lib
from hcl_jax.training import state as state_lib

_RANKINGS = 12
_FOUND = 5


def sample(
    experiment: experiment_lib.Experiment, state: state_lib.TrainState
) -> sample_lib.Sample:
  """Takes validation pairs: their queries first, then their documents.

  Pairs of a group come together, as far as there is place.
  """
  config, data = experiment.config, experiment.data
  pairs, part = data.pairs, data.pairs.parts['validation']
  groups = pairs.groups[part.document]
  _, place, counts = np.unique(
      groups, return_inverse=True, return_counts=True
  )
  sizes = np.where(groups < 0, 1, counts[place])
  draw = np.random.default_rng(0).random(len(counts))[place]
  order = np.lexsort((np.arange(len(groups)), draw, -np.minimum(sizes, 2)))
  chosen = order[: min(config.data.batch_size, sample_lib.MAX_ITEMS // 2)]
  query, document = part.query[chosen], part.document[chosen]
  left = data.embed(state, 'query', query)
  right = data.embed(state, 'document', document)
  ids, groups = pairs.ids[document], pairs.groups[document]
  temperature = _temperature(experiment, state)
  logits = left @ right.T / temperature
  rows = np.arange(len(chosen))
  labels = np.unique(ids, return_inverse=True)[1]
  # A document without a group is alone in its own.
  groups = np.where(groups < 0, -2 - ids, groups)
  return sample_lib.Sample(
      embeddings=np.concatenate([left, right]),
      labels=np.concatenate([labels, labels]),
      items=_shown(pairs, query, document),
      item_names=None,
      negatives=sample_lib.Negatives(
          pos_logits=logits[rows, rows],
          neg_logits=logits,
          where=ids[:, None] != ids[None, :],
          anchors=rows,
          items=len(rows) + rows,
          tau_plus=config.loss.tau_plus,
          temperature=temperature,
      ),
      views=(left, right),
      groups=np.concatenate([groups, groups]),
      rankings=_rankings(experiment, state, chosen[:_RANKINGS]),
  )


def _temperature(experiment, state) -> float:
  params = state_lib.evaluated_params(state)
  return float(experiment.task.temperature(params, state.task_state))


def _shown(pairs, query, document):
  """Returns queries and documents as texts, or as images if both are."""
  items = (
      items_lib.take(pairs.queries, query),
      items_lib.take(pairs.documents, document),
  )
  shapes = {getattr(x, 'shape', None) for x in items}
  if len(shapes) == 1 and items_lib.kind(items[0]) == 'image':
    return np.concatenate(items)
  return [
      items_lib.name(x, row)
      for x, rows in zip(items, (query, document), strict=True)
      for x, row in zip(x, rows.tolist(), strict=True)
  ]


def _rankings(experiment, state, chosen) -> list[sample_lib.Ranking]:
  """Returns what queries of the validation part find among all documents."""
  data, pairs = experiment.data, experiment.data.pairs
  part = pairs.parts['validation']
  rows, own = part.query[chosen], part.document[chosen]
  queries = data.embed(state, 'query', rows)
  everything = np.arange(len(pairs.documents))
  documents = data.embed(state, 'document', everything)
  ranks = evaluation.retrieval_ranks(
      queries, documents, pairs.ids[own], pairs.ids
  )
  cosines, found = evaluation.nearest_neighbors(
      documents, queries, k=min(_FOUND, len(documents))
  )

  def mark(row, document):
    if pairs.ids[document] == pairs.ids[own[row]]:
      return 'right'
    group = pairs.groups[own[row]]
    return 'same group' * bool(0 <= group == pairs.groups[document])

  return [
      sample_lib.Ranking(
          query=items_lib.name(pairs.queries[rows[row]], int(rows[row])),
          rank=int(ranks.of_relevant[row, 0]),
          found=[
              sample_lib.Found(
                  items_lib.name(pairs.documents[document], int(document)),
                  float(cosine),
                  mark(row, document),
              )
              for cosine, document in zip(cosines[row], found[row], strict=True)
          ],
      )
      for row in range(len(rows))
  ]
