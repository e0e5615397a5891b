# SPDX-License-Identifier: Apache-2.0
"""Benchmarks for developers of hcl_jax, run from a checkout."""
