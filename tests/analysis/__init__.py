# SPDX-License-Identifier: Apache-2.0
"""Tests of hcl_jax.analysis."""
