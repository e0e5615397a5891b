# SPDX-License-Identifier: Apache-2.0
"""Keeps the directory and the process of a run; knows no model."""
