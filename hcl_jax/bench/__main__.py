# SPDX-License-Identifier: Apache-2.0
"""Times losses or train steps on this machine.

  python -m hcl_jax.bench BENCH [--flags]
"""

from hcl_jax.bench import cli
from hcl_jax.bench import loss
from hcl_jax.bench import steps
from hcl_jax.bench import train

BENCHES = {
    'loss': cli.Bench(loss.command, (loss,)),
    'train': cli.Bench(train.command, (train, steps)),
}

if __name__ == '__main__':
  cli.run('hcl_jax.bench', BENCHES)
