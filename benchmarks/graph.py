# SPDX-License-Identifier: Apache-2.0
"""Times an epoch of training on graphs, beside torch's.

  python -m benchmarks graph [--bench_dataset=MUTAG | --epoch_graphs=188]

Without a data set the graphs are random trees with a ring more, of the size of
MUTAG's, in which fewer nodes are alike than in molecules. torch builds its
masks node by node, as the released code does.
"""

from collections.abc import Callable
import importlib.util
import statistics
from typing import Any

from absl import flags
import jax
import joblib
import ml_collections
import numpy as np

from benchmarks import data_flags
from hcl_jax import command as command_lib
from hcl_jax.bench import harness
from hcl_jax.bench import options
from hcl_jax.bench import output
from hcl_jax.graphs import config as graph_config
from hcl_jax.graphs import data as graph_data
from hcl_jax.graphs import experiment as graph_experiment
from hcl_jax.runs import reporting
from hcl_jax.training import experiment as experiment_lib

_GRAPHS = flags.DEFINE_integer('epoch_graphs', 188, 'Number of random graphs.')
_GRAPH_BATCH = flags.DEFINE_integer('graph_batch', 128, 'Graphs per batch.')
_NODES = (10, 26)  # of a graph, MUTAG's 18 in the mean
_LABELS = 7
_NOTES = """\
An epoch is a step on each batch, data to updated weights. '/ torch' is the
median over repetitions of its time over torch's.\
"""


def random_graphs(num_graphs: int, seed: int = 0) -> graph_data.Graphs:
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
  return graph_data.Graphs(
      nodes=np.eye(_LABELS)[kinds],
      num_nodes=num_nodes,
      senders=senders,
      receivers=receivers,
      num_edges=np.array([len(pairs) for pairs in edges]),
      labels=np.arange(num_graphs) % 2,
  )


def read_graphs(dataset: str) -> graph_data.Graphs:
  """Those of a prepared data set."""
  try:
    return graph_data.load_graphs(
        dataset, data_dir=data_flags.DATA_DIR.value or None
    )
  except (ValueError, OSError) as error:
    raise command_lib.UsageError(error) from error


def make_experiment(
    graphs: graph_data.Graphs, batch_size: int
) -> experiment_lib.Experiment:
  """Makes the released configuration on some graphs."""
  config = graph_config.infograph()
  config.loss.variant = 'released'
  config.data.batch_size = batch_size
  config.evaluate.protocols = ()  # Some graphs are too few for its folds.
  return graph_experiment.from_graphs(config, graphs)


def make_epoch(
    experiment: experiment_lib.Experiment,
) -> Callable[[], Any]:
  """Makes a function that takes a step on each batch, as the loop does."""
  init, take = experiment.programs()
  state = init(experiment.hyperparameters)

  def epoch():
    nonlocal state
    for batch in experiment.batches(0, experiment.steps_per_epoch):
      state, metrics = take(experiment.hyperparameters, state, batch)
    return jax.block_until_ready(metrics)

  return epoch


def torch_epoch(
    config: ml_collections.ConfigDict, graphs: graph_data.Graphs
) -> Callable[[], Any]:
  """The same in torch, every node with a row of its own."""
  from benchmarks import torch_infograph

  epoch = graph_data.GraphBatches(
      graphs, seed=0, batch_size=config.data.batch_size
  )
  return torch_infograph.make_epoch(
      list(epoch),
      width=config.model.width,
      num_layers=config.model.num_layers,
      beta=config.loss.beta,
      threads=joblib.cpu_count(),
  )


def measure(
    experiment: experiment_lib.Experiment,
    graphs: graph_data.Graphs,
    with_torch: bool,
) -> list[dict[str, Any]]:
  """One row for each candidate."""
  runs = [harness.timed('hcl_jax', make_epoch(experiment))]
  if with_torch:
    epoch = torch_epoch(experiment.config, graphs)
    runs.append(harness.timed('torch', epoch))
  _, clock = harness.choose_clock()
  harness.time_all(runs, options.REPETITIONS.value, clock)
  torch_seconds = runs[-1].seconds if with_torch else []
  return [
      {
          'name': run.name,
          'ms': 1e3 * statistics.median(run.seconds),
          'to_torch': harness.paired_ratio(run.seconds, torch_seconds),
          'first_seconds': run.first_seconds,
          'repetition_ms': [1e3 * x for x in run.seconds],
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
      for r in results['candidates']
  ]
  return '\n'.join([
      f'An epoch of InfoGraph on {results["graphs"]} {results["kind"]} graphs '
      f'with {results["nodes"]} nodes in all, of which {results["rows"]} in '
      f'the batches of {results["batch"]} are different.',
      f'jax {results["jax"]}, backend {results["backend"]} '
      f'({results["device_kind"]}), {results["cores"]} host core(s); torch '
      'runs on the host.',
      f'Medians of {results["repetitions"]} repetitions, {results["clock"]}:',
      '',
      reporting.table(['epoch', 'ms', '/ torch', 'first call s'], lines),
      '',
      _NOTES,
  ])


def command() -> None:
  """Times an epoch of training on graphs, beside torch's."""
  if options.ONE_CORE.value:
    harness.pin_to_one_core()
  options.check()
  options.at_least(_GRAPHS, 2)
  options.at_least(_GRAPH_BATCH, 2)
  with_torch = importlib.util.find_spec('torch') is not None
  if not with_torch:
    output.say('not installed: torch')
  dataset = data_flags.DATASET.value
  graphs = read_graphs(dataset) if dataset else random_graphs(_GRAPHS.value)
  experiment = make_experiment(graphs, _GRAPH_BATCH.value)
  results = {
      'command': 'graph',
      **harness.environment(),
      'kind': dataset or 'random',
      'graphs': len(graphs),
      'nodes': len(graphs.nodes),
      'rows': int(
          sum(np.sum(x.node_counts > 0) for x in experiment.data.epoch)
      ),
      'batch': _GRAPH_BATCH.value,
      'repetitions': options.REPETITIONS.value,
      'candidates': measure(experiment, graphs, with_torch),
  }
  print(report(results))
  if options.JSON.value:
    reporting.write_json(options.JSON.value, results)
