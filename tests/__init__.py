# SPDX-License-Identifier: Apache-2.0
"""Tests; eight simulated devices and strict promotion, set before any backend.

Strict ranks and dtypes catch the broadcast that turns ``[B] - [B, 1]`` into
``[B, B]``.
"""

import os

os.environ['XLA_FLAGS'] = (
    os.environ.get('XLA_FLAGS', '')
    + ' --xla_force_host_platform_device_count=8'
)

import jax  # noqa: E402

jax.config.update('jax_numpy_rank_promotion', 'raise')
jax.config.update('jax_numpy_dtype_promotion', 'strict')
