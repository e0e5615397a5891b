# SPDX-License-Identifier: Apache-2.0
"""Tests; see conftest.py for what all of them share."""
