# SPDX-License-Identifier: Apache-2.0
"""Trains retrieval encoders on pairs: queries and their documents."""
