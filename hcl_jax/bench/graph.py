# SPDX-License-Identifier: Apache-2.0
"""Times an epoch of training on graphs, beside torch's.

  python -m hcl_jax.bench graph --epoch_graphs=188

The graphs are random trees with a ring more, of the size of MUTAG's. torch
builds its masks node by node, as the released code does.
"""

from collections.abc import Callable
import importlib.util
import statistics
from typing import Any

from absl import flags
import jax
import numpy as np

from hcl_jax import data
from hcl_jax import reporting
from hcl_jax.bench import contest
from hcl_jax.bench import options
from hcl_jax.bench import output
from hcl_jax.evaluation import cross_validation
from hcl_jax.training import config as config_lib
from hcl_jax.training import graph_experiment
from hcl_jax.training import step as step_lib

_GRAPHS = flags.DEFINE_integer('epoch_graphs', 188, 'Graphs of an epoch.')
_GRAPH_BATCH = flags.DEFINE_integer('graph_batch', 128, 'Graphs of a batch.')
_NODES = (10, 26)  # of a graph, MUTAG's 18 in the mean
_LABELS = 7
_NOTES = """\
An epoch is a step on each batch, data to updated weights. '/ torch' is the
median over rounds of its time over torch's.\
"""


def random_graphs(num_graphs: int, seed: int = 0) -> data.Graphs:
  """Trees with one edge more, about as large as MUTAG's molecules.

  Args:
    num_graphs: how many.
    seed: of the graphs.

  Returns:
    The graphs, of two classes.
  """
  rng = np.random.default_rng(seed)
  num_nodes = rng.integers(*_NODES, num_graphs, endpoint=True)
  edges = []
  for count in num_nodes:
    pairs = {(int(rng.integers(v)), v) for v in range(1, count)}
    pairs.add((0, int(count) - 1))
    both = pairs | {(v, u) for u, v in pairs}
    edges.append(sorted(both, key=lambda pair: (pair[1], pair[0])))
  senders, receivers = np.concatenate(edges).T
  kinds = rng.integers(0, _LABELS, num_nodes.sum())
  return data.Graphs(
      nodes=np.eye(_LABELS)[kinds],
      num_nodes=num_nodes,
      senders=senders,
      receivers=receivers,
      num_edges=np.array([len(pairs) for pairs in edges]),
      labels=np.arange(num_graphs) % 2,
  )


def make_experiment(
    num_graphs: int, batch_size: int
) -> graph_experiment.GraphExperiment:
  """The released configuration on random graphs."""
  config = config_lib.graph_config()
  config.loss.variant = 'released'
  config.data.batch_size = batch_size
  graphs = random_graphs(num_graphs).coloured(config.model.num_layers)
  epoch = data.GraphBatches(graphs, seed=0, batch_size=batch_size)
  return graph_experiment.assemble(config, graphs, epoch)


def make_epoch(
    experiment: graph_experiment.GraphExperiment,
) -> Callable[[], Any]:
  """A function that takes a step on each batch, as the loop does."""
  take = experiment.make_step()
  state = experiment.create_state()

  def epoch():
    nonlocal state
    for batch in experiment.batches(0, experiment.steps_per_epoch):
      state, metrics = take(state, step_lib.split_rows(batch, 1))
    return jax.block_until_ready(metrics)

  return epoch


def torch_epoch(experiment: graph_experiment.GraphExperiment):
  from hcl_jax.bench import torch_infograph

  config = experiment.config
  return torch_infograph.make_epoch(
      list(experiment.epoch),
      width=config.model.width,
      num_layers=config.model.num_layers,
      beta=config.loss.beta,
      threads=cross_validation.usable_cores(),
  )


def measure(
    experiment: graph_experiment.GraphExperiment, with_torch: bool
) -> list[dict[str, Any]]:
  """One row for each contestant."""
  runs = [contest.timed('hcl_jax', make_epoch(experiment))]
  if with_torch:
    runs.append(contest.timed('torch', torch_epoch(experiment)))
  _, clock = contest.choose_clock()
  contest.time_rounds(runs, options.ROUNDS.value, clock)
  torch_seconds = runs[-1].seconds if with_torch else []
  return [
      {
          'name': run.name,
          'ms': 1e3 * statistics.median(run.seconds),
          'to_torch': contest.paired_ratio(run.seconds, torch_seconds),
          'first_seconds': run.first_seconds,
          'round_ms': [1e3 * x for x in run.seconds],
      }
      for run in runs
  ]


def report(results: dict[str, Any]) -> str:
  """The whole text: what ran where, the table, how to read it."""
  lines = [
      [
          r['name'],
          reporting.number(r['ms'], 2),
          reporting.number(r['to_torch'], 3),
          reporting.number(r['first_seconds'], 1),
      ]
      for r in results['rows']
  ]
  return '\n'.join([
      f'An epoch of InfoGraph on {results["graphs"]} random graphs with '
      f'{results["nodes"]} nodes in all, batches of {results["batch"]}.',
      f'jax {results["jax"]}, backend {results["backend"]} '
      f'({results["device_kind"]}), {results["cores"]} host core(s); torch '
      'runs on the host.',
      f'Medians of {results["rounds"]} rounds, {results["clock"]}:',
      '',
      reporting.table(['epoch', 'ms', '/ torch', 'first call s'], lines),
      '',
      _NOTES,
  ])


def command() -> None:
  """Times an epoch on graphs."""
  if options.ONE_CORE.value:
    contest.pin_to_one_core()
  options.check()
  options.at_least(_GRAPHS, 2)
  options.at_least(_GRAPH_BATCH, 2)
  with_torch = importlib.util.find_spec('torch') is not None
  if not with_torch:
    output.say('not installed: torch')
  experiment = make_experiment(_GRAPHS.value, _GRAPH_BATCH.value)
  results = {
      'command': 'graph',
      **contest.environment(),
      'graphs': _GRAPHS.value,
      'nodes': len(experiment.graphs.nodes),
      'batch': _GRAPH_BATCH.value,
      'rounds': options.ROUNDS.value,
      'rows': measure(experiment, with_torch),
  }
  print(report(results))
  if options.JSON.value:
    reporting.write_json(options.JSON.value, results)
