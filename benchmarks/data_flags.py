# SPDX-License-Identifier: Apache-2.0
"""Flags of benchmarks that read a prepared data set."""

from absl import flags

from hcl_jax import command as command_lib

# Without the prefix these are flags of hcl_jax.prepare.
DATASET = flags.DEFINE_string(
    'bench_dataset', '',
    'Prepared data set: images (digit_scenes/tiny), graphs (MUTAG) or a corpus '
    '(sentences/books).',
)  # fmt: skip
DATA_DIR = flags.DEFINE_string(
    'bench_data_dir', '', "Its folder; by default that of tfds's data sets."
)
command_lib.local('bench_data_dir')
