# SPDX-License-Identifier: Apache-2.0
"""Evaluates two towers: queries of a part look among all documents."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import functools
import pathlib
import shlex
from typing import Any

import ml_collections
import numpy as np

from hcl_jax import evaluation
from hcl_jax.pairs import baselines as baselines_lib
from hcl_jax.pairs import config as pair_config
from hcl_jax.pairs import data as pair_data
from hcl_jax.pairs import items as items_lib
from hcl_jax.runs import scores as scores_lib
from hcl_jax.training import experiment as experiment_lib

_RANKS, _GROUP_RANKS = 'test/ranks', 'test/group_ranks'
_NO_LEARNING = 'untrained'
_OF_RESULTS = 'molecules'  # the data set of docs/results/retrieval.md


def make(
    config: ml_collections.ConfigDict,
    pairs: pair_data.Pairs,
    embed: Callable[..., np.ndarray],
) -> dict[str, experiment_lib.Evaluator]:
  """Makes the evaluators of a configuration, by protocol.

  ``embed`` is as in ``mining.make``. A protocol is a part, whose queries are
  looked for. Standard errors are those of the queries.
  """
  return {
      part: functools.partial(_evaluate, config, pairs, embed, part)
      for part in pair_config.PROTOCOLS
      if part in pairs.parts
  }


def num_scored(
    config: ml_collections.ConfigDict, pairs: pair_data.Pairs
) -> int | None:
  """Returns how many queries are looked for, if of one part only."""
  if len(config.evaluate.protocols) != 1:
    return None
  rows, _ = _queries(config, pairs, config.evaluate.protocols[0])
  return len(rows)


def baselines(
    experiment: experiment_lib.Experiment, parts: experiment_lib.Poll
) -> dict[str, scores_lib.Scores]:
  """Scores what has learned nothing: tf-idf, and untrained towers."""
  config, pairs = experiment.config, experiment.data.pairs
  scores: dict[str, scores_lib.Scores] = {}
  for part in experiment.protocols:
    queries, ids = _queries(config, pairs, part)
    found = baselines_lib.rank(pairs, queries, ids, parts)
    if found is not None:
      name, ranks = found
      scores.setdefault(name, {}).update(_scores(config, part, ranks))
  untrained = experiment.evaluate(experiment.create_state(), poll=parts)
  return {**scores, _NO_LEARNING: untrained}


def closing_lines(
    experiment: experiment_lib.Experiment,
    scores: Mapping[str, scores_lib.Scores],
    workdir: pathlib.Path,
    program: str,
) -> list[str]:
  """Says by how much the last variant exceeds the others, and what to do next.

  ``program`` is what one types for ``hcl_jax``.
  """
  variants = experiment.config.compare
  runs = {x: _ranks_of(scores[x]) for x in variants if _RANKS in scores[x]}
  if len(runs) < 2:
    return []
  *others, last = runs
  seeds = 'one seed'
  if experiment.config.data.name == _OF_RESULTS:
    seeds += '; ten, on five divisions, are in docs/results/retrieval.md'
  lines = [
      '',
      f'Paired differences over the {len(runs[last].in_group)} test queries ± '
      f'their standard errors, in points ({seeds}):',
  ]
  for name in others:
    found = _differences(runs[last], runs[name])
    lines.append(f'  {last} - {name}: {", ".join(found)}')
  folder = shlex.quote(str(workdir))
  lines += ['', f'Look inside: {program} analyze --workdir={folder}']
  query = _found_query(experiment, runs[last])
  if query is not None:
    run = shlex.quote(str(workdir / last))
    query = shlex.quote(query)
    lines.append(f'Search: {program} nearest --workdir={run} --query={query}')
  return lines


def _differences(first, second) -> list[str]:
  """Returns by how much the first ranks exceed the second, by measure."""
  found = []
  for measure in ('R@1', 'MRR', 'group R@1'):
    values = [
        evaluation.retrieval_values(x, [measure])[measure]
        for x in (first, second)
    ]
    if np.isfinite(values[0]).sum() > 1:
      mean, error, _ = evaluation.paired_difference(*values)
      found.append(f'{measure} {100 * mean:+.1f} ± {100 * error:.1f}')
  return found


def _found_query(experiment, ranks) -> str | None:
  """Returns a short test query that was found, if queries are texts."""
  pairs = experiment.data.pairs
  rows, _ = _queries(experiment.config, pairs, 'test')
  if items_lib.kind(pairs.queries) != 'text':
    return None
  texts = items_lib.take(pairs.queries, rows[ranks.of_relevant[:, 0] == 1])
  fits = [x for x in texts if 12 < len(x) < 40]
  return (fits or texts or [None])[0]


def _queries(config, pairs, part) -> tuple[np.ndarray, np.ndarray]:
  """Returns rows and ids of the queries of a part, each once."""
  rows, first = np.unique(pairs.parts[part].query, return_index=True)
  ids = pairs.ids[pairs.parts[part].document[first]]
  most = config.evaluate.max_queries
  if 0 < most < len(rows):
    chosen = np.random.default_rng(0).permutation(len(rows))[:most]
    rows, ids = rows[np.sort(chosen)], ids[np.sort(chosen)]
  return rows, ids


def _evaluate(
    config, pairs, embed, part, state, poll
) -> Iterator[tuple[str, Any]]:
  """Yields the scores of a part, the main one first, and the test's ranks."""
  queries, ids = _queries(config, pairs, part)
  ranks = evaluation.retrieval_ranks(
      embed(state, 'query', queries, poll),
      embed(state, 'document', np.arange(len(pairs.documents)), poll),
      ids,
      pairs.ids,
      document_groups=pairs.groups,
      progress=lambda done: poll(done, len(queries), 'queries'),
  )
  yield from _scores(config, part, ranks).items()


def _scores(config, part, ranks) -> scores_lib.Scores:
  """Returns scores by name, and for the test what differences are of."""
  measures = dict.fromkeys(('R@1', *config.evaluate.measures))
  values = evaluation.retrieval_values(ranks, list(measures))
  scores: scores_lib.Scores = {
      f'{part}/{name}': _mean(x)
      for name, x in values.items()
      if np.isfinite(x).any()
  }
  if part == 'test':
    scores[_RANKS] = ranks.of_relevant[:, 0].tolist()
    scores[_GROUP_RANKS] = ranks.in_group.tolist()
  return scores


def _mean(values: np.ndarray) -> scores_lib.Score:
  """Returns a mean over queries and its standard error."""
  values = values[np.isfinite(values)]
  spread = np.std(values, ddof=1) if len(values) > 1 else np.nan
  error = float(spread / np.sqrt(len(values)))
  return scores_lib.Score(
      float(np.mean(values)), 'share', error if np.isfinite(error) else None
  )


def _ranks_of(scores) -> evaluation.Ranks:
  first, in_group = (np.array(scores[x]) for x in (_RANKS, _GROUP_RANKS))
  return evaluation.Ranks(first[:, None], in_group)
