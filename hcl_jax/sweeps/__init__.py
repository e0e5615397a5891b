# SPDX-License-Identifier: Apache-2.0
"""Sweeps: many runs of one configuration, and what came of them."""
