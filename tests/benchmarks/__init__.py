# SPDX-License-Identifier: Apache-2.0
"""Tests of the benchmarks that are not part of the package."""
