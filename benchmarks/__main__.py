# SPDX-License-Identifier: Apache-2.0
"""Runs a bench: python -m benchmarks BENCH [--flags]."""

from benchmarks import augment
from benchmarks import checkpoint
from benchmarks import data_flags
from benchmarks import differences
from benchmarks import graph
from benchmarks import loss
from benchmarks import mining
from benchmarks import pairs
from benchmarks import scale
from benchmarks import soak
from benchmarks import sweep
from benchmarks import text
from benchmarks import train
from benchmarks.correctness import command as correctness
from hcl_jax.bench import cli
from hcl_jax.bench import loss as own_loss
from hcl_jax.bench import steps
from hcl_jax.bench import train as own_train

BENCHES = {
    'augment': cli.Bench(augment.command, (augment,)),
    'checkpoint': cli.Bench(checkpoint.command, (checkpoint, steps)),
    'correctness': cli.Bench(correctness.command, (correctness,)),
    'differences': cli.Bench(differences.command, (differences,)),
    'graph': cli.Bench(graph.command, (graph, data_flags)),
    'loss': cli.Bench(loss.command, (loss, own_loss)),
    'mining': cli.Bench(mining.command, (mining,)),
    'pairs': cli.Bench(pairs.command, (pairs, data_flags)),
    'scale': cli.Bench(scale.command, (scale,)),
    'soak': cli.Bench(soak.command, (soak, data_flags)),
    'sweep': cli.Bench(sweep.command, (sweep, data_flags)),
    'text': cli.Bench(text.command, (text, data_flags)),
    'train': cli.Bench(train.command, (train, own_train, steps)),
}

if __name__ == '__main__':
  cli.run('benchmarks', BENCHES)
